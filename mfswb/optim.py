"""The plain optimiser of the barycenter tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class SGD:
    """Stochastic gradient descent, ``x <- x - lr * gradient``.

    The same arithmetic as ``torch.optim.SGD`` without momentum, whose first use imports PyTorch's compiler for two
    seconds and whose every step takes as long as sorting half a thousand points.

    Args:
        parameters: leaves to change.
        lr: learning rate, not negative.

    Raises:
        ValueError: a negative learning rate.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        if not lr >= 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        self._parameters, self._lr = list(parameters), lr

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change the parameters by their gradients."""
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-self._lr)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is carried from step to step; laid out as PyTorch's."""
        return {"state": {}, "param_groups": [{"lr": self._lr}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
