"""Statistics of contests: several methods on the same problems, by ranks, wins and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Values = NDArray[np.floating[Any]]
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Interval:
    """A statistic of each of several methods with the ends of its 95 % interval, ``(n_methods,)`` each."""

    value: Values
    low: Values
    high: Values

    @property
    def half_width(self) -> Values:
        """Half the width; the interval need not be symmetric."""
        return (self.high - self.low) / 2


def bootstrap(
    values: Values, rng: np.random.Generator, resamples: int, statistic: Callable[..., Any] = np.mean
) -> Interval:
    """A statistic over problems, with the percentiles it has where problems are drawn with repetition.

    Args:
        values: ``(n_problems, n_methods)``; a problem is drawn with all its methods.
        rng: draws them.
        resamples: how often.
        statistic: takes values and an ``axis``.

    Example:
        >>> found = bootstrap(np.array([[1.0], [3.0]]), np.random.default_rng(0), 200)
        >>> found.value.tolist(), found.low.tolist(), found.high.tolist()
        ([2.0], [1.0], [3.0])
    """
    n = len(values)
    drawn = np.stack([statistic(values[rng.integers(n, size=n)], axis=0) for _ in range(resamples)])
    low, high = np.percentile(drawn, _PERCENTILES, axis=0)
    return Interval(np.asarray(statistic(values, axis=0)), low, high)


def is_lowest(values: Values) -> NDArray[np.bool_]:
    """Which methods have the lowest value of each problem; several where they are equal.

    Example:
        >>> is_lowest(np.array([[2.0, 1.0, 3.0], [5.0, 5.0, 6.0]])).tolist()
        [[False, True, False], [True, True, False]]
    """
    return np.asarray(values == values.min(axis=1, keepdims=True))


def ranks(values: Values) -> Values:
    """Ranks of the methods on each problem, 1 for the lowest; equal ones share the mean of their ranks.

    Example:
        >>> ranks(np.array([[2.0, 1.0, 3.0], [5.0, 5.0, 6.0]])).tolist()
        [[2.0, 1.0, 3.0], [1.5, 1.5, 3.0]]
    """
    return np.asarray(rankdata(values, axis=1), dtype=np.float64)
