r"""Objectives that solve for fairness itself: weights of the marginals that adapt to the distances seen so far.

Each is called with the cost matrix like any loss, ``sum_k w_k SW_p^p(mu, mu_k)`` with weights that sum to one, and
keeps the weights' state. No gradient flows through the weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mfswb.errors import ConfigError

_Vector = NDArray[np.float64]
_PATH_EVERY = 25


class AdaptiveWeights(ABC):
    """A weighted sliced barycenter whose weights follow the distances; subclasses say how.

    A problem binds the object to its marginals before the first call, which starts it afresh.
    """

    name = "adaptive"

    def __init__(self) -> None:
        self.weights: _Vector = np.empty(0)
        self._unit, self._external = 1.0, False
        self._path: list[list[float]] = []
        self._observations = 0
        self._smallest = math.inf

    def bind(self, n_marginals: int, *, unit: float = 1.0, external: bool = False) -> None:
        """Begin with uniform weights.

        Args:
            n_marginals: ``K``.
            unit: what one unit of the cost matrix is in the user's.
            external: distances come through :meth:`observe`; otherwise each call observes its own ``C.mean(1)``.
        """
        self.weights = np.full(n_marginals, 1.0 / n_marginals)
        self._unit, self._external = unit, external
        self._reset(n_marginals)

    def __call__(self, costs: Tensor) -> Tensor:
        """The weighted distance, after the weights have followed these costs ``(K, L)``."""
        if not len(self.weights):
            self.bind(len(costs))
        if len(costs) != len(self.weights):
            raise ConfigError(
                f"loss={self.name}: has weights for {len(self.weights)} marginals, but this step has {len(costs)}; "
                "with classes, task.balanced=true keeps them in every batch"
            )
        distances = costs.mean(dim=1)
        if not self._external:
            self.observe([self._unit * distance for distance in distances.detach().tolist()])
        return (costs.new_tensor(self.weights.tolist()) * distances).sum()

    def observe(self, distances: Sequence[float]) -> None:
        """Follow distances ``(K,)`` of the current iterate, in the user's units; NaN leaves everything as it is."""
        values = np.asarray(distances, dtype=np.float64)
        if not np.isfinite(values).all():
            return  # the run ends with an error of its own
        self._adapt(values, max(float(values.mean()), np.finfo(np.float64).tiny))
        if self._observations % _PATH_EVERY == 0:
            self._path.append(self.weights.tolist())
        self._observations += 1

    def report(self, fairness_gap: float) -> dict[str, Any]:
        """What an evaluation's row says beside its distances."""
        self._smallest = min(self._smallest, fairness_gap)
        return {"weights": [round(weight, 6) for weight in self.weights.tolist()]}

    def path(self) -> _Vector:
        """The weights at every 25th step, ``(steps / 25, K)``."""
        return np.array(self._path).reshape(-1, len(self.weights))

    def state_dict(self) -> dict[str, Any]:
        """Plain values to continue from."""
        return {
            "weights": self.weights.tolist(),
            "path": self._path,
            "observations": self._observations,
            "smallest": self._smallest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.weights = np.array(state["weights"], dtype=np.float64)
        self._path = [list(weights) for weights in state["path"]]
        self._observations, self._smallest = int(state["observations"]), float(state["smallest"])

    def _reset(self, n_marginals: int) -> None:
        """Begin the state beside the weights."""
        self._path, self._observations, self._smallest = [], 0, math.inf

    @abstractmethod
    def _adapt(self, distances: _Vector, mean: float) -> None:
        """Follow these distances, whose mean is given."""


class Minimax(AdaptiveWeights):
    r"""Make the largest distance small: a zero-sum game of the support against the marginals' weights.

    ``min_mu max_w sum_k w_k D_k`` over the simplex. The weights go by exponentiated gradient,
    ``w_k <- w_k exp(eta (D_k / mean(D) - 1))``, scaled to sum to one; the support descends on the weighted distances.
    That equalises all distances that can be equalised; marginals nearer than the others end with no weight.

    Args:
        eta: how fast the weights follow; without unit.
        floor: no weight is smaller, so that each can come back.

    Raises:
        ConfigError: a setting is out of range.

    Source: J. Kivinen and M. K. Warmuth, "Exponentiated gradient versus gradient descent", 1997 (the weights).

    Example:
        >>> import torch
        >>> loss = Minimax(eta=1.0)
        >>> float(loss(torch.tensor([[1.0, 1.0], [3.0, 3.0]]))) > 2.0
        True
        >>> loss.weights.round(3).tolist()
        [0.269, 0.731]
    """

    name = "minimax"

    def __init__(self, eta: float = 0.1, floor: float = 1e-4) -> None:
        super().__init__()
        if not 0 < eta < math.inf:
            raise ConfigError(f"loss.eta={eta}: give a positive number")
        if not 0 <= floor < 1:
            raise ConfigError(f"loss.floor={floor}: give a small number from 0 to below 1")
        self._eta, self._floor = eta, floor

    def _adapt(self, distances: _Vector, mean: float) -> None:
        excess = self._eta * (distances / mean - 1.0)
        grown = self.weights * np.exp(excess - excess.max())
        grown = np.maximum(grown / grown.sum(), self._floor / len(grown))
        self.weights = grown / grown.sum()


class Constrained(AdaptiveWeights):
    r"""The formal problem (the paper's Definition 1): the smallest mean distance with ``F <= eps``.

    ``min_mu mean_k D_k`` subject to ``F = (1/P) sum_{i<j} |D_i - D_j| <= eps`` over ``P = K (K - 1) / 2`` pairs, by a
    stochastic augmented Lagrangian. Every pair has a signed multiplier: with the differences ``g = D_i - D_j``,
    ``rho = eta / (K^2 mean(D))`` and ``B`` the vectors whose absolute values sum to at most ``P eps``,
    ``lam <- rho (u - proj_B(u))``, ``u = g + lam / rho``. The support descends on
    ``mean_k D_k + sum_{i<j} lam_ij g_ij``: weights that sum to one and may be negative, where a near marginal has to
    be pushed away.

    Args:
        eps: bound on F, in squared units of the data (of the sliced costs, or with ``task.feedback=exact`` of W_2^2).
        eta: how fast the multipliers follow, without unit; from 1 on they may swing.
        margin: share of ``eps`` by which the solver aims lower, so that noise leaves F below it.
        limit: largest multiplier. Where ``eps`` cannot be reached, multipliers end there and F near its smallest.

    Raises:
        ConfigError: a setting is out of range.

    Source: D. P. Bertsekas, "Constrained optimization and Lagrange multiplier methods", 1982.

    Example:
        >>> import torch
        >>> loss = Constrained(eps=0.5)
        >>> value = loss(torch.tensor([[1.0, 1.0], [3.0, 3.0]]))
        >>> bool(loss.weights[1] > 0.5), round(float(loss.weights.sum()), 9)
        (True, 1.0)
    """

    name = "constrained"

    def __init__(self, eps: float, eta: float = 0.4, margin: float = 0.1, limit: float = 2.0) -> None:
        super().__init__()
        if not 0 <= eps < math.inf:
            raise ConfigError(f"loss.eps={eps}: give a bound on F, not negative")
        if not 0 < eta < math.inf or not 0 < limit < math.inf:
            raise ConfigError(f"loss.eta={eta}, loss.limit={limit}: give positive numbers")
        if not 0 <= margin < 1:
            raise ConfigError(f"loss.margin={margin}: give a share of eps from 0 to below 1")
        self._eps, self._eta, self._margin, self._limit = eps, eta, margin, limit
        self.multipliers: _Vector = np.empty(0)

    def _reset(self, n_marginals: int) -> None:
        super()._reset(n_marginals)
        self.multipliers = np.zeros(n_marginals * (n_marginals - 1) // 2)

    def _adapt(self, distances: _Vector, mean: float) -> None:
        k = len(distances)
        first, second = np.triu_indices(k, 1)
        rho = self._eta / (k * k * mean)
        shifted = distances[first] - distances[second] + self.multipliers / rho
        outside = shifted - _into_l1_ball(shifted, len(first) * self._eps * (1 - self._margin))
        self.multipliers = np.clip(rho * outside, -self._limit, self._limit)
        self.weights = np.full(k, 1.0 / k)
        np.add.at(self.weights, first, self.multipliers)
        np.subtract.at(self.weights, second, self.multipliers)

    def report(self, fairness_gap: float) -> dict[str, Any]:
        """Weights, multipliers, whether F is within the bound, and the smallest F of any evaluation."""
        return {
            **super().report(fairness_gap),
            "multipliers": [round(multiplier, 6) for multiplier in self.multipliers.tolist()],
            "eps": self._eps,
            "feasible": fairness_gap <= self._eps,
            "smallest_gap": self._smallest,
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain values to continue from."""
        return {**super().state_dict(), "multipliers": self.multipliers.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        super().load_state_dict(state)
        self.multipliers = np.array(state["multipliers"], dtype=np.float64)


def _into_l1_ball(vector: _Vector, radius: float) -> _Vector:
    """The nearest vector whose absolute values sum to at most ``radius``: all of them less by one amount, or zero."""
    sizes = np.abs(vector)
    if sizes.sum() <= radius:
        return vector
    ordered = np.sort(sizes)[::-1]
    amounts = (np.cumsum(ordered) - radius) / np.arange(1, len(ordered) + 1)
    last = np.flatnonzero(ordered > amounts)  # none where the radius is lost beside the values
    amount = amounts[last[-1]] if len(last) else ordered[0]
    return np.asarray(np.sign(vector) * np.maximum(sizes - amount, 0.0))
