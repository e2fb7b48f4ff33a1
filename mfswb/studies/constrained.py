"""Does the constrained solver reach its bound, and at what price: F and W beside uniform weights and MFSWB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from matplotlib.figure import Figure

from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.tables import Cell as TableCell
from mfswb.report.tables import Column, Table
from mfswb.studies.solving import method, solve
from mfswb.studies.study import Cell, Picture, Row


@dataclass(frozen=True)
class ConstrainedPairs:
    """Random pairs of clouds: uniform weights give F, and the constrained solver may have a share of it.

    Attributes:
        clouds: where pairs are drawn from.
        n_pairs: how many, without repetition.
        share: eps as a share of the exact F of uniform weights.
        lams: prices of MFSWB to compare with.
        steps: length of every run.
        feedback_every: exact transport is solved every so many steps.
        seed: seeds pairs, starts and directions.
    """

    clouds: Measures
    n_pairs: int
    lams: list[float]
    steps: int
    feedback_every: int
    share: float = 0.1
    seed: int = 1

    def __post_init__(self) -> None:
        most = len(self.clouds) * (len(self.clouds) - 1) // 2
        if not 1 <= self.n_pairs <= most:
            raise ConfigError(f"study.n_pairs={self.n_pairs}: {len(self.clouds)} clouds have from 1 to {most} pairs")
        for name in ("steps", "feedback_every", "share"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")

    def cells(self) -> Sequence[Cell]:
        """A piece a pair."""
        pairs = list(combinations(range(len(self.clouds)), 2))
        drawn = np.random.default_rng(self.seed).choice(len(pairs), self.n_pairs, replace=False)
        shared = {
            "lams": self.lams,
            "steps": self.steps,
            "feedback_every": self.feedback_every,
            "share": self.share,
            "seed": self.seed,
            "data": self.clouds.fingerprint(),
        }
        return [{"pair": list(pairs[k]), **shared} for k in drawn]

    def measure(self, cell: Cell) -> list[Row]:
        """A row a method."""
        first, second = cell["pair"]
        pair = Measures.of([self.clouds.points[first], self.clouds.points[second]])
        found = {name: self._solve(pair, name) for name in ("uswb", "us", *(f"mfswb lam={lam:g}" for lam in self.lams))}
        eps = self.share * found["uswb"]["F"]
        found["constrained"] = self._solve(pair, f"constrained eps={eps}")
        label = f"{self.clouds.names[first]}, {self.clouds.names[second]}"
        return [{"pair": label, "method": name, "eps": eps, **figures} for name, figures in found.items()]

    def _solve(self, pair: Measures, name: str) -> Row:
        adapts = name.startswith("constrained")
        found = solve(
            pair,
            method(name, pair.dim),
            steps=self.steps,
            seed=self.seed,
            feedback_every=self.feedback_every if adapts else None,
        )
        return {
            "F": found.fairness_gap,
            "W": found.mean_distance,
            "seconds": found.seconds,
            "seconds_feedback": found.rows[-1].get("seconds_feedback"),
        }

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """For every pair eps, F and W, with those of the best MFSWB that is as fair."""
        titles = ("eps", "F / eps", "W", "F uswb", "W uswb", "F us", "W best lam as fair", "W / that", "exact share")
        lines = []
        for pair, found in _by_pair(rows).items():
            ours, uniform, us = found["constrained"], found["uswb"], found["us"]
            rival = _best_as_fair(found)
            figures = [
                ours["eps"],
                ours["F"] / ours["eps"],
                ours["W"],
                uniform["F"],
                uniform["W"],
                us["F"],
                rival,
                None if rival is None else ours["W"] / rival,
                ours["seconds_feedback"] / ours["seconds"],
            ]
            lines.append((pair, tuple(TableCell(value, None, 1) for value in figures)))
        columns = tuple(Column(title, None, title) for title in titles)
        return {"constrained": Table("pair", columns, tuple(lines))}

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """F over eps against W over that of uniform weights, all pairs in one panel."""
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        axes = figure.subplots()
        for name in dict.fromkeys(row["method"] for row in rows):
            pairs = _by_pair(rows).values()
            points = [(f[name]["F"] / f[name]["eps"], f[name]["W"] / f["uswb"]["W"]) for f in pairs if name in f]
            big = name == "constrained"
            shares, means = zip(*points, strict=True)
            axes.scatter(shares, means, s=44 if big else 16, marker="*" if big else "o", label=name)
        axes.axvline(1.1, color="0.6", linewidth=0.8)
        axes.set(xscale="log", xlabel="exact F / eps", ylabel="W / W of uniform weights")
        axes.legend(fontsize=8)
        caption = "Random pairs: exact F over its bound against W over that of uniform weights. The line is 1.1 eps."
        return {"constrained": Picture(figure, caption)}


def _by_pair(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["pair"], {})[row["method"]] = row
    return found


def _best_as_fair(found: Mapping[str, Row]) -> float | None:
    """The smallest W of MFSWB at any lam whose F is at most 1.1 eps; None where none is."""
    fair = [r["W"] for name, r in found.items() if name.startswith("mfswb") and r["F"] <= 1.1 * r["eps"]]
    return min(fair, default=None)
