"""Where the configurations lie, and how one is composed outside the command line."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mfswb.errors import ConfigError
from mfswb.guard import explained
from mfswb.resume import NOT_COMPUTED, OF_THE_COMMAND

_LONGEST_NAME = 60
# What figures do not depend on: a sweep repeated to look closer finds its jobs again.
_UNTOLD = tuple(f"{key}=" for key in (*OF_THE_COMMAND, *(f"trainer.{key}" for key in NOT_COMPUTED)))
_FIRST = {"task": 0, "loss": 1, "loss.lam": 2, "seed": 3}


def config_dir() -> Path:
    """The folder of configurations: inside the package when installed, at the top of the repository otherwise."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def register_resolvers() -> None:
    """Make our interpolations known.

    ``${token:}`` is part of a run's folder name, so that runs started at one moment never share one. ``${slug:LIST}``
    makes a folder name of a sweep job's overrides. ``${threads:MODE}`` is the number of CPU threads of a run that gains
    by many: all cores of a single run, one of a sweep's job, which then gives the same bits wherever it runs.
    """
    OmegaConf.register_new_resolver("token", lambda: secrets.token_hex(3), use_cache=True, replace=True)
    OmegaConf.register_new_resolver("slug", slug, replace=True)
    OmegaConf.register_new_resolver("threads", lambda mode: 1 if "MULTIRUN" in str(mode) else cores(), replace=True)


def cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def slug(overrides: Sequence[str]) -> str:
    """A folder name that tells a job's overrides apart from others', and needs no quotes anywhere.

    Loss and seed come first; what does not fit or would need quotes is left to a hash.

    Example:
        >>> slug(["loss=es", "seed=1"])
        'loss-es_seed-1'
        >>> slug(["data.names=[chair,mug]", "loss=es"])
        'loss-es_data.names-chair_mug_82a9be34'
    """
    told = [text for text in overrides if not text.lstrip("+").startswith(_UNTOLD)]
    ordered = sorted(told, key=lambda text: _FIRST.get(text.partition("=")[0], len(_FIRST)))
    plain = "_".join(ordered).replace("=", "-").replace(",", "_")
    name = re.sub(r"[^A-Za-z0-9._-]+", "", plain)[:_LONGEST_NAME]
    if name == plain:
        return name
    return f"{name}_{hashlib.sha256(chr(0).join(ordered).encode()).hexdigest()[:8]}"


def compose_config(overrides: list[str]) -> DictConfig:
    """The configuration that ``mfswb-run`` would compose from these overrides, for use by programs.

    Raises:
        ConfigError: an override that names no setting or choice.

    Example:
        >>> compose_config(["task=gaussian", "loss=us"]).trainer.steps
        5000
    """
    register_resolvers()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explained(error)) from None
    HydraConfig.instance().set_config(cfg)  # the names of what was chosen are read from there
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    OmegaConf.resolve(ours)
    return ours
