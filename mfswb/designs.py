"""Directions that stand well together: a fixed set, or an orthonormal basis, under one random rotation a draw.

A cost is a smooth, even function of its direction, so a few well-placed directions average it better than thousands of
independent ones. The rotation is uniform among all (Haar's measure), hence every direction by itself is uniform on the
sphere, and averages over them are unbiased. All of these are samplers; see :class:`mfswb.slicing.Sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.quasirandom import SobolEngine

from mfswb.errors import ConfigError
from mfswb.slicing import Sampler, equispaced, uniform

_LARGEST = 128  # directions that are placed together in space
_GOLDEN = (1 + math.sqrt(5)) / 2


def design(n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Spherical designs: the best placed directions that are known for a dimension and a number.

    In the plane equal angles; in space the axes of the octahedron (3), the cube (4), the icosahedron (6) and the
    dodecahedron (10), and for other numbers a Fibonacci spiral over the half sphere, relaxed until its axes are as far
    from each other as they get (at most 128; more are blocks of about as many, each with a rotation of its own); above
    that random orthonormal bases (:func:`orthogonal`). One random rotation turns them together. Costs are even in
    ``theta``, so one direction of each axis is enough. Axes of the icosahedron and the dodecahedron average polynomials
    up to degree 5 exactly, those of octahedron and cube up to degree 3. Relaxing takes a tenth of a second,
    once a process.

    Returns:
        ``(n_projections, dim)`` unit vectors on the CPU.

    Source: P. Delsarte, J. M. Goethals and J. J. Seidel, "Spherical codes and designs", 1977; K. B. Stolarsky, "Sums of
    distances between points on a sphere", 1973 (the largest sum has the smallest discrepancy).

    Example:
        >>> theta = design(6, 3, torch.Generator().manual_seed(1), torch.float64)
        >>> torch.allclose(6 * theta.T @ theta / 12, torch.eye(3, dtype=torch.float64))
        True
        >>> [abs(round(float(theta[0] @ other), 3)) for other in theta[1:]]  # all at one angle
        [0.447, 0.447, 0.447, 0.447, 0.447]
    """
    if dim == 2:
        return _turned(_axes_in_plane(n_projections), generator, dtype)
    if dim == 3:
        blocks = -(-n_projections // _LARGEST)
        bounds = [n_projections * block // blocks for block in range(blocks + 1)]
        turned = [_turned(_axes_in_space(stop - start), generator, dtype) for start, stop in pairwise(bounds)]
        return turned[0] if blocks == 1 else torch.cat(turned)
    return orthogonal(n_projections, dim, generator, dtype)


def orthogonal(n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Random orthonormal bases, stacked; of the last one as many vectors as are missing.

    Each basis averages quadratic functions of ``theta`` exactly, ``(1/d) sum_j theta_j theta_j^T = I/d``, and different
    bases are independent. Use it above three dimensions, with a multiple of ``dim`` where that is affordable.

    Returns:
        ``(n_projections, dim)`` unit vectors on the CPU.

    Example:
        >>> theta = orthogonal(5, 4, torch.Generator().manual_seed(1), torch.float64)
        >>> torch.allclose(theta[:4] @ theta[:4].T, torch.eye(4, dtype=torch.float64))
        True
    """
    width = min(n_projections, dim)
    normal = torch.randn(-(-n_projections // dim), dim, width, generator=generator, dtype=torch.float64)
    return _orthonormal(normal).mT.reshape(-1, dim)[:n_projections].to(dtype)


def sobol(n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Quasi-Monte-Carlo: points of a Sobol' sequence, carried to the sphere and turned by one random rotation.

    The sequence is scrambled once and for all (a fixed scrambling, the same in every draw). In the plane a point of
    ``[0, 1)`` is an angle of the half circle; in space a point of the unit square is a height and an azimuth on the
    half sphere, which keeps areas; above that points of the unit cube become normal vectors, which are normalised.
    Powers of two are the best numbers; a handful of points in many dimensions stands no better than random ones.

    Returns:
        ``(n_projections, dim)`` unit vectors on the CPU.

    Raises:
        ConfigError: more dimensions than the sequence has.

    Source: A. B. Owen, "Scrambling Sobol' and Niederreiter-Xing points", 1998.

    Example:
        >>> theta = sobol(64, 3, torch.Generator().manual_seed(1), torch.float64)
        >>> bool((theta.T @ theta / 64 - torch.eye(3) / 3).abs().max() < 0.01)
        True
    """
    if dim > SobolEngine.MAXDIM:
        raise ConfigError(f"slicing=sobol: has {SobolEngine.MAXDIM} dimensions, but the data {dim}; use orthogonal")
    return _turned(_sobol_points(n_projections, dim), generator, dtype)


def _turned(fixed: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Fixed directions ``(L, d)`` under a random rotation, reflections included."""
    d = fixed.shape[1]
    turn = _orthonormal(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return (fixed @ turn).to(dtype)


def _orthonormal(normal: Tensor) -> Tensor:
    """Orthonormal columns from Gaussian ones, ``(..., d, k)``, by the decomposition with a positive diagonal.

    LAPACK's own signs depend on the columns, which would make some rotations likelier than others.
    """
    q, r = torch.linalg.qr(normal)
    columns: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return columns


@lru_cache(maxsize=8)
def _axes_in_plane(n: int) -> Tensor:
    return _at_angles(torch.arange(n, dtype=torch.float64) / n)


def _at_angles(half_turns: Tensor) -> Tensor:
    angles = math.pi * half_turns
    return torch.stack([angles.cos(), angles.sin()], dim=1)


@lru_cache(maxsize=8)
def _axes_in_space(n: int) -> Tensor:
    g = _GOLDEN
    cube = [[1, 1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]]
    solids = {
        3: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        4: cube,
        6: _cyclic(1, g),
        10: cube + _cyclic(1 / g, g),
    }
    if n in solids:
        return torch.nn.functional.normalize(torch.tensor(solids[n], dtype=torch.float64), dim=1)
    rank = torch.arange(n, dtype=torch.float64)
    return _relaxed(_at((rank + 0.5) / n, rank / g))


def _relaxed(axes: Tensor) -> Tensor:
    """Axes ``(n, 3)`` moved so that the sum of all distances between them and their opposites is the largest nearby."""
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    n = len(axes)

    def energy(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        points = flat.reshape(n, 3)
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        units = points / lengths
        cosines = (units @ units.T).clip(-1, 1)
        to_axes, to_opposites = np.sqrt(2 - 2 * cosines), np.sqrt(2 + 2 * cosines)
        slopes = 1 / to_opposites - 1 / np.where(to_axes > 0, to_axes, np.inf)
        np.fill_diagonal(slopes, 0)  # an axis keeps its distance from itself and its own opposite
        pull = 2 * slopes @ units
        pull -= (pull * units).sum(axis=1, keepdims=True) * units
        return -float(to_axes.sum() + to_opposites.sum()) / n**2, (-pull / lengths / n**2).ravel()

    with threadpool_limits(1):  # so small, a second thread is only in the way
        found = minimize(
            energy,
            axes.numpy().ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 200, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-9},
        )
    return torch.nn.functional.normalize(torch.from_numpy(found.x.reshape(n, 3)), dim=1)


def _cyclic(a: float, b: float) -> list[list[float]]:
    """The axes ``(0, a, b)`` and ``(0, a, -b)`` with their coordinates in all cyclic orders."""
    return [axis for c in (b, -b) for axis in ([0, a, c], [c, 0, a], [a, c, 0])]


def _at(height: Tensor, turns: Tensor) -> Tensor:
    """Points of the unit sphere at a height and an azimuth in turns: areas of (height, azimuth) are those there."""
    radius, angle = (1 - height.square()).clamp_min(0).sqrt(), 2 * math.pi * turns
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], dim=1)


@lru_cache(maxsize=8)
def _sobol_points(n: int, dim: int) -> Tensor:
    cube_dim = {2: 1, 3: 2}.get(dim, dim)
    # PyTorch leaves its constructor without types.
    sequence = SobolEngine(cube_dim, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    points = sequence.draw(n, dtype=torch.float64)
    if dim == 2:
        return _at_angles(points[:, 0])
    if dim == 3:
        return _at(points[:, 0], points[:, 1])
    normal = torch.special.ndtri(points.clamp_min(2.0**-31))  # an exact zero would lie infinitely far
    return torch.nn.functional.normalize(normal, dim=1)


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(
    {"uniform": uniform, "orthogonal": orthogonal, "sobol": sobol, "equispaced": equispaced, "design": design}
)
"""The samplers by the names they have on the command line."""
