"""Row-wise kernels of sliced transport, for NumPy arrays and for tensors of other devices.

On a CPU rows are NumPy arrays, which share the tensors' memory: NumPy sorts with vector instructions, starts an
operation in a tenth of PyTorch's time, and lets go of Python's lock, so that threads can share the directions. Whatever
differs between the two kinds of arrays stands here; the rest is written once for both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Rows = Any
"""A NumPy array on a CPU, a tensor on other devices."""

# Below this many elements handing directions to a second thread costs more than it saves.
_PARALLEL_ELEMENTS = 1 << 17
# One bit less than float64 has to spare beside a float32: the position must not round the value up.
_MAX_POSITION = (1 << 28) - 1
MAX_ELEMENTS = _MAX_POSITION + 1
"""How many numbers one call of :func:`argsort_rows` takes."""


def rows_of(values: Tensor) -> Rows:
    """The same memory as an array of the kind that suits the device."""
    return values.numpy() if values.device.type == "cpu" else values


def tensor_of(rows: Rows) -> Tensor:
    """The same memory as a tensor."""
    return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


def sort_rows(values: Rows, sizes: tuple[int, ...]) -> Rows:
    """Sort every segment of every row of ``(L, n)``, ascending. The argument's storage may be reused.

    Args:
        values: the rows.
        sizes: lengths of the segments of a row, one after the other.
    """
    if isinstance(values, np.ndarray):
        for segment in _segments(values, sizes):
            segment.sort(axis=-1)
        return values
    found = [torch.sort(segment, dim=-1).values for segment in _segments(values, sizes)]
    return _whole(found, values)


def argsort_rows(values: Rows, sizes: tuple[int, ...]) -> tuple[Rows, Rows]:
    """Sort every segment of every row of ``(L, n)``, ascending.

    Returns:
        The sorted values, and where they came from, for :func:`in_order` and :func:`back_in_place`.
    """
    if not isinstance(values, np.ndarray):
        return _argsort_tensor(values, sizes)
    if values.size > MAX_ELEMENTS:
        raise ValueError(f"at most {MAX_ELEMENTS} numbers can be sorted at a time, got {values.size}; use a chunk")
    positions = _positions(values.shape)
    if values.dtype == np.float32:
        # NumPy sorts float64 with vector instructions, but has no such road for an argsort of float32. A float32
        # leaves the low 29 bits of a float64 zero, so the position goes there: the order of distinct values is kept,
        # and rounding back to float32 gives the value again. (A non-finite value loses its position; its costs are
        # non-finite anyway.)
        keys = values.astype(np.float64)
        bits = keys.view(np.int64)
        bits |= positions
        for segment in _segments(keys, sizes):
            segment.sort(axis=-1)
        ranked = keys.astype(np.float32)
        bits &= _MAX_POSITION
        return ranked, bits
    order = np.empty(values.shape, dtype=np.int64)
    for segment, index, first in zip(
        _segments(values, sizes), _segments(order, sizes), _segments(positions, sizes), strict=True
    ):
        index[...] = segment.argsort(axis=-1)
        index += first[:, :1]
    return values.reshape(-1)[order], order


def _argsort_tensor(values: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    found = [torch.sort(segment, dim=-1) for segment in _segments(values, sizes)]
    starts = torch.arange(len(sizes), device=values.device) * sizes[0] if len(found) < len(sizes) else None
    if starts is not None:  # one sort for all segments, as they are of one size
        order = found[0].indices.view(len(values), len(sizes), -1) + starts[:, None]
        return found[0].values.view(values.shape), order.view(values.shape)
    firsts = [0, *accumulate(sizes)]
    orders = [one.indices + first if first else one.indices for one, first in zip(found, firsts, strict=False)]
    return _whole([one.values for one in found], values), _whole(orders, values)


def _segments(values: Rows, sizes: tuple[int, ...]) -> list[Rows]:
    """Views of the segments; of equal ones a single view, a segment a row."""
    if len(set(sizes)) == 1:
        return [values if len(sizes) == 1 else values.reshape(-1, sizes[0])]
    ends = [0, *accumulate(sizes)]
    return [values[:, first:last] for first, last in pairwise(ends)]


def _whole(segments: list[Tensor], like: Tensor) -> Tensor:
    return segments[0].view(like.shape) if len(segments) == 1 else torch.cat(segments, dim=1)


def in_order(values: Rows, order: Rows) -> Rows:
    """Values ``(L, n)``, or what broadcasts to them, in the order that :func:`argsort_rows` found."""
    if isinstance(order, np.ndarray):
        return np.broadcast_to(values, order.shape).reshape(-1)[order]
    return values.expand(order.shape).gather(-1, order)


def back_in_place(ranked: Rows, order: Rows, out: Rows) -> None:
    """Write what is in the order of :func:`argsort_rows` to where it came from: the inverse of :func:`in_order`."""
    if isinstance(order, np.ndarray):
        out.reshape(-1)[order] = ranked
    else:
        out.scatter_(-1, order, ranked)


def in_double(rows: Rows) -> Rows:
    """A copy in float64."""
    return rows.astype(np.float64) if isinstance(rows, np.ndarray) else rows.to(torch.float64, copy=True)


def in_type_of(example: Rows, rows: Rows) -> Rows:
    """The same numbers in the floating-point type of another array."""
    return rows.astype(example.dtype) if isinstance(rows, np.ndarray) else rows.to(example.dtype)


def joined(rows: Sequence[Rows]) -> Rows:
    """Rows one after the other, ``(L, n_1), (L, n_2), ... -> (L, n_1 + n_2 + ...)``."""
    return np.concatenate(rows, axis=1) if isinstance(rows[0], np.ndarray) else torch.cat(list(rows), dim=1)


def taken(rows: Rows, index: Rows) -> Rows:
    """The same places of every row: ``(L, n), (m,) -> (L, m)``."""
    if isinstance(rows, np.ndarray):
        return rows.take(index, axis=-1)
    return rows.gather(-1, index.expand(len(rows), -1))


def squared_norms(rows: Rows) -> Rows:
    """Sum of the squares of every row: ``(..., n) -> (...)``."""
    if isinstance(rows, np.ndarray):
        return np.einsum("...i,...i->...", rows, rows)
    return torch.linalg.vecdot(rows, rows)


def segment_dots(first: Rows, second: Rows, sizes: tuple[int, ...]) -> Rows:
    """Inner products of the segments of rows: ``(L, n), (L, n) -> (L, len(sizes))``."""
    if len(set(sizes)) == 1:
        shape = (len(first), len(sizes), sizes[0])
        first, second = first.reshape(shape), second.reshape(shape)
        if isinstance(first, np.ndarray):
            return np.einsum("lki,lki->lk", first, second)
        return torch.linalg.vecdot(first, second)
    if isinstance(first, np.ndarray):
        return np.add.reduceat(first * second, [0, *accumulate(sizes[:-1])], axis=-1)
    return torch.stack([part.sum(dim=-1) for part in torch.split(first * second, list(sizes), dim=-1)], -1)


def weighted_sum(rows: Rows, factors: Rows) -> Rows:
    """``sum_g factors[l, g] rows[l, g, i]``: ``(L, G, n), (L, G) -> (L, n)``."""
    if not isinstance(rows, np.ndarray):
        return torch.bmm(factors.unsqueeze(1), rows).squeeze(1)
    if rows.shape[1] > 2:
        counting = factors != 0
        if counting.sum(axis=1).max() <= 1:  # where only one marginal of a direction counts, the others are not read
            direction, winner = np.arange(len(rows)), counting.argmax(axis=1)
            mine = rows[direction, winner]
            mine *= factors[direction, winner, None]
            return mine
    return np.einsum("lg,lgi->li", factors, rows)


def shares(n_rows: int, elements: int) -> list[tuple[int, int]]:
    """First and last row of the part that each of PyTorch's threads gets; a few ``elements`` are not worth a second."""
    if elements < _PARALLEL_ELEMENTS:
        return [(0, n_rows)]
    threads = min(torch.get_num_threads(), n_rows)
    return list(pairwise(n_rows * t // threads for t in range(threads + 1)))


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results of all calls, each on a thread of its own; NumPy, where they should spend their time, frees the lock."""
    if len(calls) == 1:
        return [_quietly(calls[0])]
    # The process id is part of the key: the threads of a pool do not survive a fork.
    others = [_pool(os.getpid(), len(calls) - 1).submit(_quietly, call) for call in calls[1:]]
    return [_quietly(calls[0]), *(other.result() for other in others)]


def _quietly(call: Callable[[], T]) -> T:
    with np.errstate(all="ignore"):  # what is not finite goes on to the costs, as in PyTorch
        return call()


@lru_cache(maxsize=8)
def _positions(shape: tuple[int, ...]) -> np.ndarray:
    positions = np.arange(np.prod(shape)).reshape(shape)
    positions.flags.writeable = False
    return positions


@lru_cache(maxsize=1)
def _pool(pid: int, workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix=f"mfswb-rows-{pid}")
