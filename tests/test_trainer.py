"""The shared loop, on a problem of two numbers and on small barycenters."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mfswb import losses, sliced_barycenter
from mfswb.errors import ConfigError, DataError, DivergedError
from mfswb.interrupts import Interrupts, TerminatedError
from mfswb.measures import Measures
from mfswb.optim import SGD
from mfswb.problem import Evaluation
from mfswb.slicing import Slicing, uniform
from mfswb.tasks.free_support import FreeSupportBarycenter
from mfswb.trainer import Trainer


class Noisy:
    """Minimises a noisy square; each loss depends on one number of the generator."""

    def __init__(self, poison_at: int | None = None) -> None:
        self.x = torch.tensor([3.0, -2.0], requires_grad=True)
        self.poison_at, self.calls = poison_at, 0

    def parameters(self) -> list[Tensor]:
        return [self.x]

    def gradients(self, generator: torch.Generator) -> Tensor:
        self.calls += 1
        value = (self.x - torch.randn(2, generator=generator)).square().sum()
        if self.calls == self.poison_at:
            value = value * float("nan")
        torch.autograd.backward(value)
        return value.detach()

    def project(self) -> None:
        with torch.no_grad():
            self.x.clamp_(max=2.5)

    def evaluate(self) -> Evaluation:
        return Evaluation([float(v) for v in self.x.detach().abs()], 0.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.x.copy_(state["x"])

    def close(self) -> None:
        self.closed = True


class Memory:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def checkpoint(self, state: dict[str, Any]) -> None:
        # deep copies, as a file would be
        optimizer = {**state["optimizer"], "state": {k: dict(v) for k, v in state["optimizer"]["state"].items()}}
        for entry in optimizer["state"].values():
            entry.update({k: v.clone() for k, v in entry.items() if isinstance(v, Tensor)})
        self.states.append({**state, "optimizer": optimizer, "generator": state["generator"].clone()})


make_optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def test_schedule() -> None:
    memory = Memory()
    trainer = Trainer(10, eval_steps=[0, 3], eval_every=4, checkpoint_every=6)
    outcome = trainer.fit(Noisy(), make_optimizer, memory, seed=0)
    assert [row["step"] for row in memory.rows] == [0, 3, 4, 8, 10]
    assert [state["step"] for state in memory.states] == [0, 6, 10]
    assert set(memory.rows[0]) == {"step", "seconds", "loss", "fairness_gap", "mean_distance", "distances"}
    assert memory.rows[0]["loss"] is None
    assert memory.rows[1]["loss"] > 0
    assert outcome.row == memory.rows[-1]
    assert outcome.steps_run == 10


def test_the_problem_is_closed_come_what_may() -> None:
    for problem in (Noisy(), Noisy(poison_at=2)):
        try:
            Trainer(3).fit(problem, make_optimizer, Memory(), seed=0)
        except DivergedError:
            assert problem.poison_at
        assert problem.closed


def test_our_sgd_is_pytorch_s() -> None:
    ours, theirs = Noisy(), Noisy()
    Trainer(20).fit(ours, partial(SGD, lr=0.1), Memory(), seed=0)
    Trainer(20).fit(theirs, partial(torch.optim.SGD, lr=0.1), Memory(), seed=0)
    assert torch.equal(ours.x, theirs.x)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        SGD([ours.x], lr=-1)


def test_no_steps_evaluates_the_start() -> None:
    memory = Memory()
    Trainer(0).fit(Noisy(), make_optimizer, memory, seed=0)
    assert [row["step"] for row in memory.rows] == [0]


def test_the_feasible_set_is_kept() -> None:
    problem = Noisy()
    Trainer(1).fit(problem, partial(torch.optim.SGD, lr=0.0), Memory(), seed=0)
    assert problem.x.detach().max() <= 2.5


@pytest.mark.parametrize("resume_at", range(4))
def test_resuming_gives_the_same_bits(resume_at: int) -> None:
    whole, memory = Noisy(), Memory()
    trainer = Trainer(30, eval_every=5, checkpoint_every=10)
    trainer.fit(whole, make_optimizer, memory, seed=7)
    state = memory.states[resume_at]
    continued, later = Noisy(), Memory()
    outcome = trainer.fit(continued, make_optimizer, later, seed=7, resume=state)
    assert torch.equal(continued.x, whole.x)
    assert outcome.steps_run == 30 - state["step"]
    strip = [{k: v for k, v in row.items() if k != "seconds"} for row in memory.rows if row["step"] > state["step"]]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in later.rows] == strip


def test_seeds_decide_the_run() -> None:
    ends = []
    for seed in (1, 1, 2):
        problem = Noisy()
        Trainer(20).fit(problem, make_optimizer, Memory(), seed=seed)
        ends.append(problem.x.detach().clone())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_global_random_state_does_not_matter_and_is_left_alone() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    Trainer(5).fit(Noisy(), make_optimizer, Memory(), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step() -> None:
    memory = Memory()
    with pytest.raises(DivergedError, match=r"diverged at step 13: .*optimizer\.lr") as caught:
        Trainer(30, eval_every=5, checkpoint_every=5).fit(Noisy(poison_at=13), make_optimizer, memory, seed=0)
    assert caught.value.step == 13
    assert [row["step"] for row in memory.rows] == [0, 5, 10]
    assert torch.isfinite(memory.states[-1]["problem"]["x"]).all()


def test_losses_read_in_batches_name_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU losses are read some at a time; the same lines here, with a device that claims to be one."""
    import mfswb.loop as module

    def advance_without_reading(run: Any) -> None:
        loss = run.problem.gradients(run.generator)
        run.step += 1
        run._unread.append(loss.detach())
        if len(run._unread) == module._STEPS_BETWEEN_READS:
            run._read_losses()

    monkeypatch.setattr(module.Loop, "_advance", advance_without_reading)
    with pytest.raises(DivergedError) as caught:
        Trainer(120).fit(Noisy(poison_at=63), make_optimizer, Memory(), seed=0)
    assert caught.value.step == 63


