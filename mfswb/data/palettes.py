"""The colours of a picture, compressed to a palette."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from mfswb.data.images import Pixels
from mfswb.measures import Points

log = logging.getLogger(__name__)

# The start and one pass of mini-batches see so many pixels; refinement and labelling see every colour.
_FITTED_PIXELS = 9_000
_REFINED_COLOURS = 250_000
# scikit-learn's greedy k-means++ takes more than a second for thousands of centres.
_GREEDY_COLOURS = 300
_SPREAD_ROUNDS = 16
_REFINEMENTS = 10


@dataclass(frozen=True)
class Palette:
    """A palette with the pixels it stands for.

    Attributes:
        colours: RGB values 0..255, ``(k, 3)`` in float64.
        counts: number of pixels of each colour, ``(k,)``.
        labels: for every pixel the number of its colour, ``(height, width)``.
    """

    colours: Points
    counts: NDArray[np.int64]
    labels: NDArray[np.int32]


def fit_palette(pixels: Pixels, n_colours: int, rng: np.random.Generator, name: str = "picture") -> Palette:
    """Compress a picture ``(height, width, 3)`` to ``n_colours`` colours.

    scikit-learn's MiniBatchKMeans on a sample of the pixels, then Lloyd steps over the picture's distinct colours,
    each counting as often as it occurs, with a k-d tree for the nearest centres. A picture with no more distinct
    colours than asked for keeps them all, with a note.
    """
    from sklearn.cluster import MiniBatchKMeans

    packed = pixels.reshape(-1, 3).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    occurring = np.bincount(packed, minlength=1 << 24)
    keys = np.flatnonzero(occurring)
    distinct = np.stack([keys >> 16, (keys >> 8) & 255, keys & 255], axis=1).astype(np.float64)
    counts = occurring[keys]
    if len(keys) <= n_colours:
        if len(keys) < n_colours:
            log.info("%s: its palette has the %d colours that occur, not %d", name, len(keys), n_colours)
        centres, nearest = distinct, np.arange(len(keys))
    else:
        sample = distinct[rng.choice(len(keys), size=max(_FITTED_PIXELS, 3 * n_colours), p=counts / counts.sum())]
        # A cheap start will do: the Lloyd steps below go on from where it stops, and repair it.
        init = "k-means++" if n_colours <= _GREEDY_COLOURS else _spread(sample, distinct, n_colours, rng)
        state = int(rng.integers(2**31))
        fitted = MiniBatchKMeans(n_colours, init=init, n_init=1, max_iter=1, random_state=state).fit(sample)
        centres = _refine(fitted.cluster_centers_.astype(np.float64), distinct, counts, rng)
        nearest, _ = nearest_colours(centres, distinct)
    table = np.zeros(1 << 24, dtype=np.int32)
    table[keys] = nearest
    labels = table[packed].reshape(pixels.shape[:2])
    return Palette(centres, np.bincount(labels.ravel(), minlength=len(centres)), labels)


def nearest_colours(centres: Points, colours: NDArray[Any]) -> tuple[NDArray[np.int64], Points]:
    """For every colour ``(n, 3)`` the number of the nearest centre ``(k, 3)`` and the distance, on all cores."""
    distances, nearest = cKDTree(centres).query(colours, workers=-1)
    return np.asarray(nearest, dtype=np.int64), np.asarray(distances, dtype=np.float64)


def _spread(sample: Points, distinct: Points, k: int, rng: np.random.Generator) -> Points:
    """Starting centres: k-means++ in a few rounds, each drawing many by their squared distance from those there are."""
    pool, counts = np.unique(sample, axis=0, return_counts=True)
    centres = pool[rng.choice(len(pool), size=1)]
    for target in np.unique(np.geomspace(1, min(k, len(pool)), _SPREAD_ROUNDS + 1).astype(int))[1:]:
        _, distances = nearest_colours(centres, pool)
        mass = counts * distances**2
        chosen = rng.choice(len(pool), size=target - len(centres), replace=False, p=mass / mass.sum())
        centres = np.concatenate([centres, pool[chosen]])
    # A picture with large flat areas may show fewer colours in the sample than centres are wanted.
    return np.concatenate([centres, distinct[rng.choice(len(distinct), size=k - len(centres), replace=False)]])


def _refine(centres: Points, distinct: Points, counts: NDArray[np.int64], rng: np.random.Generator) -> Points:
    if len(distinct) > _REFINED_COLOURS:
        chosen = rng.choice(len(distinct), size=_REFINED_COLOURS, replace=False)
        distinct, counts = distinct[chosen], counts[chosen]
    k = len(centres)
    for _ in range(_REFINEMENTS):
        nearest, distances = nearest_colours(centres, distinct)
        mass = np.bincount(nearest, counts, k)
        sums = np.stack([np.bincount(nearest, counts * distinct[:, axis], k) for axis in range(3)], axis=1)
        centres = sums / np.maximum(mass, 1)[:, None]
        # A centre nothing is nearest to moves onto one of the colours that are served worst.
        idle = np.flatnonzero(mass == 0)
        worst = np.argsort(counts * distances**2, kind="stable")[::-1][: len(idle)]
        centres[idle] = distinct[worst]
    return centres
