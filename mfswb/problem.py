"""What the training loop works with: a problem, an optimiser, a recorder, and the records they exchange."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor


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
