"""Which configuration a continued run has: the earlier one, with only those changes that keep it the same run."""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from mfswb.errors import ConfigError

# How long, how often looked at and where it is computed may change; what is computed may not.
_MAY_CHANGE = frozenset(
    f"trainer.{key}"
    for key in (
        "steps",
        "epochs",
        "patience",
        "eval_steps",
        "eval_every",
        "checkpoint_every",
        "device",
        "threads",
        "progress",
        "tensorboard",
    )
)
# Where, and with how much to see of it: figures do not depend on it, but for rounding.
NOT_COMPUTED = frozenset({"progress", "tensorboard", "resume", "checkpoint_every", "threads", "device"})
OF_THE_COMMAND = ("debug", "objective", "allow_foreign_targets")


def continued_config(saved: dict[str, Any], given: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """The saved configuration with the changes the user typed.

    Args:
        saved: configuration of the run to be continued.
        given: configuration composed from this command.
        overrides: the command's overrides, as typed.

    Raises:
        ConfigError: an override asks for something else than the saved run computes.
    """
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in saved.items()}
    # How errors are shown, and whether a stranger's code may be called, is for this command to say.
    config.update({key: given[key] for key in OF_THE_COMMAND})
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.key_or_group
        if key == "trainer.resume" or key in OF_THE_COMMAND:
            continue
        if key in _MAY_CHANGE:
            name = key.removeprefix("trainer.")
            config["trainer"][name] = given["trainer"][name]
            if name == "epochs":  # given steps say whether it counts
                config["trainer"]["steps"] = given["trainer"]["steps"]
            continue
        is_choice = key in saved["names"]
        before = saved["names"][key] if is_choice else _at(saved, key)
        now = given["names"].get(key) if is_choice else _at(given, key)
        if before != now:
            raise ConfigError(
                f"trainer.resume: that run has {key}={before}, not {now}; only the trainer's schedule and device may "
                "change (to start a new run from its result, give its support.npy as task.x_init)"
            )
    return config


def same_run(saved: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether two configurations compute the same, figure by figure, and look at it at the same steps."""
    return what_is_computed(saved) == what_is_computed(given)


def what_is_computed(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that figures depend on."""
    kept = {key: value for key, value in config.items() if key not in OF_THE_COMMAND}
    kept["trainer"] = {key: value for key, value in config["trainer"].items() if key not in NOT_COMPUTED}
    return kept


def _at(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
