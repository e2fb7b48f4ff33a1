"""Steps of fixed shapes recorded once as a CUDA graph and replayed: one launch instead of some dozens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Outputs = tuple[Tensor, ...]

# Calls before the recording: they fill the caches of what does not change, and let libraries set themselves up.
_WARM_UP = 3


class Graph(Protocol):
    """Device work that is recorded once and replayed on the same memory."""

    def record(self, work: Callable[[], Outputs]) -> Outputs:
        """Record the work; its outputs hold results only after a replay.

        Raises:
            RuntimeError: something in it cannot be recorded.
        """

    def replay(self) -> None:
        """Do the recorded work again, with what its inputs hold now."""


class CudaGraph:
    """A ``torch.cuda.CUDAGraph`` of the current device."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Outputs]) -> Outputs:
        """Record the work on a stream of its own."""
        with torch.cuda.graph(self._graph):
            return work()

    def replay(self) -> None:
        """Launch it."""
        self._graph.replay()


class Replayed:
    """A function of one tensor that is called directly a few times, then recorded, and replayed from then on.

    Tensors that it reads otherwise must keep their memory, and it must not depend on anything that the host computes
    between calls. Falls back to direct calls by itself: for good where the work cannot be recorded (the log says so,
    once), and for calls with an argument of another shape.

    Args:
        work: what to call; gives tensors.
        graph: makes an empty graph.
    """

    def __init__(self, work: Callable[[Tensor], Outputs], graph: Callable[[], Graph] = CudaGraph) -> None:
        self._work, self._new_graph = work, graph
        self._graph: Graph | None = None
        self._argument: Tensor | None = None
        self._outputs: Outputs = ()
        self._direct_calls, self._recordable = 0, True

    def __call__(self, argument: Tensor) -> Outputs:
        """Results in memory that the next call writes again."""
        if self._argument is None or self._argument.shape != argument.shape:
            if self._graph is None:  # nothing is recorded yet: the new shape may be the one that stays
                self._argument, self._direct_calls = argument.clone(), 0
            else:
                return self._work(argument)
        if self._graph is None and self._recordable and self._direct_calls >= _WARM_UP:
            self._record()
        if self._graph is None:
            self._direct_calls += 1
            return self._work(argument)
        self._argument.copy_(argument, non_blocking=True)
        self._graph.replay()
        return self._outputs

    def _record(self) -> None:
        graph, argument = self._new_graph(), self._argument
        assert argument is not None, "set by the first call"
        try:
            self._outputs = graph.record(lambda: self._work(argument))
        except RuntimeError as error:
            self._recordable = False
            log.info("a step cannot be recorded as a CUDA graph, so each is launched piece by piece: %s", error)
        else:
            self._graph = graph


def replayed(work: Callable[[Tensor], Outputs], device: torch.device) -> Callable[[Tensor], Outputs]:
    """The same function, recorded and replayed where the device can."""
    return Replayed(work) if device.type == "cuda" else work
