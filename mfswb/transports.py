"""One-dimensional transport between sorted rows: W_p^p and its derivatives, in the way that suits sizes and weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from mfswb.bins import Span, cut
from mfswb.quantiles import give_back, take, uniform_coupling, weighted_coupling
from mfswb.rows import Rows, rows_of, segment_dots, squared_norms, tensor_of


@dataclass(frozen=True, eq=False)
class Plan:
    """What holds along all directions.

    Attributes:
        p: order of the distances.
        sizes: numbers of points of the marginals.
        chunk: directions of a block.
        support_weights: masses of the support ``(n,)``; None if all are uniform.
        point_weights: masses of the marginals' points ``(M,)``, each marginal's summing to one; None likewise.
    """

    p: float
    sizes: tuple[int, ...]
    chunk: int
    support_weights: Tensor | None = None
    point_weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sorted:
    """The sorted projections of the support ``(L, n)`` and of all marginals' points ``(L, M)``, and their masses."""

    support: Rows
    points: Rows
    masses: tuple[Rows, Rows] | None


@dataclass(eq=False)
class Transport:
    """Costs and what their gradients need.

    Attributes:
        costs: W_p^p, ``(L, K)``.
        support_slopes: derivatives by the sorted support, ``(L, K, n)``, up to ``support_factor``; None if not wanted.
        support_factor: what they are still to be multiplied with.
        point_slopes: derivatives by the sorted points, ``(L, M)``; None if not wanted.
    """

    costs: Rows
    support_slopes: Rows = None
    support_factor: float = 1.0
    point_slopes: Rows = None


def transport(given: Sorted, plan: Plan, of_support: bool, of_points: bool) -> Transport:
    """Transport every marginal to the support; the sorted rows may be overwritten."""
    if plan.p != 2 or given.masses is not None:
        return _piece_by_piece(given, plan, of_support, of_points)
    if all(size == given.support.shape[-1] for size in plan.sizes):
        return _rank_by_rank(given, plan, of_support, of_points)
    return _bin_by_bin(given, plan, of_support, of_points)


def _rank_by_rank(given: Sorted, plan: Plan, of_support: bool, of_points: bool) -> Transport:
    n_projections, n = given.support.shape
    residual = given.points.reshape(n_projections, len(plan.sizes), n)
    residual -= given.support[:, None]
    return Transport(
        costs=squared_norms(residual) / n,
        support_slopes=residual if of_support else None,
        support_factor=-2.0 / n,
        point_slopes=given.points * (2.0 / n) if of_points else None,
    )


def _bin_by_bin(given: Sorted, plan: Plan, of_support: bool, of_points: bool) -> Transport:
    # An atom of mass 1/m is coupled with the bin of width 1/m of the other quantile function. Its cost is the squared
    # distance to the bin's mean plus the bin's variance, which does not depend on the atom; its slope is the distance.
    # So n + m numbers a direction do, where the merged grid of break points has n + m pieces a pair.
    ranked, points = given.support, given.points
    sizes, (n_projections, n) = plan.sizes, ranked.shape
    starts = [0, *accumulate(sizes[:-1])]
    found = Transport(costs=None)
    if of_support:
        bins = cut(points, tuple([Span(start, size, n) for start, size in zip(starts, sizes, strict=True)]))
        found.support_slopes = ranked[:, None] - bins.means.reshape(n_projections, len(sizes), n)
        found.support_factor = 2.0 / n
        found.costs = squared_norms(found.support_slopes) / n + bins.within
    if of_points or not of_support:
        bins = cut(ranked, tuple([Span(0, n, size) for size in sizes]))
        residual = points - bins.means
        masses = _masses(sizes, tensor_of(ranked).dtype, tensor_of(ranked).device)  # (M,)
        weighted = residual * masses
        found.costs = segment_dots(residual, weighted, sizes) + bins.within
        if of_points:
            weighted *= 2.0
            found.point_slopes = weighted
    return found


@lru_cache(maxsize=64)
def _masses(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Rows:
    """Of every point of all marginals, ``(M,)``."""
    return rows_of(torch.cat([torch.full((size,), 1.0 / size, dtype=dtype, device=device) for size in sizes]))


def _piece_by_piece(given: Sorted, plan: Plan, of_support: bool, of_points: bool) -> Transport:
    ranked, points = tensor_of(given.support), tensor_of(given.points)
    equal = len(set(plan.sizes)) == 1
    # Marginals of one size go together, others one by one: (L, G, m).
    groups = [points.view(len(points), len(plan.sizes), -1)] if equal else _one_by_one(points, plan.sizes)
    masses: list[tuple[Tensor, Tensor] | None] = [None] * len(groups)
    if given.masses is not None:
        mine, theirs = (tensor_of(rows) for rows in given.masses)
        split = [theirs.view(groups[0].shape)] if equal else _one_by_one(theirs, plan.sizes)
        masses = [(mine.unsqueeze(1).expand(*part.shape[:-1], -1), part) for part in split]
    found = [
        _pieces(ranked.unsqueeze(1), group, mass, plan.p, of_support, of_points)
        for group, mass in zip(groups, masses, strict=True)
    ]
    return Transport(
        costs=rows_of(torch.cat([costs for costs, _, _ in found], dim=1)),
        support_slopes=rows_of(torch.cat([slopes for _, slopes, _ in found if slopes is not None], dim=1))
        if of_support
        else None,
        point_slopes=rows_of(torch.cat([slopes.flatten(1) for _, _, slopes in found if slopes is not None], dim=1))
        if of_points
        else None,
    )


def _one_by_one(rows: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    return [part.unsqueeze(1) for part in torch.split(rows, list(sizes), dim=1)]


def _pieces(
    ranked: Tensor, atoms: Tensor, masses: tuple[Tensor, Tensor] | None, p: float, of_support: bool, of_points: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if masses is None:
        coupling = uniform_coupling(ranked.shape[-1], atoms.shape[-1], dtype=atoms.dtype, device=atoms.device)
    else:
        coupling = weighted_coupling(*masses)
    # (L, G, pieces): how far each piece of the support lies beyond the marginal's
    residual = take(ranked, coupling.first) - take(atoms, coupling.second)
    costs = (residual.abs().pow(p) * coupling.widths).sum(-1)
    if not (of_support or of_points):
        return costs, None, None
    slopes = residual.abs().pow_(p - 1).mul_(residual.sign()).mul_(p * coupling.widths)
    mine = give_back(slopes, coupling.first, ranked.shape[-1]) if of_support else None
    theirs = -give_back(slopes, coupling.second, atoms.shape[-1]) if of_points else None
    return costs, mine, theirs
