"""One barycenter, as studies compare them: a method's name in, exact figures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from numpy.typing import ArrayLike

from mfswb import recipes
from mfswb.adaptive import AdaptiveWeights, Constrained, Minimax
from mfswb.designs import design
from mfswb.errors import ConfigError
from mfswb.losses import LOSSES, es_mfswb
from mfswb.measures import Measures, Points
from mfswb.optim import SGD
from mfswb.slicing import Slicing, uniform
from mfswb.studies.clock import Clocked
from mfswb.tasks.free_support import FreeSupportBarycenter, Loss
from mfswb.trainer import Trainer

_ADAPTIVE: Mapping[str, Callable[..., AdaptiveWeights]] = {"minimax": Minimax, "constrained": Constrained}


@dataclass(frozen=True)
class Method:
    """A loss to compare, and the length of natural steps that suits it."""

    name: str
    loss: Loss
    tau: float


@dataclass(frozen=True)
class Published:
    """The published settings of a task: one rate for all steps, along independent directions.

    Attributes:
        lr: learning rate.
        n_projections: directions a step.
        scale_loss: whether the loss is multiplied by the number of support points.
    """

    lr: float
    n_projections: int
    scale_loss: bool


@dataclass(frozen=True)
class Solution:
    """What a run ended with.

    Attributes:
        fairness_gap: exact F, in squared units of the data.
        mean_distance: exact W, likewise.
        distances: exact W_2^2 to each marginal.
        seconds: of optimisation, by the clock on the wall.
        processor_seconds: the same as processor time, which other work on the machine does not lengthen.
        rows: all evaluations, the last one with everything a loss that adapts reports.
        support: the points ``(n, d)``.
    """

    fairness_gap: float
    mean_distance: float
    distances: list[float]
    seconds: float
    processor_seconds: float
    rows: list[dict[str, Any]] = field(repr=False)
    support: Points = field(repr=False)


class _Rows:
    """A recorder that keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Not kept."""


def method(name: str, dim: int, *, published: bool = False) -> Method:
    """The method of a name, with its settings behind it.

    Args:
        name: of a loss, as in ``mfswb lam=1``.
        dim: dimension of the points.
        published: leave ``es`` as the paper has it; the fast recipe's is in units of its own mean.

    Raises:
        ConfigError: there is no such method.

    Example:
        >>> method("mfswb lam=2", 3).tau
        0.2
        >>> method("es", 12).tau
        0.25
    """
    loss_name, *settings = name.split()
    try:
        values = {key: float(value) for key, value in (setting.split("=") for setting in settings)}
        if loss_name in _ADAPTIVE:
            return Method(name, _ADAPTIVE[loss_name](**values), recipes.TAU)
        if loss_name == "es" and not published:
            return Method(name, partial(es_mfswb, scale="auto", detach_weights=True), recipes.tau("es", dim))
        # a step along 1/K plus or minus lam must not lead past the aim
        tau = recipes.TAU / (1 + 2 * values.get("lam", 0.0))
        return Method(name, partial(LOSSES[loss_name], **values) if values else LOSSES[loss_name], tau)
    except (KeyError, ValueError, TypeError):
        known = ", ".join((*LOSSES, *_ADAPTIVE))
        raise ConfigError(f"study: no method {name!r}; choose of {known}, as in 'mfswb lam=1'") from None


def solve(
    marginals: Measures,
    chosen: Method,
    *,
    steps: int,
    seed: int,
    x_init: str | ArrayLike = "sphere",
    n_support: int | None = None,
    bounds: tuple[Points, Points] | None = None,
    feedback_every: int | None = None,
    eval_steps: tuple[int, ...] = (),
    patience: int | None = None,
    published: Published | None = None,
) -> Solution:
    """A barycenter by the fast recipe: well-placed directions, natural steps that decay, an average of the iterates.

    Evaluations take none of its time.

    Args:
        marginals: what to average.
        chosen: from :func:`method`; a loss that adapts must be new.
        steps: length of the run, which the decay is planned for.
        seed: seeds start and directions.
        x_init: points, or the name of a start.
        n_support: number of support points.
        bounds: lowest and highest coordinates.
        feedback_every: a loss that adapts follows exact distances, solved every so many steps; None: sliced ones.
        eval_steps: evaluations beside the last.
        patience: end the run where nothing has improved for so many steps; None never.
        published: these settings instead of the recipe's.
    """
    adapts = feedback_every is not None and isinstance(chosen.loss, AdaptiveWeights)
    if published is None:
        slicing = Slicing(design, max(recipes.N_PROJECTIONS, 2 * marginals.dim))
        optimizer = partial(SGD, tau=chosen.tau, horizon=steps, hold=recipes.HOLD, average=recipes.AVERAGE)
    else:
        slicing = Slicing(uniform, published.n_projections)
        optimizer = partial(SGD, lr=published.lr)
    problem = FreeSupportBarycenter(
        marginals,
        chosen.loss,
        slicing,
        torch.device("cpu"),
        torch.float32,
        seed,
        x_init=x_init,
        n_support=n_support,
        bounds=bounds,
        scale_loss="per_point" if published is None else published.scale_loss,
        feedback="exact" if adapts else "sliced",
        feedback_every=feedback_every or steps,
        snapshots=False,
    )
    problem.close()  # pieces of a study run side by side: importing POT in a second process costs more than it saves
    recorder = _Rows()
    trainer = Trainer(
        steps, eval_steps=eval_steps, checkpoint_every=None, patience=patience, tolerance=recipes.TOLERANCE
    )
    clocked = Clocked(problem)
    outcome = trainer.fit(clocked, optimizer, recorder, seed=seed)
    row = outcome.row
    return Solution(
        row["fairness_gap"],
        row["mean_distance"],
        row["distances"],
        outcome.seconds,
        clocked.seconds,
        recorder.rows,
        problem.points(),
    )
