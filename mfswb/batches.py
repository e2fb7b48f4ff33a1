"""Which pictures make up a step's batch: a function of the seed and the step alone, so that a run can be continued."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import ConfigError
from mfswb.seeding import stream

Positions = NDArray[np.intp]


class Batches:
    """Batches of one size from endless epochs; each epoch has every picture once, in a new order.

    Args:
        labels: class of every picture, from 0 on, ``(n,)``.
        batch_size: pictures a batch; at most ``n`` are taken.
        seed: decides the orders.
        balanced: every batch has as many pictures of each class (up to one); small classes then come round more often.

    Raises:
        ConfigError: an empty batch, or fewer pictures a balanced batch than classes.

    Example:
        >>> batches = Batches(np.array([0, 0, 0, 1, 1, 2]), 4, seed=0)
        >>> sorted(np.concatenate([batches.at(step) for step in range(3)]).tolist())
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """

    def __init__(self, labels: NDArray[np.int64], batch_size: int, seed: int, *, balanced: bool = False) -> None:
        if batch_size < 1:
            raise ConfigError(f"task.batch_size={batch_size}: at least one picture is needed")
        self.n = len(labels)
        self.batch_size = min(batch_size, self.n)
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)] if balanced else [np.arange(self.n)]
        if self.batch_size < len(groups):
            raise ConfigError(f"task.batch_size={batch_size}: a balanced batch of {len(groups)} classes needs as many")
        self._streams = [
            _Stream(group, seed, f"epochs of {k}" if balanced else "epochs") for k, group in enumerate(groups)
        ]

    def at(self, step: int) -> Positions:
        """Positions of the pictures of one step's batch, counted from 0; ``(batch_size,)``."""
        parts = len(self._streams)
        # Where the batch does not divide evenly, the odd ones go to other classes from step to step.
        bounds = [[(t * self.batch_size + k) // parts for t in (step, step + 1)] for k in range(parts)]
        taken = [stream.between(low, high) for stream, (low, high) in zip(self._streams, bounds, strict=True)]
        return np.concatenate(taken)


class _Stream:
    """The members of one group again and again, each time in a new order."""

    def __init__(self, members: Positions, seed: int, purpose: str) -> None:
        self._members, self._seed, self._purpose = members, seed, purpose
        self._epoch, self._order = -1, members

    def between(self, low: int, high: int) -> Positions:
        n = len(self._members)
        found = []
        while low < high:
            epoch, start = divmod(low, n)
            stop = min(n, start + high - low)
            found.append(self._order_of(epoch)[start:stop])
            low += stop - start
        return np.concatenate(found) if found else self._members[:0]

    def _order_of(self, epoch: int) -> Positions:
        if epoch != self._epoch:
            rng = stream(self._seed, f"{self._purpose}, {epoch}")
            self._epoch, self._order = epoch, rng.permutation(self._members)
        return self._order
