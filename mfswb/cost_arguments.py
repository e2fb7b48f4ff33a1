"""Checks of what a cost matrix is computed from: each says which argument does not fit, and why."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def checked_weights(
    support: Tensor,
    marginals: Sequence[Tensor] | Tensor,
    p: float,
    chunk: int | None,
    support_weights: Tensor | None,
    marginal_weights: Sequence[Tensor | None] | Tensor | None,
) -> tuple[Tensor, list[Tensor]] | None:
    """Refuse what does not fit; masses of the support and the marginals, filled in where uniform, if any are given."""
    if len(marginals) == 0:
        raise ValueError("marginals: at least one is needed, got none")
    check_points("support", support, support)
    if isinstance(marginals, Tensor):
        check_points("marginals", marginals, support)
    else:
        for k, cloud in enumerate(marginals):
            check_points(f"marginals[{k}]", cloud, support)
    if support.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"support: expected float32 or float64, got {support.dtype}")
    if not p >= 1:
        raise ValueError(f"p: the order must be at least 1, got {p}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk: expected a positive number of directions, got {chunk}")
    if support_weights is None and marginal_weights is None:
        return None
    return _filled_weights(support, list(marginals), support_weights, marginal_weights)


def check_points(name: str, points: Tensor, support: Tensor) -> None:
    """Refuse points or directions that do not fit the support."""
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
