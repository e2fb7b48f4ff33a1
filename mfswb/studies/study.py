"""What a study is: pieces of work, rows of figures, and the tables and pictures made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.figure import Figure

from mfswb.report.tables import Table

Cell = dict[str, Any]
"""One piece of work, as JSON: everything its rows depend on, so that rows kept of an equal one can be used again."""
Row = dict[str, Any]
"""One line of results, as JSON: names and numbers."""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption."""

    figure: Figure
    caption: str


class Study(Protocol):
    """A study, built from its settings; :func:`mfswb.studies.running.make_study` carries it out.

    An implementation is a frozen dataclass of settings. Its pieces are measured side by side in processes with one
    thread each, in any order, and kept one by one; what several of them share may be cached on the object.
    """

    def cells(self) -> Sequence[Cell]:
        """All pieces of work; seconds to a minute each."""

    def measure(self, cell: Cell) -> list[Row]:
        """Rows of one piece; the same whenever and wherever they are measured."""

    def tables(self, rows: Sequence[Row]) -> Mapping[str, Table]:
        """Tables by file name. Rows of pieces that failed are missing."""

    def pictures(self, rows: Sequence[Row]) -> Mapping[str, Picture]:
        """Figures by file name."""
