"""The one loop all tasks share: it knows no task, only a :class:`mfswb.problem.Problem`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from mfswb.errors import ConfigError, DivergedError, MfswbError
from mfswb.interrupts import Interrupts
from mfswb.optim import averaged, take_average
from mfswb.problem import Begun, EvaluatesBeside, Evaluation, Optimizer, Outcome, Problem, Recorder
from mfswb.stopping import Progress, Watched

if TYPE_CHECKING:
    from mfswb.trainer import Trainer

log = logging.getLogger(__name__)

# On a GPU reading the loss waits for it, so there the check for NaN looks at this many steps at once.
_STEPS_BETWEEN_READS = 50
# So many evaluations may go on beside the training at a time; one more, and it waits for all of them.
_EVALUATIONS_BESIDE = 4
# The rule that ends a run early looks so often: a look costs a few steps, and on a GPU waits for it.
_STEPS_BETWEEN_LOOKS = 25


class Loop:
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
        """Go on from a checkpoint."""
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
        """Run to the end."""
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
