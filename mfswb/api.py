"""The engine for people who import the library: one call from arrays to a barycenter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mfswb import recipes
from mfswb.adaptive import Minimax
from mfswb.designs import design
from mfswb.errors import ConfigError
from mfswb.losses import LOSSES, es_mfswb
from mfswb.measures import Measures, Points
from mfswb.optim import SGD
from mfswb.slicing import Sampler, Slicing
from mfswb.tasks.free_support import FreeSupportBarycenter, Loss
from mfswb.trainer import Trainer


@dataclass(frozen=True)
class BarycenterResult:
    """A barycenter and how far it lies from the marginals.

    Attributes:
        support: its points ``(n, d)``, in the marginals' coordinates.
        distances: exact W_2^2 to each marginal ``(K,)``.
        fairness_gap: F, the mean difference of these distances over pairs.
        mean_distance: W, their mean.
        history: one row an evaluation: step, seconds, loss, fairness_gap, mean_distance, distances.
    """

    support: Points = field(repr=False)
    distances: Points
    fairness_gap: float
    mean_distance: float
    history: list[dict[str, Any]] = field(repr=False)


class _Memory:
    """A recorder that keeps rows and no checkpoints."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Nothing to keep: the caller gets the result itself."""


def sliced_barycenter(
    marginals: Sequence[ArrayLike | Tensor] | Tensor,
    loss: str | Callable[[Tensor], Tensor] = "es",
    *,
    n_support: int | None = None,
    x_init: ArrayLike | Tensor | str | None = None,
    weights: Sequence[ArrayLike | Tensor | None] | None = None,
    support_weights: ArrayLike | Tensor | None = None,
    n_projections: int | None = None,
    sampler: Sampler = design,
    steps: int = recipes.STEPS,
    lr: float | None = None,
    tau: float | None = None,
    patience: int | None = recipes.PATIENCE,
    p: float = 2,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    eval_every: int | None = None,
    chunk: int | None = None,
    metric_points: int | None = 5000,
    progress: bool = False,
) -> BarycenterResult:
    r"""Free-support (fair) sliced Wasserstein barycenter of several point sets.

    Stochastic gradient descent on ``n * loss(C)``, where ``C`` is the cost matrix of :func:`mfswb.sliced_costs` along
    fresh directions each step. By default with the recipe ``fast``: well-placed directions, steps in natural units that
    fall like ``1/t`` after a fifth of the run, an average of the iterates, and an end when nothing improves any more.

    Args:
        marginals: ``K`` arrays or tensors ``(n_k, d)`` of any sizes.
        loss: ``uswb``, ``mfswb``, ``s``, ``us``, ``es`` (with natural steps in units of its own mean, and without a
            gradient through its weights), ``minimax``, or a function of the cost matrix
            (``functools.partial(mfswb.losses.mfswb, lam=10)``, ``mfswb.adaptive.Constrained(eps=0.1)``).
        n_support: number of support points; as many as the largest marginal has, at most 2048, by default.
        x_init: points to start from, or a start's name (see :func:`mfswb.starts.initial_support`); the sphere around
            the marginals by default.
        weights: for each marginal the masses of its points ``(n_k,)``, or None for uniform.
        support_weights: masses of the support points ``(n,)``; uniform by default.
        n_projections: directions a step; by default 6, or twice the dimension where that is more.
        sampler: draws the directions.
        steps: number of steps.
        lr: a constant learning rate, instead of natural steps, on the last iterate. For ``p`` other than 2 it is
            ``min(0.02 * d, 0.5)`` by default (less with uneven support weights, whose heaviest point sets the pace).
        tau: length of natural steps (``p = 2``, no ``lr``), above 0 and at most 1: 1 moves every point onto the average
            of its one-dimensional transports, whatever the units of the data. By default 1, and for ``es``, which may
            put most weight on one direction, at most ``3 / d``.
        patience: end where W and F, estimated along fixed directions, have not improved for so many steps; None never.
        p: order of the one-dimensional distances.
        seed: seeds start and directions.
        device: ``auto``, ``cpu``, ``cuda``.
        dtype: ``float32`` or ``float64``.
        eval_every: evaluate (exact transport, seconds for thousands of points) every so many steps; the end always is.
        chunk: directions processed at a time, to bound memory.
        metric_points: measures with more points are thinned to so many, seeded, before exact transport; None never.
        progress: show a progress bar.

    Raises:
        DataError: marginals or weights are malformed.
        ConfigError: a setting is out of range.
        DivergedError: the loss became infinite or NaN.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> result = sliced_barycenter([rng.normal(size=(50, 2)), rng.normal(size=(70, 2)) + [6, 0]], "us", steps=200)
        >>> result.support.shape, bool(result.fairness_gap < 1.0 < result.mean_distance)
        ((70, 2), True)
    """
    natural = lr is None and p == 2
    if isinstance(loss, str) and loss not in (*LOSSES, "minimax"):
        names = ", ".join((*LOSSES, "minimax"))
        raise ConfigError(f"loss={loss!r}: choose one of {names}, or give a function of the cost matrix")
    measures = Measures.of(
        [_array(cloud) for cloud in marginals],
        None if weights is None else [None if w is None else _array(w) for w in weights],
    )
    trainer = Trainer(
        steps,
        eval_every=eval_every,
        checkpoint_every=None,
        device=device,
        dtype=dtype,
        progress=progress or False,
        patience=patience,
        tolerance=recipes.TOLERANCE,
    )
    problem = FreeSupportBarycenter(
        measures,
        _loss(loss, natural) if isinstance(loss, str) else loss,
        Slicing(sampler, n_projections or max(recipes.N_PROJECTIONS, 2 * measures.dim), chunk),
        trainer.torch_device(),
        trainer.torch_dtype(),
        int(seed),
        x_init="sphere" if x_init is None else x_init if isinstance(x_init, str) else _array(x_init),
        n_support=n_support,
        weights=None if support_weights is None else _array(support_weights),
        p=p,
        scale_loss="per_point" if natural else True,
        metric_points=metric_points,
    )
    memory = _Memory()
    if natural:
        length = recipes.tau(loss, measures.dim) if tau is None else tau
        optimizer = partial(SGD, tau=length, horizon=steps, hold=recipes.HOLD, average=recipes.AVERAGE)
    else:
        optimizer = partial(SGD, lr=_default_rate(measures.dim, problem.weights) if lr is None else lr)
    outcome = trainer.fit(problem, optimizer, memory, seed=int(seed))
    return BarycenterResult(
        support=problem.points(),
        distances=np.array(outcome.row["distances"]),
        fairness_gap=outcome.row["fairness_gap"],
        mean_distance=outcome.row["mean_distance"],
        history=memory.rows,
    )


def _loss(name: str, natural: bool) -> Loss:
    if name == "minimax":
        return Minimax()
    if name == "es" and natural:
        return partial(es_mfswb, scale="auto", detach_weights=True)
    return LOSSES[name]


def _default_rate(dim: int, shares: Points | None) -> float:
    heaviest = 1.0 if shares is None else len(shares) * float(shares.max())
    return min(0.02 * dim, 0.5) / heaviest


def _array(values: ArrayLike | Tensor) -> ArrayLike:
    return values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
