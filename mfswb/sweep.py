"""What a sweep says at its end: which jobs finished, with their figures, and which did not."""

from __future__ import annotations

import atexit
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

log = logging.getLogger("mfswb.result")


class SweepSummary(Callback):
    """Logs one line a job of a sweep folder and a last line that names the failed ones."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Hydra calls this before the first job.

        It has a call at the end, too, but leaves it out when a job failed, which is when the summary is needed most.
        """
        atexit.register(_tell, Path(str(config.hydra.sweep.dir)).absolute(), Path.cwd())


def _tell(folder: Path, shown_from: Path) -> None:
    for line in sweep_lines(folder, shown_from):
        log.info("%s", line)


def sweep_lines(folder: Path, shown_from: Path) -> list[str]:
    """A table of the jobs in a sweep folder, and a closing line that names the folder as seen from another."""
    shown = folder.relative_to(shown_from) if folder.is_relative_to(shown_from) else folder
    paths = {file.parent for name in ("summary.json", "traceback.txt") for file in folder.glob(f"**/{name}")}
    found = {path: _read(path) for path in sorted(paths)}
    if not any(path.is_dir() for path in folder.glob("*")):
        return []  # refused before its first job
    if not found:
        return [f"sweep {shown}: no job left a summary"]
    names = {path: str(path.relative_to(folder)) for path in found}
    width = max(len(name) for name in names.values())
    lines = []
    for path, told in found.items():
        status = str(told.get("status"))
        if status == "finished":
            figures = f"F = {told['fairness_gap']:<11.5g} W = {told['mean_distance']:.5g}"
        else:
            figures = str(told.get("error", ""))
        lines.append(f"{names[path]:<{width}}  {status:<11}  {figures}".rstrip())
    counts = Counter(str(told.get("status")) for told in found.values())
    failed = [names[path] for path, told in found.items() if told.get("status") != "finished"]
    closing = f"sweep {shown}: {counts['finished']} of {len(found)} finished"
    return [*lines, f"{closing}; not finished: {', '.join(failed)}" if failed else closing]


def _read(folder: Path) -> dict[str, Any]:
    """The summary of a job; what stands in for it where the job did not get so far, or was refused."""
    told: Any = None
    try:
        told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        log.debug("%s: no summary", folder)
    status = told.get("status") if isinstance(told, dict) else None
    # A finished run has no traceback: one beside it is of a job that was refused its folder.
    if status in (None, "finished") and (folder / "traceback.txt").is_file():
        lines = (folder / "traceback.txt").read_text(encoding="utf-8").strip().splitlines()
        return {"status": "failed", "error": lines[-1].partition(": ")[2] or lines[-1] if lines else ""}
    return told if isinstance(told, dict) else {"status": "unreadable"}
