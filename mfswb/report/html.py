"""One self-contained page of a report: sortable tables, figures, and point clouds to turn; opens without a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from mfswb import __version__
from mfswb.errors import DataError
from mfswb.files import write_text
from mfswb.report.figures import BARYCENTER_COLOUR, MARGINAL_COLOURS
from mfswb.report.galleries import read_marginals
from mfswb.report.sections import Section
from mfswb.report.tables import Cell, Table, cell_text

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072b2; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
td.best { font-weight: 700; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #555; }
.cloud { height: 34rem; }
"""

_SORTING = """
for (const head of document.querySelectorAll("table.sortable th")) {
  head.querySelector("button").addEventListener("click", () => {
    const table = head.closest("table"), body = table.tBodies[0], k = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => { const cell = row.cells[k]; return cell.dataset.value ?? cell.textContent; };
    const order = (a, b) => {
      const x = value(a), y = value(b), p = parseFloat(x), q = parseFloat(y);
      return isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q;
    };
    const rows = [...body.rows].sort(order);
    body.append(...(down ? rows.reverse() : rows));
  });
}
"""

_DRAWN_POINTS = 2048
_MOST_CLOUDS = 40


def write_html(path: Path, title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> None:
    """Write the page.

    Args:
        path: the file.
        title: its heading.
        sections: what was written of each set of runs.
        notes: lines below the heading.
    """
    parts: list[str] = []
    clouds = 0
    for section in sections:
        parts.append(f"<section><h2>{escape(section.title)}</h2>")
        parts += [_table(table) for table in section.tables.values()]
        view = _cloud_view(section, clouds)
        if view:
            clouds += 1
            parts.append(view)
        for name, file in section.figures.items():
            data = base64.b64encode(file.read_bytes()).decode("ascii")
            caption = escape(section.caption(name))
            parts.append(
                f'<figure><img src="data:image/png;base64,{data}" alt="{caption}" loading="lazy">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        parts.append("</section>")
    library = ""
    if clouds:
        from plotly.offline import get_plotlyjs

        library = f"<script>{get_plotlyjs()}</script>"
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>{library}</head><body>'
        f"<h1>{escape(title)}</h1>{told}<p>mfswb {escape(__version__)}. Click a column's title to sort by it.</p>"
        f"{''.join(parts)}<script>{_SORTING}</script></body></html>\n"
    )
    write_text(path, page)


def _table(table: Table) -> str:
    titles = [table.label, *(column.title for column in table.columns)]
    head = "".join(f'<th scope="col"><button>{escape(text)}</button></th>' for text in titles)
    body = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(_cell(cell) for cell in cells)}</tr>" for label, cells in table.rows
    )
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(cell: Cell) -> str:
    value = "" if cell.mean is None else f' data-value="{cell.mean!r}"'
    best = ' class="best"' if cell.best else ""
    return f"<td{best}{value}>{escape(cell_text(cell))}</td>"


def _cloud_view(section: Section, number: int) -> str:
    """A view of three-dimensional clouds that can be turned, with buttons for marginals and barycenters; or nothing."""
    firsts = section.firsts
    if not firsts:
        return ""
    first = next(iter(firsts.values()))
    try:
        marginals = read_marginals(first)
    except DataError:
        return ""
    if next(iter(marginals.values())).shape[1] != 3:
        return ""
    clouds = [
        (name, cloud, MARGINAL_COLOURS[k % len(MARGINAL_COLOURS)]) for k, (name, cloud) in enumerate(marginals.items())
    ]
    for label, run in firsts.items():
        if (run.folder / "support.npy").is_file():
            support = np.load(run.folder / "support.npy", allow_pickle=False)
            clouds.append((f"barycenter: {label}", support, BARYCENTER_COLOUR))
    clouds = clouds[:_MOST_CLOUDS]
    shown = len(marginals) if len(clouds) > len(marginals) else 0
    traces = [_trace(name, cloud, colour, k == shown) for k, (name, cloud, colour) in enumerate(clouds)]
    buttons = [
        {"label": name, "method": "restyle", "args": [{"visible": [k == position for k in range(len(clouds))]}]}
        for position, (name, _, _) in enumerate(clouds)
    ]
    hidden = {"visible": False}
    layout = {
        "margin": {"l": 0, "r": 0, "t": 40, "b": 0},
        "showlegend": False,
        "scene": {"aspectmode": "data", "xaxis": hidden, "yaxis": hidden, "zaxis": hidden},
        "updatemenus": [{"buttons": buttons, "active": shown, "x": 0, "xanchor": "left", "y": 1.05}],
    }
    arguments = ", ".join(json.dumps(part).replace("</", "<\\/") for part in (traces, layout))
    return (
        f'<figure><div class="cloud" id="cloud{number}"></div>'
        "<figcaption>Turn with the mouse; the list above chooses a cloud.</figcaption>"
        f'<script>Plotly.newPlot("cloud{number}", {arguments}, {{responsive: true}});</script></figure>'
    )


def _trace(name: str, cloud: np.ndarray[Any, Any], colour: str, visible: bool) -> dict[str, Any]:
    drawn = np.round(cloud[:: -(-len(cloud) // _DRAWN_POINTS)].astype(float), 5)
    return {
        "type": "scatter3d",
        "mode": "markers",
        "name": name,
        **{axis: drawn[:, k].tolist() for k, axis in enumerate("xyz")},
        "marker": {"size": 2, "color": colour},
        "visible": visible,
        "hoverinfo": "skip",
    }
