"""The experiments in ``experiments/*.yaml``: which runs, or which study, one result of the paper or of ours needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mfswb.errors import ConfigError

# What is typed behind an experiment's name belongs to its study with this prefix, to its runs without.
STUDY_PREFIX = "study."


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    method: str
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """One result: runs of several methods and seeds, or a study (:mod:`mfswb.studies`), and what is made of them.

    Attributes:
        name: of its file.
        makes: tables and figures, in words.
        cost: what it takes on two CPU cores, in words, by preset (``full``, ``quick``).
        settings: the file's contents.
    """

    name: str
    makes: str
    cost: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def is_study(self) -> bool:
        """Whether it measures by itself instead of asking for runs."""
        return "study" in self.settings

    def study(self, *, quick: bool, builtin: bool, data_folder: Path | None, extra: Sequence[str]) -> dict[str, Any]:
        """Settings of the study, with the ``_target_`` that makes it.

        Args:
            quick: the preset of minutes.
            builtin: data that come with the program.
            data_folder: where the paper's data lie; files it lacks are fetched, where they can be.
            extra: settings of the user's, ``study.KEY=VALUE``, last.

        Raises:
            ConfigError: one that is no YAML.
        """
        settings: dict[str, Any] = deepcopy(self.settings["study"])
        if quick:
            settings.update(deepcopy(self.settings["quick"]))
        if builtin:
            settings.update(deepcopy(self.settings.get("builtin", {})))
        elif data_folder is not None:
            for key, names in self.settings.get("files", {}).items():
                paths = [data_folder / name for name in ([names] if isinstance(names, str) else names)]
                if all(path.exists() for path in paths):
                    resolved = [str(path.resolve()) for path in paths]
                    _put(settings, key, resolved[0] if isinstance(names, str) else resolved)
        for text in extra:
            key, _, value = text.removeprefix(STUDY_PREFIX).partition("=")
            try:
                _put(settings, key, yaml.safe_load(value))
            except yaml.YAMLError:
                raise ConfigError(f"{text}: give a number, a word or a list, as in {STUDY_PREFIX}{key}=[1,2]") from None
        return settings

    def steps(self, quick: bool) -> list[int] | None:
        """Evaluations that have columns of their own; None where only the end counts."""
        preset = self.settings["quick"] if quick else self.settings
        steps: list[int] | None = preset.get("table_steps", self.settings.get("table_steps"))
        return steps

    def missing_files(self, data_folder: Path | None) -> list[Path]:
        """Files of the paper's data that a folder lacks."""
        if data_folder is None:
            return []
        wanted = self.settings.get("files", {}).values()
        names = [name for entry in wanted for name in ([entry] if isinstance(entry, str) else entry)]
        return [data_folder / name for name in names if not (data_folder / name).exists()]

    def jobs(self, *, quick: bool, builtin: bool, data_folder: Path | None, extra: Sequence[str]) -> list[Job]:
        """Every run that is needed.

        Args:
            quick: the preset of minutes instead of the paper's settings.
            builtin: data that come with the program instead of the paper's.
            data_folder: where the paper's data lie; files it lacks are fetched, where they can be.
            extra: overrides of the user's, last.

        Raises:
            ConfigError: they change what the experiment itself chooses.
        """
        for text in extra:
            if text.lstrip("+~").startswith(("loss=", "loss.", "seed=")):
                raise ConfigError(f"{text}: losses and seeds are the experiment's; use mfswb-run for others")
        preset = self.settings["quick"] if quick else {}
        common = [*self.settings["overrides"]]
        if builtin:
            common += self.settings["builtin"]
        else:
            common += self.settings["data"]
            for key, names in self.settings.get("files", {}).items():
                common += _file_override(key, names, data_folder)
        chosen_length = any(text.startswith(("trainer.epochs=", "trainer.steps=")) for text in extra)
        common += [text for text in preset.get("overrides", []) if not (chosen_length and _is_length(text))]
        if builtin:
            given = preset.get("builtin_overrides", [])
            common += [text for text in given if not (chosen_length and _is_length(text))]
        return [
            Job(method, seed, (*common, *chosen, f"seed={seed}", *extra))
            for method, chosen in self.settings["methods"].items()
            for seed in preset.get("seeds", self.settings["seeds"])
        ]


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = settings.get(part)
        if not isinstance(inner, dict):
            raise ConfigError(f"{STUDY_PREFIX}{key}: {part} has no settings of its own")
        settings = inner
    settings[last] = value


def _is_length(override: str) -> bool:
    return override.startswith("trainer.steps=")


def experiments_dir() -> Path:
    """The folder of experiments: inside the package when installed, at the top of the repository otherwise."""
    package = Path(__file__).resolve().parent
    inside = package / "experiments"
    return inside if inside.is_dir() else package.parent / "experiments"


def load_experiments() -> dict[str, Experiment]:
    """All experiments by name."""
    found = {}
    for file in sorted(experiments_dir().glob("*.yaml")):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        found[file.stem] = Experiment(file.stem, settings["makes"], settings["cost"], settings)
    return found


def choose(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name, ``all`` for all.

    Raises:
        ConfigError: an unknown name.
    """
    known = load_experiments()
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such experiment; there are {', '.join(known)}, and all")
    wanted = list(known) if "all" in names else list(dict.fromkeys(names))
    return [known[name] for name in wanted]


def _file_override(key: str, names: str | Sequence[str], folder: Path | None) -> list[str]:
    """``key=path`` for a file (or several, or a folder) that is at hand; nothing where it is not."""
    if folder is None:
        return []
    paths = [folder / name for name in ([names] if isinstance(names, str) else names)]
    if not all(path.exists() for path in paths):
        return []
    quoted = [_quoted(path.resolve()) for path in paths]
    return [f"{key}={quoted[0]}" if isinstance(names, str) else f"{key}=[{','.join(quoted)}]"]


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
