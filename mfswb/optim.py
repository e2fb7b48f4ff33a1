"""The plain optimiser of the barycenter tasks, with steps in natural units and an average of its iterates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mfswb.errors import ConfigError


class SGD:
    r"""Stochastic gradient descent, ``x <- x - rate * gradient``.

    With ``lr`` the same arithmetic as ``torch.optim.SGD`` without momentum, whose first use imports PyTorch's compiler
    for two seconds and whose every step takes as long as sorting half a thousand points.

    With ``tau`` the rate is ``tau * d / 2`` for points ``(n, d)``: for order 2 and a loss times ``n`` a step with
    ``tau = 1`` moves every point onto the average of its one-dimensional transports, whatever the units of the data.
    That is the fixed-point iteration of a barycenter.

    Args:
        parameters: leaves to change.
        lr: learning rate, not negative; None with ``tau``.
        tau: length of a step in natural units, above 0 and at most 1; None with ``lr``.
        horizon: number of steps the rate is planned for; None keeps it constant.
        hold: share of the horizon with a constant rate; after these ``t_0`` steps it is ``rate * t_0 / t``.
        average: None, or the power ``a`` of an average of all iterates with weights that grow like ``t^a``. It leads
            ``t / (a + 2)`` steps back on average and takes out the noise of the directions. See :func:`averaged`.

    Raises:
        ValueError: a negative learning rate.
        ConfigError: neither ``lr`` nor ``tau`` or both, or a value out of range.

    Source: O. Shamir and T. Zhang, "Stochastic gradient descent for non-smooth optimization", 2013 (the average).

    Example:
        >>> x = torch.tensor([[4.0, 2.0]], requires_grad=True)
        >>> steps = SGD([x], tau=0.5)
        >>> x.square().sum().backward()
        >>> steps.step()
        >>> x.tolist()
        [[0.0, 0.0]]
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | None = None,
        *,
        tau: float | None = None,
        horizon: int | None = None,
        hold: float = 0.2,
        average: float | None = None,
    ) -> None:
        self._parameters = list(parameters)
        if (lr is None) == (tau is None):
            raise ConfigError(f"optimizer.lr={lr}, optimizer.tau={tau}: give one of them and null for the other")
        if lr is not None and not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if tau is not None and not 0 < tau <= 1:
            raise ConfigError(f"optimizer.tau={tau}: give a number above 0 and at most 1")
        if tau is not None and any(parameter.dim() != 2 for parameter in self._parameters):
            raise ConfigError("optimizer.tau: is for the points (n, d) of a barycenter; give optimizer.lr")
        if horizon is not None and horizon < 0:
            raise ConfigError(f"optimizer.horizon={horizon}: give a number of steps, or null for a constant rate")
        if not 0 < hold <= 1:
            raise ConfigError(f"optimizer.hold={hold}: give a share of the horizon, above 0 and at most 1")
        if average is not None and not 0 <= average < float("inf"):
            raise ConfigError(f"optimizer.average={average}: give a power, not negative, or null for no average")
        self._rates = [p.shape[-1] * tau / 2 if tau else float(lr or 0) for p in self._parameters]
        self._held = None if horizon is None else max(hold * horizon, 1.0)
        self._average, self._steps = average, 0
        self._means = [] if average is None else [parameter.detach().clone() for parameter in self._parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change the parameters by their gradients."""
        self._steps += 1
        factor = 1.0 if self._held is None else min(1.0, self._held / self._steps)
        with torch.no_grad():
            for parameter, rate in zip(self._parameters, self._rates, strict=True):
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-rate * factor)
            if self._average is not None:
                share = (self._average + 1) / (self._average + self._steps)
                for mean, parameter in zip(self._means, self._parameters, strict=True):
                    mean.lerp_(parameter, share)

    @property
    def averages(self) -> bool:
        """Whether there is an average that differs from the parameters."""
        return bool(self._means) and self._steps > 0

    def take_average(self) -> list[Tensor]:
        """Put the average into the parameters; returns what they were."""
        before = [parameter.detach().clone() for parameter in self._parameters]
        self.put(self._means)
        return before

    def put(self, values: Iterable[Tensor]) -> None:
        """Set the parameters."""
        with torch.no_grad():
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The steps taken and the averages, laid out as PyTorch's."""
        state: dict[int, dict[str, Any]] = {k: {"mean": mean} for k, mean in enumerate(self._means)}
        groups = [{"lr": rate} for rate in dict.fromkeys(self._rates)]
        return {"state": state, "param_groups": groups, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self._steps = int(state.get("steps", 0))  # none in checkpoints of earlier versions, which had no use for it
        with torch.no_grad():
            for k, mean in enumerate(self._means):
                mean.copy_(state["state"][k]["mean"])


def take_average(optimizer: object) -> bool:
    """Leave the average of the iterates in the parameters, for good; False where the optimiser keeps none."""
    if not (isinstance(optimizer, SGD) and optimizer.averages):
        return False
    optimizer.take_average()
    return True


@contextmanager
def averaged(optimizer: object) -> Iterator[bool]:
    """A context in which the parameters are the average of the iterates; False where the optimiser keeps none."""
    if not (isinstance(optimizer, SGD) and optimizer.averages):
        yield False
        return
    before = optimizer.take_average()
    try:
        yield True
    finally:
        optimizer.put(before)
