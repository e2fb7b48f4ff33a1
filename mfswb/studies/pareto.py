"""What fairness costs: exact F against exact W of every method, along lam and along eps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mfswb.data.photos import Photos
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.tables import Cell as TableCell
from mfswb.report.tables import Column, Table
from mfswb.studies.cases import Case, check_lengths, check_names, colour_case, point_case
from mfswb.studies.intervals import SPREAD, mean_cell
from mfswb.studies.pareto_figure import pareto_panels
from mfswb.studies.solving import method
from mfswb.studies.study import Cell, Picture, Row


@dataclass(frozen=True)
class ParetoFronts:
    """F and W where the fast recipe ends: MFSWB at many lam, the constrained solver at many eps, and the others.

    Attributes:
        gaussians: loads the Gaussians' samples.
        clouds: loads the clouds.
        photos: loads the pictures.
        problems: which of ``gaussians``, ``clouds``, ``colour``.
        n_colours: of a palette.
        lams: prices of MFSWB; 0 is uniform weights.
        shares: eps of the constrained solver, as shares of the exact F of uniform weights.
        methods: losses without such a setting.
        steps: length of every run, by problem.
        solutions: times that the constrained solver has exact transport solved in a run.
        margin: what counts as better, as a share of W.
        seed: seeds palettes; the first of the seeds of starts and directions.
        repetitions: number of seeds.
    """

    gaussians: Callable[[], Measures]
    clouds: Callable[[], Measures]
    photos: Callable[..., Photos]
    problems: list[str]
    n_colours: int
    lams: list[float]
    shares: list[float]
    methods: list[str]
    steps: dict[str, int]
    solutions: int
    margin: float = 0.01
    seed: int = 1
    repetitions: int = 3
    _cases: dict[str, Case] = field(default_factory=dict, init=False, repr=False, compare=False)
    _gaps: dict[tuple[str, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_names(self.problems)
        check_lengths(self.problems, self.steps)
        if not self.lams or not all(0 <= lam < float("inf") for lam in self.lams):
            raise ConfigError(f"study.lams={self.lams}: give numbers, not negative")
        if not all(share > 0 for share in self.shares):
            raise ConfigError(f"study.shares={self.shares}: give positive numbers")
        for name in ("solutions", "repetitions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"study.{name}={getattr(self, name)}: give a positive number")
        if not 0 <= self.margin < 1:
            raise ConfigError(f"study.margin={self.margin}: give a share of W from 0 to below 1")
        for name in self.methods:
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
        """A piece a problem, method and seed."""
        names = [f"mfswb lam={lam:g}" for lam in self.lams]
        names += [f"constrained share={share:g}" for share in self.shares]
        return [
            {
                "problem": problem,
                "method": name,
                "seed": seed,
                "steps": self.steps[problem],
                "solutions": self.solutions if name.startswith("constrained") else None,
                "data": self.case(problem).fingerprint(),
            }
            for problem in self.problems
            for seed in range(self.seed, self.seed + self.repetitions)
            for name in (*names, *self.methods)
        ]

    def measure(self, cell: Cell) -> list[Row]:
        """One row: where a method ends."""
        case, name, seed, steps = self.case(cell["problem"]), cell["method"], cell["seed"], cell["steps"]
        kind, _, value = name.partition(" ")
        eps, every = None, None
        if kind == "constrained":
            eps = float(value.partition("=")[2]) * self._uniform_gap(case, seed, steps)
            every = max(1, steps // (self.solutions + 1))
        typed = name if eps is None else f"constrained eps={eps}"
        found = case.solve(method(typed, case.marginals.dim), seed=seed, steps=steps, feedback_every=every)
        if kind == "mfswb" and float(value.partition("=")[2]) == 0:
            self._gaps[case.name, seed] = found.fairness_gap  # the same run as that of uniform weights
        return [
            {
                "problem": case.name,
                "method": name,
                "seed": seed,
                "F": found.fairness_gap,
                "W": found.mean_distance,
                "eps": eps,
                "seconds": found.seconds,
                "processor_seconds": found.processor_seconds,
            }
        ]

    def _uniform_gap(self, case: Case, seed: int, steps: int) -> float:
        """Exact F of uniform weights, once a process."""
        if (case.name, seed) not in self._gaps:
            found = case.solve(method("mfswb lam=0", case.marginals.dim), seed=seed, steps=steps)
            self._gaps[case.name, seed] = found.fairness_gap
        return self._gaps[case.name, seed]

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Ends of the lines and the other methods, the bounds of the constrained solver, and who is dominated."""
        return {"ends": self._ends(rows), "bounds": self._bounds(rows), "dominated": self._dominated(rows)}

    def _ends(self, rows: Sequence[Row]) -> Table:
        titles = {"F": "F", "W": "W", "seconds": "seconds, wall", "processor_seconds": "seconds, processor"}
        lines = []
        for problem, methods in grouped(rows).items():
            for name, note in _told(methods).items():
                cells = tuple(mean_cell([row[key] for row in methods[name]]) for key in titles)
                lines.append((f"{problem}, {name}{note}", cells))
        columns = tuple(Column(key, None, title) for key, title in titles.items())
        return Table("method", columns, tuple(lines), spread=SPREAD)

    def _bounds(self, rows: Sequence[Row]) -> Table:
        titles = ("eps", "F", "F / eps", "seeds with F <= eps", "smallest F of any eps", "W", "W / W uniform")
        lines = []
        for problem, methods in grouped(rows).items():
            uniform = {row["seed"]: row["W"] for row in methods.get("mfswb lam=0", [])}
            bounded = {name: members for name, members in methods.items() if name.startswith("constrained")}
            smallest = min((row["F"] for members in bounded.values() for row in members), default=None)
            for name, members in bounded.items():
                ratios = [row["W"] / uniform[row["seed"]] for row in members if row["seed"] in uniform]
                kept = sum(row["F"] <= row["eps"] for row in members)
                figures = (
                    mean_cell([row["eps"] for row in members]),
                    mean_cell([row["F"] for row in members]),
                    mean_cell([row["F"] / row["eps"] for row in members]),
                    TableCell(float(kept), None, len(members)),
                    TableCell(smallest, None, 1),
                    mean_cell([row["W"] for row in members]),
                    mean_cell(ratios),
                )
                lines.append((f"{problem}, {name.removeprefix('constrained ')} of F uniform", figures))
        return Table("bound", tuple(Column(title, None, title) for title in titles), tuple(lines), spread=SPREAD)

    def _dominated(self, rows: Sequence[Row]) -> Table:
        """How many runs of a method are beaten by one of another, any of its settings, from the same seed."""
        rivals = list(dict.fromkeys(family(row["method"]) for row in rows))
        lines = []
        for problem, methods in grouped(rows).items():
            everything = [row for members in methods.values() for row in members]
            for kind in dict.fromkeys(_kind(name) for name in methods):
                mine = [row for row in everything if _kind(row["method"]) == kind]
                cells = [TableCell(float(len(mine)), None, 1)]
                for rival in rivals:
                    others = [row for row in everything if family(row["method"]) == rival]
                    beaten = [
                        any(dominates(other, row, self.margin) for other in others if other["seed"] == row["seed"])
                        for row in mine
                    ]
                    itself = family(mine[0]["method"]) == rival
                    cells.append(TableCell(None if itself else float(sum(beaten)), None, len(mine)))
                lines.append((f"{problem}, {kind}", tuple(cells)))
        columns = [Column("runs", None, "runs"), *(Column(name, None, f"dominated by {name}") for name in rivals)]
        return Table("method", tuple(columns), tuple(lines))

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """F against W, a panel a problem: lam and eps as lines, the others as marks."""
        caption = (
            "Exact F against exact W, means over seeds with 95 % intervals: MFSWB along lam, the constrained solver "
            "along eps (shares of F0, the F of uniform weights, which are lam = 0), and the other methods. Where a "
            "large lam costs so much W that it would lie far to the right, the line leaves the panel."
        )
        return {"pareto": Picture(pareto_panels(grouped(rows)), caption)}


