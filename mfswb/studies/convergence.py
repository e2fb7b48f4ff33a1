"""Exact F and W against seconds of optimisation: the published settings beside the fast recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfswb.data.photos import Photos
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.style import method_colours
from mfswb.report.tables import Column, Table
from mfswb.studies.cases import Case, check_lengths, check_names, colour_case, point_case
from mfswb.studies.intervals import SPREAD, half_width, mean_cell
from mfswb.studies.solving import method
from mfswb.studies.study import Cell, Picture, Row

# A run: problem, settings, method, seed.
_Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Convergence:
    """Runs by the published settings and by the fast recipe, looked at some times on their way.

    Attributes:
        gaussians: loads the Gaussians' samples.
        clouds: loads the clouds.
        photos: loads the pictures.
        problems: which of ``gaussians``, ``clouds``, ``colour``.
        n_colours: of a palette.
        published: methods by the published settings.
        fast: methods by the fast recipe.
        published_steps: length of those runs, by problem.
        fast_steps: length of these, by problem.
        looks: exact evaluations of a run, the last step among them.
        within: seconds are told until W is within this share of the lowest W that the method ended with.
        seed: seeds palettes; the first of the seeds of starts and directions.
        repetitions: number of seeds.
    """

    gaussians: Callable[[], Measures]
    clouds: Callable[[], Measures]
    photos: Callable[..., Photos]
    problems: list[str]
    n_colours: int
    published: list[str]
    fast: list[str]
    published_steps: dict[str, int]
    fast_steps: dict[str, int]
    looks: int
    within: float = 0.05
    seed: int = 1
    repetitions: int = 3
    _cases: dict[str, Case] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_names(self.problems)
        check_lengths(self.problems, self.published_steps, "published_steps")
        check_lengths(self.problems, self.fast_steps, "fast_steps")
        if self.looks < 2:
            raise ConfigError(f"study.looks={self.looks}: give 2 or more")
        if self.repetitions < 1:
            raise ConfigError(f"study.repetitions={self.repetitions}: give a positive number")
        if not 0 < self.within < float("inf"):
            raise ConfigError(f"study.within={self.within}: give a positive share of W")
        for name in (*self.published, *self.fast):
            method(name, 2)

    def case(self, name: str) -> Case:
        """A problem, loaded once a process."""
        if name not in self._cases:
            if name == "colour":
                self._cases[name] = colour_case(self.photos, self.n_colours, self.seed)
            else:
                self._cases[name] = point_case(name, self.gaussians() if name == "gaussians" else self.clouds())
        return self._cases[name]

    def cells(self) -> Sequence[Cell]:
        """A piece a run."""
        groups = (("published", self.published, self.published_steps), ("fast", self.fast, self.fast_steps))
        return [
            {
                "problem": problem,
                "settings": settings,
                "method": name,
                "steps": steps[problem],
                "looks": self.looks,
                "seed": seed,
                "data": self.case(problem).fingerprint(),
            }
            for problem in self.problems
            for settings, names, steps in groups
            for name in names
            for seed in range(self.seed, self.seed + self.repetitions)
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """A row an evaluation."""
        case, published = self.case(cell["problem"]), cell["settings"] == "published"
        found = case.solve(
            method(cell["method"], case.marginals.dim, published=published),
            seed=cell["seed"],
            steps=cell["steps"],
            eval_steps=look_steps(cell["steps"], cell["looks"]),
            published=case.published if published else None,
        )
        return [
            {
                "problem": case.name,
                "settings": cell["settings"],
                "method": cell["method"],
                "seed": cell["seed"],
                "step": row["step"],
                "processor_seconds": row["processor_seconds"],
                "F": row["fairness_gap"],
                "W": row["mean_distance"],
            }
            for row in found.rows
        ]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Where runs end, and how soon they come near."""
        runs = _runs(rows)
        lowest: dict[tuple[str, str], float] = {}
        for (problem, _, name, _), run in runs.items():
            lowest[problem, name] = min(run[-1]["W"], lowest.get((problem, name), np.inf))
        lines = []
        for problem, settings, name in dict.fromkeys(key[:3] for key in runs):
            members = [run for key, run in runs.items() if key[:3] == (problem, settings, name)]
            aim = (1 + self.within) * lowest[problem, name]
            reached = [next((row for row in run if row["W"] <= aim), None) for run in members]
            # where a seed never comes near, a mean over the others would flatter the method
            near = [row["processor_seconds"] for row in reached if row is not None]
            ends = [run[-1] for run in members]
            figures = ([row[key] for row in ends] for key in ("F", "W", "processor_seconds"))
            cells = (*map(mean_cell, figures), mean_cell(near if len(near) == len(members) else []))
            lines.append((f"{problem}, {name}, {settings}, {ends[0]['step']} steps", cells))
        titles = ("F at the end", "W", "seconds", f"seconds until W within {self.within:.0%} of the method's lowest")
        columns = tuple(Column(title, None, title) for title in titles)
        return {"convergence": Table("problem, method, settings", columns, tuple(lines), spread=SPREAD)}

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """F and W against seconds, a column of panels a problem."""
        runs = _runs(rows)
        problems = list(dict.fromkeys(problem for problem, *_ in runs))
        names = list(dict.fromkeys(name for _, _, name, _ in runs))
        colours = method_colours(names)
        figure = Figure(figsize=(0.8 + 3.9 * len(problems), 6.6), layout="constrained")
        panels = figure.subplots(2, len(problems), squeeze=False, sharex="col")
        for column, problem in enumerate(problems):
            for settings, name in dict.fromkeys(key[1:3] for key in runs if key[0] == problem):
                members = [run for key, run in runs.items() if key[:3] == (problem, settings, name)]
                style: dict[str, Any] = {"color": colours[name], "linestyle": "-" if settings == "fast" else "--"}
                style |= {"marker": "o" if settings == "fast" else "x", "label": f"{name}, {settings}"}
                for line, figure_of_row in enumerate("FW"):
                    _draw(panels[line][column], members, figure_of_row, style)
            panels[0][column].set_title(problem)
            panels[1][column].set_xlabel("seconds of optimisation, processor")
        panels[0][0].set_ylabel("exact F")
        panels[1][0].set_ylabel("exact W")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
        caption = (
            "Exact F and W against processor seconds of optimisation on one thread: the published settings (dashed) "
            "and the fast recipe (solid), means over seeds at the same steps, with 95 % intervals of the last."
        )
        return {"convergence": Picture(figure, caption)}


