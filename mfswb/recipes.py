"""The settings that converge in a second or two, for the library; ``configs/recipe/fast.yaml`` has the same."""

from __future__ import annotations

TAU, HOLD, AVERAGE = 1.0, 0.2, 8
STEPS, PATIENCE, TOLERANCE = 600, 150, 1e-3
N_PROJECTIONS = 6


def tau(loss: object, dim: int) -> float:
    """Length of natural steps: shorter for ``es`` in high dimension, whose steps would overshoot.

    A step moves along a direction by ``tau d w`` of the way, ``w`` its weight: about ``1 / d`` where all count alike.

    Example:
        >>> tau("us", 64), tau("es", 3), tau("es", 12)
        (1.0, 1.0, 0.25)
    """
    return min(TAU, 3.0 / dim) if loss == "es" else TAU