def dominates(one: Row, other: Row, margin: float = 0.0) -> bool:
    """Whether one run is not worse in F and in W, and better in one of them by more than a share of W.

    Example:
        >>> dominates({"F": 1.0, "W": 10.0}, {"F": 2.0, "W": 10.0})
        True
        >>> dominates({"F": 1.0, "W": 10.0}, {"F": 2.0, "W": 9.0})
        False
        >>> dominates({"F": 1.0, "W": 10.0}, {"F": 1.5, "W": 10.0}, margin=0.1)
        False
    """
    gains = (other["F"] - one["F"], other["W"] - one["W"])
    return bool(min(gains) >= 0 and max(gains) > margin * other["W"])


def grouped(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by problem and method."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        found.setdefault(row["problem"], {}).setdefault(row["method"], []).append(row)
    return found


def family(name: str) -> str:
    """A method's name without its setting."""
    return name.partition(" ")[0]


def _kind(name: str) -> str:
    """Rows of the table of dominated runs: prices of MFSWB that are too high are told apart."""
    if family(name) != "mfswb":
        return family(name)
    return "mfswb lam <= 1" if float(name.partition("=")[2]) <= 1 else "mfswb lam > 1"


def _told(methods: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """Methods for the table of ends, with a note: of a line its ends, and that of the smallest mean F."""
    found: dict[str, str] = {}
    for kind in dict.fromkeys(map(family, methods)):
        names = [name for name in methods if family(name) == kind]
        if len(names) > 1:
            best = min(names, key=lambda name: float(np.mean([row["F"] for row in methods[name]])))
            found |= {name: " (its smallest F)" if name == best else "" for name in (names[0], best, names[-1])}
        else:
            found[names[0]] = ""
    return found
