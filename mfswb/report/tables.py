"""Tables of runs: means and standard deviations over seeds, the best in bold; as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mfswb.report.runs import Run

# Figures of a row of metrics, with what they are called; the smaller the better for all of them.
FIGURES: Mapping[str, str] = {"fairness_gap": "F", "mean_distance": "W"}
AUTOENCODER_FIGURES: Mapping[str, str] = {
    "reconstruction_loss": "reconstruction",
    "latent_distance": "W2^2(latents, prior)",
    "generated_distance": "W2^2(generated, images)",
    "fairness_gap": "F",
    "mean_distance": "W",
}


@dataclass(frozen=True)
class Column:
    """One figure at one step; ``step`` None is the end of each run."""

    key: str
    step: int | None
    title: str


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation (n - 1 in the denominator) of a figure over ``n`` seeds; None where there is none."""

    mean: float | None
    std: float | None
    n: int
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells under titles, each row with a label.

    Attributes:
        label: title of the rows' labels.
        columns: titles.
        rows: label and cells of each.
        spread: what the second figure of a cell is, where it is no standard deviation.
    """

    label: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    spread: str = "std"


def make_table(groups: Mapping[str, Sequence[Run]], steps: Sequence[int] | None = None) -> Table:
    """F and W (for an autoencoder its five figures) of every group.

    Args:
        groups: finished runs by label, as :func:`mfswb.report.runs.group` gives them.
        steps: evaluations to show; by default the ends of the runs.
    """
    runs = [run for members in groups.values() for run in members]
    figures = AUTOENCODER_FIGURES if all("reconstruction_loss" in run.summary for run in runs) else FIGURES
    at: Sequence[int | None] = steps or [None]
    columns = [
        Column(key, step, title if step is None else f"{title} ({step})")
        for step in at
        for key, title in figures.items()
    ]
    cells = {label: [_cell(members, column) for column in columns] for label, members in groups.items()}
    for position in range(len(columns)):
        means = [row[position].mean for row in cells.values()]
        known = [mean for mean in means if mean is not None]
        for row in cells.values():
            cell = row[position]
            if len(set(known)) > 1 and cell.mean is not None and cell.mean == min(known):
                row[position] = Cell(cell.mean, cell.std, cell.n, best=True)
    return Table("method", tuple(columns), tuple((label, tuple(row)) for label, row in cells.items()))


def _cell(runs: Sequence[Run], column: Column) -> Cell:
    rows = [run.summary if column.step is None else run.row_at(column.step) for run in runs]
    values = [float(row[column.key]) for row in rows if row is not None and row.get(column.key) is not None]
    if not values:
        return Cell(None, None, 0)
    return Cell(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


def cell_text(cell: Cell, plus_minus: str = " ± ") -> str:
    """``mean ± std`` with four and two significant digits; the mean alone of one seed."""
    if cell.mean is None:
        return "-"
    return f"{cell.mean:.4g}" if cell.std is None else f"{cell.mean:.4g}{plus_minus}{cell.std:.2g}"


def to_markdown(table: Table) -> str:
    """The table as GitHub's Markdown."""
    head = [table.label, *(column.title for column in table.columns)]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * len(table.columns)}"]
    for label, cells in table.rows:
        texts = [f"**{cell_text(cell)}**" if cell.best else cell_text(cell) for cell in cells]
        lines.append(f"| {' | '.join([label.replace('|', '/'), *texts])} |")
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The table with all digits: for every column its mean, standard deviation and number of seeds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [table.label, *(f"{c.title} {what}" for c in table.columns for what in ("mean", table.spread, "n"))]
    )
    for label, cells in table.rows:
        writer.writerow([label, *(value for cell in cells for value in (cell.mean, cell.std, cell.n))])
    return text.getvalue()


def to_latex(table: Table) -> str:
    """The table as a LaTeX ``tabular`` for the ``booktabs`` package."""
    head = [table.label, *(column.title for column in table.columns)]
    lines = [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines.append(" & ".join(_escaped(text) for text in head) + r" \\")
    lines.append(r"\midrule")
    for label, cells in table.rows:
        texts = []
        for cell in cells:
            text = _math(cell_text(cell, r" \pm "))
            texts.append(rf"$\mathbf{{{text}}}$" if cell.best else f"${text}$" if cell.mean is not None else "--")
        lines.append(" & ".join([_escaped(label), *texts]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _math(text: str) -> str:
    return re.sub(r"(-?[\d.]+)e([+-]\d+)", lambda m: rf"{m[1]} \cdot 10^{{{int(m[2])}}}", text)


def _escaped(text: str) -> str:
    powers = text.replace("W2^2", "$W_2^2$")
    return re.sub(r"([&%#_])(?![^$]*\$(?:[^$]*\$[^$]*\$)*[^$]*$)", r"\\\1", powers)
