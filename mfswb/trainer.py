"""How long and where a problem is trained, and when it is measured and kept."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from mfswb.errors import ConfigError
from mfswb.interrupts import Interrupts
from mfswb.loop import Loop
from mfswb.problem import Optimizer, Outcome, Problem, Recorder

DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
            run = Loop(self, problem, make_optimizer(problem.parameters()), recorder, seed, interrupts)
            if resume is not None:
                run.restore(resume)
            with logging_redirect_tqdm([logging.getLogger()], tqdm_class=tqdm):
                return run.complete()
        finally:
            problem.close()
