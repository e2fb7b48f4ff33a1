"""The figure of the study of fronts: F against W, a panel a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mfswb.report.style import method_colours
from mfswb.studies.intervals import half_width
from mfswb.studies.study import Row

_Methods = Mapping[str, Sequence[Row]]
_LINES = {"mfswb": ("#cc79a7", "mfswb along lam"), "constrained": ("#000000", "constrained along eps")}
_MARKERS = ("D", "s", "^", "v", "P", "X")


def pareto_panels(problems: Mapping[str, _Methods]) -> Figure:
    """Lam and eps as lines, the other methods as marks."""
    figure = Figure(figsize=(0.6 + 4.2 * len(problems), 4.4), layout="constrained")
    panels = figure.subplots(1, len(problems), squeeze=False)[0]
    alone = [name for name in dict.fromkeys(n for methods in problems.values() for n in methods) if not _line(name)]
    colours = method_colours(alone)
    for axes, (problem, methods) in zip(panels, problems.items(), strict=True):
        _limit(axes, methods)
        for line, (colour, label) in _LINES.items():
            members = {name: rows for name, rows in methods.items() if _line(name) == line}
            if members:
                style: dict[str, Any] = {"color": colour, "label": label, "linewidth": 1.4, "markersize": 4}
                _draw(axes, list(members.values()), marker="o", zorder=2, **style)
                _name_ends(axes, members, colour)
        for name, marker in zip(alone, _MARKERS * len(alone), strict=False):
            if name in methods:
                style = {"color": colours[name], "label": name, "linewidth": 0, "markersize": 8}
                _draw(axes, [methods[name]], marker=marker, zorder=3, **style)
        axes.set(xlabel="exact W", title=problem)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(alpha=0.25, linewidth=0.6)
    panels[0].set_ylabel("exact F")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure


def _line(name: str) -> str | None:
    return next((line for line in _LINES if name.startswith(f"{line} ")), None)


def _mean(rows: Sequence[Row], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def _limit(axes: Axes, methods: _Methods) -> None:
    """Show all but what only large prices of MFSWB reach; F on a logarithmic scale where that is of use."""
    shown = [rows for name, rows in methods.items() if _line(name) != "mfswb"] or list(methods.values())
    shown += [rows for name, rows in methods.items() if name == "mfswb lam=0"]
    means = [_mean(rows, "W") for rows in shown]
    span = max(means) - min(means) or max(means)
    left, right = min(means) - 0.12 * span, max(means) + 0.45 * span
    gaps = [_mean(rows, "F") for rows in methods.values() if left <= _mean(rows, "W") <= right]
    axes.set_xlim(left, right)
    if min(gaps) > 0 and max(gaps) > 10 * min(gaps):
        axes.set(yscale="log", ylim=(min(gaps) / 1.7, 1.7 * max(gaps)))
    else:
        margin = 0.08 * (max(gaps) - min(gaps) or max(gaps))
        axes.set_ylim(max(0.0, min(gaps) - 2 * margin), max(gaps) + margin)


def _draw(axes: Axes, groups: Sequence[Sequence[Row]], **style: Any) -> None:
    """Means with intervals in both directions."""
    means = {key: [_mean(group, key) for group in groups] for key in "FW"}
    widths = {key: [half_width([row[key] for row in group]) or 0.0 for group in groups] for key in "FW"}
    style |= {"markeredgecolor": "white", "markeredgewidth": 0.5, "elinewidth": 0.6}
    _, _, bars = axes.errorbar(means["W"], means["F"], xerr=widths["W"], yerr=widths["F"], **style)
    for bar in bars:
        bar.set_alpha(0.55)


def _name_ends(axes: Axes, line: _Methods, colour: str) -> None:
    """Write the first and the last setting of a line that can be seen beside its point."""
    left, right = axes.get_xlim()
    seen = [name for name, rows in line.items() if left <= _mean(rows, "W") <= right]
    for name in dict.fromkeys([*seen[:1], *seen[-1:]]):
        value = name.partition("=")[2]
        upwards = _line(name) == "mfswb"
        text = f"lam = {value}" if upwards else f"eps = {value} F0"
        place = (_mean(line[name], "W"), _mean(line[name], "F"))
        shift = (7, 5) if upwards else (7, -9)
        axes.annotate(text, place, xytext=shift, textcoords="offset points", fontsize=8, color=colour)
