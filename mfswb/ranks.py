"""One problem on several processes: each takes a share of the directions, all have the same iterate."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from mfswb.errors import ConfigError

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share a problem.

    Attributes:
        rank: its number, from 0 on.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def share(self, directions: Tensor) -> Tensor:
        """This process's directions of all ``(L, d)``.

        Raises:
            ConfigError: there are fewer directions than processes.
        """
        if self.size == 1:
            return directions
        if len(directions) < self.size:
            raise ConfigError(
                f"slicing.n_projections={len(directions)}: cannot be shared by {self.size} processes; "
                "give more directions, or torchrun fewer processes"
            )
        return directions[self.rank :: self.size].contiguous()

    def joined(self, objective: Objective, n_projections: int) -> Objective:
        """The objective of all directions' costs, to be called with the costs of this process's share.

        Every process gets the value, and the derivative by its own costs.
        """
        return objective if self.size == 1 else partial(self._joined, objective, n_projections)

    def total(self, gradient: Tensor) -> Tensor:
        """Sum of what the processes' directions contribute, the same bits everywhere."""
        if self.size > 1:
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
        return gradient

    def _joined(self, objective: Objective, n_projections: int, costs: Tensor) -> tuple[Tensor, Tensor]:
        everything = costs.new_zeros(len(costs), n_projections)
        everything[:, self.rank :: self.size] = costs
        dist.all_reduce(everything)  # the others' columns are zero here
        value, gradient = objective(everything)
        return value, gradient[:, self.rank :: self.size].contiguous()


def wanted() -> Ranks:
    """The place that ``torchrun`` gives this process; a single process without it."""
    return Ranks(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def current() -> Ranks:
    """The place of this process in the group it has joined; a single process if none."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size())


@contextmanager
def joining(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that ``torchrun`` started, while inside: NCCL for CUDA devices, Gloo otherwise."""
    ranks = wanted()
    if ranks.size == 1:
        yield ranks
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield current()
    finally:
        dist.destroy_process_group()