def test_an_infinite_iterate_is_never_saved() -> None:
    class Explodes(Noisy):
        def project(self) -> None:
            with torch.no_grad():
                self.x.mul_(float("inf"))

    memory = Memory()
    with pytest.raises(DivergedError, match="iterate is no longer finite"):
        Trainer(1).fit(Explodes(), make_optimizer, memory, seed=0)
    assert [state["step"] for state in memory.states] == [0]


def test_nothing_is_shown_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    Trainer(20).fit(Noisy(), make_optimizer, Memory(), seed=0)
    assert capfd.readouterr() == ("", "")
    Trainer(20, progress=True).fit(Noisy(), make_optimizer, Memory(), seed=0)
    assert "20/20" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "trainer.steps=-1"),
        ({"steps": 1, "eval_every": 0}, "trainer.eval_every=0"),
        ({"steps": 1, "checkpoint_every": 0}, "trainer.checkpoint_every=0"),
        ({"steps": 1, "eval_steps": [-1]}, "eval_steps"),
        ({"steps": 1, "dtype": "float16"}, "float32 or float64"),
        ({"steps": 1, "threads": 0}, "threads"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(**settings)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cpu:x"])
def test_bad_devices_are_named(device: str) -> None:
    with pytest.raises(ConfigError, match=f"trainer.device={device}"):
        Trainer(1, device=device).torch_device()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["loss", "evaluate", "row", "checkpoint"])
