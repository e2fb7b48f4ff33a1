"""``mfswb-report``: tables, figures and one page of any folder of runs."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from mfswb.command import carry_out, make_parser
from mfswb.errors import ConfigError

log = logging.getLogger("mfswb.report")

_DESCRIPTION = "Tables (Markdown, CSV, LaTeX), figures (PNG, PDF) and report.html of finished runs."
_EXAMPLES = """\
  mfswb-report outputs/sweeps/FOLDER
  mfswb-report outputs/pointcloud outputs/sweeps --by method optimizer.lr -o compared
"""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "mfswb-report", "Tables (Markdown, CSV, LaTeX), figures (PNG, PDF) and report.html of finished runs.", _EXAMPLES
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders with runs in them, at any depth")
    parser.add_argument(
        "--by",
        nargs="+",
        metavar="KEY",
        help="settings that make a group: method, optimizer.lr; default: all that differ",
    )
    parser.add_argument("--steps", nargs="+", type=int, help="evaluations that have columns of their own")
    parser.add_argument("-o", "--output", type=Path, help="where the report goes; default: FOLDER/report")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``mfswb-report``."""
    return carry_out(_work, _parser().parse_args(arguments))


def _work(options: argparse.Namespace) -> int:
    page = _write(options.folders, options.by, options.steps, options.output or options.folders[0] / "report")
    log.info("%s", page)
    return 0


def _write(folders: list[Path], by: list[str] | None, steps: list[int] | None, output: Path) -> Path:
    from mfswb.report.html import write_html
    from mfswb.report.runs import find_runs, group, sections
    from mfswb.report.sections import write_section

    runs = find_runs(folders)
    left_out = [run for run in runs if not run.finished]
    notes = [f"Not finished and left out: {run.folder} ({run.summary.get('status')})" for run in left_out]
    for note in notes:
        log.warning("%s", note)
    finished = [run for run in runs if run.finished]
    if not finished:
        raise ConfigError(f"{', '.join(map(str, folders))}: of {len(runs)} runs none is finished")
    compared = sections(finished)
    written = []
    for number, (title, members) in enumerate(compared.items(), start=1):
        part = output if len(compared) == 1 else output / f"{number}_{members[0].task}"
        groups = group(members, by)
        log.info("%s: %d runs, %s", title, len(members), "; ".join(groups))
        written.append(write_section(part, title, groups, steps=steps))
    page = output / "report.html"
    write_html(page, f"mfswb report, {len(finished)} runs", written, notes)
    return page


if __name__ == "__main__":
    sys.exit(main())