def look_steps(steps: int, looks: int) -> tuple[int, ...]:
    """Steps that grow by about the same factor from the first on, without the last, which is looked at anyway.

    Example:
        >>> look_steps(1000, 4)
        (1, 10, 100)
    """
    places = np.geomspace(1, steps, looks).round().astype(int).tolist()
    return tuple(sorted({place for place in places if place < steps}))


def _runs(rows: Sequence[Row]) -> dict[_Key, list[Row]]:
    """Rows by run, in the order of steps."""
    found: dict[_Key, list[Row]] = {}
    for row in rows:
        found.setdefault((row["problem"], row["settings"], row["method"], row["seed"]), []).append(row)
    return {key: sorted(run, key=lambda row: row["step"]) for key, run in found.items()}


def _draw(axes: Axes, members: Sequence[Sequence[Row]], name: str, style: Mapping[str, Any]) -> None:
    places = list(zip(*members, strict=True))  # the same step of all seeds
    seconds = [float(np.mean([row["processor_seconds"] for row in rows])) for rows in places]
    means = [float(np.mean([row[name] for row in rows])) for rows in places]
    axes.plot(seconds, means, markersize=4, linewidth=1.3, **style)
    width = half_width([row[name] for row in places[-1]]) or 0.0
    axes.errorbar(seconds[-1:], means[-1:], yerr=[width], color=style["color"], elinewidth=0.8, fmt="none")
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.25, linewidth=0.6)
