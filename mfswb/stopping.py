"""When a run may end early: sliced estimates of W and F on fixed directions have stopped to improve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mfswb.metrics import fairness_gap, mean_distance


@runtime_checkable
class Watched(Protocol):
    """A problem whose progress can be seen without exact transport."""

    def sliced_distances(self) -> list[float]:
        """Sliced distances of the current iterate to every marginal, along directions that are always the same."""


class Progress:
    """The best sliced W and F so far, and when they last improved.

    Args:
        tolerance: what counts as an improvement: W or F smaller than the best so far by this share of W.

    Example:
        >>> progress = Progress(tolerance=1e-3)
        >>> for step, distances in ((25, [4.0, 2.0]), (50, [3.0, 2.0]), (75, [3.0, 2.0])):
        ...     progress.look(step, distances)
        >>> progress.since
        50
    """

    def __init__(self, tolerance: float) -> None:
        self.since = 0
        self._tolerance = tolerance
        self._mean = self._gap = float("inf")

    def look(self, step: int, distances: list[float]) -> None:
        """Take note of the distances after ``step`` steps."""
        mean, gap = mean_distance(distances), fairness_gap(distances)
        enough = self._tolerance * mean
        if mean < self._mean - enough or gap < self._gap - enough:
            self.since = step
            self._mean, self._gap = min(mean, self._mean), min(gap, self._gap)

    def state_dict(self) -> dict[str, Any]:
        """Plain values to continue from."""
        return {"since": self.since, "mean": self._mean, "gap": self._gap}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.since, self._mean, self._gap = int(state["since"]), float(state["mean"]), float(state["gap"])
