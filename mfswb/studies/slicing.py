"""How well few directions stand for all: errors of sampled averages against the number of directions."""

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
from mfswb.studies.problems import Problem, clouds_problem, mixtures_problem
from mfswb.studies.study import Cell, Picture, Row
from mfswb.wasserstein import sliced_costs

QUANTITIES: Mapping[str, str] = {
    "row_means": "row means of C",
    "worst": "mean of the max over k",
    "gradient": "gradient by the support",
}
_BLOCK = 1000


@dataclass(frozen=True)
class Averages:
    """What directions are drawn for: ``C.mean(1)``, ``C.max(0).mean()`` and the gradient of ``C.mean()``."""

    row_means: Tensor
    worst: Tensor
    gradient: Tensor

    def squared_errors(self, truth: Averages) -> dict[str, float]:
        """Squares of relative errors: of the row means on average, of the gradient in the Euclidean norm."""
        return {
            "row_means": float((self.row_means / truth.row_means - 1).square().mean()),
            "worst": float((self.worst / truth.worst - 1).square()),
            "gradient": float((self.gradient - truth.gradient).square().sum() / truth.gradient.square().sum()),
        }


def averages(problem: Problem, directions: Tensor) -> Averages:
    """Averages over directions ``(L, d)``."""
    support = problem.support.clone().requires_grad_()
    gradient = torch.zeros_like(problem.support)
    blocks = []
    for start in range(0, len(directions), _BLOCK):
        costs = sliced_costs(support, problem.marginals, directions[start : start + _BLOCK])
        gradient += torch.autograd.grad(costs.mean(0).sum(), support)[0]
        blocks.append(costs.detach())
    costs = torch.cat(blocks, dim=1)
    return Averages(costs.mean(1), costs.max(0).values.mean(), gradient / len(directions))


