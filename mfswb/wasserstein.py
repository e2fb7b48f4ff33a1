"""One-dimensional W_p^p of all marginals along all directions at once: the cost matrix every loss reduces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mfswb.quantiles import (
    QuantileCoupling,
    bin_means,
    cumulative_quantiles,
    give_back,
    take,
    uniform_coupling,
    weighted_coupling,
)
from mfswb.sorting import argsort_rows, sort_rows

# What the backward pass may keep of all directions; beyond that their sorts are done again.
_MEMORY_BUDGET_BYTES = 1 << 30
# Working memory of a block of directions on a CPU: several passes go over it, which is quicker while caches hold it.
_CACHE_BUDGET_BYTES = 1 << 26
_FEWEST_DIRECTIONS = 16


def sliced_costs(
    support: Tensor,
    marginals: Sequence[Tensor] | Tensor,
    directions: Tensor,
    *,
    p: float = 2,
    support_weights: Tensor | None = None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""Cost matrix of one measure against several marginals along several directions.

    ``C[k, l] = W_p^p(theta_l # mu, theta_l # mu_k)``: the p-th power, never the root. Differentiable in the support
    and in the marginals' points, with the closed-form gradient (no graph over sorts); directions and weights are
    constants. Second derivatives are not available.

    Args:
        support: points of the measure ``mu``, ``(n, d)``.
        marginals: ``K`` tensors ``(n_k, d)`` of any sizes, or one stacked tensor ``(K, n, d)``.
        directions: unit vectors ``theta_l``, ``(L, d)``.
        p: order of the Wasserstein distance, at least 1.
        support_weights: masses of the support ``(n,)``, not negative; scaled to sum to one. Uniform if None.
        marginal_weights: for each marginal its masses ``(n_k,)``, or None for uniform; likewise scaled.
        chunk: directions processed at a time; by default what suits the device. What the backward pass needs is kept
            up to about 1 GiB; beyond that each block's sorts are done again there.

    Returns:
        ``(K, L)`` tensor of W_p^p, in units of the data to the power ``p``.

    Raises:
        ValueError: the shapes, types, devices, weights or ``p`` do not fit.

    Source: Nguyen, Nguyen and Ho, ICLR 2025 (one-dimensional W_p^p through quantile functions, along each direction).

    Example:
        >>> import torch
        >>> support = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> marginals = [torch.tensor([[3.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.5, 4.0]])]
        >>> sliced_costs(support, marginals, torch.eye(2))
        tensor([[ 4.0000,  0.0000],
                [ 0.2500, 16.0000]])
    """
    clouds = list(marginals)
    _check(support, clouds, directions, p, chunk)
    weights = _check_weights(support, clouds, support_weights, marginal_weights)

    # Marginals of one size form one stacked group, so the number of tensor operations does not grow with K.
    members: dict[int, list[int]] = {}
    for k, cloud in enumerate(clouds):
        members.setdefault(cloud.shape[0], []).append(k)
    if isinstance(marginals, Tensor):
        groups = [marginals]
    else:
        groups = [torch.stack([clouds[k] for k in ks]) for ks in members.values()]
    plan = _Plan(
        p=float(p),
        chunk=chunk or _default_chunk(support, groups),
        support_weights=None if weights is None else weights[0],
        group_weights=None
        if weights is None
        else [torch.stack([weights[1][k] for k in ks]) for ks in members.values()],
    )
    # PyTorch leaves Function.apply without types.
    costs: Tensor = _SlicedCosts.apply(support, directions, plan, *groups)  # type: ignore[no-untyped-call]
    if len(groups) == 1:
        return costs
    position = [k for ks in members.values() for k in ks]
    rows = [position.index(k) for k in range(len(clouds))]
    # Slices: an index would have to be copied to the device, which waits for it.
    return torch.cat([costs[row : row + 1] for row in rows])


@dataclass(frozen=True, eq=False)
class _Plan:
    p: float
    chunk: int
    support_weights: Tensor | None
    group_weights: list[Tensor] | None


