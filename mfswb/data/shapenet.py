"""The 50 ShapeNet Core-55 clouds published with the paper's code."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from mfswb.data.arrays import read_array
from mfswb.data.download import fetch
from mfswb.errors import ConfigError, DataError
from mfswb.measures import Measures

_FILE = "reconstruct_random_50_shapenetcore55.npy"
_URLS = tuple(
    f"https://raw.githubusercontent.com/khainb/MFSWB/{branch}/PointCloudAveraging/{_FILE}"
    for branch in ("main", "master")
)
_SHA256 = "bf4f0b20da8cb6c450c23ac126c625facd1fc309853abcb2e098ad9f1a4139cf"
_SHAPE = (50, 2048, 3)


def load_shapenet50(indices: Sequence[int], path: str | None = None) -> Measures:
    """Some of the 50 clouds of 2048 points in the unit ball.

    Args:
        indices: which clouds; the paper's pairs are (6, 46) and (16, 18).
        path: the published array; fetched once and kept in the user's cache folder if None.

    Raises:
        ConfigError: an index out of range, or none.
        DataError: the file cannot be had, or is another one.
    """
    wrong = [k for k in indices if not 0 <= int(k) < _SHAPE[0]]
    if wrong or not indices:
        raise ConfigError(f"data.indices={list(indices)}: give numbers from 0 to {_SHAPE[0] - 1}")
    file = (
        Path(path)
        if path is not None
        else fetch(_URLS, f"sha256:{_SHA256}", _FILE, "give data.path=FILE, or use data=shapes")
    )
    clouds = read_array(file)
    if clouds.shape != _SHAPE:
        raise DataError(f"{file}: expected the published array of shape {_SHAPE}, got {clouds.shape}")
    if hashlib.sha256(file.read_bytes()).hexdigest() != _SHA256:
        raise DataError(f"{file}: is not the published array (sha256 differs); for arrays of your own use data=clouds")
    return Measures.of([clouds[int(k)] for k in indices], names=[f"ShapeNet {k}" for k in indices])
