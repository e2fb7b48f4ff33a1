"""Slow, plain formulas the library is held against, and random problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def cloud(seed: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sphere(seed: int, n: int, d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.nn.functional.normalize(cloud(seed, n, d, dtype), dim=1)


def masses(seed: int, n: int) -> Tensor:
    raw = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.05
    return raw / raw.sum()


def plain_1d(x: np.ndarray, a: np.ndarray, y: np.ndarray, b: np.ndarray, p: float) -> float:
    """W_p^p of two weighted samples of the line: the north-west corner rule, mass by mass."""
    i_order, j_order = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x, a, y, b = x[i_order], a[i_order].copy(), y[j_order], b[j_order].copy()
    i = j = 0
    total = 0.0
    while i < len(x) and j < len(y):
        moved = min(a[i], b[j])
        total += moved * abs(x[i] - y[j]) ** p
        a[i] -= moved
        b[j] -= moved
        if a[i] <= b[j]:
            i += 1
        else:
            j += 1
    return total


def plain_costs(
    support: Tensor,
    marginals: Sequence[Tensor],
    directions: Tensor,
    p: float,
    a: Tensor | None,
    bs: Sequence[Tensor | None],
) -> np.ndarray:
    def uniform(points: Tensor, given: Tensor | None) -> np.ndarray:
        return np.full(len(points), 1 / len(points)) if given is None else given.numpy()

    return np.array(
        [
            [
                plain_1d((support @ t).numpy(), uniform(support, a), (y @ t).numpy(), uniform(y, b), p)
                for t in directions
            ]
            for y, b in zip(marginals, bs, strict=True)
        ]
    )