class _Group:
    """Along a block of directions, the costs of one group of equal-sized marginals and what their gradients need.

    Attributes:
        costs: W_p^p, ``(G, L)``.
        support_slopes: derivative of every cost by the sorted support, ``(G, L, n)``, up to ``support_factor``.
        marginal_slopes: derivative of every cost by the marginal's projected points in their own order, ``(G, L, m)``,
            up to ``marginal_factor``.
    """

    support_slopes: Tensor | None = None
    marginal_slopes: Tensor | None = None

    def __init__(self, block: _Block, cloud: Tensor, g: int, plan: _Plan, *, of_support: bool, of_marginals: bool):
        projected = torch.matmul(block.directions, cloud.transpose(1, 2))  # (L, d) @ (G, d, m) -> (G, L, m)
        self.support_factor = self.marginal_factor = 1.0
        order: Tensor | None = None
        if of_marginals or plan.group_weights is not None:
            atoms, order = argsort_rows(projected)
        else:
            atoms = sort_rows(projected)
        if plan.p == 2 and plan.group_weights is None:
            self.support_factor, self.marginal_factor = 2.0 / block.ranked.shape[-1], 2.0 / atoms.shape[-1]
            if block.ranked.shape[-1] == atoms.shape[-1]:
                self._rank_by_rank(block.ranked, atoms, of_support, of_marginals)
            else:
                self._bin_by_bin(block, atoms, of_support, of_marginals)
        else:
            self._piece_by_piece(
                block, atoms, self._couple(block, order, atoms, plan, g), plan.p, of_support, of_marginals
            )
        if self.marginal_slopes is not None and order is not None:
            # In the order of the points already here: the backward pass is then a matrix product and nothing more.
            self.marginal_slopes = torch.empty_like(self.marginal_slopes).scatter_(-1, order, self.marginal_slopes)

    def _rank_by_rank(self, ranked: Tensor, atoms: Tensor, of_support: bool, of_marginals: bool) -> None:
        residual = torch.sub(ranked, atoms, out=atoms)
        self.costs = torch.linalg.vecdot(residual, residual) / residual.shape[-1]
        if of_support:
            self.support_slopes = residual
        if of_marginals:
            self.marginal_slopes = residual
            self.marginal_factor = -self.marginal_factor

    def _bin_by_bin(self, block: _Block, atoms: Tensor, of_support: bool, of_marginals: bool) -> None:
        # An atom of mass 1/m is coupled with the bin of width 1/m of the other quantile function. Its cost is the
        # squared distance to the bin's mean plus the bin's variance, which does not depend on the atom; its slope is
        # the distance. So n + m numbers a direction do, where the merged grid of break points has n + m pieces a pair.
        ranked, atoms = block.centred, atoms.sub_(block.centre)
        if of_marginals or not of_support:
            means = bin_means(block.cumulative, atoms.shape[-1])  # (L, m)
            residual = atoms - means.to(atoms.dtype)
            self.costs = _binned_costs(residual, means, block.second_moment)
            if of_marginals:
                self.marginal_slopes = residual
        if of_support:
            means = bin_means(cumulative_quantiles(atoms), ranked.shape[-1])  # (G, L, n)
            self.support_slopes = ranked - means.to(ranked.dtype)
            if not of_marginals:
                self.costs = _binned_costs(self.support_slopes, means, _second_moment(atoms))

    def _piece_by_piece(
        self, block: _Block, atoms: Tensor, coupling: QuantileCoupling, p: float, of_support: bool, of_marginals: bool
    ) -> None:
        # (G, L, pieces): how far each piece of the support lies beyond the marginal's
        residual = take(block.ranked, coupling.first) - take(atoms, coupling.second)
        self.costs = (residual.abs().pow(p) * coupling.widths).sum(-1)
        if not (of_support or of_marginals):
            return
        slopes = residual.abs().pow_(p - 1).mul_(residual.sign()).mul_(p * coupling.widths)
        if of_support:
            self.support_slopes = give_back(slopes, coupling.first, block.ranked.shape[-1])
        if of_marginals:
            self.marginal_slopes = give_back(slopes, coupling.second, atoms.shape[-1])
            self.marginal_factor = -1.0

    @staticmethod
    def _couple(block: _Block, order: Tensor | None, atoms: Tensor, plan: _Plan, g: int) -> QuantileCoupling:
        if plan.group_weights is None or plan.support_weights is None or order is None or block.order is None:
            return uniform_coupling(block.ranked.shape[-1], atoms.shape[-1], dtype=atoms.dtype, device=atoms.device)
        marginal = plan.group_weights[g].unsqueeze(1).expand(order.shape).gather(-1, order)  # (G, L, m)
        support = plan.support_weights.expand(block.order.shape).gather(-1, block.order)  # (L, n)
        return weighted_coupling(support.expand(marginal.shape[0], *support.shape), marginal)


