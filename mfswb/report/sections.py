"""The tables and figures of one set of comparable runs, written to a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mfswb.errors import DataError, first_line
from mfswb.files import write_text
from mfswb.report.curves import convergence_figure, pareto_figure
from mfswb.report.galleries import (
    iterations_figure,
    latents_figure,
    picture_figure,
    plane_figure,
    sheets_figure,
)
from mfswb.report.runs import Run
from mfswb.report.style import save_figure
from mfswb.report.tables import Table, make_table, to_csv, to_latex, to_markdown

log = logging.getLogger(__name__)

_CAPTIONS = {
    "convergence": "F and W along the iterations and the seconds of optimisation: means over seeds with bands of one "
    "standard deviation.",
    "pareto": "Final F against final W; large points are means over seeds.",
    "barycenters": "Barycenters of the first seed.",
    "pictures": "Source, targets and harmonised pictures.",
    "latents": "Latents of the test set by class, over the prior (grey).",
    "reconstructions": "Reconstructions of test pictures.",
    "samples": "Decoded samples of the prior.",
}


@dataclass(frozen=True)
class Section:
    """What was written for one set of runs, or for a study, which has none."""

    title: str
    groups: Mapping[str, Sequence[Run]]
    tables: Mapping[str, Table]
    figures: Mapping[str, Path]
    captions: Mapping[str, str] = field(default_factory=lambda: _CAPTIONS)

    @property
    def firsts(self) -> dict[str, Run]:
        """The run of the smallest seed, of every group."""
        return _firsts(self.groups)

    def caption(self, name: str) -> str:
        """What a figure shows."""
        return self.captions[name]


def write_section(
    folder: Path, title: str, groups: Mapping[str, Sequence[Run]], *, steps: Sequence[int] | None = None
) -> Section:
    """Write tables (Markdown, CSV, LaTeX) and figures (PNG, PDF) of finished runs.

    Args:
        folder: where they go; made if it is not there.
        title: what the runs have in common.
        groups: runs by label; those of one label differ by their seed.
        steps: evaluations that have columns of their own; by default those all runs share, if there are at most five.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"table": make_table(groups)}
    shown = _shared_steps(groups) if steps is None else list(steps)
    if steps is not None or 1 < len(shown) <= 6:
        tables["iterations"] = make_table(groups, shown)
    write_tables(folder, tables)
    figures = {}
    for name, figure in _figures(groups, shown).items():
        figures[name] = save_figure(figure, folder, name)[0]
    return Section(title, groups, tables, figures)


def write_tables(folder: Path, tables: Mapping[str, Table]) -> None:
    """Write every table as Markdown, CSV and LaTeX."""
    for name, table in tables.items():
        for suffix, write in ((".md", to_markdown), (".csv", to_csv), (".tex", to_latex)):
            write_text(folder / f"{name}{suffix}", write(table))


def _figures(groups: Mapping[str, Sequence[Run]], steps: Sequence[int]) -> dict[str, Figure]:
    firsts = _firsts(groups)
    found = {"convergence": convergence_figure(groups), "pareto": pareto_figure(groups)}
    if all(len(run.rows) < 2 for run in firsts.values()):
        del found["convergence"]  # one evaluation makes no curve
    first = next(iter(firsts.values()))
    try:
        if (first.folder / "latents.npz").is_file():
            found["latents"] = latents_figure(firsts)
            found["reconstructions"] = sheets_figure(firsts, "reconstructions")
            found["samples"] = sheets_figure(firsts, "samples")
        elif (first.folder / "palettes.npz").is_file():
            if any((run.folder / "harmonised.png").is_file() for run in firsts.values()):
                found["pictures"] = picture_figure(firsts)
        elif (first.folder / "support.npy").is_file():
            dimension = np.load(first.folder / "support.npy", mmap_mode="r").shape[1]
            if dimension == 2:
                found["barycenters"] = plane_figure(firsts)
            elif dimension == 3 and steps:
                found["barycenters"] = iterations_figure(firsts, list(steps)[:6])
    except (DataError, OSError, ValueError, EOFError, KeyError) as error:
        log.warning("%s: some figures are left out (%s)", first.folder, first_line(error))
    return found


def _firsts(groups: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    return {label: min(runs, key=lambda run: int(run.config["seed"])) for label, runs in groups.items()}


def _shared_steps(groups: Mapping[str, Sequence[Run]]) -> list[int]:
    sets = [{int(row["step"]) for row in run.rows} for runs in groups.values() for run in runs]
    shared = sorted(set.intersection(*sets))
    if len(shared) <= 5:
        return shared
    picked = np.unique(np.linspace(0, len(shared) - 1, 5).round().astype(int))
    return [shared[k] for k in picked]
