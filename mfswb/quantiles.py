"""The optimal coupling of two sorted one-dimensional samples, as index maps into their quantile functions."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mfswb.rows import Rows, joined, rows_of, tensor_of


class QuantileCoupling(NamedTuple):
    """Pieces on which both quantile functions are constant.

    On piece ``s`` the first quantile function is its ``first[s]``-th smallest atom, the second its ``second[s]``-th
    smallest, and the piece carries the mass ``widths[s]``. The index maps have shape ``(n_pieces,)`` where they hold
    for every direction, and ``(n_marginals, n_projections, n_pieces)`` where weights make them differ. ``None``
    stands for the identity: two samples of one size without weights, coupled rank by rank.
    """

    first: Tensor | None
    second: Tensor | None
    widths: Tensor | float


def uniform_coupling(n_first: int, n_second: int, *, dtype: torch.dtype, device: torch.device) -> QuantileCoupling:
    """Coupling of ``n_first`` and ``n_second`` equally weighted atoms: the merged grid {i/n} with {j/m}.

    Example:
        >>> coupling = uniform_coupling(2, 3, dtype=torch.float64, device=torch.device("cpu"))
        >>> coupling.first.tolist(), coupling.second.tolist()
        ([0, 0, 1, 1], [0, 1, 1, 2])
        >>> [round(6 * w) for w in coupling.widths.tolist()]
        [2, 1, 1, 2]
    """
    if n_first == n_second:
        return QuantileCoupling(None, None, 1.0 / n_first)
    first, second, widths = _merged_grid(n_first, n_second)
    return QuantileCoupling(
        torch.from_numpy(first).to(device),
        torch.from_numpy(second).to(device),
        torch.from_numpy(widths).to(device=device, dtype=dtype),
    )


@lru_cache(maxsize=256)
def _merged_grid(n_first: int, n_second: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # In integers, in units of 1 / lcm(n, m), so that common break points coincide exactly.
    unit = lcm(n_first, n_second)
    step_first, step_second = unit // n_first, unit // n_second
    ends = np.union1d(np.arange(step_first, unit + 1, step_first), np.arange(step_second, unit + 1, step_second))
    return (ends - 1) // step_first, (ends - 1) // step_second, np.diff(ends, prepend=0) / unit


def weighted_coupling(weights_first: Tensor, weights_second: Tensor) -> QuantileCoupling:
    """Coupling of weighted atoms, one for every leading index.

    Args:
        weights_first: masses in sorted order of the atoms, ``(..., n)``; each row sums to one.
        weights_second: likewise ``(..., m)``, with the same leading shape.
    """
    cumulative_first, cumulative_second = _cumulative(weights_first), _cumulative(weights_second)
    ends = torch.cat([cumulative_first, cumulative_second], dim=-1).sort(dim=-1).values
    widths = ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))
    first = torch.searchsorted(cumulative_first, ends)
    second = torch.searchsorted(cumulative_second, ends)
    return QuantileCoupling(first, second, widths.to(weights_first.dtype))


def _cumulative(weights: Tensor) -> Tensor:
    # float64 whatever the data's type: in float32 the break points of 1e5 atoms drift by more than one atom's mass.
    total = weights.double().cumsum(dim=-1)
    total = total / total[..., -1:]
    return total.contiguous()


def take(values: Tensor, index: Tensor | None) -> Tensor:
    """Atoms ``(..., n)`` at the pieces of a coupling: ``(..., n_pieces)``."""
    if index is None:
        return values
    if index.dim() == 1:
        index = index.expand(*values.shape[:-1], len(index))  # gather is three times as fast as index_select on a CPU
    return values.expand(*index.shape[:-1], values.shape[-1]).gather(-1, index)


def give_back(pieces: Tensor, index: Tensor | None, n_atoms: int) -> Tensor:
    """Sum what the pieces ``(..., n_pieces)`` hold into their atoms ``(..., n_atoms)``: the transpose of ``take``."""
    if index is None:
        return pieces
    atoms = pieces.new_zeros(*pieces.shape[:-1], n_atoms)
    return atoms.scatter_add_(-1, index.expand(pieces.shape), pieces)


class Edges(NamedTuple):
    """Places among the break points of atoms: the atom at which each lies, and how much of that atom lies before it."""

    left: Rows
    fraction: Rows


@lru_cache(maxsize=256)
def equal_parts(n_atoms: int, n_bins: int, device: torch.device) -> Edges:
    """The ``n_bins + 1`` edges of equal parts of a quantile function of ``n_atoms`` atoms."""
    edges = torch.arange(n_bins + 1, device=device) * n_atoms  # made there: a copy would wait for the device
    left = (edges // n_bins).clamp_(max=n_atoms - 1)
    return Edges(left, (edges - left * n_bins).double() / n_bins)


def cumulative_sums(atoms: Rows) -> Rows:
    """Sums of the float64 atoms up to and with each: ``(L, n) -> (L, n)``; PyTorch's are three times as fast."""
    return rows_of(torch.cumsum(tensor_of(atoms), dim=-1))


def bin_sums(atoms: Rows, cumulative: Rows, pairs: tuple[tuple[int, int, int], ...]) -> Rows:
    """Integral of quantile functions over equal parts, in units of one atom's mass: ``(L, total number of parts)``.

    Args:
        atoms: float64, ``(L, n)``; within each quantile function ascending.
        cumulative: what :func:`cumulative_sums` made of them.
        pairs: for each quantile function where its atoms begin in a row, how many they are, and the number of parts.

    Example:
        >>> atoms = np.array([[0.0, 3.0, 9.0, 5.0]])
        >>> bin_sums(atoms, cumulative_sums(atoms), ((0, 3, 2), (3, 1, 2))).tolist()
        [[1.5, 10.5, 2.5, 2.5]]
    """
    edges = _edges(pairs, tensor_of(atoms).device)
    # What lies before an edge: all atoms up to the one it cuts, less the rest of that.
    if isinstance(atoms, np.ndarray):
        before = atoms.take(edges.left, axis=-1)
        before *= edges.rest
        before += cumulative.take(edges.left, axis=-1)
    else:
        before = take(cumulative, edges.left).addcmul_(take(atoms, edges.left), edges.rest)
    bins = {n_bins for _, _, n_bins in pairs}
    if len(bins) == 1:
        before = before.reshape(len(atoms), len(pairs), -1)
        return (before[..., 1:] - before[..., :-1]).reshape(len(atoms), -1)
    ends = [0, *accumulate(n_bins + 1 for _, _, n_bins in pairs)]
    return joined([before[:, first + 1 : last] - before[:, first : last - 1] for first, last in pairwise(ends)])


class _Edges(NamedTuple):
    """For every edge of a part the atom it cuts, and minus the share of that atom beyond it."""

    left: Rows
    rest: Rows


@lru_cache(maxsize=256)
def _edges(pairs: tuple[tuple[int, int, int], ...], device: torch.device) -> _Edges:
    lefts, rests = [], []
    for start, n_atoms, n_bins in pairs:
        edges = torch.arange(n_bins + 1, device=device) * n_atoms  # made there: a copy would wait for the device
        left = (edges // n_bins).clamp_(max=n_atoms - 1)
        lefts.append(left + start)
        rests.append((edges - left * n_bins).double() / n_bins - 1)
    return _Edges(rows_of(torch.cat(lefts)), rows_of(torch.cat(rests)))
