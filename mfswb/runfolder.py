"""The folder of one run: configuration, metrics, checkpoint and summary, each written so that a crash loses nothing."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from numpy.typing import NDArray

from mfswb.errors import ConfigError, DataError, first_line
from mfswb.files import UNFINISHED, replacing, save_array, write_json, write_text

log = logging.getLogger(__name__)

SNAPSHOTS, TRACEBACK = "snapshots", "traceback.txt"
CHECKPOINT, CONFIG, METRICS, SUMMARY = "checkpoint.pt", "config.yaml", "metrics.jsonl", "summary.json"
_FORMAT = 1


class RunFolder:
    """Records one run; a :class:`mfswb.problem.Recorder`.

    Args:
        path: the folder; made if it is not there.
        config: the resolved configuration, of plain values.
        resumed_from: the folder whose checkpoint this run continues, if any; it may be ``path`` itself.

    Raises:
        ConfigError: the folder holds another run, or cannot be written.
    """

    def __init__(self, path: Path, config: dict[str, Any], resumed_from: Path | None = None) -> None:
        self.path, self.config = path, config
        try:
            path.mkdir(parents=True, exist_ok=True)
            if holds_a_run(path) and (resumed_from is None or path.resolve() != resumed_from.resolve()):
                raise ConfigError(
                    f"{path}: already holds a run; give another hydra.run.dir, or continue it: trainer.resume={path}"
                )
            write_text(path / CONFIG, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
            (path / TRACEBACK).unlink(missing_ok=True)
            for left in (*path.glob(UNFINISHED), *path.glob(f"{SNAPSHOTS}/{UNFINISHED}")):
                left.unlink(missing_ok=True)  # half-written when the earlier part was killed
        except OSError as error:
            raise ConfigError(f"{path}: the run's folder cannot be written ({error.strerror})") from None

    def keep_rows(self, rows: list[dict[str, Any]], earlier: Path) -> None:
        """Start the metrics with rows of an earlier part of the run, and take over their snapshots."""
        write_text(self.path / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        if earlier.resolve() == self.path.resolve() or not (earlier / SNAPSHOTS).is_dir():
            return
        (self.path / SNAPSHOTS).mkdir(exist_ok=True)
        for row in rows:
            for file in (earlier / SNAPSHOTS).glob(snapshot_path(earlier, "*", row["step"]).name):
                with replacing(self.path / SNAPSHOTS / file.name) as temporary:
                    shutil.copyfile(file, temporary)

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, NDArray[Any]]) -> None:
        """Append one line to ``metrics.jsonl``; arrays go to ``snapshots/NAME_STEP.npy`` before it."""
        if snapshots:
            (self.path / SNAPSHOTS).mkdir(exist_ok=True)
        for name, values in snapshots.items():
            save_array(snapshot_path(self.path, name, row["step"]), values)
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Replace ``checkpoint.pt`` by a newer state."""
        with replacing(self.path / CHECKPOINT) as temporary, temporary.open("wb") as file:
            torch.save({"format": _FORMAT, "config": self.config, **state}, file)

    def keep_traceback(self, text: str) -> None:
        """Write where an error came from to ``traceback.txt``."""
        write_text(self.path / TRACEBACK, text)

    def summarize(self, summary: dict[str, Any]) -> None:
        """Replace ``summary.json``."""
        write_json(self.path / SUMMARY, summary)


def snapshot_path(folder: Path, name: str, step: int) -> Path:
    """Where a run folder keeps an array of one of its evaluations."""
    return folder / SNAPSHOTS / f"{name}_{step:08d}.npy"


def holds_a_run(folder: Path) -> bool:
    """Whether a run has begun there."""
    return any((folder / name).exists() for name in (CHECKPOINT, SUMMARY, METRICS))


def finished_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end; None of any other."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and summary.get("status") == "finished" else None


def load_config(folder: Path) -> dict[str, Any]:
    """The configuration a run folder holds.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        config = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{folder / CONFIG}: cannot be read ({first_line(error)})") from None
    return _checked_config(folder / CONFIG, config)


def read_metrics(folder: Path, last_step: int | None = None) -> list[dict[str, Any]]:
    """Rows of ``metrics.jsonl`` up to ``last_step``; a half-written last line, left by a kill, is not among them."""
    file = folder / METRICS
    if not file.is_file():
        return []
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if last_step is None or row["step"] <= last_step:
            rows.append(row)
    return rows


def load_earlier(path: Path) -> tuple[Path, dict[str, Any], dict[str, Any] | None]:
    """What a run to be continued left behind.

    Args:
        path: a run folder, or a checkpoint file.

    Returns:
        The run's folder, its configuration, and its newest state; None if it was stopped before the first checkpoint.

    Raises:
        ConfigError: there is no run at ``path``.
        DataError: the checkpoint is damaged, or no checkpoint of this program.
    """
    if path.is_file():
        state = _load_checkpoint(path)
        return path.parent, _checked_config(path, state["config"]), state
    if (path / CHECKPOINT).is_file():
        state = _load_checkpoint(path / CHECKPOINT)
        return path, _checked_config(path / CHECKPOINT, state["config"]), state
    if (path / CONFIG).is_file():
        return path, load_config(path), None
    raise ConfigError(f"trainer.resume={path}: no run there (looked for {CHECKPOINT} and {CONFIG} from {Path.cwd()})")


def _checked_config(file: Path, config: Any) -> dict[str, Any]:
    sections = ("names", "task", "loss", "data", "slicing", "optimizer", "trainer")
    if not isinstance(config, dict) or not all(isinstance(config.get(section), dict) for section in sections):
        raise DataError(f"{file}: holds no configuration of a run")
    return config


def _load_checkpoint(file: Path) -> dict[str, Any]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: not a readable checkpoint ({first_line(error)})") from None
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or "config" not in state:
        raise DataError(f"{file}: not a checkpoint of this program and version")
    return dict(state)
