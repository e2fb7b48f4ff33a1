"""Carrying out a study: the pieces that are missing, side by side, each kept as it ends, then tables and figures."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from mfswb import __version__
from mfswb.building import build
from mfswb.errors import DataError, MfswbError, first_line
from mfswb.experiments import Experiment
from mfswb.files import write_json, write_text
from mfswb.paper import DIED, RECORD, Result, provenance, same_record
from mfswb.pool import side_by_side
from mfswb.studies.study import Cell, Row, Study

log = logging.getLogger(__name__)

ROWS = "rows.jsonl"
# Rows, or what went wrong in a line and at length.
_Measured = tuple[list[Row], str | None, str | None]


def build_study(settings: Mapping[str, Any]) -> Study:
    """The study that settings describe.

    Raises:
        MfswbError: unknown settings, or data that cannot be had.
    """
    study: Study = build("study", settings)
    return study


def make_study(
    experiment: Experiment, settings: Mapping[str, Any], output: Path, *, workers: int, command: str
) -> Result:
    """Measure what is missing and write tables and figures.

    Every piece of work is kept in ``rows.jsonl`` as it ends, under a hash of all that it depends on: a study that was
    killed goes on where it stopped, and one with other settings measures what is new.

    Args:
        experiment: what to make.
        settings: of its study, as :meth:`mfswb.experiments.Experiment.study` gives them.
        output: folder for all of it.
        workers: pieces at a time, each in a process of its own with one thread.
        command: what was typed, for the record.
    """
    started = time.perf_counter()
    study = build_study(settings)
    cells = {cell_key(str(settings["_target_"]), cell): cell for cell in study.cells()}
    output.mkdir(parents=True, exist_ok=True)
    known = read_rows(output / ROWS)
    waiting = {key: cell for key, cell in cells.items() if key not in known}
    failures: dict[str, str] = {}
    written = json.dumps(settings, sort_keys=True)

    def ended(key: str, outcome: _Measured) -> None:
        rows, problem, trace = outcome
        if problem is None:
            known[key] = rows
            _keep(output / ROWS, {"key": key, "cell": cells[key], "rows": rows})
            return
        failures[_named(cells[key])] = problem
        log.error("%s: %s: %s", experiment.name, _named(cells[key]), problem)
        if trace is not None:
            write_text(output / "traceback.txt", trace)

    if waiting:
        tasks = {key: (written, cell) for key, cell in waiting.items()}
        died: _Measured = ([], DIED, None)
        side_by_side(_measure, tasks, ended, workers=workers, name=experiment.name, unit="piece", died=died)
    rows = [row for key in cells for row in known.get(key, [])]
    if rows:
        record = {"mfswb": __version__, "cells": [key for key in cells if key in known], "failures": failures}
        if not same_record(output / RECORD, record):
            _report(experiment, study, rows, output, settings, command, failures)
            write_json(output / RECORD, record)
    return Result(output, len(waiting), len(cells) - len(waiting), failures, time.perf_counter() - started)


def cell_key(target: str, cell: Cell) -> str:
    """A hash of a piece of work.

    Example:
        >>> cell_key("mfswb.studies.a.A", {"x": 1, "y": 2}) == cell_key("mfswb.studies.a.A", {"y": 2, "x": 1})
        True
    """
    return hashlib.sha256(json.dumps([target, cell], sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def read_rows(file: Path) -> dict[str, list[Row]]:
    """Rows that were kept, by the hash of their piece. A last line that a kill cut short is left out.

    Raises:
        DataError: another line is none of ours.
    """
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").split("\n")
    found = {}
    for number, line in enumerate(lines[:-1], start=1):  # a whole line ends with a newline
        try:
            entry = json.loads(line)
            found[str(entry["key"])] = list(entry["rows"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{file}: line {number} is damaged; remove it to measure it again") from None
    return found


def _keep(file: Path, entry: Mapping[str, Any]) -> None:
    text = json.dumps(entry, allow_nan=False) + "\n"
    with file.open("r+b" if file.exists() else "w+b") as rows:
        contents = rows.read()
        rows.seek(contents.rfind(b"\n") + 1)  # over half a line that a kill left
        rows.truncate()
        rows.write(text.encode())
        rows.flush()
        os.fsync(rows.fileno())


def _named(cell: Cell) -> str:
    return ", ".join(f"{key}={value}" for key, value in cell.items())


@lru_cache(maxsize=1)
def _built(settings: str) -> Study:
    return build_study(json.loads(settings))


def _measure(settings: str, cell: Cell) -> _Measured:
    import torch

    torch.set_num_threads(1)
    try:
        rows = _built(settings).measure(cell)
        json.dumps(rows, allow_nan=False)  # a figure that is none is a failure
        return rows, None, None
    except MfswbError as error:
        return [], str(error), None
    except Exception as error:
        return [], f"{type(error).__name__}: {first_line(error)} (see traceback.txt)", traceback.format_exc()


def _report(
    experiment: Experiment,
    study: Study,
    rows: Sequence[Row],
    output: Path,
    settings: Mapping[str, Any],
    command: str,
    failures: Mapping[str, str],
) -> None:
    from mfswb.report.html import write_html
    from mfswb.report.sections import Section, write_tables
    from mfswb.report.style import save_figure
    from mfswb.run import git_revision

    tables, pictures = study.tables(rows), study.pictures(rows)
    write_tables(output, tables)
    figures = {name: save_figure(picture.figure, output, name)[0] for name, picture in pictures.items()}
    captions = {name: picture.caption for name, picture in pictures.items()}
    section = Section(f"{experiment.name}: {experiment.makes}", {}, tables, figures, captions)
    notes = [f"Made by: {command}", *(f"Failed: {name}: {text}" for name, text in failures.items())]
    write_html(output / "report.html", f"mfswb-paper {experiment.name}", [section], notes)
    write_text(output / "rows.csv", _as_csv(rows))
    lines = provenance(command, f"git revision: {git_revision()}")
    lines += ["# Settings of the study", yaml.safe_dump(dict(settings), sort_keys=False)]
    write_text(output / "commands.txt", "\n".join(lines))


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
