"""What ``mfswb-run --help`` shows; Hydra's own way to list the choices copies every file's content, for seconds."""

from __future__ import annotations

from pathlib import Path
from string import Template

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mfswb.configuration import config_dir, register_resolvers

_HYDRAS_OWN = "hydra"


def help_text(overrides: list[str]) -> str:
    """The choices of every group and the configuration that these overrides make, in the template of ``hydra.help``."""
    register_resolvers()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", overrides=overrides, return_hydra_config=True)
    shown = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != _HYDRAS_OWN])
    template = str(cfg.hydra.help.template)  # its own interpolations are resolved by reading it
    return Template(template).safe_substitute(
        APP_CONFIG_GROUPS=choices(config_dir()), CONFIG=OmegaConf.to_yaml(shown, resolve=False)
    )


def choices(folder: Path) -> str:
    """One line a group: its name and what may be chosen."""
    groups = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != _HYDRAS_OWN)
    return "\n".join(
        f"{group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}" for group in groups
    )
