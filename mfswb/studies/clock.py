"""Processor time of a problem's steps, apart from its evaluations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mfswb.problem import Evaluation
from mfswb.tasks.free_support import FreeSupportBarycenter


class Clocked:
    """A problem that counts the processor time of optimising it, whatever else the machine does.

    A step lasts from the gradient to the projection that follows it, the optimiser in between. The looks of a rule
    that ends a run early count too, evaluations do not. These are never made beside the steps, which they would slow
    down.

    Attributes:
        seconds: of this process so far; rows have them as ``processor_seconds``.
    """

    def __init__(self, problem: FreeSupportBarycenter) -> None:
        self._problem = problem
        self._began: float | None = None
        self.seconds = 0.0

    def parameters(self) -> list[Tensor]:
        """Those of the problem."""
        return self._problem.parameters()

    def gradients(self, generator: torch.Generator) -> Tensor:
        """Begin a step."""
        self._began = time.process_time()
        return self._problem.gradients(generator)

    def project(self) -> None:
        """End a step, if one has begun: averages are projected, too."""
        self._problem.project()
        if self._began is not None:
            self.seconds += time.process_time() - self._began
            self._began = None

    def sliced_distances(self) -> list[float]:
        """What the rule that ends a run early looks at."""
        began = time.process_time()
        distances = self._problem.sliced_distances()
        self.seconds += time.process_time() - began
        return distances

    def evaluate(self) -> Evaluation:
        """The problem's, with the seconds so far."""
        found = self._problem.evaluate()
        return replace(found, extra={**found.extra, "processor_seconds": round(self.seconds, 6)})

    def state_dict(self) -> dict[str, Any]:
        """That of the problem."""
        return self._problem.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into the problem."""
        self._problem.load_state_dict(state)

    def close(self) -> None:
        """End what runs beside this process."""
        self._problem.close()
