"""One-dimensional W_p^p of all marginals along all directions at once: the cost matrix every loss reduces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mfswb.blocks import Block, slope_bytes, working_bytes
from mfswb.rows import MAX_ELEMENTS
from mfswb.transports import Plan

# What the backward pass may keep of all directions; beyond that their sorts are done again.
_MEMORY_BUDGET_BYTES = 1 << 30
# Working memory of a block of directions on a CPU: several passes go over it, which is quicker while caches hold it.
_CACHE_BUDGET_BYTES = 1 << 26
_FEWEST_DIRECTIONS = 2


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
    points, plan = _prepare(support, marginals, directions, p, support_weights, marginal_weights, chunk)
    # PyTorch leaves Function.apply without types.
    costs: Tensor = _SlicedCosts.apply(support, directions, plan, points)  # type: ignore[no-untyped-call]
    return costs


def sliced_gradient(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    support: Tensor,
    marginals: Sequence[Tensor] | Tensor,
    directions: Tensor,
    *,
    p: float = 2,
    support_weights: Tensor | None = None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Value of an objective of the cost matrix and its gradient by the support, without a graph.

    ``f(C)`` and ``sum_kl df/dC[k, l] dC[k, l]/dx_i``: what autograd makes of :func:`sliced_costs`, and quicker.

    Args:
        loss: takes the cost matrix ``(K, L)`` of W_p^p; gives its value and the derivative by every cost ``(K, L)``,
            as :func:`mfswb.loss_gradients.value_and_gradient` does.
        support: points of the measure ``mu``, ``(n, d)``.
        marginals: as in :func:`sliced_costs`, like the other arguments.
        directions: unit vectors, ``(L, d)``.
        p: order of the Wasserstein distance, at least 1.
        support_weights: masses of the support ``(n,)``.
        marginal_weights: masses of each marginal.
        chunk: directions processed at a time.

    Returns:
        The value, and the gradient ``(n, d)``.

    Raises:
        ValueError: the shapes, types, devices, weights or ``p`` do not fit.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from mfswb.loss_gradients import value_and_gradient
        >>> from mfswb.losses import uswb
        >>> support, marginals = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), [torch.tensor([[3.0, 0.0], [2.0, 0.0]])]
        >>> sliced_gradient(partial(value_and_gradient, uswb), support, marginals, torch.eye(2))
        (tensor(2.), tensor([[-1.,  0.],
                [-1.,  0.]]))
    """
    with torch.no_grad():
        points, plan = _prepare(support, marginals, directions, p, support_weights, marginal_weights, chunk)
        costs, blocks = _forward(support, points, directions, plan, True, False)
        value, grad_costs = loss(costs)
        gradient, _ = _backward(support, points, directions, plan, blocks, grad_costs, True, False)
    assert gradient is not None
    return value, gradient


def _prepare(
    support: Tensor,
    marginals: Sequence[Tensor] | Tensor,
    directions: Tensor,
    p: float,
    support_weights: Tensor | None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None,
    chunk: int | None,
) -> tuple[Tensor, Plan]:
    """The points of all marginals in one tensor ``(M, d)``, and the plan."""
    weights = _check(support, marginals, directions, p, chunk, support_weights, marginal_weights)
    if isinstance(marginals, Tensor):
        sizes = (marginals.shape[1],) * marginals.shape[0]
        points = marginals.reshape(-1, marginals.shape[2])
    else:
        sizes = tuple([len(cloud) for cloud in marginals])
        points = marginals[0] if len(sizes) == 1 else torch.cat(list(marginals))
    plan = Plan(
        p=float(p),
        sizes=sizes,
        chunk=_chunk(chunk, len(support), sizes, support.element_size(), support.device.type),
        support_weights=None if weights is None else weights[0],
        point_weights=None if weights is None else torch.cat(weights[1]),
    )
    return points, plan


def _forward(
    support: Tensor, points: Tensor, directions: Tensor, plan: Plan, of_support: bool, of_points: bool
) -> tuple[Tensor, list[Block]]:
    """Costs, and the blocks that the backward pass needs; none if they would be too large to keep."""
    kept = (of_support or of_points) and (
        slope_bytes(len(support), plan.sizes, len(directions), support.element_size(), of_support, of_points)
        <= _MEMORY_BUDGET_BYTES
    )
    costs: list[Tensor] = []
    blocks: list[Block] = []
    for part in _parts(directions, plan.chunk):
        block = Block(support, points, part, plan, kept and of_support, kept and of_points)
        costs.append(block.costs())
        if kept:
            blocks.append(block)
    return costs[0] if len(costs) == 1 else torch.cat(costs, dim=1), blocks


