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


@pytest.fixture(scope="session")
def reference() -> Path:
    folder = SHARED / "reference"
    if not folder.is_dir():
        pytest.skip(f"no reference values at {folder}")
    return folder


@pytest.fixture(scope="session")
def shapenet() -> Path:
    file = SHARED / "data" / "shapenetcore55_50.npy"
    if not file.is_file():
        pytest.skip(f"no ShapeNet clouds at {file}")
    return file


@pytest.fixture(scope="session")
def mnist() -> Path:
    folder = SHARED / "data" / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no MNIST files at {folder}")
    return folder
