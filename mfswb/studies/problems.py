"""Problems that several studies measure on: a support and marginals, in any dimension."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.seeding import stream
from mfswb.starts import initial_support

_COMPONENTS = 3


@dataclass(frozen=True)
class Problem:
    """Points whose costs are looked at, in float64: a support ``(n, d)`` and marginals ``(n_k, d)``."""

    support: Tensor
    marginals: tuple[Tensor, ...]


def clouds_problem(clouds: Measures, seed: int) -> Problem:
    """Point clouds, and the paper's start around them: points on a sphere."""
    start = initial_support("sphere", clouds, stream(seed, "start"))
    return Problem(torch.from_numpy(start), tuple(torch.from_numpy(cloud) for cloud in clouds.points))


def mixtures_problem(dim: int, n_points: int, seed: int, *, marginals: int = 3) -> Problem:
    """Samples of Gaussian mixtures, and a normal sample as support.

    A mixture has three components of random weights, with means of variance 4 and deviations between 1/2 and 3/2, a
    direction each.
    """
    rng = stream(seed, f"mixtures {dim}")
    sampled = []
    for _ in range(marginals):
        means = 2 * rng.standard_normal((_COMPONENTS, dim))
        spreads = rng.uniform(0.5, 1.5, (_COMPONENTS, dim))
        which = rng.choice(_COMPONENTS, n_points, p=rng.dirichlet(np.full(_COMPONENTS, 5.0)))
        sampled.append(torch.from_numpy(means[which] + spreads[which] * rng.standard_normal((n_points, dim))))
    return Problem(torch.from_numpy(rng.standard_normal((n_points, dim))), tuple(sampled))


def subsets(n: int, size: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Different random subsets of ``n`` things, as ascending positions; all there are where ``count`` is larger.

    A larger ``count`` gives the same ones first, so that a study can be extended.

    Raises:
        ConfigError: no subset has that size.

    Example:
        >>> len(subsets(6, 2, 100, 1)), subsets(50, 4, 9, 1)[:3] == subsets(50, 4, 3, 1)
        (15, True)
    """
    if not 1 <= size <= n:
        raise ConfigError(f"study: subsets of {size} are asked for, but there are {n} clouds; give from 1 to {n}")
    rng = stream(seed, f"subsets of {size}")
    found: dict[tuple[int, ...], None] = {}
    while len(found) < min(count, comb(n, size)):
        found[tuple(sorted(rng.choice(n, size, replace=False).tolist()))] = None
    return list(found)