def test_an_interrupt_keeps_the_last_whole_step(number: signal.Signals, moment: str) -> None:
    class Interrupted(Noisy):
        def gradients(self, generator: torch.Generator) -> Tensor:
            value = super().gradients(generator)
            strike("loss", self.calls == 13)
            return value

        def evaluate(self) -> Evaluation:
            strike("evaluate", self.calls == 15)
            return super().evaluate()

    class Struck(Memory):
        def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
            strike("row", row["step"] == 15)
            super().evaluated(row, snapshots)

        def checkpoint(self, state: dict[str, Any]) -> None:
            strike("checkpoint", state["step"] == 10)
            super().checkpoint(state)

    def strike(where: str, now: bool) -> None:
        if where == moment and now:
            signal.raise_signal(number)

    trainer = Trainer(30, eval_every=5, checkpoint_every=10)
    whole, memory = Noisy(), Memory()
    trainer.fit(whole, make_optimizer, memory, seed=7)
    stopped = Struck()
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(Interrupted(), make_optimizer, stopped, seed=7, interrupts=interrupts)
    assert isinstance(caught.value, TerminatedError) == (number == signal.SIGTERM)
    state = stopped.states[-1]
    assert state["step"] == {"loss": 13, "evaluate": 15, "row": 15, "checkpoint": 10}[moment]
    continued, later = Noisy(), Memory()
    trainer.fit(continued, make_optimizer, later, seed=7, resume=state)
    assert torch.equal(continued.x, whole.x)
    assert [row["step"] for row in stopped.rows + later.rows] == [0, 5, 10, 15, 20, 25, 30]


def test_a_gradient_that_is_not_finite_keeps_the_state_before() -> None:
    class Poisoned(Noisy):
        def gradients(self, generator: torch.Generator) -> Tensor:
            value = super().gradients(generator)
            if self.calls == 13 and self.x.grad is not None:
                self.x.grad[0] = float("nan")
            return value

    memory = Memory()
    with pytest.raises(DivergedError, match="diverged at step 13: the iterate"):
        Trainer(30, checkpoint_every=1).fit(Poisoned(), make_optimizer, memory, seed=0)
    assert memory.states[-1]["step"] == 12
    assert all(torch.isfinite(state["problem"]["x"]).all() for state in memory.states)


# --- barycenters ---------------------------------------------------------------------------------------------------


def blobs(*centres: float, n: int = 60, d: int = 2) -> list[np.ndarray]:
    return [np.random.default_rng(k).normal(size=(n + 7 * k, d)) + c for k, c in enumerate(centres)]


@pytest.mark.parametrize("loss", sorted(losses.LOSSES))
def test_two_equal_blobs_meet_in_the_middle(loss: str) -> None:
    result = sliced_barycenter(blobs(0.0, 8.0), loss, steps=800, lr=0.01, seed=1)
    np.testing.assert_allclose(result.support.mean(axis=0), 4.0, atol=0.35)
    assert result.fairness_gap < 0.1 * result.mean_distance
    assert result.history[-1]["mean_distance"] == result.mean_distance


def test_one_marginal_is_its_own_barycenter() -> None:
    (cloud,) = blobs(0.0)
    result = sliced_barycenter([cloud], "us", n_projections=30, steps=600, lr=0.5)
    assert result.fairness_gap == 0.0
    assert result.mean_distance < 0.01


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 3), (5, 1), (40, 64)])
def test_extreme_shapes(n: int, d: int) -> None:
    clouds = [cloud[:n] for cloud in blobs(0.0, 3.0, n=n, d=d)]
    result = sliced_barycenter(clouds, "es", steps=20, eval_every=10)
    assert result.support.shape[1] == d
    assert np.isfinite(result.support).all()
    assert [row["step"] for row in result.history] == [0, 10, 20]


def test_the_answer_moves_with_the_data_and_keeps_its_digits() -> None:
    clouds = blobs(0.0, 8.0)
    here = sliced_barycenter(clouds, "us", steps=50, dtype="float32")
    there = sliced_barycenter([cloud + np.array([5e5, 5.4e6]) for cloud in clouds], "us", steps=50, dtype="float32")
    np.testing.assert_allclose(there.support - [5e5, 5.4e6], here.support, atol=1e-4)
    assert there.mean_distance == pytest.approx(here.mean_distance, rel=1e-5)


def test_weights_count() -> None:
    marginal = np.array([[0.0, 0.0], [10.0, 0.0]])
    result = sliced_barycenter([marginal], "uswb", weights=[[1.0, 3.0]], n_support=40, steps=300)
    assert result.support[:, 0].mean() == pytest.approx(7.5, abs=0.2)
    heavy = sliced_barycenter(
        [marginal], "uswb", support_weights=[0.75, 0.25], x_init=[[9.0, 0.0], [1.0, 0.0]], steps=1
    )
    assert heavy.distances[0] == pytest.approx(50 / 3)  # one natural step: each point on the mean of its share


