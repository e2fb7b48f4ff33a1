"""Row-wise sorts and argsorts: the one expensive operation of sliced transport, behind two functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

# Below this many elements handing rows to a second thread costs more than it saves: PyTorch's own threads, which spin
# for a while after each of its parallel operations, are in the way.
_PARALLEL_ELEMENTS = 1 << 17
# One bit less than float64 has to spare beside a float32: the position must not round the value up.
_MAX_POSITION = (1 << 28) - 1


def sort_rows(values: Tensor) -> Tensor:
    """Sort every row of a contiguous tensor ``(..., n)``, ascending. The argument's storage may be reused."""
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1).values
    _for_row_blocks(_sort_block, values.view(-1, values.shape[-1]).numpy())
    return values


def argsort_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort every row of a contiguous tensor ``(..., n)``, ascending.

    Returns:
        The sorted values and the int64 positions they came from, both ``(..., n)``.
    """
    if values.device.type != "cpu":
        return torch.sort(values, dim=-1)
    if values.dtype == torch.float32:
        return _argsort_float32(values)
    rows = values.view(-1, values.shape[-1]).numpy()
    index = np.empty(rows.shape, dtype=np.int64)
    _for_row_blocks(_argsort_block, rows, index)
    order = torch.from_numpy(index).view(values.shape)
    return values.gather(-1, order), order


def _argsort_float32(values: Tensor) -> tuple[Tensor, Tensor]:
    # NumPy sorts float64 with vector instructions, but has no such road for an argsort of float32. A float32 leaves the
    # low 29 bits of a float64 zero, so the position goes there: the order of distinct values is kept, and rounding
    # back to float32 gives the value again. (A non-finite value loses its position; its costs are non-finite anyway.)
    n = values.shape[-1]
    if n > _MAX_POSITION:
        raise ValueError(f"at most {_MAX_POSITION} points can be sorted in float32, got {n}; use float64")
    keys = values.double()
    bits = keys.view(torch.int64)
    bits |= torch.arange(n)
    _for_row_blocks(_sort_block, keys.view(-1, n).numpy())
    return keys.float(), bits.bitwise_and_(_MAX_POSITION)


def _sort_block(rows: np.ndarray) -> None:
    rows.sort(axis=-1)


def _argsort_block(rows: np.ndarray, index: np.ndarray) -> None:
    index[...] = np.argsort(rows, axis=-1)


def _for_row_blocks(work: Callable[..., None], *arrays: np.ndarray) -> None:
    """Call ``work`` on blocks of rows, on as many threads as PyTorch uses (NumPy's sorts release the GIL)."""
    rows, n = arrays[0].shape
    threads = min(torch.get_num_threads(), rows)
    if threads == 1 or rows * n < _PARALLEL_ELEMENTS:
        work(*arrays)
        return
    bounds = [rows * t // threads for t in range(threads + 1)]
    blocks = [tuple(a[lo:hi] for a in arrays) for lo, hi in pairwise(bounds)]
    # The process id is part of the key: the threads of a pool do not survive a fork.
    pool = _pool(os.getpid(), threads - 1)
    others = [pool.submit(work, *block) for block in blocks[1:]]
    work(*blocks[0])
    for other in others:
        other.result()


@lru_cache(maxsize=1)
def _pool(pid: int, workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix=f"mfswb-sort-{pid}")
