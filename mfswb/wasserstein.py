"""One-dimensional W_p^p of all marginals along all directions at once: the cost matrix every loss reduces."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mfswb.geometry import Geometry


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
    geometry = Geometry(
        support, marginals, p=p, support_weights=support_weights, marginal_weights=marginal_weights, chunk=chunk
    )
    return geometry.costs(support, directions)