@pytest.mark.parametrize("loss", ["us", "es"])
@pytest.mark.parametrize("d", [2, 64, 300])
def test_the_default_rate_is_stable_in_any_dimension_and_with_uneven_weights(loss: str, d: int) -> None:
    clouds = [10 * cloud for cloud in blobs(0.0, 1.0, n=40, d=d)]
    far = sliced_barycenter(clouds, loss, steps=0).mean_distance
    weights = np.r_[0.5, np.full(59, 0.5 / 59)]
    # Ten random directions say little in high dimension; what must not happen is that the steps overshoot.
    assert sliced_barycenter(clouds, loss, steps=100).mean_distance < 1.1 * far
    heavy = sliced_barycenter(clouds, loss, n_support=60, support_weights=weights, steps=100)
    assert np.isfinite(heavy.support).all()
    assert heavy.mean_distance < 1.5 * far


def test_thinning_heeds_weights_and_keeps_equal_marginals_equal() -> None:
    cloud = np.random.default_rng(0).normal(size=(2000, 2))
    weights = np.r_[[0.4, 0.3, 0.3], np.zeros(1997)]
    options: dict[str, Any] = {"steps": 0, "x_init": cloud[:50], "weights": [weights, weights]}
    thinned = sliced_barycenter([cloud, cloud], metric_points=500, **options)
    exact = sliced_barycenter([cloud, cloud], metric_points=None, **options)
    assert thinned.fairness_gap == 0
    assert thinned.mean_distance == pytest.approx(exact.mean_distance, rel=0.1)


def test_tensors_and_callables_are_welcome() -> None:
    clouds = torch.tensor(np.stack(blobs(0.0)[:1] * 2)).float().requires_grad_()
    result = sliced_barycenter(clouds, partial(losses.mfswb, lam=10.0), x_init=clouds[0], steps=5)
    assert result.support.shape == (60, 2)


def test_library_errors() -> None:
    with pytest.raises(ConfigError, match="choose one of uswb, mfswb, s, us, es"):
        sliced_barycenter(blobs(0.0), "fair")
    with pytest.raises(DataError, match="dimension 3"):
        sliced_barycenter(blobs(0.0), x_init=np.zeros((4, 3)))
    with pytest.raises(DataError, match="not an array of numbers"):
        sliced_barycenter([[[1.0, 2.0], [3.0]]])
    with pytest.raises(ConfigError, match="x_init has 4 points"):
        sliced_barycenter(blobs(0.0), x_init=np.zeros((4, 2)), n_support=5)


def test_large_measures_are_thinned_for_the_metric_and_marked(caplog: pytest.LogCaptureFixture) -> None:
    def problem(metric_points: int | None) -> FreeSupportBarycenter:
        return FreeSupportBarycenter(
            Measures.of(blobs(0.0, 5.0, n=300)),
            losses.us_mfswb,
            Slicing(uniform),
            torch.device("cpu"),
            torch.float32,
            0,
            metric_points=metric_points,
        )

    exact, thinned = problem(None).evaluate(), problem(100).evaluate()
    assert exact.extra == {}
    assert thinned.extra == {"metric_points": 100}
    assert "thinned" in caplog.text
    assert thinned.mean_distance == pytest.approx(exact.mean_distance, rel=0.3)
    assert problem(100).evaluate() == thinned


def test_another_run_s_support_is_refused() -> None:
    def problem(shift: float, n: int | None = None) -> FreeSupportBarycenter:
        measures = Measures.of(blobs(shift, 5.0))
        return FreeSupportBarycenter(
            measures, losses.us_mfswb, Slicing(uniform), torch.device("cpu"), torch.float32, 0, n_support=n
        )

    with pytest.raises(ConfigError, match="data differ"):
        problem(0.0).load_state_dict(problem(1.0).state_dict())
    with pytest.raises(ConfigError, match=r"holds a support \(9, 2\)"):
        problem(0.0).load_state_dict(problem(0.0, 9).state_dict())
