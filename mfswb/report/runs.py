"""Finished runs as reports see them: read from their folders, named by their method, grouped by what differs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import ConfigError, DataError
from mfswb.resume import NOT_COMPUTED, OF_THE_COMMAND, same_run
from mfswb.runfolder import SUMMARY, load_config, read_metrics, snapshot_path

log = logging.getLogger(__name__)

# Neither what is computed nor its name: differences here do not make another group.
_NOT_A_CHOICE = {
    *("seed", "data.seed", "loss._target_", "loss._partial_", "loss.lam"),
    *("es.scale", "es.detach_weights"),  # what counts of them is in the loss
    *OF_THE_COMMAND,
    *(f"trainer.{key}" for key in (*NOT_COMPUTED, "eval_steps", "eval_every")),
}


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        folder: where it lies.
        config: its resolved configuration.
        summary: ``summary.json``.
        rows: its evaluations, in order.
    """

    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.summary.get("status") == "finished"

    @property
    def method(self) -> str:
        """The loss, with ``lam`` where it has one: ``mfswb lam=1``."""
        return method_name(self.config)

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.config["names"]["task"])

    def row_at(self, step: int) -> Mapping[str, Any] | None:
        """The evaluation after so many steps."""
        return next((row for row in self.rows if row["step"] == step), None)

    def support_at(self, step: int) -> NDArray[np.float64] | None:
        """The support kept of one evaluation."""
        file = snapshot_path(self.folder, "support", step)
        return np.load(file, allow_pickle=False) if file.is_file() else None


def method_name(config: Mapping[str, Any]) -> str:
    """What the loss of a configuration is called in tables and figures."""
    name = str(config["names"]["loss"])
    return f"{name} lam={config['loss']['lam']:g}" if name == "mfswb" else name


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """All runs in folders and the folders within, in the order of their paths; what cannot be read is told and left.

    Raises:
        ConfigError: there is no such folder, or no run in any.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder (looked from {Path.cwd()})")
        for file in sorted(folder.rglob(SUMMARY)):
            try:
                summary = json.loads(file.read_text(encoding="utf-8"))
                config = load_config(file.parent)
                if not isinstance(summary, dict):
                    raise DataError(f"{file}: is no summary of a run")
            except (DataError, OSError, ValueError) as error:
                log.warning("%s: left out (%s)", file.parent, error)
                continue
            found[file.parent.resolve()] = Run(file.parent, config, summary, read_metrics(file.parent))
    if not found:
        raise ConfigError(f"{', '.join(map(str, folders))}: no runs there (looked for {SUMMARY})")
    return list(found.values())


def sections(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that can be compared: of one task on one set of data. Keys say which."""
    by_data: dict[str, list[Run]] = {}
    for run in runs:
        data = {key: value for key, value in run.config["data"].items() if key != "seed"}
        by_data.setdefault(json.dumps([run.task, data], sort_keys=True, default=str), []).append(run)
    titles: dict[str, list[Run]] = {}
    for members in by_data.values():
        title = f"{members[0].task}, {members[0].config['names']['data']}"
        number = 1
        while title in titles:
            number += 1
            title = f"{members[0].task}, {members[0].config['names']['data']} ({number})"
        titles[title] = members
    return titles


def group(runs: Sequence[Run], by: Sequence[str] | None = None) -> dict[str, list[Run]]:
    """Runs that differ by their seed alone, under a label of what sets them apart from the others.

    Args:
        runs: runs of one section.
        by: dotted keys of the configuration to group by, ``method`` for the loss with its ``lam``; by default the
            method and every setting that differs.

    Raises:
        ConfigError: no run has such a key.
    """
    flat = [flattened(run.config) for run in runs]
    keys = list(by) if by else ["method", *_differing(flat)]
    for key in keys:
        if key != "method" and not any(key in settings for settings in flat):
            raise ConfigError(f"--by {key}: no run has that setting")
    groups: dict[str, list[Run]] = {}
    for run, settings in zip(runs, flat, strict=True):
        parts = [f"{key}={settings[key]}" for key in keys if key in settings]
        if "method" in keys:
            parts.insert(keys.index("method"), run.method)
        members = groups.setdefault(", ".join(parts), [])
        twin = next((k for k, other in enumerate(members) if same_run(dict(other.config), dict(run.config))), None)
        if twin is not None:
            log.warning("%s: has the settings and seed of %s, which is left out", run.folder, members[twin].folder)
            members[twin] = run
        else:
            members.append(run)
    order = {label: position for position, label in enumerate(sorted(groups, key=_method_order))}
    return dict(sorted(groups.items(), key=lambda item: order[item[0]]))


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as one level of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found.update(flattened(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _differing(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that set runs apart; those of a loss count among runs of that loss only."""
    found = []
    for key in sorted({key for settings in flat for key in settings}):
        if key in _NOT_A_CHOICE or key.startswith("names."):
            continue
        values: dict[str, set[str]] = {}
        for settings in flat:
            if key in settings:
                among = str(settings.get("names.loss")) if key.startswith("loss.") else ""
                values.setdefault(among, set()).add(json.dumps(settings[key], default=str))
        if any(len(different) > 1 for different in values.values()):
            found.append(key)
    return found


_ORDER = ("none", "uswb", "weighted", "mfswb", "s", "us", "es", "minimax", "constrained")


def _method_order(label: str) -> tuple[int, float, str]:
    method, _, rest = label.partition(",")
    name, _, lam = method.partition(" lam=")
    position = _ORDER.index(name) if name in _ORDER else len(_ORDER)
    return position, float(lam) if lam else 0.0, rest
