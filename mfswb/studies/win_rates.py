"""Which method wins: how often each ends with the lowest F, the lowest W and both, on random subsets of clouds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfswb.errors import ConfigError
from mfswb.losses import LOSSES
from mfswb.measures import Measures
from mfswb.report.style import method_colours
from mfswb.report.tables import Cell as TableCell
from mfswb.report.tables import Column, Table
from mfswb.studies.contests import Interval, Values, bootstrap, is_lowest, ranks
from mfswb.studies.problems import subsets
from mfswb.studies.solving import method, solve
from mfswb.studies.study import Cell, Picture, Row

_UNIFORM, _CONSTRAINED = "uswb", "constrained"
# What is told of each method, and whether the largest or the smallest value is the best one.
_COLUMNS = {
    "lowest F": ("lowest F, %", max),
    "lowest W": ("lowest W, %", max),
    "both": ("both, %", max),
    "rank by F": ("mean rank by F", min),
    "rank by W": ("mean rank by W", min),
    "F ratio": ("median F / F uswb", min),
    "W ratio": ("median W / W uswb", min),
}


@dataclass(frozen=True)
class WinRates:
    """Random subsets of clouds, all methods on each; ``constrained`` may have a share of uniform weights' F.

    Attributes:
        clouds: where subsets are drawn from.
        sizes: numbers of marginals.
        counts: how many subsets of each size; all there are where there are fewer.
        methods: by the names of :func:`mfswb.studies.solving.method`; ``uswb`` is one of them, ``constrained`` stands
            without its ``eps``.
        steps: length of every run.
        feedback_every: losses that adapt follow exact transport, solved every so many steps.
        share: eps of ``constrained`` as a share of the exact F of uniform weights on the same clouds.
        resamples: of the bootstrap behind the intervals.
        seed: seeds subsets, starts, directions and the bootstrap.
    """

    clouds: Measures
    sizes: list[int]
    counts: list[int]
    methods: list[str]
    steps: int
    feedback_every: int
    share: float = 0.1
    resamples: int = 10000
    seed: int = 1

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.counts) or not self.sizes:
            raise ConfigError(f"study.sizes={self.sizes}, study.counts={self.counts}: give a count for every size")
        if not 2 <= min(self.sizes) <= max(self.sizes) <= len(self.clouds) or len(set(self.sizes)) < len(self.sizes):
            raise ConfigError(f"study.sizes={self.sizes}: give different numbers from 2 to {len(self.clouds)}")
        for name in ("steps", "share", "resamples"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")
        if min(self.counts) < 1:
            raise ConfigError(f"study.counts={self.counts}: give positive numbers")
        if not 1 <= self.feedback_every < self.steps:
            raise ConfigError(f"study.feedback_every={self.feedback_every}: give from 1 to below {self.steps} steps")
        if _UNIFORM not in self.methods or len(set(self.methods)) < max(2, len(self.methods)):
            raise ConfigError(f"study.methods={self.methods}: give several different ones, {_UNIFORM} among them")
        for name in self.methods:
            method(_with_bound(name, 1.0), self.clouds.dim)

    def cells(self) -> Sequence[Cell]:
        """A piece a subset; sizes take turns, so that a study that is stopped has some of each."""
        shared = {
            "methods": self.methods,
            "steps": self.steps,
            "feedback_every": self.feedback_every,
            "share": self.share,
            "seed": self.seed,
            "data": self.clouds.fingerprint(),
        }
        drawn = [
            (position / count, size, subset)
            for size, count in zip(self.sizes, self.counts, strict=True)
            for position, subset in enumerate(subsets(len(self.clouds), size, count, self.seed))
        ]
        return [{"subset": list(subset), **shared} for _, _, subset in sorted(drawn)]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a method."""
        marginals = Measures.of([self.clouds.points[k] for k in cell["subset"]])
        label = ", ".join(self.clouds.names[k] for k in cell["subset"])
        found: dict[str, Row] = {}
        # uniform weights first: others are given a share of their F
        for name in sorted(self.methods, key=lambda name: name != _UNIFORM):
            eps = self.share * found[_UNIFORM]["F"] if name == _CONSTRAINED else None
            solution = solve(
                marginals,
                method(_with_bound(name, eps), marginals.dim),
                steps=self.steps,
                seed=self.seed,
                feedback_every=self.feedback_every,
            )
            found[name] = {
                "clouds": label,
                "size": len(marginals),
                "method": name,
                "F": solution.fairness_gap,
                "W": solution.mean_distance,
                "eps": eps,
                "seconds": solution.seconds,
            }
        return [found[name] for name in self.methods]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Wins and mean ranks for every size: of all methods, and of the published losses among themselves."""
        return {f"{group}_k{size}": self._table(rows, size, group) for group in _GROUPS for size in _sizes(rows)}

    def _table(self, rows: Sequence[Row], size: int, group: str) -> Table:
        names, count, figures = self._figures(rows, size, group)
        lines = []
        for position, name in enumerate(names):
            cells = []
            for key, (_, choose) in _COLUMNS.items():
                found = figures[key]
                value, half = float(found.value[position]), float(found.half_width[position])
                best = value == choose(found.value) and len(set(found.value)) > 1
                cells.append(TableCell(value, half if half > 0 else None, count, best=best))
            lines.append((name, tuple(cells)))
        columns = tuple(Column(key, None, title) for key, (title, _) in _COLUMNS.items())
        return Table(f"K = {size}, {count} subsets, ± half of the 95 % interval", columns, tuple(lines))

    def _figures(self, rows: Sequence[Row], size: int, group: str) -> tuple[list[str], int, Mapping[str, Interval]]:
        """Methods, number of problems, and what is told of each method, with intervals over problems."""
        by_method: dict[str, list[Row]] = {}
        for row in rows:
            if row["size"] == size:
                by_method.setdefault(row["method"], []).append(row)
        uniform = by_method[_UNIFORM]
        names = [name for name in by_method if group == "all" or name.split()[0] in LOSSES]
        gaps, means = (
            np.array([[row[key] for row in by_method[name]] for name in names]).T for key in ("F", "W")
        )  # each (n_problems, n_methods)
        best_gap, best_mean = is_lowest(gaps), is_lowest(means)
        rng = np.random.default_rng(self.seed)

        figures = {
            "lowest F": bootstrap(100.0 * best_gap, rng, self.resamples),
            "lowest W": bootstrap(100.0 * best_mean, rng, self.resamples),
            "both": bootstrap(100.0 * (best_gap & best_mean), rng, self.resamples),
            "rank by F": bootstrap(ranks(gaps), rng, self.resamples),
            "rank by W": bootstrap(ranks(means), rng, self.resamples),
        }
        for key, values in (("F", gaps), ("W", means)):
            ratios = values / np.array([[row[key]] for row in uniform])
            figures[f"{key} ratio"] = bootstrap(ratios, rng, self.resamples, np.median)
        return names, len(uniform), figures

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """Wins and mean ranks of all methods, and of the published losses among themselves; a line of panels a size."""
        return {group: Picture(self._figure(rows, group), caption) for group, caption in _GROUPS.items()}

    def _figure(self, rows: Sequence[Row], group: str) -> Figure:
        sizes = _sizes(rows)
        figure = Figure(figsize=(10.5, 0.9 + 3.1 * len(sizes)), layout="constrained")
        panels = figure.subplots(len(sizes), 4, squeeze=False, sharey="row")
        titles = {
            "lowest F": "lowest F, % of problems",
            "lowest W": "lowest W, % of problems",
            "both": "both at once, % of problems",
            "ranks": "mean rank",
        }
        for line, size in enumerate(sizes):
            names, count, figures = self._figures(rows, size, group)
            colours = method_colours(names)
            places = np.arange(float(len(names)))
            for column, (key, title) in enumerate(titles.items()):
                axes: Axes = panels[line][column]
                if key == "ranks":
                    _draw_ranks(axes, places, figures)
                    if line == 0:
                        axes.legend(fontsize=8)
                else:
                    found = figures[key]
                    axes.barh(places, found.value, color=[colours[name] for name in names], height=0.7, alpha=0.65)
                    style: dict[str, Any] = {"fmt": "none", "ecolor": "0.2", "capsize": 2.5, "linewidth": 1}
                    axes.errorbar(found.value, places, xerr=_ends(found), **style)
                    for place, value, end in zip(places, found.value, found.high, strict=True):
                        axes.text(end + 3, place, f"{value:.0f}", fontsize=8, va="center")
                    axes.set_xlim(0, 120)  # room for the numbers
                    axes.set_xticks([0, 25, 50, 75, 100])
                axes.grid(axis="x", alpha=0.25, linewidth=0.6)
                if line == 0:
                    axes.set_title(title, fontsize=10)
            panels[line][0].set_yticks(places, names)
            panels[line][0].set_ylabel(f"K = {size}, {count} subsets")
            panels[line][0].invert_yaxis()
        return figure


_GROUPS = {
    "all": "How often each method has the lowest exact F, the lowest W and both, and its mean ranks (1 is best), with "
    "95 % bootstrap intervals. minimax and constrained follow exact distances.",
    "published": "The published losses among themselves: how often each has the lowest exact F, the lowest W and both, "
    "and its mean ranks (1 is best), with 95 % bootstrap intervals.",
}


def _draw_ranks(axes: Axes, places: Values, figures: Mapping[str, Interval]) -> None:
    for key, offset, marker, colour in (("rank by F", -0.15, "o", "#000000"), ("rank by W", 0.15, "s", "#56b4e9")):
        found = figures[key]
        style: dict[str, Any] = {
            "fmt": marker,
            "color": colour,
            "markersize": 4.5,
            "elinewidth": 1.2,
            "label": key[-4:],
        }
        axes.errorbar(found.value, places + offset, xerr=_ends(found), **style)
    axes.set_xlim(0.5, len(places) + 0.5)
    axes.set_xticks(range(1, len(places) + 1))


def _ends(found: Interval) -> Values:
    """Lengths to the left and to the right, as Matplotlib wants them."""
    return np.maximum(np.stack([found.value - found.low, found.high - found.value]), 0.0)


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["size"] for row in rows})


def _with_bound(name: str, eps: float | None) -> str:
    return f"{name} eps={eps}" if name == _CONSTRAINED else name
