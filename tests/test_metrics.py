"""Exact transport and what is made of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import mfswb.metrics
import mfswb.transport_worker
from mfswb.errors import DataError, NotConvergedError
from mfswb.losses import us_mfswb
from mfswb.metrics import fairness_gap, mean_distance, sliced_multimarginal, wasserstein2_squared
from mfswb.transport_worker import TransportSolver
from mfswb.wasserstein import sliced_costs


def points(seed: int, n: int, d: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def test_equals_the_optimal_assignment() -> None:
    x, y = points(0, 40), points(1, 40)
    cost = cdist(x, y, "sqeuclidean")
    rows, columns = linear_sum_assignment(cost)
    assert wasserstein2_squared(x, y) == pytest.approx(cost[rows, columns].mean(), rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 64])
def test_a_shift_costs_its_square(d: int) -> None:
    x, shift = points(2, 25, d), points(3, 1, d)
    assert wasserstein2_squared(x, x + shift) == pytest.approx(float((shift**2).sum()), rel=1e-9)


def test_a_far_off_origin_costs_no_digits() -> None:
    x = points(4, 50) + np.array([5e5, 5.4e6, 100.0])
    assert wasserstein2_squared(x, x + 0.01) == pytest.approx(3e-4, rel=1e-5)


def test_weights_are_scaled_and_repeat_points() -> None:
    x, y = points(5, 3), points(6, 4)
    weighted = wasserstein2_squared(x, y, [2, 1, 1], None)
    assert weighted == pytest.approx(wasserstein2_squared(x[[0, 0, 1, 2]], y), rel=1e-9)


def test_one_point_each() -> None:
    assert wasserstein2_squared([[1.0]], [[4.0]]) == 9.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[np.nan, 0.0]], [[0.0, 0.0]]), "x: 1 of 1 points are not finite"),
        (([[0.0, 0.0]], [[np.inf, 0.0]]), "y: 1 of 1 points are not finite"),
        (([[0.0, 0.0]], [[0.0]]), "dimension"),
        ((np.zeros((0, 2)), [[0.0, 0.0]]), "non-empty"),
        (([[0.0]], [[1.0]], [1.0, 2.0]), "expected 1 masses"),
        (([[0.0]], [[1.0]], [-1.0]), "not negative"),
        (([[1e200]], [[-1e200]]), "overflow"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_input_is_an_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        wasserstein2_squared(*arguments)


def test_the_cap_is_raised_until_the_solver_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(7, 80), points(8, 80)
    exact = wasserstein2_squared(x, y)
    monkeypatch.setattr(mfswb.metrics, "_ITERATION_CAPS", (10, 100_000))
    assert wasserstein2_squared(x, y) == exact
    monkeypatch.setattr(mfswb.metrics, "_ITERATION_CAPS", (5, 10))
    with pytest.raises(NotConvergedError, match="did not converge"):
        wasserstein2_squared(x, y)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=7))
def test_gap_and_mean_are_their_definitions(distances: list[float]) -> None:
    pairs = [abs(a - b) for a, b in combinations(distances, 2)]
    assert fairness_gap(distances) == pytest.approx(sum(pairs) / len(pairs) if pairs else 0.0, rel=1e-9, abs=1e-9)
    assert mean_distance(distances) == pytest.approx(sum(distances) / len(distances))


# --- the second process --------------------------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TransportSolver]]:
    monkeypatch.setattr(mfswb.transport_worker, "_WORTH_A_PROCESS", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    made: list[TransportSolver] = []

    def make() -> TransportSolver:
        made.append(TransportSolver(30, [20, 25, 30]))
        assert made[-1]._process is not None
        return made[-1]

    yield make
    for solver in made:
        solver.close()


MEASURE = (points(0, 30), None)
OTHERS = [(points(1, 20), None), (points(2, 25), np.linspace(1, 2, 25)), (points(3, 30), None)]


def alone() -> list[float]:
    return [wasserstein2_squared(MEASURE[0], y, None, b) for y, b in OTHERS]


def test_two_processes_give_the_same_bits(shared: Callable[[], TransportSolver]) -> None:
    solver = shared()
    for _ in range(2):
        assert solver.distances(MEASURE, OTHERS) == alone()


def test_errors_of_the_second_process_come_through(shared: Callable[[], TransportSolver]) -> None:
    bad = (np.full((4, 3), np.nan), None)
    with pytest.raises(DataError, match="y: 4 of 4 points are not finite"):
        shared().distances(MEASURE, [*OTHERS, bad])


def test_the_figures_survive_the_second_process(shared: Callable[[], TransportSolver]) -> None:
    solver = shared()
    assert solver._process is not None
    solver._process.kill()
    solver._process.wait()
    assert solver.distances(MEASURE, OTHERS) == alone()


def test_the_second_process_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "mfswb.transport_worker"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120).returncode == 0


def test_small_problems_start_no_process() -> None:
    assert TransportSolver(100, [100, 100])._process is None


@given(st.integers(0, 10_000), st.sampled_from([1.0, 2.0, 3.0]))
def test_laws_of_the_multi_marginal_distance(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 8, 4)
    clouds = [rng.normal(size=(n, 3)) + 2 * rng.normal(size=3) for n in sizes]
    masses = [rng.uniform(0.1, 2, n) for n in sizes]
    directions = rng.normal(size=(5, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)

    def distance(*chosen: int) -> float:
        return sliced_multimarginal([clouds[k] for k in chosen], directions, p=p, weights=[masses[k] for k in chosen])

    whole = distance(0, 1, 2, 3)
    assert whole == pytest.approx(distance(2, 0, 3, 1))
    assert whole >= distance(0, 1, 2) - 1e-9 >= -1e-9
    assert distance(1, 1, 1) == 0 == distance(2)
    assert whole ** (1 / p) <= distance(0, 1) ** (1 / p) + distance(1, 2, 3) ** (1 / p) + 1e-9
    costs = sliced_costs(
        torch.from_numpy(clouds[0]),
        [torch.from_numpy(cloud) for cloud in clouds[1:]],
        torch.from_numpy(directions),
        p=p,
        support_weights=torch.from_numpy(masses[0]),
        marginal_weights=[torch.from_numpy(mass) for mass in masses[1:]],
    )
    assert float(us_mfswb(costs)) <= whole + 1e-9
    assert distance(0, 1) == pytest.approx(float(costs[0].mean()))


@pytest.mark.parametrize(
    ("measures", "p", "weights"),
    [([], 2.0, None), ([[[1.0]]], 0.5, None), ([[[1.0]]], 2.0, []), ([[[1.0, 2.0]]], 2.0, None)],
)
def test_the_multi_marginal_distance_refuses_what_does_not_fit(
    measures: list[Any], p: float, weights: list[Any] | None
) -> None:
    with pytest.raises(DataError):
        sliced_multimarginal(measures, [[1.0]], p=p, weights=weights)
