"""The one loop all tasks share: it knows no task, only a ``Problem``."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from mfswb.errors import ConfigError, DivergedError, MfswbError
from mfswb.interrupts import Interrupts
from mfswb.optim import averaged, take_average
from mfswb.stopping import Progress, Watched

log = logging.getLogger(__name__)

# On a GPU reading the loss waits for it, so there the check for NaN looks at this many steps at once.
_STEPS_BETWEEN_READS = 50
# So many evaluations may go on beside the training at a time; one more, and it waits for all of them.
_EVALUATIONS_BESIDE = 4
# The rule that ends a run early looks so often: a look costs a few steps, and on a GPU waits for it.
_STEPS_BETWEEN_LOOKS = 25
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Evaluation:
    """Distances of the current iterate to every marginal, with whatever else a task measures.

    Attributes:
        distances: W_2^2 to every marginal.
        fairness_gap: F of them.
        mean_distance: W of them.
        extra: more figures, for the row.
        snapshots: arrays worth keeping of this step, by name.
    """

    distances: list[float]
    fairness_gap: float
    mean_distance: float
    extra: dict[str, Any] = field(default_factory=dict)
    snapshots: Mapping[str, NDArray[Any]] = field(default_factory=dict, compare=False)


class Problem(Protocol):
    """What the trainer optimises."""

    def parameters(self) -> Iterable[Tensor]:
        """Leaves the optimiser changes."""

    def gradients(self, generator: torch.Generator) -> Tensor:
        """Leave the gradient of one step's objective in the parameters; returns its value, without a graph.

        All its randomness comes from ``generator``.
        """

    def project(self) -> None:
        """Bring the parameters back into their feasible set after a step."""

    def evaluate(self) -> Evaluation:
        """Measure the current iterate; must not draw from the training generator."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values that define the iterate."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""

    def close(self) -> None:
        """End whatever runs beside this process; the trainer calls it at the end, come what may."""


class Begun(Protocol):
    """An evaluation that goes on beside the training."""

    def done(self) -> bool:
        """Whether its result is there."""

    def result(self) -> Evaluation:
        """Wait for it."""


@runtime_checkable
class EvaluatesBeside(Protocol):
    """A problem whose evaluations need not keep the training waiting."""

    def begin_evaluation(self) -> Begun | None:
        """Begin to measure the current iterate; None where that would not be beside."""


class Optimizer(Protocol):
    """What the trainer needs of an optimiser: PyTorch's have it."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> Any:
        """Change the parameters by their gradients."""

    def state_dict(self) -> dict[str, Any]:
        """What is carried from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""


class Recorder(Protocol):
    """Where a run's progress goes: a run folder, or a list in memory."""

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, NDArray[Any]]) -> None:
        """One evaluation, as a JSON-like row, with what is to be kept of its step."""

    def checkpoint(self, state: dict[str, Any]) -> None:
        """A complete state to resume from."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the last evaluation row and the time it took."""

    row: dict[str, Any]
    seconds: float
    seconds_evaluation: float
    steps_run: int