class _Block:
    """One block of directions: the support sorted along each, and every group's costs and slopes."""

    def __init__(
        self,
        support: Tensor,
        groups: Sequence[Tensor],
        directions: Tensor,
        plan: _Plan,
        of_support: bool,
        of_marginals: Sequence[bool],
    ):
        self.directions = directions
        self.order: Tensor | None = None
        projected = torch.matmul(directions, support.t())  # (L, n)
        if of_support or plan.group_weights is not None:
            self.ranked, self.order = argsort_rows(projected)
        else:
            self.ranked = sort_rows(projected)
        self.groups = [
            _Group(self, cloud, g, plan, of_support=of_support, of_marginals=of_marginals[g])
            for g, cloud in enumerate(groups)
        ]

    @cached_property
    def centre(self) -> Tensor:
        """A point amid the support, along each direction: sums of squares around it keep their digits."""
        return self.ranked[..., self.ranked.shape[-1] // 2, None].clone()

    @cached_property
    def centred(self) -> Tensor:
        return self.ranked - self.centre

    @cached_property
    def cumulative(self) -> Tensor:
        return cumulative_quantiles(self.centred)

    @cached_property
    def second_moment(self) -> Tensor:
        return _second_moment(self.centred)

    def release(self) -> None:
        """Drop what the backward pass has no use for."""
        del self.ranked
        for name in ("centred", "cumulative"):
            self.__dict__.pop(name, None)

    def costs(self) -> Tensor:
        return torch.cat([group.costs for group in self.groups])

    def accumulate(self, grad_costs: Tensor, grad_support: Tensor | None, grad_groups: Sequence[Tensor | None]) -> None:
        """Add this block's share to the gradients of the support ``(n, d)`` and of the groups ``(G, m, d)``."""
        ranked: Tensor | None = None
        sizes = [len(group.costs) for group in self.groups]
        for group, grad, grad_group in zip(self.groups, torch.split(grad_costs, sizes), grad_groups, strict=True):
            if grad_group is not None and group.marginal_slopes is not None:
                pulls = self.directions * (group.marginal_factor * grad).unsqueeze(-1)  # (G, L, d)
                grad_group.add_(torch.matmul(group.marginal_slopes.transpose(1, 2), pulls))
            if group.support_slopes is not None:
                for slopes, factor in zip(
                    group.support_slopes, (group.support_factor * grad).unsqueeze(-1), strict=True
                ):
                    ranked = slopes * factor if ranked is None else ranked.addcmul_(slopes, factor)  # (L, n)
        if grad_support is not None and ranked is not None and self.order is not None:
            atoms = torch.empty_like(ranked).scatter_(-1, self.order, ranked)
            grad_support.add_(torch.matmul(self.directions.t(), atoms).t())  # (d, L) @ (L, n)


def _second_moment(ranked: Tensor) -> Tensor:
    values = ranked.double()
    moment: Tensor = torch.linalg.vecdot(values, values) / values.shape[-1]
    return moment


def _binned_costs(residual: Tensor, means: Tensor, second_moment: Tensor) -> Tensor:
    """W_2^2 from the distances to the bins' means and the variance within the bins; float64 before the difference."""
    within = (second_moment - torch.linalg.vecdot(means, means) / means.shape[-1]).clamp_min_(0)
    costs: Tensor = torch.linalg.vecdot(residual, residual) / residual.shape[-1] + within.to(residual.dtype)
    return costs


class _SlicedCosts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, support: Tensor, directions: Tensor, plan: _Plan, *groups: Tensor) -> Tensor:
        needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[3:])
        kept = any(ctx.needs_input_grad) and _slope_bytes(support, directions, groups, *needed) <= _MEMORY_BUDGET_BYTES
        costs: list[Tensor] = []
        ctx.blocks = [] if kept else None
        for part in torch.split(directions, plan.chunk):
            block = _Block(support, groups, part, plan, *(needed if kept else (False, [False] * len(groups))))
            costs.append(block.costs())
            if kept:
                block.release()
                ctx.blocks.append(block)
        ctx.plan = plan
        ctx.save_for_backward(support, directions, *groups)
        return torch.cat(costs, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_costs: Tensor) -> tuple[Tensor | None, ...]:
        support, directions, *groups = ctx.saved_tensors
        needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[3:])
        grad_support = torch.zeros_like(support) if needed[0] else None
        grad_groups = [torch.zeros_like(g) if need else None for g, need in zip(groups, needed[1], strict=True)]
        parts = torch.split(directions, ctx.plan.chunk)
        # One by one where they were too much to keep: each is done again, and gone before the next.
        blocks = ctx.blocks or (_Block(support, groups, part, ctx.plan, *needed) for part in parts)
        for block, grad in zip(blocks, torch.split(grad_costs, ctx.plan.chunk, dim=1), strict=True):
            block.accumulate(grad, grad_support, grad_groups)
        return grad_support, None, None, *grad_groups


