"""Samples of normal distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.seeding import stream


def sample_gaussians(
    means: Sequence[Sequence[float]],
    covariances: Sequence[Sequence[Sequence[float]]] | None = None,
    sizes: int | Sequence[int] = 100,
    *,
    seed: int,
) -> Measures:
    """Marginals sampled from ``N(mean_k, covariance_k)``.

    Args:
        means: ``K`` vectors of one length ``d``.
        covariances: ``K`` symmetric positive semi-definite ``d x d`` matrices; identities if None.
        sizes: points of each marginal, or one number for all.
        seed: seeds the samples.

    Raises:
        ConfigError: the numbers of means, covariances and sizes differ, or a covariance is none.
    """
    if not means:
        raise ConfigError("data.means: give at least one mean, as in 'data.means=[[0,0],[20,0]]'")
    d = len(means[0])
    counts = [sizes] * len(means) if isinstance(sizes, int) else list(sizes)
    matrices = (
        [np.eye(d)] * len(means) if covariances is None else [np.asarray(c, dtype=np.float64) for c in covariances]
    )
    if not len(counts) == len(matrices) == len(means):
        raise ConfigError(
            f"data: {len(means)} means, but {len(matrices)} covariances and {len(counts)} sizes; give one of each"
        )
    rng = stream(seed, "gaussians")
    clouds = []
    for k, (mean, matrix, count) in enumerate(zip(means, matrices, counts, strict=True)):
        if len(mean) != d or matrix.shape != (d, d):
            raise ConfigError(f"data: marginal {k}: expected a mean of length {d} and a {d} x {d} covariance")
        if count < 1:
            raise ConfigError(f"data.sizes: marginal {k} has {count} points; at least one is needed")
        values, vectors = np.linalg.eigh(matrix)
        if not np.allclose(matrix, matrix.T) or values.min() < -1e-9 * max(1.0, float(values.max())):
            raise ConfigError(f"data.covariances: matrix {k} is not symmetric positive semi-definite")
        normal = rng.standard_normal((count, d)) * np.sqrt(values.clip(min=0.0))
        clouds.append(np.asarray(mean, dtype=np.float64) + normal @ vectors.T)
    return Measures.of(clouds, names=[f"Gaussian {k}" for k in range(len(clouds))])
