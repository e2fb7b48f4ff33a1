"""Steps in natural units, averages of iterates, and runs that end when nothing improves any more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mfswb import recipes, sliced_barycenter
from mfswb.configuration import compose_config
from mfswb.designs import design
from mfswb.errors import ConfigError
from mfswb.losses import uswb
from mfswb.measures import Measures
from mfswb.optim import SGD, averaged, take_average
from mfswb.problem import Evaluation
from mfswb.run import run
from mfswb.slicing import Slicing
from mfswb.stopping import Progress
from mfswb.tasks.free_support import FreeSupportBarycenter
from mfswb.trainer import Trainer

RNG = np.random.default_rng(5)
CLOUDS = [RNG.normal(size=(40, 2)), RNG.normal(size=(40, 2)) + 4]


class Memory:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def checkpoint(self, state: dict[str, Any]) -> None:
        kept = {k: {n: v.clone() for n, v in entry.items()} for k, entry in state["optimizer"]["state"].items()}
        problem = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state["problem"].items()}
        state = {**state, "problem": problem, "optimizer": {**state["optimizer"], "state": kept}}
        self.states.append({**state, "generator": state["generator"].clone()})


def problem(clouds: list[np.ndarray] = CLOUDS, **settings: Any) -> FreeSupportBarycenter:
    slicing = Slicing(design, 8)
    given: dict[str, Any] = {"x_init": "sphere", "scale_loss": "per_point", **settings}
    measures = Measures.of(clouds)
    return FreeSupportBarycenter(measures, uswb, slicing, torch.device("cpu"), torch.float64, 0, **given)


def rates(**settings: Any) -> list[float]:
    """How far a point of the plane goes at each of ten steps whose gradient is one."""
    x = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    optimizer = SGD([x], **settings)
    places = [0.0]
    for _ in range(10):
        x.grad = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        optimizer.step()
        places.append(float(x.detach()[0, 0]))
    return [float(before - after) for before, after in pairwise(places)]


def test_rates_are_constant_for_a_fifth_and_then_fall_like_one_over_t() -> None:
    expected = [0.5 * min(1.0, 2 / t) for t in range(1, 11)]  # tau * d / 2 with d = 2
    assert rates(tau=0.5, horizon=10) == pytest.approx(expected)
    assert rates(tau=0.5) == pytest.approx([0.5] * 10)
    assert rates(lr=0.3) == pytest.approx([0.3] * 10)


def test_one_whole_step_reaches_the_average_of_the_transports() -> None:
    """With equal angles and marginals that are shifted copies of the start, that is the barycenter itself."""
    for scale in (1e-3, 1.0, 1e3):
        start = scale * CLOUDS[0]
        moved = problem([start + scale * 3.0, start - scale], x_init=start)
        Trainer(1).fit(moved, partial(SGD, tau=1.0), Memory(), seed=0)
        np.testing.assert_allclose(moved.points(), start + scale, rtol=0, atol=1e-9 * scale)


def test_natural_steps_are_the_same_for_every_point_whatever_its_mass() -> None:
    start = CLOUDS[0]
    masses = RNG.uniform(0.1, 5, len(start))
    measures = Measures.of([start + 3.0], [masses])
    moved = FreeSupportBarycenter(
        measures,
        uswb,
        Slicing(design, 8),
        torch.device("cpu"),
        torch.float64,
        0,
        x_init=start,
        weights=masses,
        scale_loss="per_point",
    )
    Trainer(1).fit(moved, partial(SGD, tau=1.0), Memory(), seed=0)
    np.testing.assert_allclose(moved.points(), start + 3.0, atol=1e-9)


def test_the_average_counts_late_iterates_more() -> None:
    x = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    optimizer = SGD([x], lr=1.0, average=2)
    for _ in range(200):
        x.grad = torch.tensor([[-1.0]], dtype=torch.float64)
        optimizer.step()
    with averaged(optimizer) as changed:
        assert changed
        # iterates are 1 .. 200 with weights that grow like t^2: their mean lies near 3/4 of the way
        assert float(x.detach()) == pytest.approx(150, abs=2)
    assert float(x.detach()) == 200
    assert take_average(optimizer)
    assert float(x.detach()) == pytest.approx(150, abs=2)
    assert not take_average(SGD([x], lr=1.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give one of them"),
        ({"lr": 0.1, "tau": 0.5}, "give one of them"),
        ({"tau": 1.5}, "above 0 and at most 1"),
        ({"tau": 0.5, "horizon": -1}, "optimizer.horizon=-1"),
        ({"tau": 0.5, "hold": 0.0}, "optimizer.hold=0.0"),
        ({"lr": 0.5, "average": -1.0}, "optimizer.average=-1.0"),
    ],
)
def test_settings_of_steps_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SGD([torch.zeros(3, 2)], **settings)


def test_natural_steps_need_points_and_order_two() -> None:
    with pytest.raises(ConfigError, match="points"):
        SGD([torch.zeros(3)], tau=0.5)
    with pytest.raises(ConfigError, match=r"task\.p=1"):
        problem(p=1)
    with pytest.raises(ConfigError, match=r"task\.scale_loss=mass"):
        problem(scale_loss="mass")


fast = partial(SGD, tau=0.8, horizon=400, average=8)


@pytest.mark.parametrize("resume_at", range(1, 4))
def test_a_run_that_averages_and_ends_early_resumes_to_the_same_bits(resume_at: int) -> None:
    trainer, memory, whole = Trainer(400, checkpoint_every=30, patience=75, tolerance=0.01), Memory(), problem()
    outcome = trainer.fit(whole, fast, memory, seed=3)
    assert outcome.row["stopped_early"]
    assert outcome.row["step"] == outcome.steps_run == memory.states[-1]["step"] < 400
    state = memory.states[resume_at]
    assert state["step"] < outcome.row["step"]
    continued, later = problem(), Memory()
    again = trainer.fit(continued, fast, later, seed=3, resume=state)
    assert np.array_equal(continued.points(), whole.points())
    assert again.row["step"] == outcome.row["step"]
    assert again.row["distances"] == outcome.row["distances"]


def test_a_run_that_ended_early_stays_ended_unless_patience_is_lifted() -> None:
    trainer, memory, whole = Trainer(200, patience=50, tolerance=0.01), Memory(), problem()
    trainer.fit(whole, fast, memory, seed=3)
    ended = memory.states[-1]["step"]
    assert ended < 200
    again, later = problem(), Memory()
    outcome = trainer.fit(again, fast, later, seed=3, resume=memory.states[-1])
    assert outcome.steps_run == 0
    assert later.rows == []
    assert np.array_equal(again.points(), whole.points())
    outcome = Trainer(200).fit(problem(), fast, Memory(), seed=3, resume=memory.states[-1])
    assert outcome.steps_run == 200 - ended


def test_improvements_of_either_figure_count() -> None:
    progress = Progress(tolerance=0.01)
    for step, distances in enumerate([[4.0, 2.0], [4.0, 3.0], [4.0, 3.0], [5.0, 5.0], [3.01, 2.97], [2.9, 2.9]]):
        progress.look(step, distances)
        assert progress.since == [0, 1, 1, 3, 3, 5][step]


def test_patience_needs_distances_to_watch() -> None:
    class Blind:
        def parameters(self) -> list[Tensor]:
            return []

        def close(self) -> None:
            return

        def evaluate(self) -> Evaluation:
            return Evaluation([0.0], 0.0, 0.0)

    with pytest.raises(ConfigError, match=r"trainer\.patience"):
        Trainer(3, patience=2).fit(Blind(), partial(SGD, lr=0.1), Memory(), seed=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"trainer\.tolerance=2"):
        Trainer(3, tolerance=2)


def test_the_library_and_the_recipe_agree() -> None:
    cfg = compose_config(["task=pointcloud", "recipe=fast"])
    assert (cfg.optimizer.tau, cfg.optimizer.hold, cfg.optimizer.average) == (
        recipes.TAU,
        recipes.HOLD,
        recipes.AVERAGE,
    )
    assert (cfg.trainer.steps, cfg.trainer.patience, cfg.trainer.tolerance) == (
        recipes.STEPS,
        recipes.PATIENCE,
        recipes.TOLERANCE,
    )
    assert cfg.slicing.n_projections == recipes.N_PROJECTIONS
    assert cfg.optimizer.horizon == cfg.trainer.steps
    assert compose_config(["recipe=fast", "trainer.steps=50"]).optimizer.horizon == 50


@pytest.mark.parametrize("loss", ["us", "es", "minimax"])
def test_the_library_s_defaults_converge_in_any_units(loss: str) -> None:
    """Two equal clouds far apart: the barycenter is the cloud half-way, and its distance to both is known."""
    for scale in (1e-2, 1e2):
        result = sliced_barycenter([scale * CLOUDS[0], scale * (CLOUDS[0] + 4)], loss, seed=1)
        best = 8 * scale**2  # half-way of (4, 4)
        assert result.mean_distance == pytest.approx(best, rel=0.02)
        assert result.fairness_gap < 0.03 * best


def test_the_recipe_says_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["task=gaussian", "recipe=fast", "task.n_support=20", "task.metric_points=50"]
    summary = run(compose_config(overrides), tmp_path / "run", overrides)
    assert summary["stopped_early"]
    assert summary["step"] == summary["steps_run"] < 600


def test_the_autoencoder_refuses_the_recipe(tmp_path: Path) -> None:
    overrides = ["task=swae", "recipe=fast", "data=digits"]
    with pytest.raises(ConfigError, match="recipe=fast: is for barycenters"):
        run(compose_config(overrides), tmp_path / "run", overrides)
