"""How F, W and the time of a step change with the number of marginals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.style import method_colours
from mfswb.report.tables import Column, Table
from mfswb.studies.intervals import SPREAD, mean_cell
from mfswb.studies.problems import subsets
from mfswb.studies.solving import method, solve
from mfswb.studies.study import Cell, Picture, Row

_UNIFORM = "uswb"
# Figures of a method on one subset, and their titles.
_FIGURES = {
    "F": "F",
    "W": "W",
    "F ratio": "F / F uswb",
    "W ratio": "W / W uswb",
    "spread": "farthest / nearest",
    "ms": "ms a step",
}
_DRAWN = ("F ratio", "W ratio", "ms")


@dataclass(frozen=True)
class ManyMarginals:
    """Random subsets of clouds of several sizes, a run of every method on each, converged by the fast recipe.

    Attributes:
        clouds: where subsets are drawn from.
        sizes: numbers of marginals.
        repetitions: subsets of each size; all there are where there are fewer.
        methods: by the names of :func:`mfswb.studies.solving.method`; ``uswb`` is one of them.
        steps: length of every run.
        seed: seeds subsets, starts and directions.
    """

    clouds: Measures
    sizes: list[int]
    repetitions: int
    methods: list[str]
    steps: int
    seed: int = 1

    def __post_init__(self) -> None:
        most = len(self.clouds)
        if not self.sizes or not 2 <= min(self.sizes) <= max(self.sizes) <= most:
            raise ConfigError(f"study.sizes={self.sizes}: give numbers from 2 to {most}")
        for name in ("repetitions", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")
        if _UNIFORM not in self.methods or len(set(self.methods)) < len(self.methods):
            raise ConfigError(f"study.methods={self.methods}: give different ones, {_UNIFORM} among them")
        for name in self.methods:
            method(name, self.clouds.dim)

    def cells(self) -> Sequence[Cell]:
        """A piece a subset and method."""
        return [
            {
                "subset": list(subset),
                "method": name,
                "steps": self.steps,
                "seed": self.seed,
                "data": self.clouds.fingerprint(),
            }
            for size in self.sizes
            for subset in subsets(len(self.clouds), size, self.repetitions, self.seed)
            for name in self.methods
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """One row."""
        marginals = Measures.of([self.clouds.points[k] for k in cell["subset"]])
        chosen = method(cell["method"], marginals.dim)
        found = solve(marginals, chosen, steps=cell["steps"], seed=cell["seed"])
        return [
            {
                "clouds": ", ".join(self.clouds.names[k] for k in cell["subset"]),
                "size": len(marginals),
                "method": cell["method"],
                "F": found.fairness_gap,
                "W": found.mean_distance,
                "spread": max(found.distances) / min(found.distances),
                "ms": 1000 * found.processor_seconds / cell["steps"],
            }
        ]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Means over subsets; the ratios are those on each subset."""
        columns = tuple(Column(key, None, title) for key, title in _FIGURES.items())
        lines = [
            (f"K = {size}, {name}", tuple(mean_cell(figures[key]) for key in _FIGURES))
            for (size, name), figures in grouped(rows).items()
        ]
        return {"many_marginals": Table("marginals, method", columns, tuple(lines), spread=SPREAD)}

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """F and W beside those of uniform weights, and the time of a step, against the number of marginals."""
        found = grouped(rows)
        names = list(dict.fromkeys(name for _, name in found))
        sizes = sorted({size for size, _ in found})
        colours = method_colours(names)
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        panels = figure.subplots(1, len(_DRAWN))
        for axes, key in zip(panels, _DRAWN, strict=True):
            for place, name in enumerate(names):
                line = [(size, found[size, name][key]) for size in sizes if found.get((size, name), {}).get(key)]
                shift = 1.02 ** (place - (len(names) - 1) / 2)  # intervals side by side
                _draw(axes, line, shift, {"color": colours[name], "label": name})
            axes.set(xscale="log", xlabel="marginals K", title=_FIGURES[key] + (", processor" if key == "ms" else ""))
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.grid(alpha=0.25, linewidth=0.6)
        panels[-1].set_yscale("log")
        panels[0].set_ylim(bottom=0)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
        caption = (
            "Exact F and W over those of uniform weights on the same clouds, and milliseconds of processor time a "
            "step, against the number of marginals: means over random subsets with 95 % intervals."
        )
        return {"many_marginals": Picture(figure, caption)}


def grouped(rows: Sequence[Row]) -> dict[tuple[int, str], dict[str, list[float]]]:
    """Figures by size and method, a value a subset; ratios where uniform weights were measured on the same one."""
    uniform = {row["clouds"]: row for row in rows if row["method"] == _UNIFORM}
    found: dict[tuple[int, str], dict[str, list[float]]] = {}
    for row in rows:
        figures = found.setdefault((row["size"], row["method"]), {key: [] for key in _FIGURES})
        base = uniform.get(row["clouds"])
        told = dict(row) if base is None else {**row, **{f"{key} ratio": row[key] / base[key] for key in ("F", "W")}}
        for key, values in figures.items():
            if key in told:
                values.append(told[key])
    return found


def _draw(axes: Axes, line: Sequence[tuple[int, Sequence[float]]], shift: float, style: dict[str, Any]) -> None:
    cells = [mean_cell(values) for _, values in line]
    places = np.array([shift * size for size, _ in line])
    means, widths = [cell.mean for cell in cells], [cell.std or 0.0 for cell in cells]
    axes.errorbar(places, np.array(means), yerr=np.array(widths), marker="o", markersize=4, elinewidth=0.8, **style)
