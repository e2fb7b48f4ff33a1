"""One measure against several along directions: what holds for all directions is checked and laid out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mfswb.blocks import Block, slope_bytes, working_bytes
from mfswb.cost_arguments import check_points, checked_weights
from mfswb.rows import MAX_ELEMENTS
from mfswb.transports import Plan

# What the backward pass may keep of all directions; beyond that their sorts are done again.
_MEMORY_BUDGET_BYTES = 1 << 30
# Working memory of a block of directions on a CPU: several passes go over it, which is quicker while caches hold it.
_CACHE_BUDGET_BYTES = 1 << 26
_FEWEST_DIRECTIONS = 2


class Geometry:
    r"""The one-dimensional costs between a support that moves and marginals that stay.

    Building one checks everything but the directions, so that a step neither checks again nor, on a GPU, waits for
    the answer. :func:`mfswb.sliced_costs` is one that is used once.

    Args:
        support: points of the measure, ``(n, d)``; later ones must have their shape, type and device.
        marginals: ``K`` tensors ``(n_k, d)`` of any sizes, or one stacked tensor ``(K, n, d)``.
        p: order of the Wasserstein distance, at least 1.
        support_weights: masses of the support ``(n,)``, not negative; scaled to sum to one. Uniform if None.
        marginal_weights: for each marginal its masses ``(n_k,)``, or None for uniform; likewise scaled.
        chunk: directions processed at a time; by default what suits the device.

    Raises:
        ValueError: the shapes, types, devices, weights or ``p`` do not fit.

    Example:
        >>> from functools import partial
        >>> from mfswb.loss_gradients import value_and_gradient
        >>> from mfswb.losses import uswb
        >>> support, marginals = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), [torch.tensor([[3.0, 0.0], [2.0, 0.0]])]
        >>> geometry = Geometry(support, marginals)
        >>> geometry.costs(support, torch.eye(2))
        tensor([[4., 0.]])
        >>> geometry.gradient(partial(value_and_gradient, uswb), support, torch.eye(2))
        (tensor(2.), tensor([[-1.,  0.],
                [-1.,  0.]]))
    """

    def __init__(
        self,
        support: Tensor,
        marginals: Sequence[Tensor] | Tensor,
        *,
        p: float = 2,
        support_weights: Tensor | None = None,
        marginal_weights: Sequence[Tensor | None] | Tensor | None = None,
        chunk: int | None = None,
    ) -> None:
        weights = checked_weights(support, marginals, p, chunk, support_weights, marginal_weights)
        if isinstance(marginals, Tensor):
            sizes = (marginals.shape[1],) * marginals.shape[0]
            self._points = marginals.reshape(-1, marginals.shape[2])  # all marginals' in one tensor (M, d)
        else:
            sizes = tuple([len(cloud) for cloud in marginals])
            self._points = marginals[0] if len(sizes) == 1 else torch.cat(list(marginals))
        self._plan = Plan(
            p=float(p),
            sizes=sizes,
            chunk=_chunk(chunk, len(support), sizes, support.element_size(), support.device.type),
            support_weights=None if weights is None else weights[0],
            point_weights=None if weights is None else torch.cat(weights[1]),
        )

    def costs(self, support: Tensor, directions: Tensor) -> Tensor:
        """W_p^p of every marginal along every direction ``(L, d)``: ``(K, L)``, differentiable.

        Raises:
            ValueError: the directions do not fit, or want a gradient.
        """
        _check_directions(directions, support)
        # PyTorch leaves Function.apply without types.
        costs: Tensor = _SlicedCosts.apply(support, directions, self._plan, self._points)  # type: ignore[no-untyped-call]
        return costs

    def gradient(
        self, loss: Callable[[Tensor], tuple[Tensor, Tensor]], support: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor]:
        r"""Value of an objective of the cost matrix and its gradient by the support, without a graph.

        ``f(C)`` and ``sum_kl df/dC[k, l] dC[k, l]/dx_i``: what autograd makes of :meth:`costs`, and quicker.

        Args:
            loss: takes the cost matrix ``(K, L)`` of W_p^p; gives its value and the derivative by every cost
                ``(K, L)``, as :func:`mfswb.loss_gradients.value_and_gradient` does.
            support: points, ``(n, d)``.
            directions: unit vectors, ``(L, d)``.

        Returns:
            The value, and the gradient ``(n, d)``.

        Raises:
            ValueError: the directions do not fit.
        """
        _check_directions(directions, support)
        with torch.no_grad():
            costs, blocks = _forward(support, self._points, directions, self._plan, True, False)
            value, grad_costs = loss(costs)
            gradient, _ = _backward(support, self._points, directions, self._plan, blocks, grad_costs, True, False)
        assert gradient is not None
        return value, gradient


def _check_directions(directions: Tensor, support: Tensor) -> None:
    check_points("directions", directions, support)
    if directions.requires_grad:
        raise ValueError("directions: no gradient with respect to directions is defined; detach them")


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
