"""Starting supports of a free-support barycenter."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mfswb.data.arrays import read_array
from mfswb.errors import ConfigError
from mfswb.measures import Measures, Points

_CHOICES = "sphere, gaussian, marginal:K, or the path of an .npy file"


def initial_support(
    start: str,
    marginals: Measures,
    rng: np.random.Generator,
    n_support: int | None = None,
    *,
    mean: list[float] | None = None,
    std: float | None = None,
) -> Points:
    """Points to start from, ``(n, d)``, in the coordinates of the marginals.

    Args:
        start: ``sphere``: uniform on the sphere around the marginals' centroid through their farthest point (for
            clouds normalised to the unit ball that is the unit sphere); ``gaussian``: an isotropic normal
            distribution; ``marginal:K``: the points of marginal K; otherwise the path of an ``.npy`` file
            ``(n, d)``, or ``FILE.npz:NAME``.
        marginals: what is to be averaged.
        rng: source of randomness.
        n_support: number of points; None takes as many as the largest marginal has, but at most 2048. Marginals and
            files have their own number, and another one here is an error.
        mean: centre of the normal distribution; None for the marginals' centroid.
        std: its standard deviation; None for the marginals' radius over ``sqrt(d)``.

    Raises:
        ConfigError: an unknown start, or a number of points that does not fit.
        DataError: the file cannot be read, or has another dimension than the marginals.
    """
    if n_support is not None and n_support < 1:
        raise ConfigError(f"task.n_support={n_support}: at least one support point is needed")
    kind, _, which = start.partition(":")
    if kind in ("sphere", "gaussian"):
        n = n_support or min(max(marginals.sizes), 2048)
        normal = rng.standard_normal((n, marginals.dim))
        if kind == "sphere":
            directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
            return np.asarray(marginals.centroid + marginals.radius * directions)
        centre = marginals.centroid if mean is None else np.asarray(mean, dtype=np.float64)
        if centre.shape != (marginals.dim,):
            raise ConfigError(f"task.x_init_mean={mean}: expected {marginals.dim} numbers, one a dimension")
        return np.asarray(centre + (marginals.radius / np.sqrt(marginals.dim) if std is None else std) * normal)
    if kind == "marginal":
        if not which.isdecimal() or int(which) >= len(marginals):
            raise ConfigError(f"task.x_init={start}: there are marginals 0 to {len(marginals) - 1}; write marginal:K")
        support = marginals.points[int(which)].copy()
    elif Path(start).suffix.lower() in (".npy", ".npz") or ".npz:" in start:
        support = Measures.of([read_array(Path(start))], names=[f"task.x_init={start}"]).points[0]
        if support.shape[1] != marginals.dim:
            raise ConfigError(
                f"task.x_init={start}: its points have dimension {support.shape[1]}, the marginals' {marginals.dim}"
            )
    else:
        raise ConfigError(f"task.x_init={start}: unknown start; choose {_CHOICES}")
    if n_support is not None and n_support != len(support):
        raise ConfigError(
            f"task.n_support={n_support}: task.x_init={start} has {len(support)} points; leave task.n_support=null"
        )
    return support
