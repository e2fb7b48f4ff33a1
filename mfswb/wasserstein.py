"""One-dimensional W_p^p of all marginals along all directions at once: the cost matrix every loss reduces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mfswb.quantiles import QuantileCoupling, give_back, take, uniform_coupling, weighted_coupling
from mfswb.sorting import argsort_rows, sort_rows

# Working memory that all directions together may take before they are processed in blocks.
_MEMORY_BUDGET_BYTES = 1 << 30


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
        chunk: directions processed at a time. By default as many as fit into about 1 GiB of working memory. When there
            is more than one block, nothing of a block is kept: its sorts are done again in the backward pass.

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
    costs: Tensor = _SlicedCosts.apply(support, directions, plan, *groups)  # type: ignore[no-untyped-call]
    if len(groups) == 1:
        return costs
    position = [k for ks in members.values() for k in ks]
    rows = [position.index(k) for k in range(len(clouds))]
    return costs[rows]


@dataclass(frozen=True, eq=False)
class _Plan:
    p: float
    chunk: int
    support_weights: Tensor | None
    group_weights: list[Tensor] | None


class _Group:
    """Along a block of directions, one group of equal-sized marginals coupled with the support, rank by rank."""

    def __init__(
        self, ranked: Tensor, order: Tensor, cloud: Tensor, plan: _Plan, g: int, directions: Tensor, ordered: bool
    ):
        projected = torch.matmul(directions, cloud.transpose(1, 2))  # (L, d) @ (G, d, m) -> (G, L, m)
        self.size = cloud.shape[1]
        self.order: Tensor | None = None
        if ordered or plan.group_weights is not None:
            atoms, self.order = argsort_rows(projected)
        else:
            atoms = sort_rows(projected)
        self.coupling = self._couple(order, plan, g, ranked)
        if self.coupling.first is None and not ordered:
            self.residual = torch.sub(ranked, atoms, out=atoms)
        else:
            # (G, L, pieces): how far each piece of the support lies beyond the marginal's
            self.residual = take(ranked, self.coupling.first) - take(atoms, self.coupling.second)

    def _couple(self, order: Tensor, plan: _Plan, g: int, ranked: Tensor) -> QuantileCoupling:
        if plan.group_weights is None or plan.support_weights is None or self.order is None:
            return uniform_coupling(ranked.shape[-1], self.size, dtype=ranked.dtype, device=ranked.device)
        marginal = plan.group_weights[g].unsqueeze(1).expand(self.order.shape).gather(-1, self.order)  # (G, L, m)
        support = plan.support_weights.expand(order.shape).gather(-1, order)  # (L, n)
        return weighted_coupling(support.expand(marginal.shape[0], *support.shape), marginal)

    def costs(self, p: float) -> Tensor:
        widths = self.coupling.widths
        if p != 2:
            return (self.residual.abs().pow(p) * widths).sum(-1)
        squares: Tensor
        if isinstance(widths, float):
            squares = torch.linalg.vecdot(self.residual, self.residual) * widths
        else:
            squares = torch.linalg.vecdot(self.residual * widths, self.residual)
        return squares

    def pull(self, p: float, grad_costs: Tensor) -> Tensor:
        """Derivative by the residual, times the incoming ``(G, L)`` gradient: ``(G, L, pieces)``."""
        scale = grad_costs.unsqueeze(-1) * (p * self.coupling.widths)
        if p == 2:
            return self.residual * scale
        return self.residual.abs().pow_(p - 1).mul_(self.residual.sign()) * scale


class _Block:
    """Everything the backward pass needs along one block of directions."""

    def __init__(
        self, support: Tensor, groups: Sequence[Tensor], directions: Tensor, plan: _Plan, ordered: Sequence[bool]
    ):
        self.directions = directions
        ranked, self.order = argsort_rows(torch.matmul(directions, support.t()))  # (L, n)
        self.groups = [
            _Group(ranked, self.order, cloud, plan, g, directions, ordered[g]) for g, cloud in enumerate(groups)
        ]

    def costs(self, p: float) -> Tensor:
        return torch.cat([group.costs(p) for group in self.groups])

    def accumulate(
        self, p: float, grad_costs: Tensor, grad_support: Tensor | None, grad_groups: Sequence[Tensor | None]
    ) -> None:
        """Add this block's share to the gradients of the support ``(n, d)`` and of the groups ``(G, m, d)``."""
        n = self.order.shape[-1]
        shares: list[Tensor] = []
        sizes = [group.residual.shape[0] for group in self.groups]
        for group, grad, grad_group in zip(self.groups, torch.split(grad_costs, sizes), grad_groups, strict=True):
            pull = group.pull(p, grad)
            first, second = group.coupling.first, group.coupling.second
            if grad_group is not None and group.order is not None:
                atoms = torch.zeros_like(group.order, dtype=pull.dtype)
                atoms.scatter_(-1, group.order, give_back(pull, second, group.size))
                grad_group.sub_(torch.matmul(atoms.transpose(1, 2), self.directions))
            if grad_support is not None:
                shared = first is None or first.dim() == 1
                shares.append(give_back(pull.sum(0), first, n) if shared else give_back(pull, first, n).sum(0))
        if grad_support is not None:
            ranked = shares[0] if len(shares) == 1 else torch.stack(shares).sum(0)  # (L, n)
            atoms = torch.empty_like(ranked).scatter_(-1, self.order, ranked)
            grad_support.add_(torch.matmul(self.directions.t(), atoms).t())  # (d, L) @ (L, n)


class _SlicedCosts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, support: Tensor, directions: Tensor, plan: _Plan, *groups: Tensor) -> Tensor:
        ordered = ctx.needs_input_grad[3:]
        differentiable = any(ctx.needs_input_grad)
        blocks = torch.split(directions, plan.chunk)
        costs: list[Tensor] = []
        ctx.block = None
        for part in blocks:
            block = _Block(support, groups, part, plan, ordered)
            costs.append(block.costs(plan.p))
            if differentiable and len(blocks) == 1:
                ctx.block = block
        ctx.plan = plan
        ctx.save_for_backward(support, directions, *groups)
        return torch.cat(costs, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_costs: Tensor) -> tuple[Tensor | None, ...]:
        support, directions, *groups = ctx.saved_tensors
        needs_support, ordered = ctx.needs_input_grad[0], ctx.needs_input_grad[3:]
        grad_support = torch.zeros_like(support) if needs_support else None
        grad_groups = [torch.zeros_like(g) if need else None for g, need in zip(groups, ordered, strict=True)]
        for block, grad in zip(
            _blocks_again(ctx, support, directions, groups), torch.split(grad_costs, ctx.plan.chunk, dim=1), strict=True
        ):
            block.accumulate(ctx.plan.p, grad, grad_support, grad_groups)
        return grad_support, None, None, *grad_groups


def _blocks_again(ctx: Any, support: Tensor, directions: Tensor, groups: Sequence[Tensor]) -> Iterator[_Block]:
    if ctx.block is not None:
        yield ctx.block
        return
    for part in torch.split(directions, ctx.plan.chunk):
        yield _Block(support, groups, part, ctx.plan, ctx.needs_input_grad[3:])


def _default_chunk(support: Tensor, groups: Sequence[Tensor]) -> int:
    n = support.shape[0]
    # per direction: keys, order and values of the support; for each marginal values, order, residual and its pull
    elements = 4 * n + sum(g.shape[0] * (5 * g.shape[1] + 2 * (0 if g.shape[1] == n else n)) for g in groups)
    return max(1, _MEMORY_BUDGET_BYTES // (elements * 8))


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
