"""What runs are judged by: exact optimal transport to every marginal, its average and its spread."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mfswb.errors import DataError, NotConvergedError

# Pivots of the network simplex that are tried, one cap after the other; 3000 points need about 2e6.
_ITERATION_CAPS = (10_000_000, 1_000_000_000)


def wasserstein2_squared(x: ArrayLike, y: ArrayLike, a: ArrayLike | None = None, b: ArrayLike | None = None) -> float:
    r"""Exact squared 2-Wasserstein distance of two discrete measures.

    ``W_2^2 = min_P sum_ij P_ij |x_i - y_j|^2`` over couplings of ``a`` and ``b``, by POT's network simplex in float64.
    One shared centre is subtracted first, so a large common offset costs no digits.

    Args:
        x: points ``(n, d)``.
        y: points ``(m, d)``.
        a: masses ``(n,)``, not negative, scaled to sum to one; uniform if None.
        b: masses ``(m,)``, likewise.

    Returns:
        W_2^2 (not its root), in squared units of the data.

    Raises:
        DataError: shapes do not fit, or points or masses are not finite (a NaN would make the solver return 0).
        NotConvergedError: the solver reported no optimum even at the highest iteration cap.

    Example:
        >>> round(wasserstein2_squared([[0.0, 0.0], [1.0, 0.0]], [[1.0, 2.0], [0.0, 2.0]]), 9)
        4.0
    """
    first, second, mass_first, mass_second = _checked(x, y, a, b)

    # Imported here: POT and SciPy take a second, and neither --help nor a step of training needs them.
    import ot

    cost = _squared_distances(first, second)
    for cap in _ITERATION_CAPS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same text is in the log, which is checked
            value, log = ot.emd2(mass_first, mass_second, cost, numItermax=cap, log=True)
        if log["warning"] is None:
            return float(value)
    raise _not_converged(len(first), len(second), log["warning"])


def optimal_coupling(
    x: ArrayLike, y: ArrayLike, a: ArrayLike | None = None, b: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    r"""The coupling behind :func:`wasserstein2_squared`: which point goes where, and with how much mass.

    Args:
        x: points ``(n, d)``.
        y: points ``(m, d)``.
        a: masses ``(n,)``, as there.
        b: masses ``(m,)``, as there.

    Returns:
        Positions in ``x``, positions in ``y``, and the masses that go from one to the other; at most ``n + m - 1``.

    Raises:
        DataError: as there.
        NotConvergedError: as there.

    Example:
        >>> rows, columns, masses = optimal_coupling([[0.0], [1.0]], [[1.5], [0.5]])
        >>> rows.tolist(), columns.tolist(), masses.tolist()
        ([0, 1], [1, 0], [0.5, 0.5])
    """
    first, second, mass_first, mass_second = _checked(x, y, a, b)

    import ot

    cost = _squared_distances(first, second)
    for cap in _ITERATION_CAPS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan, log = ot.emd(mass_first, mass_second, cost, numItermax=cap, log=True)
        if log["warning"] is None:
            rows, columns = np.nonzero(plan)
            return rows, columns, plan[rows, columns]
    raise _not_converged(len(first), len(second), log["warning"])


def mean_distance(distances: Sequence[float] | NDArray[np.float64]) -> float:
    """``W = (1/K) sum_k D_k`` of the distances ``(K,)`` to the marginals; in a run these are exact W_2^2.

    Example:
        >>> mean_distance([1.0, 2.0, 6.0])
        3.0
    """
    return float(np.mean(np.asarray(distances, dtype=np.float64)))


def fairness_gap(distances: Sequence[float] | NDArray[np.float64]) -> float:
    """``F = 2/(K(K-1)) sum_{i<j} |D_i - D_j|`` of the distances ``(K,)``; 0 for one marginal (the paper's Def. 1).

    Example:
        >>> fairness_gap([1.0, 2.0, 6.0])
        3.3333333333333335
        >>> fairness_gap([5.0])
        0.0
    """
    values = np.asarray(distances, dtype=np.float64)
    k = len(values)
    if k == 1:
        return 0.0
    return float(np.abs(values[:, None] - values[None, :]).sum() / (k * (k - 1)))


def sliced_multimarginal(
    measures: Sequence[ArrayLike],
    directions: ArrayLike,
    *,
    p: float = 2,
    weights: Sequence[ArrayLike | None] | None = None,
) -> float:
    r"""Sliced multi-marginal Wasserstein distance with the maximal ground metric, to the power ``p``.

    ``mean_l int_0^1 max_{i,j} |Q_i(q) - Q_j(q)|^p dq`` with ``Q_i`` the quantile function of measure ``i`` along
    direction ``l``: all measures are coupled rank by rank, and the cost of a tuple is the largest distance in it. It
    does not depend on the order of the measures, is zero exactly where their projections agree, and its root of order
    ``p`` obeys ``SMW(1..K) <= SMW(1..j) + SMW(j..K)``. With a barycenter among the measures it is at least ``us_mfswb``
    of the others along the same directions; for two measures it is the sliced ``W_p^p``.

    Args:
        measures: points ``(n_k, d)`` of each; a barycenter is one of them.
        directions: unit vectors ``(L, d)``.
        p: order, at least 1.
        weights: masses of each, or None for uniform.

    Returns:
        The distance to the power ``p``, in units of the data to the power ``p``.

    Raises:
        DataError: no measures, or shapes, masses or ``p`` that do not fit.

    Source: Nguyen, Nguyen and Ho, ICLR 2025 (Propositions 4 and 5: what its surrogates have to do with this distance).

    Example:
        >>> sliced_multimarginal([[[0.0], [1.0]], [[2.0], [4.0]], [[1.0]]], [[1.0]])
        6.5
    """
    theta = _points("directions", directions)
    clouds = [_points(f"measures[{k}]", cloud) for k, cloud in enumerate(measures)]
    if not clouds or any(cloud.shape[1] != theta.shape[1] for cloud in clouds):
        raise DataError("measures: at least one is needed, and all must have the dimension of the directions")
    given = [None] * len(clouds) if weights is None else list(weights)
    if len(given) != len(clouds) or not p >= 1:
        raise DataError(
            f"weights, p: {len(given)} entries for {len(clouds)} measures, order {p}; give one each, p >= 1"
        )
    masses = [_masses(f"weights[{k}]", w, len(c)) for k, (w, c) in enumerate(zip(given, clouds, strict=True))]
    total = 0.0
    for direction in theta:
        projected = [cloud @ direction for cloud in clouds]
        orders = [np.argsort(values, kind="stable") for values in projected]
        levels = [np.cumsum(mass[order]) for mass, order in zip(masses, orders, strict=True)]
        edges = np.unique(np.concatenate([[0.0], *levels]).clip(0.0, 1.0))
        middles = 0.5 * (edges[1:] + edges[:-1])  # quantile functions are constant between edges
        quantiles = np.stack(
            [
                values[order][np.minimum(np.searchsorted(level, middles), len(values) - 1)]
                for values, order, level in zip(projected, orders, levels, strict=True)
            ]
        )
        total += float(((quantiles.max(axis=0) - quantiles.min(axis=0)) ** p * np.diff(edges)).sum())
    return total / len(theta)


_Checked = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _checked(x: ArrayLike, y: ArrayLike, a: ArrayLike | None, b: ArrayLike | None) -> _Checked:
    """Points and masses of two measures, around one shared centre."""
    first, second = _points("x", x), _points("y", y)
    if first.shape[1] != second.shape[1]:
        raise DataError(f"y: has dimension {second.shape[1]}, but x has {first.shape[1]}")
    centre = 0.5 * (first.mean(axis=0) + second.mean(axis=0))
    return first - centre, second - centre, _masses("a", a, len(first)), _masses("b", b, len(second))


def _squared_distances(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.spatial.distance import cdist

    cost = np.asarray(cdist(first, second, "sqeuclidean"))
    if not np.isfinite(cost).all():
        raise DataError("x, y: squared distances overflow float64; rescale the data")
    return cost


def _not_converged(n: int, m: int, warning: str) -> NotConvergedError:
    return NotConvergedError(
        f"exact transport of {n} to {m} points did not converge within {_ITERATION_CAPS[-1]} "
        f"pivots ({warning}); use fewer points"
    )


def _points(name: str, given: ArrayLike) -> NDArray[np.float64]:
    points = np.asarray(given, dtype=np.float64)
    if points.ndim != 2 or 0 in points.shape:
        raise DataError(f"{name}: expected a non-empty (points, dimensions) array, got shape {points.shape}")
    bad = int((~np.isfinite(points)).any(axis=1).sum())
    if bad:
        raise DataError(f"{name}: {bad} of {len(points)} points are not finite")
    return points


def _masses(name: str, given: ArrayLike | None, n: int) -> NDArray[np.float64]:
    if given is None:
        return np.full(n, 1.0 / n)
    masses = np.asarray(given, dtype=np.float64)
    if masses.shape != (n,):
        raise DataError(f"{name}: expected {n} masses, got shape {masses.shape}")
    if not np.isfinite(masses).all() or (masses < 0).any() or not masses.sum() > 0:
        raise DataError(f"{name}: masses must be finite, not negative and not all zero")
    return np.asarray(masses / masses.sum())