@dataclass(frozen=True)
class Trainer:
    """Runs ``steps`` optimiser steps with evaluations and checkpoints on schedule.

    Attributes:
        steps: number of optimiser steps; None takes ``epochs``.
        epochs: length in passes over the data, for tasks that have epochs; ``steps`` goes before it.
        eval_steps: steps (counted after the update; 0 is the start) to evaluate at. The last step always is.
        eval_every: evaluate every so many steps too, from 0 on.
        checkpoint_every: write a checkpoint every so many steps too; the start and the end always are.
        device: ``auto`` (CUDA when there is one, else CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: ``float32`` or ``float64``.
        threads: CPU threads for PyTorch and the sorts; null leaves PyTorch's choice.
        progress: show a progress bar; null shows it on a terminal only.
        patience: end the run early where W and F, estimated along fixed directions, have not improved for so many
            steps; null never.
        tolerance: what counts as an improvement there: W or F smaller by this share of W.
    """

    steps: int | None
    eval_steps: Sequence[int] = ()
    eval_every: int | None = None
    checkpoint_every: int | None = 1000
    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None
    progress: bool | None = None
    epochs: float | None = None
    patience: int | None = None
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            raise ConfigError("trainer.steps: give a number of steps (or trainer.epochs, for tasks that have them)")
        for name, value in [("steps", self.steps), ("epochs", self.epochs)]:
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"trainer.{name}={value}: must not be negative")
        for name, value in [
            ("eval_every", self.eval_every),
            ("checkpoint_every", self.checkpoint_every),
            ("patience", self.patience),
        ]:
            if value is not None and value < 1:
                raise ConfigError(f"trainer.{name}={value}: give a positive number of steps, or null for never")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"trainer.tolerance={self.tolerance}: give a share of W, from 0 to below 1")
        if any(step < 0 for step in self.eval_steps):
            raise ConfigError(f"trainer.eval_steps={list(self.eval_steps)}: steps must not be negative")
        if self.dtype not in DTYPES:
            raise ConfigError(f"trainer.dtype={self.dtype}: choose float32 or float64")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"trainer.threads={self.threads}: give a positive number, or null")

    def of_length(self, steps_per_epoch: float | None) -> Trainer:
        """The same with its number of steps settled, for a task of so many steps an epoch, or None.

        Raises:
            ConfigError: epochs are asked for where there are none.
        """
        if self.steps is not None:
            return self
        if steps_per_epoch is None or self.epochs is None:
            raise ConfigError(f"trainer.epochs={self.epochs}: this task has no epochs; give trainer.steps")
        return replace(self, steps=math.ceil(self.epochs * steps_per_epoch))

    def torch_dtype(self) -> torch.dtype:
        """The floating-point type of the iterate."""
        return DTYPES[self.dtype]

    def torch_device(self) -> torch.device:
        """The device to run on.

        Raises:
            ConfigError: it is unknown or not there.
        """
        if self.device == "auto":
            if not torch.cuda.is_available():
                return torch.device("cpu")
            # torchrun's processes on one machine take a GPU each.
            return torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda")
        kind, _, number = self.device.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
            raise ConfigError(f"trainer.device={self.device}: choose auto, cpu, cuda or cuda:N")
        if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"trainer.device={self.device}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; "
                "use trainer.device=cpu or auto"
            )
        return torch.device(self.device)

    def is_evaluation_step(self, step: int) -> bool:
        """Whether the schedule asks for an evaluation after ``step`` updates."""
        due = self.eval_every is not None and step % self.eval_every == 0
        return step == self.steps or step in self.eval_steps or due

    def is_checkpoint_step(self, step: int) -> bool:
        """Whether the schedule asks for a checkpoint after ``step`` updates."""
        due = self.checkpoint_every is not None and step % self.checkpoint_every == 0
        return step in (0, self.steps) or due

    def fit(
        self,
        problem: Problem,
        make_optimizer: Callable[[Iterable[Tensor]], Optimizer],
        recorder: Recorder,
        *,
        seed: int,
        resume: Mapping[str, Any] | None = None,
        interrupts: Interrupts | None = None,
    ) -> Outcome:
        """Optimise ``problem``.

        Args:
            problem: what to optimise, already on its device.
            make_optimizer: takes the parameters.
            recorder: gets evaluations and checkpoints.
            seed: seeds the training generator: the same seed gives the same run.
            resume: a state given to ``recorder.checkpoint`` earlier; the run goes on from there, bit for bit on a CPU.
            interrupts: lets a step, with its evaluation and records, end before it raises KeyboardInterrupt; a
                checkpoint of it is then written. Without it an interrupt leaves the scheduled checkpoints only.

        Raises:
            DivergedError: the loss or a parameter became infinite or NaN.
        """
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            run = _Run(self, problem, make_optimizer(problem.parameters()), recorder, seed, interrupts)
            if resume is not None:
                run.restore(resume)
            with logging_redirect_tqdm([logging.getLogger()], tqdm_class=tqdm):
                return run.complete()
        finally:
            problem.close()


