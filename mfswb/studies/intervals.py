"""Means over seeds with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from mfswb.report.tables import Cell

SPREAD = "half width of the 95 % interval"


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of a mean, by Student's t; None for a single value.

    Example:
        >>> round(half_width([1.0, 2.0, 3.0]), 3)
        2.484
    """
    n = len(values)
    return float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else None


def mean_cell(values: Sequence[float]) -> Cell:
    """Mean and :func:`half_width`; an empty cell where there is nothing."""
    return Cell(float(np.mean(values)), half_width(values), len(values)) if values else Cell(None, None, 0)
