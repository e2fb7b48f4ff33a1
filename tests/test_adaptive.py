"""Losses whose weights follow the distances: laws, closed-form problems, exact feedback, resuming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mfswb.adaptive import AdaptiveWeights, Constrained, Minimax, _into_l1_ball
from mfswb.designs import design
from mfswb.errors import ConfigError
from mfswb.feedback import ExactFeedback
from mfswb.measures import Measures
from mfswb.metrics import optimal_coupling, wasserstein2_squared
from mfswb.optim import SGD
from mfswb.problem import Outcome
from mfswb.slicing import Slicing
from mfswb.tasks.free_support import FreeSupportBarycenter
from mfswb.trainer import Trainer

CLOUD = np.random.default_rng(2).normal(size=(30, 2))
MAKERS: list[Callable[[], AdaptiveWeights]] = [Minimax, partial(Constrained, eps=0.2)]


class Memory:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        self.rows.append({**row, "path": snapshots.get("weights")})

    def checkpoint(self, state: dict[str, Any]) -> None:
        # as a file would: nothing is shared with the run
        import io

        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        self.states.append(torch.load(file, weights_only=True))


def fit(
    marginals: list[np.ndarray],
    loss: AdaptiveWeights,
    steps: int = 300,
    *,
    resume: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[FreeSupportBarycenter, Outcome, Memory]:
    normalize = settings.pop("normalize", False)
    measures = Measures.of(marginals, normalize=normalize)
    problem = FreeSupportBarycenter(
        measures,
        loss,
        Slicing(design, 6),
        torch.device("cpu"),
        torch.float64,
        0,
        x_init="sphere",
        scale_loss="per_point",
        **settings,
    )
    memory = Memory()
    optimizer = partial(SGD, tau=1.0, horizon=steps, average=8)
    outcome = Trainer(steps, checkpoint_every=40).fit(problem, optimizer, memory, seed=1, resume=resume)
    return problem, outcome, memory


def random_costs(seed: int, k: int) -> Tensor:
    return torch.rand(k, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1


@pytest.mark.parametrize("make", MAKERS)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_order_of_marginals_does_not_matter(make: Callable[[], AdaptiveWeights], k: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(k)
    plain, mixed = make(), make()
    for step in range(8):
        costs = random_costs(seed + step, k)
        torch.testing.assert_close(plain(costs), mixed(costs[order]))
    np.testing.assert_allclose(plain.weights[order], mixed.weights)
    assert plain.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("make", MAKERS)
def test_the_gradient_by_the_costs_is_the_weights(make: Callable[[], AdaptiveWeights]) -> None:
    loss, costs = make(), random_costs(3, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(costs), costs)
    expected = torch.from_numpy(loss.weights / 5).unsqueeze(1).expand(4, 5)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("make", MAKERS)
def test_one_marginal_and_equal_distances_leave_the_weights_alone(make: Callable[[], AdaptiveWeights]) -> None:
    for k in (1, 4):
        loss = make()
        for _ in range(5):
            assert float(loss(torch.full((k, 3), 2.5))) == pytest.approx(2.5)
        np.testing.assert_allclose(loss.weights, 1 / k)


@pytest.mark.parametrize("make", MAKERS)
def test_states_come_back_and_binding_begins_anew(make: Callable[[], AdaptiveWeights]) -> None:
    loss, other = make(), make()
    for step in range(30):
        loss(random_costs(step, 3))
    other.bind(3)
    other.load_state_dict(loss.state_dict())
    for step in range(3):
        assert torch.equal(loss(random_costs(99 + step, 3)), other(random_costs(99 + step, 3)))
    assert len(loss.path()) == 2
    with pytest.raises(ConfigError, match=r"weights for 3 marginals, but this step has 2; .*task\.balanced"):
        loss(random_costs(0, 2))
    loss.bind(2)
    np.testing.assert_allclose(loss.weights, 0.5)
    loss.observe([float("nan"), 1.0])
    np.testing.assert_allclose(loss.weights, 0.5)


def test_minimax_on_symmetric_marginals_weighs_them_equally() -> None:
    angles = 2 * np.pi * np.arange(3) / 3
    shifts = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    _, outcome, memory = fit([CLOUD + shift for shift in shifts], Minimax())
    np.testing.assert_allclose(memory.rows[-1]["weights"], 1 / 3, atol=0.01)
    assert outcome.row["mean_distance"] == pytest.approx(25, rel=0.02)
    assert outcome.row["fairness_gap"] < 0.2


def test_minimax_equalises_the_farthest_and_drops_the_rest() -> None:
    """Copies at 0, 4 and 10 on a line: the aim lies at 5, and the one at 4 does not count."""
    marginals = [CLOUD + [place, 0.0] for place in (0.0, 4.0, 10.0)]
    problem, outcome, _ = fit(marginals, Minimax())
    np.testing.assert_allclose(problem.points().mean(axis=0), CLOUD.mean(axis=0) + [5, 0], atol=0.05)
    assert outcome.row["weights"][1] < 0.01
    np.testing.assert_allclose(outcome.row["distances"], [25, 1, 25], atol=0.6)


@pytest.mark.parametrize("normalize", [False, True])
def test_constrained_reaches_eps_on_a_closed_form_case(normalize: bool) -> None:
    """Copies at 0 (twice) and 6: the mean of distances ends at 2, and ``F = (2/3) 12 |3 - x|`` bounds how near to 3."""
    marginals = [CLOUD + [place, 0.0] for place in (0.0, 0.0, 6.0)]
    for eps in (4.0, 0.4):
        loss = Constrained(eps, margin=0.0)
        problem, outcome, memory = fit(marginals, loss, feedback="exact", feedback_every=60, normalize=normalize)
        place = 3 - eps / 8
        np.testing.assert_allclose(problem.points().mean(axis=0), CLOUD.mean(axis=0) + [place, 0], atol=0.03)
        assert outcome.row["fairness_gap"] == pytest.approx(eps, rel=0.05, abs=0.02)
        assert memory.rows[-1]["path"].shape[1] == 3
    slack = fit(marginals, Constrained(100.0))[1].row
    assert slack["feasible"]
    assert slack["multipliers"] == [0, 0, 0]


def test_constrained_pushes_away_where_that_is_what_fairness_costs() -> None:
    """The one place at equal distances from the corners of an obtuse triangle lies outside of it."""
    marginals = [CLOUD + place for place in ([0.0, 0.0], [1.0, 0.0], [0.5, 0.3])]
    _, outcome, _ = fit(marginals, Constrained(0.01), steps=600)
    assert min(outcome.row["weights"]) < -0.05
    assert outcome.row["fairness_gap"] < 0.02


def test_constrained_says_what_cannot_be_reached() -> None:
    """On a line three different places have no point at one distance from all; the smallest F is at the middle one."""
    marginals = [CLOUD + [place, 0.0] for place in (0.0, 3.0, 6.0)]
    _, outcome, _ = fit(marginals, Constrained(0.1))
    row = outcome.row
    assert not row["feasible"]
    assert row["smallest_gap"] == row["fairness_gap"] == pytest.approx(6.0, rel=0.1)
    assert row["eps"] == 0.1


@pytest.mark.parametrize("feedback", ["sliced", "exact"])
@pytest.mark.parametrize("make", MAKERS)
def test_runs_resume_to_the_same_bits(make: Callable[[], AdaptiveWeights], feedback: str) -> None:
    marginals = [CLOUD, CLOUD[:20] * 0.5 + 3, CLOUD + [0, 4]]
    settings: dict[str, Any] = {"feedback": feedback, "feedback_every": 50}
    whole, outcome, memory = fit(marginals, make(), 120, **settings)
    for state in memory.states[1:3]:
        again, later, _ = fit(marginals, make(), 120, resume=state, **settings)
        assert np.array_equal(again.points(), whole.points())
        for name in ("weights", "distances"):
            assert later.row[name] == outcome.row[name]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 10))
def test_projection_on_the_l1_ball(values: list[float], radius: float) -> None:
    vector = np.array(values)
    nearest = _into_l1_ball(vector, radius)
    assert np.abs(nearest).sum() <= radius + 1e-9
    rng = np.random.default_rng(0)
    for _ in range(20):  # no other point of the ball is nearer
        other = rng.normal(size=len(vector))
        other *= radius * rng.uniform() / max(np.abs(other).sum(), 1e-12)
        assert np.linalg.norm(vector - nearest) <= np.linalg.norm(vector - other) + 1e-9


def test_feedback_is_exact_when_fresh_and_of_second_order_later() -> None:
    rng = np.random.default_rng(4)
    x, ys = rng.normal(size=(40, 3)), [rng.normal(size=(40, 3)) + 2, rng.normal(size=(25, 3))]
    masses = rng.uniform(0.5, 2, 25)
    weights = [None, torch.from_numpy(masses)]
    feedback = ExactFeedback([torch.from_numpy(y) for y in ys], weights, None, every=1)
    support = torch.from_numpy(x)
    assert feedback.distances(support) is None
    given_masses = (None, masses)

    def exact(points: np.ndarray) -> list[float]:
        return [wasserstein2_squared(points, y, None, b) for y, b in zip(ys, given_masses, strict=True)]

    assert feedback.distances(support) == pytest.approx(exact(x), rel=1e-9)
    frozen = ExactFeedback([torch.from_numpy(y) for y in ys], weights, None, every=1000)
    frozen.load_state_dict({**feedback.state_dict(), "step": 1})
    moved = x + 1e-3 * rng.normal(size=x.shape)
    followed = frozen.distances(torch.from_numpy(moved))
    assert followed == pytest.approx(exact(moved), rel=1e-5)
    assert all(upper >= true - 1e-12 for upper, true in zip(followed or [], exact(moved), strict=True))
    assert feedback.seconds > 0 == frozen.seconds


def test_an_optimal_coupling_has_its_marginals_and_its_value() -> None:
    rng = np.random.default_rng(6)
    x, y, a, b = rng.normal(size=(9, 2)), rng.normal(size=(7, 2)), rng.uniform(1, 2, 9), rng.uniform(1, 2, 7)
    rows, columns, masses = optimal_coupling(x, y, a, b)
    np.testing.assert_allclose(np.bincount(rows, masses, 9), a / a.sum())
    np.testing.assert_allclose(np.bincount(columns, masses, 7), b / b.sum())
    value = (masses * np.square(x[rows] - y[columns]).sum(axis=1)).sum()
    assert value == pytest.approx(wasserstein2_squared(x, y, a, b))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Minimax(eta=0), r"loss\.eta=0"),
        (lambda: Minimax(floor=1), r"loss\.floor=1"),
        (lambda: Constrained(-1), r"loss\.eps=-1"),
        (lambda: Constrained(1, eta=0), r"loss\.eta=0"),
        (lambda: Constrained(1, margin=1), r"loss\.margin=1"),
    ],
)
def test_settings_are_checked(make: Callable[[], AdaptiveWeights], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_feedback_is_for_losses_that_adapt() -> None:
    with pytest.raises(ConfigError, match=r"task\.feedback=exakt"):
        fit([CLOUD], Minimax(), feedback="exakt")
    with pytest.raises(ConfigError, match=r"task\.feedback_every=0"):
        fit([CLOUD], Minimax(), feedback="exact", feedback_every=0)
    with pytest.raises(ConfigError, match="losses that adapt"):
        fit([CLOUD], lambda costs: costs.mean(), feedback="exact")  # type: ignore[arg-type]
