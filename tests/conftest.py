"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ours", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

# Beside the repository, never in it; another place by environment variable.
SHARED = Path(os.environ.get("MFSWB_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def beside(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"not here: {path}")
    return path


@pytest.fixture(scope="session")
def reference() -> Path:
    return beside("reference")


@pytest.fixture(scope="session")
def shapenet() -> Path:
    return beside("data", "shapenetcore55_50.npy")


@pytest.fixture(scope="session")
def mnist() -> Path:
    return beside("data", "mnist")
