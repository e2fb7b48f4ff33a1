"""Compare our runs with figures of the published code: same marginals, same start, same stream of directions.

    python scripts/compare_reference.py pointcloud gaussian color [--reference FOLDER] [--jobs 2] [--last-step N]

Prints a Markdown table an experiment and exits with 1 if a figure lies outside the bounds in ``experiments/NAME.yaml``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from mfswb.configuration import compose_config
from mfswb.run import run
from mfswb.runfolder import read_metrics

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_REFERENCE = ROOT.parent / "shared" / "reference"


@dataclass(frozen=True)
class Figure:
    """One compared figure: F and W of one run (or of the mean over its seeds) at one step, theirs and ours."""

    method: str
    step: int
    theirs: dict[str, float]
    ours: dict[str, float]
    bounds: Mapping[str, float]

    def deviations(self) -> dict[str, float]:
        """Relative deviations of W and F, and the absolute one of F."""
        change = {name: abs(self.ours[name] - self.theirs[name]) for name in ("F", "W")}
        return {**{name: change[name] / self.theirs[name] for name in change}, "F_absolute": change["F"]}

    def holds(self) -> bool:
        """Whether every bound is kept."""
        return all(self.deviations()[name] <= bound for name, bound in self.bounds.items())


def read_results(file: Path) -> dict[tuple[str, int, int], dict[str, float]]:
    """Published figures by method, seed and step."""
    results = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        method = str(row.get("loss", row.get("method"))).lower()
        if "rows_iter_W_F" in row:
            figures = [(step, w, f) for step, w, f in row["rows_iter_W_F"]]
        elif "iterations" in row:
            figures = list(zip(row["iterations"], row["W"], row["F"], strict=True))
        else:
            figures = [(row["steps"], row["W"], row["F"])]
        for step, w, f in figures:
            results[method, int(row.get("seed", 1)), int(step)] = {"W": w, "F": f}
    return results


def run_overrides(overrides: list[str]) -> dict[int, dict[str, float]]:
    """F and W by step of one run, made in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        run(compose_config(overrides), Path(folder), overrides)
        return {
            row["step"]: {"F": row["fairness_gap"], "W": row["mean_distance"]} for row in read_metrics(Path(folder))
        }


def compare(name: str, reference: Path, jobs: int, last_step: int | None, only: str | None) -> list[Figure]:
    """Run every method and seed of an experiment that the reference has figures for."""
    experiment: dict[str, Any] = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
    plan = experiment["reference"]
    theirs = read_results(reference / plan["results"])
    steps = [step for step in plan["steps"] if last_step is None or step <= last_step]
    common = [text.replace("${reference_dir}", str(reference)) for text in plan["overrides"]]
    runs = {
        (method, seed): [
            *experiment["overrides"],
            *choice,
            *common,
            *plan.get("method_overrides", {}).get(method, []),
            f"seed={seed}",
            f"trainer.steps={steps[-1]}",
            f"trainer.eval_steps={steps}".replace(" ", ""),
            "trainer.threads=1",
        ]
        for method, choice in experiment["methods"].items()
        for seed in experiment["seeds"]
        if (method, seed, steps[-1]) in theirs and only in (None, method)
    }
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        ours = dict(zip(runs, pool.map(run_overrides, runs.values()), strict=True))
    figures: list[Figure] = []
    for method in dict.fromkeys(method for method, _ in ours):
        bounds = dict(plan["within"].get(method, plan["within"]["default"]))
        of_mean = bounds.pop("of_mean", False)
        seeds = [seed for chosen, seed in ours if chosen == method]
        for step in steps:
            pairs = [(theirs[method, seed, step], ours[method, seed][step]) for seed in seeds]
            if of_mean:
                pairs = [(average([pair[0] for pair in pairs]), average([pair[1] for pair in pairs]))]
            figures += [Figure(method, step, published, found, bounds) for published, found in pairs]
    return figures


def average(rows: list[dict[str, float]]) -> dict[str, float]:
    """Mean of F and W over seeds."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in ("F", "W")}


def table(figures: list[Figure]) -> str:
    """The comparison as Markdown: one row a method and step, means over seeds, and the largest deviation of a seed."""
    lines = ["| method | steps | W published | W ours | F published | F ours | largest deviation of W | of F |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for method, step in dict.fromkeys((f.method, f.step) for f in figures):
        chosen = [f for f in figures if (f.method, f.step) == (method, step)]
        published, found = average([f.theirs for f in chosen]), average([f.ours for f in chosen])
        worst = {name: max(f.deviations()[name] for f in chosen) for name in ("W", "F", "F_absolute")}
        mark = "" if all(f.holds() for f in chosen) else " **outside**"
        cells = [method, str(step), *(f"{side[name]:.4g}" for name in ("W", "F") for side in (published, found))]
        cells += [f"{100 * worst['W']:.2f} %", f"{worst['F_absolute']:.1e} ({100 * worst['F']:.1f} %){mark}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="experiments to compare: pointcloud, gaussian, color")
    parser.add_argument("--reference", type=Path, default=DEFAULT_REFERENCE, help="folder of reference values")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--last-step", type=int, help="compare no later step than this")
    parser.add_argument("--method", help="compare this method only")
    arguments = parser.parse_args()
    if not arguments.reference.is_dir():
        print(f"{arguments.reference}: no such folder; give the reference values with --reference", file=sys.stderr)
        return 2
    if arguments.last_step is not None and "color" in arguments.names and arguments.last_step < 5000:
        parser.error("--last-step: the published colour figures are those after 5000 steps")
    held = True
    for name in arguments.names:
        figures = compare(name, arguments.reference, arguments.jobs, arguments.last_step, arguments.method)
        print(f"### {name}\n\n{table(figures)}\n", flush=True)
        held = held and bool(figures) and all(figure.holds() for figure in figures)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