class _Run:
    """The moving parts of one call of ``Trainer.fit``."""

    def __init__(
        self,
        trainer: Trainer,
        problem: Problem,
        optimizer: Optimizer,
        recorder: Recorder,
        seed: int,
        interrupts: Interrupts | None = None,
    ) -> None:
        assert trainer.steps is not None, "of_length settles it"
        self.steps = trainer.steps
        if trainer.patience is not None and not isinstance(problem, Watched):
            raise ConfigError("trainer.patience: this task has no sliced distances to watch; leave it null")
        self.progress = Progress(trainer.tolerance)
        self.trainer, self.problem, self.optimizer, self.recorder = trainer, problem, optimizer, recorder
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = list(problem.parameters())
        self.step = 0
        self.first_step = 0
        self.loss: float | None = None
        self.row: dict[str, Any] = {}
        self.seconds = 0.0
        self.seconds_evaluation = 0.0
        self.resumed = False
        self._unread: list[Tensor] = []
        self._whole = nullcontext if interrupts is None else interrupts.held
        self._interrupts = interrupts
        self._kept: int | None = None  # step of the newest checkpoint
        self._begun: deque[tuple[dict[str, Any], Begun]] = deque()  # rows so far, and evaluations that complete them
        self._owes_checkpoint = False

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["step"] > self.steps:
            raise ConfigError(f"trainer.steps={self.steps}: the run to be continued is at step {state['step']} already")
        self.problem.load_state_dict(state["problem"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.step = self.first_step = int(state["step"])
        if "progress" in state:
            self.progress.load_state_dict(state["progress"])
        self.loss, self.row = state["loss"], dict(state["row"])
        self.seconds, self.seconds_evaluation = float(state["seconds"]), float(state["seconds_evaluation"])
        self.resumed = True

    def complete(self) -> Outcome:
        try:
            return self._complete()
        except KeyboardInterrupt:
            if self._interrupts is not None and not self._interrupts.forced:
                self._interrupts.handled()
                if self._kept != self.step:
                    self._collect()
                    self._checkpoint()
            raise
        except DivergedError:
            self._collect()
            raise

    def _complete(self) -> Outcome:
        steps = self.steps
        with self._whole():
            self._begin()
        # disable=None: silent where standard error is no terminal
        disable = None if self.trainer.progress is None else not self.trainer.progress
        with tqdm(total=steps, initial=self.step, disable=disable, dynamic_ncols=True, mininterval=0.2) as bar:
            while self.step < steps and not self._stagnates():
                with self._whole():
                    start = time.perf_counter()
                    self._advance()
                    self._watch()
                    self.seconds += time.perf_counter() - start
                    self._on_schedule()
                    if self._begun:
                        self._collect(wait=False)
                        self._pay_checkpoint()
                if bar.update():
                    bar.set_postfix(self._postfix(), refresh=False)
        if take_average(self.optimizer):
            self.problem.project()
        return Outcome(self.row, self.seconds, self.seconds_evaluation, self.step - self.first_step)

    def _begin(self) -> None:
        if not self.resumed:
            self._on_schedule()
            return
        self._checkpoint()  # the folder may be another one than that of the earlier part
        due = self._stagnates() or self.trainer.is_evaluation_step(self.step)
        if due and self.row.get("step") != self.step:
            self._evaluate()

    def _watch(self) -> None:
        if self.trainer.patience is None or self.step % _STEPS_BETWEEN_LOOKS:
            return
        with self._settled():
            assert isinstance(self.problem, Watched), "asked for at the start"
            self.progress.look(self.step, self.problem.sliced_distances())

    def _stagnates(self) -> bool:
        """Whether the run ends here, before its last step."""
        patience = self.trainer.patience
        return patience is not None and self.step < self.steps and self.step - self.progress.since >= patience

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """With the parameters at what would be the result if the run ended now."""
        with averaged(self.optimizer) as changed:
            if changed:
                self.problem.project()
            yield

    def _advance(self) -> None:
        self.optimizer.zero_grad()
        loss = self.problem.gradients(self.generator)
        self.optimizer.step()
        self.problem.project()
        self.step += 1
        self._unread.append(loss)
        if loss.device.type == "cpu" or len(self._unread) == _STEPS_BETWEEN_READS:
            self._read_losses()

    def _read_losses(self) -> None:
        if not self._unread:
            return
        unread = self._unread
        values = [unread[0].item()] if len(unread) == 1 else torch.stack(unread).tolist()
        first = self.step - len(values) + 1
        self._unread.clear()
        for step, value in enumerate(values, start=first):
            if not abs(value) < float("inf"):
                raise self._diverged(step, f"the loss became {value}")
        self.loss = values[-1]

    def _diverged(self, step: int, what: str) -> DivergedError:
        return DivergedError(
            step, f"diverged at step {step}: {what}; try a smaller optimizer.lr, or check the scale of the data"
        )

    def _on_schedule(self) -> None:
        ends = self._stagnates()
        evaluate = ends or self.trainer.is_evaluation_step(self.step)
        checkpoint = ends or self.trainer.is_checkpoint_step(self.step)
        if not (evaluate or checkpoint):
            return
        self._check_finite()
        if evaluate:
            self._evaluate()
        if checkpoint:
            self._owes_checkpoint = True
            self._pay_checkpoint()

    def _check_finite(self) -> None:
        self._read_losses()
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters):
            raise self._diverged(self.step, "the iterate is no longer finite")

    def _checkpoint(self) -> None:
        self._check_finite()
        with self._whole():
            self.recorder.checkpoint(self._state())
            self._kept = self.step

    def _pay_checkpoint(self) -> None:
        # A run resumed from it repeats an evaluation of its own step, but would know nothing of an earlier one.
        if self._owes_checkpoint and not any(row["step"] < self.step for row, _ in self._begun):
            self._owes_checkpoint = False
            self._checkpoint()

    def _evaluate(self) -> None:
        start = time.perf_counter()
        row = {"step": self.step, "seconds": round(self.seconds, 4), "loss": self.loss}
        last = self._stagnates() or self.step == self.steps
        if self._stagnates():
            log.info("step %d: no improvement for %d steps, so the run ends here", self.step, self.trainer.patience)
        with self._settled():
            if isinstance(self.problem, EvaluatesBeside) and not last and len(self._begun) < _EVALUATIONS_BESIDE:
                begun = self.problem.begin_evaluation()
                if begun is not None:
                    self._begun.append((row, begun))
                    self.seconds_evaluation += time.perf_counter() - start
                    return
            self.seconds_evaluation += time.perf_counter() - start
            self._collect()
            start = time.perf_counter()
            result = self.problem.evaluate()
        self.seconds_evaluation += time.perf_counter() - start
        self._record(row, result)

    def _collect(self, *, wait: bool = True) -> None:
        """Record the evaluations that went on beside, in their order; without waiting only those that are done."""
        while self._begun and (wait or self._begun[0][1].done()):
            start = time.perf_counter()
            row, begun = self._begun[0]
            try:
                result = begun.result()
            except MfswbError:
                self._begun.clear()
                raise
            self.seconds_evaluation += time.perf_counter() - start
            self._begun.popleft()
            self._record(row, result)

    def _record(self, row: dict[str, Any], result: Evaluation) -> None:
        row |= {
            "fairness_gap": result.fairness_gap,
            "mean_distance": result.mean_distance,
            "distances": result.distances,
            **result.extra,
        }
        if self._stagnates() and row["step"] == self.step:
            row["stopped_early"] = True
        log.info("step %d: F %.6g, W %.6g", row["step"], result.fairness_gap, result.mean_distance)
        self.row = row
        self.recorder.evaluated(row, result.snapshots)

    def _postfix(self) -> dict[str, str]:
        shown = {"loss": self.loss, **{name: self.row.get(name) for name in ("fairness_gap", "mean_distance")}}
        return {name: f"{value:.4g}" for name, value in shown.items() if value is not None}

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "problem": self.problem.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "loss": self.loss,
            "progress": self.progress.state_dict(),
            "row": self.row,
            "seconds": self.seconds,
            "seconds_evaluation": self.seconds_evaluation,
        }