@dataclass(frozen=True)
class SlicingErrors:
    """Relative root-mean-square errors over independent draws, by dimension, sampler and number of directions.

    Attributes:
        clouds: point clouds for three dimensions; other dimensions have Gaussian mixtures.
        dims: dimensions.
        samplers: by the names of :data:`mfswb.designs.SAMPLERS`. Above three dimensions ``design`` is ``orthogonal``,
            and is not measured twice.
        n_projections: numbers of directions.
        repetitions: draws an error is the root mean square of.
        reference: directions that stand for all of them: designs up to three dimensions, orthonormal bases above.
        n_points: points of a mixture's sample.
        table_projections: numbers of directions that have columns in the table.
        seed: seeds mixtures, starts and directions.
    """

    clouds: Measures
    dims: list[int]
    samplers: list[str]
    n_projections: list[int]
    repetitions: int
    reference: int
    n_points: int
    table_projections: list[int]
    seed: int = 1
    _kept: dict[int, tuple[Problem, Averages]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.samplers if name not in SAMPLERS]
        if unknown or not self.samplers:
            raise ConfigError(f"study.samplers={self.samplers}: choose of {', '.join(SAMPLERS)}")
        numbers = {"dims": self.dims, "n_projections": self.n_projections, "table_projections": self.table_projections}
        for name, values in numbers.items():
            if not values or min(values) < 1:
                raise ConfigError(f"study.{name}={values}: give positive numbers")
        for name in ("repetitions", "reference", "n_points"):
            if getattr(self, name) < 1:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")
        if self.clouds.dim != 3:
            raise ConfigError(f"study.clouds: they have dimension {self.clouds.dim}; three is needed")

    def cells(self) -> Sequence[Cell]:
        """A piece a dimension, sampler and number of directions."""
        return [
            {
                "dim": dim,
                "sampler": sampler,
                "n_projections": count,
                "repetitions": self.repetitions,
                "reference": self.reference,
                "data": self.clouds.fingerprint() if dim == 3 else f"mixtures of {self.n_points}",
                "seed": self.seed,
            }
            for dim in self.dims
            for sampler in self.samplers
            if not (sampler == "design" and dim > 3 and "orthogonal" in self.samplers)
            and not (sampler == "equispaced" and dim != 2)
            for count in self.n_projections
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """Errors of one sampler from one number of directions: a row a quantity."""
        dim, sampler, count = cell["dim"], cell["sampler"], cell["n_projections"]
        problem, truth = self._truth(dim)
        generator = torch.Generator().manual_seed(self.seed)
        draws = [
            averages(problem, SAMPLERS[sampler](count, dim, generator, torch.float64)).squared_errors(truth)
            for _ in range(self.repetitions)
        ]
        rows = []
        for quantity in QUANTITIES:
            squares = np.array([draw[quantity] for draw in draws])
            error = float(np.sqrt(squares.mean()))
            spread = float(squares.std(ddof=1) / (2 * error * np.sqrt(len(squares)))) if len(squares) > 1 else None
            rows.append(
                {
                    "dim": dim,
                    "sampler": sampler,
                    "n_projections": count,
                    "quantity": quantity,
                    "error": error,
                    "standard_error": spread,
                    "repetitions": len(squares),
                }
            )
        return rows

    def _truth(self, dim: int) -> tuple[Problem, Averages]:
        """The problem and its averages over very many directions, once a process."""
        if dim not in self._kept:
            if dim == 3:
                problem = clouds_problem(self.clouds, self.seed)
            else:
                problem = mixtures_problem(dim, self.n_points, self.seed)
            generator = torch.Generator().manual_seed(self.seed + 1)  # none of the draws that it judges
            directions = SAMPLERS["design"](self.reference, dim, generator, torch.float64)
            self._kept[dim] = (problem, averages(problem, directions))
        return self._kept[dim]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Errors at some numbers of directions, the smallest of a dimension in bold."""
        columns = [
            (quantity, count, Column(quantity, None, f"{title}, L = {count}"))
            for quantity, title in QUANTITIES.items()
            for count in self.table_projections
        ]
        found = {(row["dim"], row["sampler"], row["quantity"], row["n_projections"]): row for row in rows}
        lines = []
        for dim, sampler in dict.fromkeys((row["dim"], row["sampler"]) for row in rows):
            others = [name for d, name in dict.fromkeys((row["dim"], row["sampler"]) for row in rows) if d == dim]
            cells = []
            for quantity, count, _ in columns:
                row = found.get((dim, sampler, quantity, count))
                known = [found[key]["error"] for name in others if (key := (dim, name, quantity, count)) in found]
                cells.append(
                    TableCell(None, None, 0)
                    if row is None
                    else TableCell(
                        row["error"], row["standard_error"], row["repetitions"], best=row["error"] == min(known)
                    )
                )
            lines.append((f"d = {dim}, {self._label(sampler, dim)}", tuple(cells)))
        return {"errors": Table("relative error", tuple(column for *_, column in columns), tuple(lines))}

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """Errors against the number of directions, a column of panels a dimension."""
        dims = list(dict.fromkeys(row["dim"] for row in rows))
        figure = Figure(figsize=(0.6 + 2.7 * len(dims), 7.6), layout="constrained")
        panels = figure.subplots(len(QUANTITIES), len(dims), sharex=True, sharey="row", squeeze=False)
        colours = method_colours(self.samplers)
        for column, dim in enumerate(dims):
            for line, (quantity, title) in enumerate(QUANTITIES.items()):
                axes: Axes = panels[line][column]
                for sampler in self.samplers:
                    points = sorted(
                        (row["n_projections"], row["error"])
                        for row in rows
                        if (row["dim"], row["sampler"], row["quantity"]) == (dim, sampler, quantity)
                    )
                    if points:
                        style: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.4}
                        axes.plot(*zip(*points, strict=True), color=colours[sampler], label=sampler, **style)
                axes.set(xscale="log", yscale="log")
                axes.grid(alpha=0.25, linewidth=0.6)
                if line == 0:
                    axes.set_title(f"d = {dim}")
                if line == len(QUANTITIES) - 1:
                    axes.set_xlabel("directions L")
                if column == 0:
                    axes.set_ylabel(f"relative error:\n{title}")
        labelled = {
            label: handle
            for panel in panels.flat
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        names = [self._label(label, max(dims)) for label in labelled]
        figure.legend(labelled.values(), names, loc="outside lower center", ncols=len(names), fontsize=10)
        caption = (
            "Relative root-mean-square error of averages over L directions, by sampler and dimension: costs of each "
            "marginal, their maximum over marginals, and the gradient of the mean cost with respect to the support."
        )
        return {"errors": Picture(figure, caption)}

    def _label(self, sampler: str, dim: int) -> str:
        doubled = sampler == "orthogonal" and dim > 3 and "design" in self.samplers
        return f"{sampler} (design, above d = 3)" if doubled else sampler
