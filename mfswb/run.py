"""One run from its configuration to its folder: builds the objects, trains, saves. The command line calls it."""

from __future__ import annotations

import inspect
import logging
import platform
import subprocess
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from mfswb import __version__
from mfswb.building import bare, build
from mfswb.configuration import config_dir
from mfswb.errors import ConfigError, DivergedError, MfswbError, first_line
from mfswb.interrupts import Interrupts
from mfswb.problem import Optimizer, Recorder
from mfswb.ranks import joining, wanted
from mfswb.resume import continued_config, same_run
from mfswb.runfolder import TRACEBACK, RunFolder, finished_summary, holds_a_run, load_config, load_earlier, read_metrics
from mfswb.trainer import Trainer

log = logging.getLogger(__name__)


def run(cfg: DictConfig, folder: Path, overrides: list[str], *, again: bool = False) -> dict[str, Any]:
    """Carry out the run that ``cfg`` describes and write it into ``folder``.

    Args:
        cfg: the composed configuration.
        folder: where the run goes.
        overrides: what the user typed, which decides whether a checkpoint may be continued.
        again: where ``folder`` holds this very run already, leave it if it is finished, else continue it there.

    Returns:
        The summary, as in ``summary.json``.

    Raises:
        MfswbError: anything the user can mend; ``summary.json`` then says what happened.
    """
    with Interrupts() as interrupts:
        return _run(cfg, folder, overrides, again, interrupts)


def _run(cfg: DictConfig, folder: Path, overrides: list[str], again: bool, interrupts: Interrupts) -> dict[str, Any]:
    started = time.perf_counter()
    ranks = wanted()
    if ranks.size > 1 and again:
        raise ConfigError("torchrun: shares one run among processes; for a sweep use -m without it")
    config = plain_config(cfg)
    _check_top(config)
    _settle_length(config, overrides)
    earlier, state = None, None
    resume = config["trainer"].pop("resume", None)
    if resume is not None:
        earlier, saved, state = load_earlier(Path(str(resume)))
        config = continued_config(saved, config, overrides)
    elif again and holds_a_run(folder):
        done = finished_summary(folder)
        earlier, saved, state = load_earlier(folder) if done is None else (folder, load_config(folder), None)
        if not same_run(saved, config):
            raise ConfigError(f"{folder}: holds a run with another configuration; give another hydra.sweep.dir")
        if done is not None:
            log.info("%s: finished already", folder)
            (folder / TRACEBACK).unlink(missing_ok=True)  # of an attempt that was refused
            return done
    if not isinstance(config["seed"], int) or config["seed"] < 0:
        raise ConfigError(f"seed={config['seed']}: give a whole number, not negative")
    if config["names"].get("recipe") == "fast" and config["names"]["task"] == "swae":
        raise ConfigError("recipe=fast: is for barycenters, not for task=swae; its slicing alone is slicing=design")
    if ranks.rank > 0:
        logging.getLogger().setLevel(logging.WARNING)  # the first process tells
        with Interrupts() as interrupts:
            return _train(config, Unrecorded(), state, folder, interrupts)
    recorder = RunFolder(folder, config, resumed_from=earlier)
    summary: dict[str, Any] = {"status": "running", **_origin(config), "overrides": overrides}
    recorder.summarize(summary)
    if earlier is not None:
        step = 0 if state is None else int(state["step"])
        log.info("continuing %s from step %d", earlier, step)
        # An evaluation of the checkpoint's own step may have ended after it; the run makes that again.
        last = -1 if state is None else int(state["row"].get("step", -1))
        recorder.keep_rows(read_metrics(earlier, last), earlier)

    def finish(status: str, **more: Any) -> dict[str, Any]:
        if "error" in more:
            recorder.keep_traceback(traceback.format_exc())
        summary.update(status=status, seconds_total=round(time.perf_counter() - started, 3), **more)
        recorder.summarize(summary)
        return summary

    try:
        result = _train(config, recorder, state, folder, interrupts)
    except DivergedError as error:
        finish("diverged", step=error.step, error=str(error))
        raise
    except MfswbError as error:
        finish("failed", error=str(error))
        raise
    except KeyboardInterrupt:
        finish("interrupted")
        raise
    except OSError as error:
        message = (
            f"{folder}: a file could not be written or read ({error.strerror or first_line(error)}); when there is "
            f"room again, continue with trainer.resume={folder}"
        )
        try:
            finish("failed", error=message)
        except OSError:
            log.debug("%s: no room for the summary either", folder)
        raise ConfigError(message) from error
    except Exception as error:
        finish("failed", error=f"{type(error).__name__}: {first_line(error)}")
        raise
    return finish("finished", **result)


