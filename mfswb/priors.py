"""Priors an autoencoder's latents are drawn to: distributions on R^d within about the unit ball."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

Prior = Callable[[int, int, torch.Generator], Tensor]

_RING_INNER_RADIUS = 0.8


def circle(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Radius uniform on (0, 1), direction uniform: the paper's prior, denser in the middle than a uniform disk.

    Returns:
        ``(n, dim)`` float32 points on the CPU, as for all priors.

    Example:
        >>> radius = circle(10_000, 2, torch.Generator().manual_seed(0)).norm(dim=1)
        >>> round(float(radius.mean()), 2), bool(radius.max() <= 1)
        (0.5, True)
    """
    return _directions(n, dim, generator) * torch.rand(n, 1, generator=generator)


def disk(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform on the unit disk (in other dimensions the unit ball)."""
    return _directions(n, dim, generator) * torch.rand(n, 1, generator=generator).pow(1.0 / dim)


def ring(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform between radius 0.8 and 1."""
    inner = _RING_INNER_RADIUS**dim
    radius = (inner + (1 - inner) * torch.rand(n, 1, generator=generator)).pow(1.0 / dim)
    return _directions(n, dim, generator) * radius


def square(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform on the square (cube) from -1 to 1."""
    return 2.0 * torch.rand(n, dim, generator=generator) - 1.0


def normal(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """The standard normal distribution."""
    return torch.randn(n, dim, generator=generator)


def _directions(n: int, dim: int, generator: torch.Generator) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=1)


PRIORS: Mapping[str, Prior] = MappingProxyType(
    {"circle": circle, "disk": disk, "ring": ring, "square": square, "normal": normal}
)
"""The priors by the names they have on the command line."""
