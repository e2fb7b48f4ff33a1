"""Directions on the unit sphere, drawn from a passed generator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mfswb.errors import ConfigError


class Sampler(Protocol):
    """Draws ``n_projections`` unit vectors of R^dim, ``(n_projections, dim)``, from a CPU generator."""

    def __call__(self, n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        """Draw once."""


def uniform(n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Independent directions, uniform on the sphere: normalised Gaussian vectors.

    The stream of a seed is ``torch.randn(n_projections, dim)`` in float32, once a call, whatever ``dtype`` is asked
    for, so that a float64 run sees the same directions.

    Returns:
        ``(n_projections, dim)`` unit vectors on the CPU.

    Example:
        >>> theta = uniform(4, 3, torch.Generator().manual_seed(1))
        >>> theta.shape, torch.allclose(theta.norm(dim=1), torch.ones(4))
        (torch.Size([4, 3]), True)
    """
    normal = torch.randn(n_projections, dim, generator=generator).to(dtype)
    lengths: Tensor = torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return normal / lengths


def equispaced(n_projections: int, dim: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Directions of the plane at equal angles, turned together by one random angle.

    ``theta_l`` has the angle ``pi (l + u) / L`` with ``u`` uniform on (0, 1): half a turn is enough, because opposite
    directions give the same cost. Together they are uniform on the circle, so averages of costs are unbiased; their
    error falls much faster with ``L`` than that of independent directions. :func:`mfswb.designs.design` does the like
    in any dimension.

    Returns:
        ``(n_projections, 2)`` unit vectors on the CPU.

    Raises:
        ConfigError: ``dim`` is not 2.

    Example:
        >>> theta = equispaced(4, 2, torch.Generator().manual_seed(1), torch.float64)
        >>> [abs(round(float(theta[0] @ other), 3)) for other in theta]
        [1.0, 0.707, 0.0, 0.707]
    """
    if dim != 2:
        raise ConfigError(f"slicing=equispaced: works in the plane, but the data have dimension {dim}; use design")
    turn = torch.rand(1, generator=generator, dtype=torch.float64)
    angles = (torch.arange(n_projections, dtype=torch.float64) + turn) * (math.pi / n_projections)
    return torch.stack([angles.cos(), angles.sin()], dim=1).to(dtype)


@dataclass(frozen=True)
class Slicing:
    """A sampler with its number of directions, and how many of them are processed at a time (``chunk``)."""

    sampler: Sampler
    n_projections: int = 10
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.n_projections < 1:
            raise ConfigError(f"slicing.n_projections={self.n_projections}: at least one direction is needed")
        if self.chunk is not None and self.chunk < 1:
            raise ConfigError(f"slicing.chunk={self.chunk}: give a positive number of directions, or null")

    def directions(self, dim: int, generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Directions of one step, ``(n_projections, dim)``, on ``device``; drawn on the CPU so that a seed means the
        same directions everywhere.
        """
        theta = self.sampler(self.n_projections, dim, generator, dtype)
        if device.type == "cpu":
            return theta
        return theta.pin_memory().to(device, non_blocking=True)
