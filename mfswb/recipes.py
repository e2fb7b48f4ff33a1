"""The settings that converge in a second or two, for the library; ``configs/recipe/fast.yaml`` has the same."""

from __future__ import annotations

TAU, HOLD, AVERAGE = 1.0, 0.2, 8
STEPS, PATIENCE, TOLERANCE = 600, 150, 1e-3
N_PROJECTIONS = 6