def _train(
    config: dict[str, Any], folder: Recorder, state: dict[str, Any] | None, path: Path, interrupts: Interrupts
) -> dict[str, Any]:
    """Train, and save what came of it; with others that torchrun started, only the first process measures and saves."""
    trainer_config = dict(config["trainer"])
    tensorboard = trainer_config.pop("tensorboard", False)

    def built(section: str) -> Any:
        settings = trainer_config if section == "trainer" else config[section]
        return build(section, settings, allow_foreign=config["allow_foreign_targets"] is True)

    def make_optimizer(parameters: Iterable[Tensor]) -> Optimizer:
        try:
            made: Optimizer = optimizer(parameters)
        except ValueError as error:
            raise ConfigError(f"optimizer: {first_line(error)}") from error
        if any(p.default is p.empty for p in inspect.signature(made.step).parameters.values()):
            raise ConfigError(f"optimizer: {type(made).__name__} needs a closure, which stochastic losses do not allow")
        return made

    trainer: Trainer = built("trainer")
    device, seed = trainer.torch_device(), config["seed"]
    loss, slicing, optimizer = bare(built("loss")), built("slicing"), built("optimizer")
    slicing = replace(slicing, sampler=bare(slicing.sampler))
    recorder = folder
    with ExitStack() as stack:
        ranks = stack.enter_context(joining(device))
        if tensorboard and ranks.rank == 0:
            from mfswb.tensorboard import WithTensorBoard

            recorder = both = WithTensorBoard(folder, path)
            stack.callback(both.close)
        task = built("task")(built("data"), loss, slicing, device, trainer.torch_dtype(), seed)
        names = config["names"]
        if ranks.size > 1 and not getattr(task, "shares_directions", False):
            raise ConfigError(f"torchrun: task={names['task']} is for a single process; run it without torchrun")
        log.info("%s, loss %s, seed %d, %s on %s", names["task"], names["loss"], seed, trainer.dtype, device)
        trainer = trainer.of_length(getattr(task, "steps_per_epoch", None))
        outcome = trainer.fit(task, make_optimizer, recorder, seed=seed, resume=state, interrupts=interrupts)
    if ranks.rank > 0:
        return {}
    saved = task.save(path, outcome.row)
    return {
        **{name: value for name, value in outcome.row.items() if name != "seconds"},
        "seconds": round(outcome.seconds, 3),
        "seconds_evaluation": round(outcome.seconds_evaluation, 3),
        "steps_run": outcome.steps_run,
        "device": str(device),
        **({"processes": ranks.size} if ranks.size > 1 else {}),
        "threads": torch.get_num_threads(),
        "files": [file.name for file in saved],
    }


class Unrecorded:
    """A recorder that keeps nothing."""

    def evaluated(self, row: dict[str, Any], snapshots: Mapping[str, Any]) -> None:
        """Nothing."""

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Nothing."""


def _check_top(config: Mapping[str, Any]) -> None:
    """Refuse what Hydra lets pass: keys added at the top, which nothing reads, and switches neither on nor off."""
    main = yaml.safe_load((config_dir() / "config.yaml").read_text(encoding="utf-8"))
    groups = {str(name) for entry in main["defaults"] if isinstance(entry, dict) for name in entry}
    known = [key for key in (*main, *sorted(groups)) if key not in ("defaults", "hydra") and "/" not in key]
    for key in config:
        if key not in known:
            near = get_close_matches(key, known, n=3)
            meant = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{key}: unknown key; {meant}")
    for key in ("debug", "allow_foreign_targets"):
        if not isinstance(config[key], bool):
            raise ConfigError(f"{key}={config[key]}: expected true or false")


def _settle_length(config: dict[str, Any], overrides: list[str]) -> None:
    """Let ``trainer.epochs`` count where it was typed without ``trainer.steps``, whatever the task's file says."""
    typed = {override.partition("=")[0].lstrip("+") for override in overrides}
    if "trainer.epochs" in typed and "trainer.steps" not in typed:
        config["trainer"]["steps"] = None


def plain_config(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, with relative paths of files made absolute so that it can be used anywhere."""
    try:
        config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{key}{str(error.msg or error).splitlines()[0]}; give it on the command line") from None
    assert isinstance(config, dict)

    def absolute(value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(item) for item in value]
        if (
            isinstance(value, str)
            and "." in value
            and Path(value.partition(".npz:")[0] + ".npz" if ".npz:" in value else value).is_file()
        ):
            return str(Path(value).absolute())
        return value

    for section in ("data", "task"):
        config[section] = {key: absolute(value) for key, value in config[section].items()}
    for key in ("dir", "path", "images", "labels", "test_images", "test_labels"):  # these are paths, dot or not
        path = config["data"].get(key)
        if isinstance(path, str) and Path(path).exists():
            config["data"][key] = str(Path(path).absolute())
    return {str(key): value for key, value in config.items()}


def _origin(config: Mapping[str, Any]) -> dict[str, Any]:
    """What made this run: names, seed, versions."""
    return {
        "names": config["names"],
        "seed": config["seed"],
        "versions": {
            "mfswb": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "git_revision": git_revision(),
    }


def git_revision() -> str | None:
    """The revision of the repository this package runs from; None of an installed copy."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():  # an installed copy may lie inside somebody else's repository
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None
