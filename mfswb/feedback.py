"""Exact distances for losses that adapt: solved now and then, followed in between along the couplings found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mfswb import recipes
from mfswb.errors import ConfigError
from mfswb.metrics import optimal_coupling


class ExactFeedback:
    r"""W_2^2 of a moving measure to every marginal, from couplings that were optimal a while ago.

    ``D_k(x) = sum_ij P_ij |x_i - y_j|^2`` with ``P`` optimal for an earlier ``x``. That is exact when ``P`` is fresh,
    and bounds W_2^2 from above; since the optimal value's derivative is the one with ``P`` held fixed, the error is of
    second order in the way gone since, and much of it is common to all marginals. Between solutions a step costs
    next to nothing. What is solved for is an average of the latest iterates, which lacks their noise.

    Args:
        marginals: points ``(n_k, d)`` of each.
        weights: masses of each, or None for uniform.
        support_weights: masses of the moving measure, or None.
        every: solve anew every so many steps, from step ``every`` on; before that there are no distances.
        unit: squared length of one working unit in the user's.
        kept: positions of the support's points that count (a thinned measure), or None for all.

    Raises:
        ConfigError: ``every`` is not positive.
    """

    def __init__(
        self,
        marginals: Sequence[Tensor],
        weights: Sequence[Tensor | None],
        support_weights: Tensor | None,
        *,
        every: int,
        unit: float = 1.0,
        kept: Tensor | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"task.feedback_every={every}: give a positive number of steps")
        self._marginals, self._weights, self._support_weights = marginals, weights, support_weights
        self._every, self._unit, self._kept = every, unit, kept
        self._step = 0
        self._mean: Tensor | None = None
        self._couplings: list[tuple[Tensor, Tensor, Tensor]] = []
        self._partners: list[Tensor] = []
        self.seconds = 0.0

    def distances(self, support: Tensor) -> list[float] | None:
        """W_2^2 to every marginal at the next step, in the user's units; None before the first solution."""
        points = support.detach() if self._kept is None else support.detach()[self._kept]
        if self._mean is None:
            self._mean = points.clone()
        self._mean.lerp_(points, (recipes.AVERAGE + 1) / (self._step + recipes.AVERAGE + 1))
        if self._step > 0 and self._step % self._every == 0:
            start = time.perf_counter()
            self._solve(self._mean)
            self.seconds += time.perf_counter() - start
        self._step += 1
        if not self._couplings:
            return None
        totals = []
        for (rows, _, masses), partner in zip(self._couplings, self._partners, strict=True):
            apart = points[rows] - partner
            totals.append(torch.dot(masses, torch.linalg.vecdot(apart, apart)))
        return [self._unit * value for value in torch.stack(totals).tolist()]

    def _solve(self, points: Tensor) -> None:
        found = []
        for cloud, weights in zip(self._marginals, self._weights, strict=True):
            rows, columns, masses = optimal_coupling(
                points.cpu().numpy(),
                cloud.cpu().numpy(),
                None if self._support_weights is None else self._support_weights.cpu().numpy(),
                None if weights is None else weights.cpu().numpy(),
            )
            found.append((torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(masses)))
        self._take(found)

    def _take(self, couplings: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        clouds = self._marginals[: len(couplings)]  # none are there before the first solution
        self._couplings = [
            (rows.to(cloud.device), columns.to(cloud.device), masses.to(cloud))
            for (rows, columns, masses), cloud in zip(couplings, clouds, strict=True)
        ]
        pairs = zip(self._couplings, clouds, strict=True)
        self._partners = [cloud[columns] for (_, columns, _), cloud in pairs]

    def state_dict(self) -> dict[str, Any]:
        """The couplings, the average of the iterates and the number of steps seen."""
        couplings = [list(coupling) for coupling in self._couplings]
        return {"step": self._step, "mean": self._mean, "couplings": couplings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._step = int(state["step"])
        mean = state["mean"]
        self._mean = None if mean is None else mean.to(self._marginals[0]).clone()
        self._take([(rows, columns, masses) for rows, columns, masses in state["couplings"]])
