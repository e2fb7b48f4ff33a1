"""Carrying out an experiment: the runs that are missing, side by side, then its tables and figures."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfswb import __version__
from mfswb.errors import MfswbError, first_line
from mfswb.experiments import Experiment, Job
from mfswb.files import write_json, write_text
from mfswb.pool import side_by_side

log = logging.getLogger(__name__)

RECORD = "report.json"
DIED = "its process died; is there enough memory?"


@dataclass(frozen=True)
class Result:
    """What became of an experiment: its folder, how many runs were made and kept, and what failed."""

    folder: Path
    made: int
    kept: int
    failures: Mapping[str, str]
    seconds: float


def make(
    experiment: Experiment,
    jobs: Sequence[Job],
    output: Path,
    *,
    workers: int,
    steps: Sequence[int] | None,
    command: str,
) -> Result:
    """Run what is missing and write tables and figures.

    A run is kept where its folder holds it finished. The folder's name has a hash of the run's whole configuration, so
    that changed ones are made anew beside it and nothing is overwritten. Runs that were interrupted go on. A failed one
    leaves ``traceback.txt`` in its folder, and the others go on.

    Args:
        experiment: what to make.
        jobs: its runs.
        output: folder for all of it.
        workers: runs at a time, each in a process of its own with one thread.
        steps: evaluations with columns of their own.
        command: what was typed, for the record.
    """
    started = time.perf_counter()
    folders = {job: output / "runs" / run_name(job) for job in jobs}
    waiting = [job for job in jobs if not _is_finished(folders[job])]
    failures = _run_all({job: folders[job] for job in waiting}, workers, experiment.name) if waiting else {}
    finished = {job: folder for job, folder in folders.items() if _is_finished(folder)}
    if finished:
        _report(experiment, finished, output, steps, command, failures)
    named = {f"{job.method}, seed {job.seed}": text for job, text in failures.items()}
    return Result(output, len(waiting), len(jobs) - len(waiting), named, time.perf_counter() - started)


def run_name(job: Job) -> str:
    """Folder of a job: method, seed, and a hash of everything that its figures depend on, defaults included.

    Example:
        >>> name = run_name(Job("mfswb lam=1", 2, ("task=gaussian", "loss=mfswb", "seed=2")))
        >>> name[:-6]
        'mfswb_lam-1_seed2_'
        >>> name == run_name(Job("mfswb lam=1", 2, ("task=gaussian", "loss=mfswb", "seed=2", "trainer.progress=false")))
        True
        >>> name == run_name(Job("mfswb lam=1", 2, ("task=gaussian", "loss=mfswb", "seed=2", "loss.lam=2")))
        False
    """
    from mfswb.configuration import compose_config
    from mfswb.resume import what_is_computed
    from mfswb.run import plain_config

    computed = what_is_computed(plain_config(compose_config(list(job.overrides))))
    digest = hashlib.sha256(json.dumps(computed, sort_keys=True, default=str).encode()).hexdigest()[:6]
    return f"{job.method.replace(' ', '_').replace('=', '-')}_seed{job.seed}_{digest}"


def _is_finished(folder: Path) -> bool:
    from mfswb.runfolder import finished_summary

    return finished_summary(folder) is not None


def _run_all(jobs: Mapping[Job, Path], workers: int, name: str) -> dict[Job, str]:
    """Run jobs side by side; what went wrong, by job."""
    failures: dict[Job, str] = {}

    def ended(job: Job, problem: str | None) -> None:
        if problem is not None:
            failures[job] = problem
            log.error("%s: %s, seed %d: %s", name, job.method, job.seed, problem)

    tasks = {job: (list(job.overrides), str(folder)) for job, folder in jobs.items()}
    died: str | None = DIED
    side_by_side(_run_one, tasks, ended, workers=workers, name=name, unit="run", died=died)
    return failures


def _run_one(overrides: list[str], folder: str) -> str | None:
    from mfswb.configuration import compose_config
    from mfswb.run import run

    path = Path(folder)
    try:
        run(compose_config([*overrides, "trainer.progress=false"]), path, overrides, again=True)
    except MfswbError as error:
        return str(error)
    except Exception as error:
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "traceback.txt", traceback.format_exc())
        return f"{type(error).__name__}: {first_line(error)} (see {path / 'traceback.txt'})"
    return None


def _report(
    experiment: Experiment,
    finished: Mapping[Job, Path],
    output: Path,
    steps: Sequence[int] | None,
    command: str,
    failures: Mapping[Job, str],
) -> None:
    record = {
        "mfswb": __version__,
        "runs": sorted(folder.name for folder in finished.values()),
        "steps": None if steps is None else list(steps),
        "failures": sorted(failures.values()),
    }
    if same_record(output / RECORD, record):
        return
    from mfswb.report.html import write_html
    from mfswb.report.runs import find_runs
    from mfswb.report.sections import write_section

    by_folder = {run.folder.resolve(): run for run in find_runs([output / "runs"])}
    groups: dict[str, list[Any]] = {}
    for job, folder in finished.items():
        if folder.resolve() in by_folder:  # what cannot be read has been told of
            groups.setdefault(job.method, []).append(by_folder[folder.resolve()])
    if not groups:
        return
    section = write_section(output, f"{experiment.name}: {experiment.makes}", groups, steps=steps)
    notes = [f"Made by: {command}", *(f"Failed: {text}" for text in failures.values())]
    write_html(output / "report.html", f"mfswb-paper {experiment.name}", [section], notes)
    write_text(output / "commands.txt", _commands(finished, command))
    write_json(output / RECORD, record)


def same_record(file: Path, record: Mapping[str, Any]) -> bool:
    """Whether what is to be written has been written already."""
    try:
        return bool(json.loads(file.read_text(encoding="utf-8")) == record)
    except (OSError, ValueError):
        return False


def _commands(finished: Mapping[Job, Path], command: str) -> str:
    summary = json.loads((next(iter(finished.values())) / "summary.json").read_text(encoding="utf-8"))
    lines = provenance(command, f"git revision of the first run: {summary.get('git_revision')}")
    lines += ["# Each run by itself", *(f"mfswb-run {shlex.join(job.overrides)}" for job in finished)]
    return "\n".join(lines) + "\n"


def provenance(command: str, revision: str) -> list[str]:
    """Lines of a ``commands.txt``: what was typed, and the versions of everything."""
    import numpy as np
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return [
        "# What made these tables and figures",
        command,
        "",
        f"# mfswb {__version__}, {revision}",
        "# " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"# {platform.platform()}, {platform.processor() or platform.machine()}, Python at {sys.executable}",
        "",
    ]
