"""Free-support barycenters: the points of one measure move until it is a (fair) average of the marginals."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mfswb.adaptive import AdaptiveWeights
from mfswb.designs import design
from mfswb.errors import ConfigError, DataError
from mfswb.feedback import ExactFeedback
from mfswb.geometry import Geometry
from mfswb.loss_gradients import value_and_gradient
from mfswb.losses import is_built_in, is_none
from mfswb.measures import Measures, Points
from mfswb.metrics import fairness_gap, mean_distance
from mfswb.problem import Begun, Evaluation
from mfswb.ranks import current
from mfswb.replay import replayed
from mfswb.seeding import stream
from mfswb.slicing import Slicing
from mfswb.starts import initial_support
from mfswb.transport_worker import Measure, TransportSolver

log = logging.getLogger(__name__)

# Well-placed directions, by dimension, that average smooth costs to about a thousandth.
_FEW_DIRECTIONS = {1: 1, 2: 16, 3: 32}

Loss = Callable[[Tensor], Tensor]


class FreeSupportBarycenter:
    """The problem behind the gaussian and pointcloud tasks and behind :func:`mfswb.sliced_barycenter`.

    Processes that have joined (see :mod:`mfswb.ranks`) share the directions of every step.

    Args:
        marginals: what to average.
        loss: a reduction of the cost matrix.
        slicing: directions of each step.
        device: where to optimise.
        dtype: floating-point type of the support.
        seed: seeds the start and the subsample of the metric.
        x_init: a start's name or file (see :func:`mfswb.starts.initial_support`), or points ``(n, d)``.
        x_init_mean: centre of the ``gaussian`` start.
        x_init_std: standard deviation of the ``gaussian`` start.
        n_support: number of support points.
        weights: masses of the support points; uniform if None.
        p: order of the one-dimensional distances in the loss. Metrics are W_2^2 whatever ``p`` is.
        scale_loss: multiply the loss by the number of support points, so that a learning rate means the same step
            for any number (the paper does so for point clouds and colours, not for Gaussians). ``per_point`` divides
            by each point's share of the mass instead, so that it means the same for every point; with uniform masses
            the two are one.
        bounds: lowest and highest coordinates ``(d,)`` between which the support is clamped after every step.
        metric_points: measures with more points are thinned to so many (seeded) before exact transport; such rows
            are marked ``"metric_points"`` and the log says so. None never thins.
        feedback: which distances a loss that adapts (``minimax``, ``constrained``) follows: ``sliced``, those of its
            own cost matrix, or ``exact``, W_2^2 (see :class:`mfswb.feedback.ExactFeedback`).
        feedback_every: solve exact transport anew every so many steps.
        snapshots: keep the support of every evaluation with the run.
    """

    shares_directions = True

    def __init__(
        self,
        marginals: Measures,
        loss: Loss,
        slicing: Slicing,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        *,
        x_init: str | ArrayLike = "sphere",
        x_init_mean: list[float] | None = None,
        x_init_std: float | None = None,
        n_support: int | None = None,
        weights: ArrayLike | None = None,
        p: float = 2,
        scale_loss: bool | str = True,
        bounds: tuple[Points, Points] | None = None,
        metric_points: int | None = 5000,
        feedback: str = "sliced",
        feedback_every: int = 300,
        snapshots: bool = True,
    ) -> None:
        if not isinstance(marginals, Measures):
            raise ConfigError(
                "data: this task averages point sets: choose data=shapes, clouds, gaussians or shapenet50"
            )
        if is_none(loss):
            raise ConfigError("loss=none: leaves nothing to optimise here; choose uswb, mfswb, s, us or es")
        if not p >= 1:
            raise ConfigError(f"task.p={p}: the order must be at least 1")
        if metric_points is not None and metric_points < 1:
            raise ConfigError(f"task.metric_points={metric_points}: give a positive number, or null for all points")
        self.marginals, self.seed = marginals, seed
        if isinstance(x_init, str):
            rng = stream(seed, "start")
            x_init = initial_support(x_init, marginals, rng, n_support, mean=x_init_mean, std=x_init_std)
        start = Measures.of([x_init], [weights], names=["x_init"])
        if start.dim != marginals.dim:
            raise DataError(f"x_init: its points have dimension {start.dim}, those of the marginals {marginals.dim}")
        if n_support is not None and n_support != len(start.points[0]):
            raise ConfigError(f"n_support={n_support}: x_init has {len(start.points[0])} points; leave it None")
        self._loss, self._slicing, self._ranks = loss, slicing, current()
        self._device, self._dtype = device, dtype
        self._fixed: Tensor | None = None
        self._metric_points, self._snapshots = metric_points, snapshots
        self.weights = start.weights[0]
        n = len(start.points[0])
        if isinstance(scale_loss, str) and scale_loss != "per_point":
            raise ConfigError(f"task.scale_loss={scale_loss}: choose true, false or per_point")
        if scale_loss == "per_point" and p != 2:
            raise ConfigError(
                f"task.p={p}: natural steps are those of p=2; for other orders give task.scale_loss=true, "
                "optimizer.tau=null and optimizer.lr"
            )
        self._loss_scale = float(n) if scale_loss else 1.0

        self.support = self._tensor(marginals.frame.inward(start.points[0])).requires_grad_()
        self._shares: Tensor | None = None
        if scale_loss == "per_point" and self.weights is not None:
            self._shares = (n * self._tensor(self.weights)).clamp_min(torch.finfo(dtype).tiny).unsqueeze(1)
        clouds = [self._tensor(marginals.frame.inward(cloud)) for cloud in marginals.points]
        self._support_weights = None if self.weights is None else self._tensor(self.weights)
        given = [None if w is None else self._tensor(w) for w in marginals.weights]
        self._geometry = Geometry(
            self.support.detach(),
            # One stacked tensor where sizes allow: it is projected and sorted in one go.
            torch.stack(clouds) if len(set(marginals.sizes)) == 1 else clouds,
            p=p,
            support_weights=self._support_weights,
            marginal_weights=None if all(w is None for w in given) else given,
            chunk=slicing.chunk,
        )
        # Other losses may change from step to step, and what processes send each other is not recorded.
        static = is_built_in(loss) and self._ranks.size == 1
        self._objective = replayed(self._value_and_gradient, device) if static else self._value_and_gradient
        self._bounds = None if bounds is None else [self._tensor(marginals.frame.inward(edge)) for edge in bounds]
        self._feedback = self._exact_feedback(clouds, given, feedback_every) if feedback == "exact" else None
        if feedback not in ("sliced", "exact"):
            raise ConfigError(f"task.feedback={feedback}: choose sliced or exact")
        if isinstance(loss, AdaptiveWeights):
            unit = marginals.frame.scale**p
            loss.bind(len(marginals), unit=unit, external=feedback == "exact")
        elif feedback == "exact":
            raise ConfigError("task.feedback=exact: is for losses that adapt: loss=minimax or loss=constrained")
        thinned = [m for m in (n, *marginals.sizes) if metric_points is not None and m > metric_points]
        if thinned:
            log.warning(
                "metrics: measures of more than %d points are thinned to so many before exact transport, so F and W "
                "are estimates (task.metric_points=null for all points)",
                metric_points,
            )
        self._estimated = bool(thinned)
        limit = metric_points or max(n, *marginals.sizes)
        others = [] if self._ranks.rank > 0 else [min(size, limit) for size in marginals.sizes]
        self._solver = TransportSolver(min(n, limit), others)
        log.info(
            "%d marginals of %s points, support of %d points in R^%d",
            len(marginals),
            _short(marginals.sizes),
            n,
            marginals.dim,
        )

    def parameters(self) -> list[Tensor]:
        """The support, in working coordinates."""
        return [self.support]

    def gradients(self, generator: torch.Generator) -> Tensor:
        """Objective along fresh directions, its gradient left in the support."""
        theta = self._slicing.directions(self.marginals.dim, generator, self._dtype, self._device)
        if self._feedback is not None and isinstance(self._loss, AdaptiveWeights):
            exact = self._feedback.distances(self.support)
            if exact is not None:
                self._loss.observe(exact)
        value, self.support.grad = self._objective(theta)
        return value.clone()  # the next step may write to the same memory

    def _value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        objective = self._ranks.joined(partial(value_and_gradient, self._loss), len(theta))
        value, gradient = self._geometry.gradient(objective, self.support, self._ranks.share(theta))
        gradient = self._ranks.total(gradient)
        gradient.mul_(self._loss_scale)
        if self._shares is not None:
            gradient.div_(self._shares)
        return value * self._loss_scale, gradient

    def sliced_distances(self) -> list[float]:
        """``SW_p^p`` of the current support to every marginal, along the same few directions each time."""
        if self._fixed is None:
            few = _FEW_DIRECTIONS.get(self.marginals.dim, 4 * self.marginals.dim)
            fixed = design(few, self.marginals.dim, torch.Generator().manual_seed(0), self._dtype)
            self._fixed = fixed.to(self._device)
        with torch.no_grad():
            costs = self._geometry.costs(self.support, self._fixed)
            distances: list[float] = costs.mean(dim=1).tolist()
        return distances

    def project(self) -> None:
        """Clamp the support to its bounds, if it has any."""
        if self._bounds is not None:
            with torch.no_grad():
                self.support.clamp_(*self._bounds)

    def evaluate(self) -> Evaluation:
        """Exact W_2^2 of the current support to every marginal, in the user's units; in the first process only."""
        if self._ranks.rank > 0:
            return Evaluation([], math.nan, math.nan)
        return self._evaluation(self._solver.distances(*self._measured()), self._snapshot())

    def begin_evaluation(self) -> Begun | None:
        """The same beside the training, for measures that are worth it."""
        if isinstance(self._loss, AdaptiveWeights) or self._ranks.rank > 0:
            return None  # a report of weights is of this very step
        distances = self._solver.begin(*self._measured())
        return None if distances is None else _Begun(distances, partial(self._evaluation, kept=self._snapshot()))

    def _measured(self) -> tuple[Measure, list[Measure]]:
        mine = self._thin(self.points(), self.weights)
        theirs = zip(self.marginals.points, self.marginals.weights, strict=True)
        return mine, [self._thin(*pair) for pair in theirs]

    def _snapshot(self) -> dict[str, Points]:
        return {"support": self.points()} if self._snapshots else {}

    def _evaluation(self, distances: list[float], kept: dict[str, Points]) -> Evaluation:
        gap = fairness_gap(distances)
        extra: dict[str, Any] = {"metric_points": self._metric_points} if self._estimated else {}
        if isinstance(self._loss, AdaptiveWeights):
            extra.update(self._loss.report(gap))
            path = self._loss.path()
            if len(path):
                kept["weights"] = path
        if self._feedback is not None:
            extra["seconds_feedback"] = round(self._feedback.seconds, 4)
        return Evaluation(distances, gap, mean_distance(distances), extra, kept)

    def close(self) -> None:
        """End what runs beside this process."""
        self._solver.close()

    def points(self) -> Points:
        """The current support in the user's coordinates, ``(n, d)`` in float64."""
        return self.marginals.frame.outward(self.support.detach().cpu().double().numpy())

    def state_dict(self) -> dict[str, Any]:
        """The support, a fingerprint of the marginals, and what a loss that adapts keeps."""
        state: dict[str, Any] = {"support": self.support.detach(), "marginals": self.marginals.fingerprint()}
        if isinstance(self._loss, AdaptiveWeights):
            state["loss"] = self._loss.state_dict()
        if self._feedback is not None:
            state["feedback"] = self._feedback.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved support.

        Raises:
            ConfigError: it was computed for other marginals, or has another shape or type.
        """
        if state["marginals"] != self.marginals.fingerprint():
            raise ConfigError("trainer.resume: the data differ from those of the checkpoint; start a new run instead")
        saved = state["support"]
        if saved.shape != self.support.shape or saved.dtype != self.support.dtype:
            raise ConfigError(
                f"trainer.resume: the checkpoint holds a support {tuple(saved.shape)} in {saved.dtype}, this run "
                f"has {tuple(self.support.shape)} in {self.support.dtype}"
            )
        with torch.no_grad():
            self.support.copy_(saved)
        if isinstance(self._loss, AdaptiveWeights):
            self._loss.load_state_dict(state["loss"])
        if self._feedback is not None:
            self._feedback.load_state_dict(state["feedback"])

    def save(self, folder: Path, row: Mapping[str, Any]) -> list[Path]:
        """Write the support, the marginals as drawn, ``barycenter.ply`` (up to 3-D) and ``.png``; returns the paths."""
        from mfswb.data.ply import write_ply
        from mfswb.files import save_array
        from mfswb.report.figures import MARGINALS, barycenter_figure, write_drawn_marginals

        support = self.points()
        paths = [folder / "support.npy"]
        save_array(paths[0], support)
        if self.marginals.dim <= 3:
            paths.append(folder / "barycenter.ply")
            write_ply(paths[-1], support)
        # Reports read run folders alone, so a run leaves what their figures show of its data.
        paths.append(folder / MARGINALS)
        write_drawn_marginals(paths[-1], self.marginals)
        paths.append(folder / "barycenter.png")
        title = f"F = {row['fairness_gap']:.4g}, W = {row['mean_distance']:.4g}"
        barycenter_figure(paths[-1], support, self.marginals, title)
        return paths

    def _tensor(self, values: Points) -> Tensor:
        return torch.tensor(values, dtype=self._dtype, device=self._device)

    def _exact_feedback(self, clouds: list[Tensor], weights: list[Tensor | None], every: int) -> ExactFeedback:
        counting = [
            self._kept(len(cloud), w) for cloud, w in zip(self.marginals.points, self.marginals.weights, strict=True)
        ]
        mine = self._kept(len(self.support), self.weights)
        return ExactFeedback(
            [cloud if kept is None else cloud[kept] for cloud, kept in zip(clouds, counting, strict=True)],
            [w if kept is None else None for w, kept in zip(weights, counting, strict=True)],
            self._support_weights if mine is None else None,
            every=every,
            unit=self.marginals.frame.scale**2,
            kept=None if mine is None else torch.from_numpy(mine).to(self._device),
        )

    def _thin(self, cloud: Points, weights: Points | None) -> tuple[Points, Points | None]:
        kept = self._kept(len(cloud), weights)
        return (cloud, weights) if kept is None else (cloud[kept], None)

    def _kept(self, n: int, weights: Points | None) -> NDArray[np.int64] | None:
        """Positions of the points of a measure that count in exact transport; None for all of them."""
        limit = self._metric_points
        if limit is None or n <= limit:
            return None
        # One stream for all measures and evaluations: rows of a run can be compared, and equal marginals stay equal.
        # Weighted points are drawn by their weight, with repetition, and then count alike.
        rng = stream(self.seed, "metric")
        return rng.choice(n, size=limit, replace=weights is not None, p=weights)


@dataclass(frozen=True)
class _Begun:
    distances: Future[list[float]]
    finish: Callable[[list[float]], Evaluation]

    def done(self) -> bool:
        return self.distances.done()

    def result(self) -> Evaluation:
        return self.finish(self.distances.result())


def _short(sizes: tuple[int, ...]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