def _slope_bytes(
    support: Tensor, directions: Tensor, groups: Sequence[Tensor], of_support: bool, of_marginals: Sequence[bool]
) -> int:
    """What the backward pass needs along all directions, if it is kept."""
    a_direction = sum(group.shape[0] * group.shape[1] for group, need in zip(groups, of_marginals, strict=True) if need)
    if of_support:
        a_direction += support.shape[0] * (2 + sum(group.shape[0] for group in groups))  # order: eight bytes
    return directions.shape[0] * a_direction * support.element_size()


def _default_chunk(support: Tensor, groups: Sequence[Tensor]) -> int:
    n = support.shape[0]
    # per direction: keys, order and values of the support; for each marginal values, order, residual and its pull
    elements = 4 * n + sum(g.shape[0] * (5 * g.shape[1] + 2 * (0 if g.shape[1] == n else n)) for g in groups)
    budget = _CACHE_BUDGET_BYTES if support.device.type == "cpu" else _MEMORY_BUDGET_BYTES
    return max(_FEWEST_DIRECTIONS, budget // (elements * 8))


def _check(support: Tensor, clouds: Sequence[Tensor], directions: Tensor, p: float, chunk: int | None) -> None:
    if not clouds:
        raise ValueError("marginals: at least one is needed, got none")
    named = [("support", support), ("directions", directions)]
    named += [(f"marginals[{k}]", cloud) for k, cloud in enumerate(clouds)]
    for name, points in named:
        if points.dim() != 2 or 0 in points.shape:
            raise ValueError(
                f"{name}: expected a non-empty (points, dimensions) tensor, got shape {tuple(points.shape)}"
            )
        if points.shape[1] != support.shape[1]:
            raise ValueError(f"{name}: has dimension {points.shape[1]}, but the support has {support.shape[1]}")
        if points.dtype != support.dtype or points.device != support.device:
            raise ValueError(
                f"{name}: is {points.dtype} on {points.device}, but the support is {support.dtype} on {support.device}"
            )
    if support.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"support: expected float32 or float64, got {support.dtype}")
    if directions.requires_grad:
        raise ValueError("directions: no gradient with respect to directions is defined; detach them")
    if not p >= 1:
        raise ValueError(f"p: the order must be at least 1, got {p}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: expected a positive number of directions, got {chunk}")


def _check_weights(
    support: Tensor,
    clouds: Sequence[Tensor],
    support_weights: Tensor | None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None,
) -> tuple[Tensor, list[Tensor]] | None:
    """Masses of the support and of every marginal, filled in where uniform; None where all are."""
    of_marginals = [None] * len(clouds) if marginal_weights is None else list(marginal_weights)
    if len(of_marginals) != len(clouds):
        raise ValueError(f"marginal_weights: expected {len(clouds)} entries, one a marginal, got {len(of_marginals)}")
    if support_weights is None and all(w is None for w in of_marginals):
        return None
    filled = []
    for name, points, given in zip(
        ["support_weights"] + [f"marginal_weights[{k}]" for k in range(len(clouds))],
        [support, *clouds],
        [support_weights, *of_marginals],
        strict=True,
    ):
        n = points.shape[0]
        if given is None:
            filled.append(points.new_full((n,), 1.0 / n))
            continue
        if given.shape != (n,):
            raise ValueError(f"{name}: expected shape ({n},), got {tuple(given.shape)}")
        if given.requires_grad:
            raise ValueError(f"{name}: no gradient with respect to weights is defined; detach them")
        if not bool(torch.isfinite(given).all()) or bool((given < 0).any()) or not bool(given.sum() > 0):
            raise ValueError(f"{name}: must be finite, not negative and not all zero")
        filled.append(given.to(points))
    return filled[0], filled[1:]