def _backward(
    support: Tensor,
    points: Tensor,
    directions: Tensor,
    plan: Plan,
    kept: Sequence[Block],
    grad_costs: Tensor,
    of_support: bool,
    of_points: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the support and of the points from that of the costs ``(K, L)``."""
    parts = _parts(directions, plan.chunk)
    # One by one where they were too much to keep: each is done again, and gone before the next.
    blocks = kept or (Block(support, points, part, plan, of_support, of_points) for part in parts)
    grad_support: Tensor | None = None
    grad_points: Tensor | None = None
    first = 0
    for block, part in zip(blocks, parts, strict=True):
        grad = grad_costs if len(parts) == 1 else grad_costs[:, first : first + len(part)]
        first += len(part)
        if of_support:
            mine = block.support_gradient(grad)
            grad_support = mine if grad_support is None else grad_support.add_(mine)
        if of_points:
            theirs = block.points_gradient(grad)
            grad_points = theirs if grad_points is None else grad_points.add_(theirs)
    return grad_support, grad_points


class _SlicedCosts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, support: Tensor, directions: Tensor, plan: Plan, points: Tensor) -> Tensor:
        ctx.needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[3])
        costs, ctx.blocks = _forward(support, points, directions, plan, *ctx.needed)
        ctx.plan = plan
        ctx.save_for_backward(support, directions, points)
        return costs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_costs: Tensor) -> tuple[Tensor | None, ...]:
        support, directions, points = ctx.saved_tensors
        mine, theirs = _backward(support, points, directions, ctx.plan, ctx.blocks, grad_costs, *ctx.needed)
        return mine, None, None, theirs


def _parts(directions: Tensor, chunk: int) -> Sequence[Tensor]:
    return [directions] if len(directions) <= chunk else torch.split(directions, chunk)


@lru_cache(maxsize=64)
def _chunk(wished: int | None, n: int, sizes: tuple[int, ...], itemsize: int, device: str) -> int:
    """Directions processed at a time: what is wished, else what suits the device; as many as can be sorted at most."""
    if wished is None:
        budget = _CACHE_BUDGET_BYTES if device == "cpu" else _MEMORY_BUDGET_BYTES
        wished = max(_FEWEST_DIRECTIONS, budget // working_bytes(n, sizes, itemsize))
    return min(wished, max(1, MAX_ELEMENTS // max(n, sum(sizes))))


def _check(
    support: Tensor,
    marginals: Sequence[Tensor] | Tensor,
    directions: Tensor,
    p: float,
    chunk: int | None,
    support_weights: Tensor | None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None,
) -> tuple[Tensor, list[Tensor]] | None:
    """Refuse what does not fit; masses of the support and the marginals, filled in where uniform, if any are given."""
    if len(marginals) == 0:
        raise ValueError("marginals: at least one is needed, got none")
    _check_points("support", support, support)
    _check_points("directions", directions, support)
    if isinstance(marginals, Tensor):
        _check_points("marginals", marginals, support)
    else:
        for k, cloud in enumerate(marginals):
            _check_points(f"marginals[{k}]", cloud, support)
    if support.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"support: expected float32 or float64, got {support.dtype}")
    if directions.requires_grad:
        raise ValueError("directions: no gradient with respect to directions is defined; detach them")
    if not p >= 1:
        raise ValueError(f"p: the order must be at least 1, got {p}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: expected a positive number of directions, got {chunk}")
    if support_weights is None and marginal_weights is None:
        return None
    return _filled_weights(support, list(marginals), support_weights, marginal_weights)


def _check_points(name: str, points: Tensor, support: Tensor) -> None:
    shape = points.shape
    if len(shape) != (3 if name == "marginals" else 2) or 0 in shape:
        raise ValueError(f"{name}: expected a non-empty (points, dimensions) tensor, got shape {tuple(shape)}")
    if shape[-1] != support.shape[1]:
        raise ValueError(f"{name}: has dimension {shape[-1]}, but the support has {support.shape[1]}")
    if points.dtype != support.dtype or points.device != support.device:
        raise ValueError(
            f"{name}: is {points.dtype} on {points.device}, but the support is {support.dtype} on {support.device}"
        )


def _filled_weights(
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
