r"""Objectives as pure reductions of the cost matrix ``C (n_marginals, n_projections)`` of W_p^p.

On the same directions ``uswb <= s_mfswb <= us_mfswb <= es_mfswb``. Names and objectives are those of Nguyen,
Nguyen and Ho, "Towards Marginal Fairness Sliced Wasserstein Barycenter", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from mfswb.errors import ConfigError


def uswb(costs: Tensor) -> Tensor:
    r"""Uniform-weight sliced Wasserstein barycenter: the average distance.

    ``(1/K) sum_k SW_p^p(mu, mu_k) = C.mean()``. Use it when the average distance is
    all that counts: nothing keeps the barycenter from lying close to some marginals and far from others.

    Example:
        >>> uswb(torch.tensor([[1.0, 3.0], [4.0, 8.0]]))
        tensor(4.)
    """
    return costs.mean()


def mfswb(costs: Tensor, lam: float = 1.0) -> Tensor:
    r"""Marginal fairness SWB in dual form: average distance plus ``lam`` times the sliced fairness gap.

    ``S_k = mean_l C[k, l]``; ``mean_k S_k + lam * mean_{i<j} |S_i - S_j|`` (the dual form of Definition 1). Use it when
    you want to set the price of unfairness yourself; ``lam`` has no unit. One marginal has no gap.

    Raises:
        ConfigError: a ``lam`` that is negative or not finite.

    Example:
        >>> mfswb(torch.tensor([[1.0, 3.0], [4.0, 8.0]]), lam=0.5)
        tensor(6.)
    """
    check_lam(lam)
    distances = costs.mean(dim=1)
    k = len(distances)
    gap = (distances.unsqueeze(0) - distances.unsqueeze(1)).abs().sum() / max(k * (k - 1), 1)
    return distances.mean() + lam * gap


def check_lam(lam: float) -> None:
    """Refuse a price of unfairness that is negative or not finite."""
    if not 0 <= lam < float("inf"):
        raise ConfigError(f"loss.lam={lam}: give a number, not negative")


def s_mfswb(costs: Tensor) -> Tensor:
    r"""Surrogate MFSWB: the largest sliced distance.

    ``max_k SW_p^p(mu, mu_k) = C.mean(1).max()`` (the paper's s-MFSWB). Use it for a plain minimax of distances;
    from few directions its Monte-Carlo estimate is biased upwards.

    Example:
        >>> s_mfswb(torch.tensor([[1.0, 9.0], [4.0, 8.0]]))
        tensor(6.)
    """
    return costs.mean(dim=1).max()


def us_mfswb(costs: Tensor) -> Tensor:
    r"""Unbiased surrogate MFSWB: the average over directions of the largest one-dimensional distance.

    ``E_theta max_k W_p^p(theta#mu, theta#mu_k) = C.max(0).mean()`` (the paper's us-MFSWB). Use it as the
    default fair surrogate: an upper bound of ``s_mfswb`` whose estimate is unbiased with any number of directions.

    Example:
        >>> us_mfswb(torch.tensor([[1.0, 9.0], [4.0, 8.0]]))
        tensor(6.5000)
    """
    return costs.max(dim=0).values.mean()


def es_mfswb(costs: Tensor, detach_weights: bool = False, scale: float | str | None = None) -> Tensor:
    r"""Energy-based surrogate MFSWB: directions count by how unfair they are.

    ``m_l = max_k C[k, l]``; ``sum_l softmax(m)_l m_l``: self-normalised importance sampling of
    ``sigma(theta) ~ exp(max_k W_p^p)`` from uniform directions (the paper's es-MFSWB). Use it when the worst
    directions matter most. The softmax sees W_p^p in the data's units: with small distances the loss is ``us_mfswb``,
    with large ones a maximum over directions. ``scale="auto"`` takes the units out.

    Args:
        costs: ``(n_marginals, n_projections)``.
        detach_weights: keep the gradient from flowing through the softmax weights (it does in the paper's code).
        scale: the softmax sees ``m / scale``. None is 1, the paper's; ``auto`` is the mean of ``m`` along these
            directions, as a constant (no gradient flows through it). Then data times ``c`` give the loss times ``c^p``
            and the gradient times ``c^(p-1)``, as with the other losses.

    Raises:
        ConfigError: another ``scale``.

    Example:
        >>> es_mfswb(torch.tensor([[1.0, 9.0], [4.0, 8.0]]))
        tensor(8.9665)
    """
    worst = costs.max(dim=0).values
    weights = torch.softmax(worst if scale is None else worst / scale_of(worst, scale), dim=0)
    if detach_weights:
        weights = weights.detach()
    return torch.dot(weights, worst)


def scale_of(worst: Tensor, scale: float | str) -> Tensor | float:
    """What ``es_mfswb`` divides the largest costs ``(L,)`` by."""
    if scale == "auto":
        return worst.detach().mean().clamp_min(torch.finfo(worst.dtype).tiny)
    if isinstance(scale, str) or not 0 < scale < float("inf"):
        raise ConfigError(f"loss.scale={scale}: give a positive number, auto, or null")
    return scale


def weighted(costs: Tensor, weights: Sequence[float]) -> Tensor:
    r"""Sliced Wasserstein barycenter with weights of your own: ``sum_k w_k SW_p^p(mu, mu_k)``.

    Args:
        costs: ``(n_marginals, n_projections)``.
        weights: one for each marginal, not negative, that sum to one.

    Raises:
        ConfigError: another number of weights than marginals, or weights outside the simplex.

    Example:
        >>> weighted(torch.tensor([[1.0, 3.0], [4.0, 8.0]]), [0.25, 0.75])
        tensor(5.)
    """
    if len(weights) != len(costs):
        raise ConfigError(f"loss.weights={list(weights)}: {len(weights)} weights, but {len(costs)} marginals")
    if not all(0 <= weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise ConfigError(f"loss.weights={list(weights)}: must not be negative, and sum to one")
    parts = [weight * distance for weight, distance in zip(weights, costs.mean(dim=1), strict=True)]
    return torch.stack(parts).sum()


def none(costs: Tensor) -> Tensor:
    """No objective at all: zero whatever the costs, for tasks that have other terms (the plain autoencoder).

    Example:
        >>> none(torch.tensor([[1.0, 9.0], [4.0, 8.0]]))
        tensor(0.)
    """
    return costs.new_zeros(())


def is_none(loss: Callable[..., Tensor]) -> bool:
    """Whether a loss is :func:`none`, perhaps as a partial of it."""
    return getattr(loss, "func", loss) is none


def is_built_in(loss: Callable[..., Tensor]) -> bool:
    """Whether a loss is one of this file's, perhaps as a partial: then nothing but the costs decides its value."""
    return getattr(loss, "func", loss) in (uswb, mfswb, s_mfswb, us_mfswb, es_mfswb, weighted, none)


LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"uswb": uswb, "mfswb": mfswb, "s": s_mfswb, "us": us_mfswb, "es": es_mfswb}
)
"""The losses of a barycenter by the names they have on the command line."""
