"""Independent random streams of one seed."""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for one purpose of a run (its start, its samples of a mesh, ...).

    Streams of different purposes are independent of each other and of the directions, which
    ``torch.Generator().manual_seed(seed)`` draws: asking for one more number here never changes a number there.

    Example:
        >>> bool(stream(1, "start").random() == stream(1, "start").random())
        True
        >>> bool(stream(1, "start").random() == stream(1, "data").random())
        False
    """
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed])
