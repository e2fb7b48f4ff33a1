"""How far the largest of few-direction averages lies above the largest average: the bias of s-MFSWB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from mfswb.designs import SAMPLERS
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.style import method_colours
from mfswb.report.tables import Cell as TableCell
from mfswb.report.tables import Column, Table
from mfswb.studies.problems import Problem, clouds_problem
from mfswb.studies.solving import method, solve
from mfswb.studies.study import Cell, Picture, Row
from mfswb.wasserstein import sliced_costs

SUPPORTS: Mapping[str, str] = {
    "start": "the start, a sphere",
    "minimax": "a minimax support: marginals about equally far",
}
LOSSES = ("s", "us")
_BLOCK = 1000
# Draws are averaged in so many groups, whose scatter says how much of a mean gradient's error is noise.
_GROUPS = 10


@dataclass(frozen=True)
class Truth:
    """A problem with what very many directions say of it: values of the losses and their gradients by the support."""

    problem: Problem
    values: Mapping[str, float]
    gradients: Mapping[str, Tensor]
    farthest: int


def excesses(
    problem: Problem, directions: Tensor, farthest: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Both losses of several draws at once, less the mean cost of one marginal from the same directions.

    That mean is unbiased and goes up and down with the losses, so that what is left is far less noisy than they are.

    Args:
        problem: where.
        directions: draws ``(R, L, d)``.
        farthest: the marginal; where it is the farthest in a draw, the excess of ``s`` is zero.

    Returns:
        Excesses ``(R,)`` of each loss, the means over draws of their gradients ``(n, d)``, and the farthest marginal
        of each draw ``(R,)``.
    """
    draws, count, dim = directions.shape
    support = problem.support.clone().requires_grad_()
    gradients = {name: torch.zeros_like(problem.support) for name in LOSSES}
    blocks: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
    positions = []
    at_a_time = max(1, _BLOCK // count)
    for part in torch.split(directions, at_a_time):
        flat = sliced_costs(support, problem.marginals, part.reshape(-1, dim))
        costs = flat.reshape(len(flat), len(part), count)
        means = costs.mean(2)
        rows, columns = means.max(0), costs.max(0).values.mean(1)
        for name, values in (("s", rows.values - means[farthest]), ("us", columns - means[farthest])):
            (gradient,) = torch.autograd.grad(values.sum(), support, retain_graph=name == "s")
            gradients[name] += gradient / draws
            blocks[name].append(values.detach())
        positions.append(rows.indices)
    return {name: torch.cat(values) for name, values in blocks.items()}, gradients, torch.cat(positions)


def squared_bias(groups: Tensor, truth: Tensor, unit: Tensor) -> tuple[float, float]:
    """The squared norm of a mean's bias relative to that of a unit, without the mean's own noise; its standard error.

    Args:
        groups: means ``(G, ...)`` of independent groups.
        truth: what they are held against.
        unit: in what it is told.

    Example:
        >>> squared_bias(torch.tensor([[1.5], [2.5]]), torch.tensor([1.0]), torch.tensor([1.0]))[0]
        0.75
    """

    def estimate(kept: Tensor) -> float:
        noise = (kept - kept.mean(0)).square().sum() / (len(kept) * (len(kept) - 1))
        return float(((kept.mean(0) - truth).square().sum() - noise) / unit.square().sum())

    whole = estimate(groups)
    if len(groups) < 3:
        return whole, float("nan")
    left = np.array([estimate(torch.cat([groups[:k], groups[k + 1 :]])) for k in range(len(groups))])
    jackknife = np.sqrt((len(left) - 1) * left.var())
    return whole, float(jackknife)


@dataclass(frozen=True)
class LargestBias:
    """Biases of ``s`` from few directions by sampler, where one marginal is farthest and where none is; ``us`` beside.

    Attributes:
        clouds: the marginals.
        samplers: by the names of :data:`mfswb.designs.SAMPLERS`.
        n_projections: numbers of directions.
        draws: independent ones that a bias is the mean of; a multiple of ten.
        reference: directions that stand for all of them.
        steps: of the minimax run that finds the support where marginals are about equally far.
        seed: seeds starts and directions.
    """

    clouds: Measures
    samplers: list[str]
    n_projections: list[int]
    draws: int
    reference: int
    steps: int
    seed: int = 1
    _kept: dict[str, Truth] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.samplers if name not in SAMPLERS]
        if unknown or not self.samplers:
            raise ConfigError(f"study.samplers={self.samplers}: choose of {', '.join(SAMPLERS)}")
        if not self.n_projections or min(self.n_projections) < 1:
            raise ConfigError(f"study.n_projections={self.n_projections}: give positive numbers")
        if self.draws < 3 * _GROUPS or self.draws % _GROUPS:
            raise ConfigError(f"study.draws={self.draws}: give a multiple of {_GROUPS}, at least {3 * _GROUPS}")
        for name in ("reference", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")
        if len(self.clouds) < 2:
            raise ConfigError("study.clouds: one marginal is always the farthest; give two or more")

    def cells(self) -> Sequence[Cell]:
        """A piece a support, sampler and number of directions."""
        return [
            {
                "support": support,
                "sampler": sampler,
                "n_projections": count,
                "draws": self.draws,
                "reference": self.reference,
                "steps": self.steps,
                "data": self.clouds.fingerprint(),
                "seed": self.seed,
            }
            for support in SUPPORTS
            for sampler in self.samplers
            for count in self.n_projections
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """Biases of one sampler from one number of directions: a row a loss."""
        truth = self.truth(cell["support"])
        dim, count = self.clouds.dim, cell["n_projections"]
        generator = torch.Generator().manual_seed(self.seed)
        values: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
        gradients: dict[str, list[Tensor]] = {name: [] for name in LOSSES}
        others = 0
        for _ in range(_GROUPS):
            drawn = [
                SAMPLERS[cell["sampler"]](count, dim, generator, torch.float64) for _ in range(self.draws // _GROUPS)
            ]
            found, slopes, farthest = excesses(truth.problem, torch.stack(drawn), truth.farthest)
            others += int((farthest != truth.farthest).sum())
            for name in LOSSES:
                values[name].append(found[name])
                gradients[name].append(slopes[name])
        rows = []
        for name in LOSSES:
            excess, slope = truth.values[name] - truth.values["s"], truth.gradients[name] - truth.gradients["s"]
            relative = ((torch.cat(values[name]) - excess) / truth.values[name]).numpy()
            squared, uncertain = squared_bias(torch.stack(gradients[name]), slope, truth.gradients[name])
            rows.append(
                {
                    "support": cell["support"],
                    "sampler": cell["sampler"],
                    "n_projections": count,
                    "loss": name,
                    "bias": round(float(relative.mean()), 12),  # what is smaller is rounding
                    "standard_error": float(relative.std(ddof=1) / np.sqrt(len(relative))),
                    "gradient_bias_squared": squared,
                    "gradient_standard_error": uncertain,
                    "other_farthest": others / self.draws if name == "s" else None,
                    "draws": self.draws,
                }
            )
        return rows

    def truth(self, support: str) -> Truth:
        """A problem and its values over very many directions, once a process."""
        if support not in self._kept:
            problem = clouds_problem(self.clouds, self.seed)
            if support == "minimax":
                found = solve(self.clouds, method("minimax", self.clouds.dim), steps=self.steps, seed=self.seed)
                problem = Problem(torch.from_numpy(found.support), problem.marginals)
            generator = torch.Generator().manual_seed(self.seed + 1)  # none of the draws that it judges
            directions = SAMPLERS["design"](self.reference, self.clouds.dim, generator, torch.float64)
            self._kept[support] = _exact(problem, directions)
        return self._kept[support]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Biases in per cent with their standard errors, of the values and of the gradients."""
        lines: dict[str, list[tuple[str, tuple[TableCell, ...]]]] = {"value": [], "gradient": [], "farthest": []}
        found = {(row["support"], row["sampler"], row["loss"], row["n_projections"]): row for row in rows}
        for support, sampler, loss in dict.fromkeys(key[:3] for key in found):
            line = [found.get((support, sampler, loss, count)) for count in self.n_projections]
            label = f"{support}, {loss}, {sampler}"
            lines["value"].append((label, tuple(_value_cell(row) for row in line)))
            lines["gradient"].append((label, tuple(_gradient_cell(row) for row in line)))
            if loss == "s":
                shares = [None if row is None else 100 * row["other_farthest"] for row in line]
                cells = tuple(TableCell(share, None, self.draws) for share in shares)
                lines["farthest"].append((f"{support}, {sampler}", cells))
        columns = tuple(Column(str(count), None, f"L = {count}") for count in self.n_projections)
        titles = {
            "value": "bias of the value, % ± standard error",
            "gradient": "norm of the mean gradient's bias, % ± standard error",
            "farthest": "draws where another marginal is the farthest, %",
        }
        return {name: Table(title, columns, tuple(lines[name])) for name, title in titles.items()}

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """Biases against the number of directions, a line of panels a support."""
        measured = [name for name in SUPPORTS if any(row["support"] == name for row in rows)]
        # where the same marginal is the farthest along all directions, there is nothing to draw
        supports = [
            name for name in measured if any(row["support"] == name and row["bias"] for row in rows)
        ] or measured
        figure = Figure(figsize=(10.5, 0.9 + 2.9 * len(supports)), layout="constrained")
        panels = figure.subplots(len(supports), 3, squeeze=False, sharex=True)
        colours = method_colours(self.samplers)
        titles = ("bias of s, %", "bias of us, % (control)", "bias of the mean gradient of s, %")
        for line, support in enumerate(supports):
            for sampler in self.samplers:
                chosen = [row for row in rows if (row["support"], row["sampler"]) == (support, sampler)]
                ours, control = ([row for row in chosen if row["loss"] == loss] for loss in LOSSES)
                style: dict[str, Any] = {"color": colours[sampler], "label": sampler}
                _draw(panels[line][0], ours, _value_cell, style, clear_only=True)
                _draw(panels[line][1], control, _value_cell, style, clear_only=False)
                _draw(panels[line][2], ours, _gradient_cell, style, clear_only=True)
            for column, title in enumerate(titles):
                axes: Axes = panels[line][column]
                axes.set_xscale("log")
                axes.grid(alpha=0.25, linewidth=0.6)
                if column == 1:
                    axes.axhline(0.0, color="0.4", linewidth=0.8)
                else:
                    axes.set_yscale("log")
                if line == 0:
                    axes.set_title(title, fontsize=10)
                if column == 0:
                    axes.set_ylabel(f"support: {support}")
                if line == len(supports) - 1:
                    axes.set_xlabel("directions L")
        handles, names = panels[0][1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=max(1, len(names)), fontsize=10)
        told = "; ".join(f"{name}: {SUPPORTS[name]}" for name in supports)
        told += "".join(f"; no bias at all at {SUPPORTS[name]}" for name in measured if name not in supports)
        caption = (
            "Mean over draws of L directions, less the value of very many directions and relative to it, with standard "
            f"errors ({told}). Points within two standard errors of zero are left out of the logarithmic panels. Where "
            "marginals are equally far, s has a kink, and its mean gradient a mixture of both sides."
        )
        return {"bias": Picture(figure, caption)}


def _exact(problem: Problem, directions: Tensor) -> Truth:
    """Values over all directions as one draw, in blocks."""
    support = problem.support.clone().requires_grad_()
    blocks = torch.split(directions, _BLOCK)
    with torch.no_grad():
        costs = torch.cat([sliced_costs(support, problem.marginals, block) for block in blocks], dim=1)
    farthest = int(costs.mean(1).argmax())
    gradients = {name: torch.zeros_like(problem.support) for name in LOSSES}
    for block in blocks:
        part = sliced_costs(support, problem.marginals, block)
        for name, total in (("s", part[farthest].sum()), ("us", part.max(0).values.sum())):
            gradients[name] += torch.autograd.grad(total, support, retain_graph=name == "s")[0] / len(directions)
    values = {"s": float(costs.mean(1).max()), "us": float(costs.max(0).values.mean())}
    return Truth(problem, values, gradients, farthest)


def _value_cell(row: Row | None) -> TableCell:
    return TableCell(None, None, 0) if row is None else _percent(row["bias"], row["standard_error"], row["draws"])


def _gradient_cell(row: Row | None) -> TableCell:
    """The norm; zero, with the root of the square's error, where the square is lost in its noise."""
    if row is None:
        return TableCell(None, None, 0)
    squared, uncertain = row["gradient_bias_squared"], row["gradient_standard_error"]
    if squared <= uncertain:
        return _percent(0.0, float(np.sqrt(uncertain)), row["draws"])
    return _percent(float(np.sqrt(squared)), uncertain / (2 * float(np.sqrt(squared))), row["draws"])


def _percent(value: float, error: float, n: int) -> TableCell:
    return TableCell(100 * value, 100 * error, n)


def _draw(axes: Axes, rows: Sequence[Row], cell: Any, style: Mapping[str, Any], *, clear_only: bool) -> None:
    """A sampler's points with their standard errors; on a logarithmic axis those that are clearly above zero."""
    points: list[tuple[int, float, float]] = []
    for row in sorted(rows, key=lambda row: int(row["n_projections"])):
        found = cell(row)
        if not clear_only or found.mean > 2 * found.std:
            points.append((row["n_projections"], found.mean, found.std))
    if points:
        counts, means, errors = np.array(points, dtype=np.float64).T
        axes.errorbar(counts, means, yerr=errors, marker="o", markersize=3.5, linewidth=1.4, **style)
