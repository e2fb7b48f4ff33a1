"""A set of marginals: points, weights and names, validated once, at the door."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mfswb.errors import DataError

log = logging.getLogger(__name__)

Points = NDArray[np.float64]

# Extents of marginals that differ more than so many times are told of.
_FAR_APART = 100


@dataclass(frozen=True)
class Frame:
    """The affine change ``x -> (x - centre) / scale`` between the user's coordinates and the working ones.

    Working in float32 around a far-off origin would lose the digits that matter, so the shared centre is taken away in
    float64 first and added back on output.
    """

    centre: Points
    scale: float = 1.0

    def inward(self, points: Points) -> Points:
        """From the user's coordinates to working ones, ``(..., d)``."""
        return (points - self.centre) / self.scale

    def outward(self, points: Points) -> Points:
        """From working coordinates to the user's, ``(..., d)``."""
        return points * self.scale + self.centre


@dataclass(frozen=True)
class Measures:
    """Marginals ``mu_1 ... mu_K``: discrete measures on R^d with any number of points each.

    Attributes:
        points: for each marginal its points ``(n_k, d)`` in float64.
        weights: for each marginal its masses ``(n_k,)``, summing to one, or None for uniform.
        names: what the marginals are called in figures and logs.
        frame: the working coordinates the optimisation uses.
    """

    points: tuple[Points, ...]
    weights: tuple[Points | None, ...]
    names: tuple[str, ...]
    frame: Frame = field(repr=False)

    @classmethod
    def of(
        cls,
        points: Sequence[ArrayLike],
        weights: Sequence[ArrayLike | None] | None = None,
        names: Sequence[str] | None = None,
        *,
        normalize: bool = False,
    ) -> Measures:
        """Validate marginals.

        Args:
            points: ``K`` arrays ``(n_k, d)``.
            weights: for each marginal its masses, not negative, scaled to sum to one; None for uniform.
            names: a name for each; ``marginal 0`` and so on by default.
            normalize: let the working coordinates put all marginals together into the unit ball (one shared centre
                and scale; results are still given in the coordinates of ``points``).

        Raises:
            DataError: no marginals, empty or not finite ones, different dimensions, weights that do not fit.
        """
        if len(points) == 0:
            raise DataError("marginals: at least one is needed, got none")
        labels = [f"marginal {k}" for k in range(len(points))] if names is None else [str(name) for name in names]
        masses = [None] * len(points) if weights is None else list(weights)
        if not len(labels) == len(masses) == len(points):
            raise DataError(f"marginals: {len(points)} point sets, but {len(labels)} names and {len(masses)} weights")
        clouds = [_validated(label, cloud) for label, cloud in zip(labels, points, strict=True)]
        for label, cloud in zip(labels, clouds, strict=True):
            if cloud.shape[1] != clouds[0].shape[1]:
                raise DataError(
                    f"{label}: its points have dimension {cloud.shape[1]}, but those of {labels[0]} have "
                    f"{clouds[0].shape[1]}; all marginals must live in one space"
                )
        shares = [_masses(label, w, len(c)) for label, w, c in zip(labels, masses, clouds, strict=True)]
        _compare_extents(labels, clouds)
        low = np.min([c.min(axis=0) for c in clouds], axis=0)
        high = np.max([c.max(axis=0) for c in clouds], axis=0)
        centre = low + 0.5 * (high - low)
        scale = 1.0
        if normalize:
            radius = max(float(np.linalg.norm(c - centre, axis=1).max()) for c in clouds)
            scale = radius if radius > 0 else 1.0
        return cls(tuple(clouds), tuple(shares), tuple(labels), Frame(centre, scale))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        """Dimension ``d`` of the space the marginals live in."""
        return int(self.points[0].shape[1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of points of each marginal."""
        return tuple(len(cloud) for cloud in self.points)

    @property
    def centroid(self) -> Points:
        """Mean of the marginals' means, ``(d,)``, each marginal counting the same."""
        means = [np.average(c, axis=0, weights=w) for c, w in zip(self.points, self.weights, strict=True)]
        return np.asarray(np.mean(means, axis=0))

    @property
    def radius(self) -> float:
        """Largest distance of any point from the centroid."""
        centre = self.centroid
        return max(float(np.linalg.norm(cloud - centre, axis=1).max()) for cloud in self.points)

    def fingerprint(self) -> str:
        """A short hash of points and weights: tells whether a checkpoint belongs to these marginals."""
        digest = hashlib.sha256()
        for cloud, masses in zip(self.points, self.weights, strict=True):
            digest.update(repr(cloud.shape).encode())
            digest.update(np.ascontiguousarray(cloud).tobytes())
            digest.update(b"uniform" if masses is None else np.ascontiguousarray(masses).tobytes())
        return digest.hexdigest()[:16]


def _validated(label: str, given: ArrayLike) -> Points:
    try:
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted below
            cloud = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{label}: not an array of numbers ({error})") from None
    if cloud.ndim != 2 or 0 in cloud.shape:
        raise DataError(f"{label}: expected a non-empty (points, dimensions) array, got shape {cloud.shape}")
    bad = int((~np.isfinite(cloud)).any(axis=1).sum())
    if bad:
        raise DataError(f"{label}: {bad} of {len(cloud)} points are NaN or infinite; remove them")
    return cloud


def _compare_extents(labels: Sequence[str], clouds: Sequence[Points]) -> None:
    """Warn where one marginal is very much larger than another: in metres and millimetres, perhaps."""
    with np.errstate(over="ignore"):
        sides = [float(np.ptp(cloud, axis=0).max()) for cloud in clouds]
    spread = [(side, label) for side, label in zip(sides, labels, strict=True) if side > 0]  # a point has no units
    if not spread:
        return
    (small, smallest), (large, largest) = min(spread), max(spread)
    if large > _FAR_APART * small:
        log.warning(
            "marginals: %s extends over %.3g, but %s over %.3g, more than %d times as far; are they in the same units?",
            *(smallest, small, largest, large, _FAR_APART),
        )


def _masses(label: str, given: ArrayLike | None, n: int) -> Points | None:
    if given is None:
        return None
    masses = np.array(given, dtype=np.float64)
    if masses.shape != (n,):
        raise DataError(f"{label}: expected {n} weights, one a point, got shape {masses.shape}")
    if not np.isfinite(masses).all() or (masses < 0).any() or not masses.sum() > 0:
        raise DataError(f"{label}: weights must be finite, not negative and not all zero")
    return np.asarray(masses / masses.sum())
