"""Where the configurations lie, and how one is composed outside the command line."""

from __future__ import annotations

import secrets
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf


def config_dir() -> Path:
    """The folder of configurations: inside the package when installed, at the top of the repository otherwise."""
    package = Path(__file__).resolve().parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def register_resolvers() -> None:
    """Make ``${token:}`` known: part of a run's folder name, so that runs started at one moment never share one."""
    OmegaConf.register_new_resolver("token", lambda: secrets.token_hex(3), use_cache=True, replace=True)


def compose_config(overrides: list[str]) -> DictConfig:
    """The configuration that ``mfswb-run`` would compose from these overrides, for use by programs.

    Example:
        >>> compose_config(["task=gaussian", "loss=us"]).trainer.steps
        5000
    """
    register_resolvers()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", overrides=overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)  # the names of what was chosen are read from there
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    OmegaConf.resolve(ours)
    return ours
