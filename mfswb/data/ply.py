"""Writing point clouds as PLY."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mfswb.files import replacing


def write_ply(path: Path, points: NDArray[np.float64]) -> None:
    """Write points ``(n, d)``, ``d <= 3``, as a binary PLY in double precision; missing coordinates are 0."""
    n, d = points.shape
    padded = np.zeros((n, 3), dtype="<f8")
    padded[:, :d] = points
    properties = "".join(f"property double {axis}\n" for axis in "xyz")
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {n}\n{properties}end_header\n"
    with replacing(path) as temporary:
        temporary.write_bytes(header.encode("ascii") + padded.tobytes())
