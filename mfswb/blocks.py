"""Transport of one measure to several along a block of directions, with what the backward pass needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mfswb.rows import (
    Rows,
    argsort_rows,
    back_in_place,
    in_order,
    rows_of,
    shares,
    sort_rows,
    tensor_of,
    together,
    weighted_sum,
)
from mfswb.transports import Plan, Sorted, transport


class Block:
    """Every marginal's costs along a block of directions, with the slopes for the backward pass.

    Args:
        support: ``(n, d)``.
        points: those of all marginals, one after the other, ``(M, d)``.
        directions: of this block, ``(L, d)``.
        plan: what holds for all blocks.
        of_support: keep what the gradient of the support needs.
        of_points: keep what that of the marginals' points needs.
    """

    def __init__(
        self, support: Tensor, points: Tensor, directions: Tensor, plan: Plan, of_support: bool, of_points: bool
    ) -> None:
        self._directions, self._plan, self._n = directions, plan, len(support)
        mine = rows_of(torch.mm(directions, support.t()))  # (L, n)
        theirs = rows_of(torch.mm(directions, points.t()))  # (L, M)
        # Whole, for one matrix product in the backward pass; each part writes its own rows.
        self._slopes = rows_of(torch.empty_like(tensor_of(theirs))) if of_points else None

        def part(first: int, last: int) -> _Part:
            slopes = None if self._slopes is None else self._slopes[first:last]
            return _Part(mine[first:last], theirs[first:last], plan, of_support, slopes)

        elements = len(directions) * (len(support) + len(points))
        self._bounds = shares(len(directions), elements) if directions.device.type == "cpu" else [(0, len(directions))]
        self._parts = together([partial(part, *bound) for bound in self._bounds])

    def costs(self) -> Tensor:
        """W_p^p of every marginal, ``(K, L)``."""
        found = [tensor_of(part.costs) for part in self._parts]
        return (found[0] if len(found) == 1 else torch.cat(found)).t()

    def support_gradient(self, grad_costs: Tensor) -> Tensor:
        """Gradient of the support ``(n, d)`` from that of the costs ``(K, L)``."""
        grads = rows_of(grad_costs).T
        atoms = self._directions.new_empty(len(self._directions), self._n)
        pulls = rows_of(atoms)
        together(
            [
                partial(part.support_pulls, grads[slice(*bound)], pulls[slice(*bound)])
                for part, bound in zip(self._parts, self._bounds, strict=True)
            ]
        )
        return torch.mm(self._directions.t(), atoms).t()  # (d, L) @ (L, n)

    def points_gradient(self, grad_costs: Tensor) -> Tensor:
        """Gradient of the marginals' points ``(M, d)`` from that of the costs ``(K, L)``."""
        slopes, sizes = tensor_of(self._slopes), self._plan.sizes
        pulls = self._directions * grad_costs.unsqueeze(-1)  # (K, L, d)
        if len(set(sizes)) == 1:
            by_marginal = slopes.view(len(slopes), len(sizes), -1).permute(1, 2, 0)  # (K, m, L)
            return torch.matmul(by_marginal, pulls).flatten(0, 1)
        bounds = pairwise([0, *accumulate(sizes)])
        return torch.cat(
            [torch.mm(slopes[:, first:last].t(), pull) for (first, last), pull in zip(bounds, pulls, strict=True)]
        )


class _Part:
    """The directions one thread takes care of."""

    def __init__(self, mine: Rows, theirs: Rows, plan: Plan, of_support: bool, slopes: Rows | None) -> None:
        weighted = plan.support_weights is not None
        self._order = order = None
        if of_support or weighted:
            ranked, self._order = argsort_rows(mine, (mine.shape[-1],))
        else:
            ranked = sort_rows(mine, (mine.shape[-1],))
        if slopes is not None or weighted:
            atoms, order = argsort_rows(theirs, plan.sizes)
        else:
            atoms = sort_rows(theirs, plan.sizes)
        masses = None
        if plan.support_weights is not None and plan.point_weights is not None:
            masses = (
                in_order(rows_of(plan.support_weights), self._order),
                in_order(rows_of(plan.point_weights), order),
            )
        done = transport(Sorted(ranked, atoms, masses), plan, of_support, slopes is not None)
        self.costs, self._support_slopes, self._support_factor = done.costs, done.support_slopes, done.support_factor
        if slopes is not None:
            # In the order of the points already here: the backward pass is then a matrix product and nothing more.
            back_in_place(done.point_slopes, order, slopes)

    def support_pulls(self, grads: Rows, out: Rows) -> None:
        """Derivative by the projected support ``(L, n)`` of the costs weighted with ``grads (L, K)``."""
        back_in_place(weighted_sum(self._support_slopes, grads * self._support_factor), self._order, out)


def slope_bytes(
    n: int, sizes: Sequence[int], n_projections: int, itemsize: int, of_support: bool, of_points: bool
) -> int:
    """What the blocks of all directions keep for the backward pass."""
    a_direction = sum(sizes) if of_points else 0
    if of_support:
        a_direction += n * (2 + len(sizes))  # the order has eight bytes
    return n_projections * a_direction * itemsize


def working_bytes(n: int, sizes: Sequence[int], itemsize: int) -> int:
    """What a direction takes while its costs are computed, about."""
    equal = set(sizes) == {n}
    # keys, order and values of the support; of each marginal values, residual, order; the bins' sums and means
    return itemsize * (6 * n + 5 * sum(sizes)) + (0 if equal else 32 * n * len(sizes))
