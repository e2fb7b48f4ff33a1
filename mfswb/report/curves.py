"""Figures any runs have: convergence of F and W, and F against W."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mfswb.report.runs import Run
from mfswb.report.style import method_colours

_NAMES = {"fairness_gap": "F, fairness gap", "mean_distance": "W, mean distance"}


def convergence_figure(groups: Mapping[str, Sequence[Run]]) -> Figure:
    """F and W against steps and against seconds of optimisation: means over seeds, bands of a standard deviation."""
    figure = Figure(figsize=(8.4, 6.0), layout="constrained")
    colours = method_colours(list(groups))
    axes = figure.subplots(2, 2, sharey="row")
    for row, key in enumerate(_NAMES):
        for column, along in enumerate(("step", "seconds")):
            panel: Axes = axes[row][column]
            for label, runs in groups.items():
                steps = _common_steps(runs)
                if not steps:
                    continue
                x = np.mean([_values(run, along, steps) for run in runs], axis=0)
                y = np.array([_values(run, key, steps) for run in runs])
                mean, std = y.mean(axis=0), y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(len(steps))
                panel.plot(x, mean, color=colours[label], label=label, marker="o", markersize=3, linewidth=1.4)
                if len(y) > 1:
                    panel.fill_between(x, mean - std, mean + std, color=colours[label], alpha=0.2, linewidth=0)
            _axis(
                panel, [v for runs in groups.values() for run in runs for v in _values(run, key, _common_steps(runs))]
            )
            if column == 0:
                panel.set_ylabel(_NAMES[key])
            if row == 1:
                panel.set_xlabel("steps" if along == "step" else "seconds of optimisation")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9)
    return figure


def pareto_figure(groups: Mapping[str, Sequence[Run]]) -> Figure:
    """Final F against final W: a point a run, a larger one a mean over seeds, and the Pareto front of the means."""
    figure = Figure(figsize=(6.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    colours = method_colours(list(groups))
    means: list[tuple[float, float]] = []
    for label, runs in groups.items():
        w = [float(run.summary["mean_distance"]) for run in runs]
        f = [float(run.summary["fairness_gap"]) for run in runs]
        means.append((float(np.mean(w)), float(np.mean(f))))
        if len(runs) > 1:
            axes.scatter(w, f, s=12, color=colours[label], alpha=0.5, linewidths=0)
        axes.scatter(*means[-1], s=60, color=colours[label], label=label, edgecolors="white", linewidths=0.7, zorder=3)
    front = pareto_front(means)
    axes.plot(*zip(*front, strict=True), color="black", linewidth=1, linestyle="--", zorder=2, label="Pareto front")
    _axis(axes, [f for _, f in means])
    axes.xaxis.set_major_locator(MaxNLocator(5))  # long numbers, which must not touch
    axes.set(xlabel="W, mean distance", ylabel="F, fairness gap")
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other beats in both numbers, in ascending order of the first.

    Example:
        >>> pareto_front([(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0)])
        [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]
    """
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _common_steps(runs: Sequence[Run]) -> list[int]:
    shared = set.intersection(*({int(row["step"]) for row in run.rows} for run in runs))
    return sorted(shared)


def _values(run: Run, key: str, steps: Sequence[int]) -> NDArray[np.float64]:
    rows = {int(row["step"]): row for row in run.rows}
    return np.array([float(rows[step][key]) for step in steps])


def _axis(axes: Axes, values: Sequence[float]) -> None:
    positive = [value for value in values if value > 0]
    if positive and len(positive) == len(values) and max(positive) > 30 * min(positive):
        axes.set_yscale("log")
    axes.grid(alpha=0.25, linewidth=0.5)
