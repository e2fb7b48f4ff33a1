"""The optimal coupling of two sorted one-dimensional samples, as index maps into their quantile functions."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


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
