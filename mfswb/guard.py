"""What stands between the command line and Hydra: errors in one line of ours, no stranger's code in its own section.

Hydra 1.3 has no hook for either, so two of its functions are replaced while a command runs; the requirement on its
version is as narrow as that asks for.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from hydra._internal import utils as hydra_utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mfswb.errors import ConfigError, MfswbError

log = logging.getLogger(__name__)

# What Hydra's own section may name: its launchers, sweepers, callbacks and log handlers, and Optuna's samplers.
_HYDRA_S_OWN = (
    *("hydra._internal.core_plugins.", "hydra_plugins.", "hydra.experimental.callbacks.", "mfswb.sweep.", "optuna."),
    *("logging.", "colorlog.", "ext://sys.std"),
)
_NAMING = ("_target_", "class", "()")
_EXTRAS = {
    **dict.fromkeys(("joblib", "cores"), "joblib"),
    **dict.fromkeys(("submitit_local", "submitit_slurm", "processes", "slurm"), "submitit"),
    **dict.fromkeys(("ray", "ray_aws", "ray_cluster"), "ray"),
    **dict.fromkeys(("optuna", "search"), "optuna"),
}


def tracebacks_wanted() -> bool:
    """Whether the environment asks for errors with their traceback."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


@contextmanager
def guarded() -> Iterator[None]:
    """Around ``hydra.main``: errors of the command line are one line, and targets in Hydra's section are checked."""
    load, report = ConfigLoaderImpl.load_configuration, hydra_utils.run_and_report

    def checked(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        cfg = load(self, *args, **kwargs)
        if cfg.get("allow_foreign_targets") is not True:
            try:
                check_hydra_section(OmegaConf.to_container(cfg.hydra, resolve=False))
            except ConfigError as error:
                raise ConfigCompositionException(str(error)) from None
        return cfg

    def in_one_line(func: Any) -> Any:
        if tracebacks_wanted():
            return report(func)
        try:
            return func()
        except MfswbError:
            sys.exit(1)  # of a job of a sweep, which has said it
        except (HydraException, OmegaConfBaseException) as error:
            sys.stderr.write(f"{explained(error)}\n")
            sys.exit(1)
        except Exception as error:
            caught = error

        def again() -> None:
            raise caught

        return report(again)

    try:
        ConfigLoaderImpl.load_configuration = checked  # type: ignore[method-assign]
        hydra_utils.run_and_report = in_one_line
        yield
    finally:
        ConfigLoaderImpl.load_configuration = load  # type: ignore[method-assign]
        hydra_utils.run_and_report = report


def check_hydra_section(section: Any, name: str = "hydra") -> None:
    """Refuse code of strangers in Hydra's own section, where launchers, callbacks and log handlers are named.

    Raises:
        ConfigError: a target that is none of Hydra's.
    """
    if isinstance(section, Mapping):
        for key, value in section.items():
            where = f"{name}.{key}"
            if key in _NAMING and not str(value).startswith(_HYDRA_S_OWN):
                raise ConfigError(
                    f"{where}={value}: only Hydra's own launchers, sweepers, callbacks and log handlers are called; "
                    "allow_foreign_targets=true lifts that"
                )
            check_hydra_section(value, where)
    elif isinstance(section, list):
        for k, value in enumerate(section):
            check_hydra_section(value, f"{name}[{k}]")


def explained(error: BaseException) -> str:
    """An error of Hydra's as one line: what, where, and the nearest thing that there is."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, MissingConfigException) and link.missing_cfg_file:
            return _no_such_choice(str(link.missing_cfg_file), [str(option) for option in link.options or ()])
        if isinstance(link, OverrideParseException):
            return (
                f"{link.override}: cannot be understood ({_reason(link)}); write KEY=VALUE, and quote what the shell "
                "would read, as 'data.paths=[a.ply,b.ply]'"
            )
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and link.full_key and isinstance(link.parent_node, Container):
            if link.key is not None and not _has(link.parent_node, link.key):
                return _no_such_key(str(link.full_key), link.parent_node)
            return f"{link.full_key}: {str(link.msg or link).splitlines()[0]}"
    return " ".join(str(error).split())[:300]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: OverrideParseException) -> str:
    return " ".join(str(error.message).partition("See https")[0].split())[:120]


def _no_such_choice(file: str, options: list[str]) -> str:
    path = PurePosixPath(file)
    group, choice = str(path.parent), path.stem
    kind = path.parent.name
    if group in ("hydra/launcher", "hydra/sweeper") and choice in _EXTRAS:
        return f"{group}={choice}: this {kind} is not installed; pip install 'mfswb[{_EXTRAS[choice]}]'"
    if group == ".":
        return f"{choice}: there is no such configuration"
    near = get_close_matches(choice, options, n=3)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{group}={choice}: there is no such {kind}; {meant}choices are {', '.join(options) or 'none'}"


def _has(node: Container, key: Any) -> bool:
    return isinstance(node, DictConfig) and key in node


def _no_such_key(full_key: str, parent: Container) -> str:
    root: Any = parent
    while root._get_parent() is not None:
        root = root._get_parent()
    known = list(_keys(root))
    beside = [str(key) for key in parent] if isinstance(parent, DictConfig) else []
    beside = [key for key in beside if not key.startswith("_") and key not in ("hydra", "names")]
    before, _, last = full_key.rpartition(".")
    prefix = f"{before}." if before else ""
    near = [prefix + key for key in get_close_matches(last, beside, n=3)]
    near += [key for key in known if key.rpartition(".")[2] == last]
    near += get_close_matches(full_key, known, n=2, cutoff=0.75)
    near = list(dict.fromkeys(near))[:3]
    meant = (
        f"did you mean {' or '.join(near)}?" if near else f"there {'are ' + ', '.join(beside) if beside else 'is none'}"
    )
    return f"{full_key}: unknown key; {meant}"


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, DictConfig):
        for key in map(str, node):
            if not (prefix == "" and key == "hydra"):
                yield f"{prefix}{key}"
                yield from _keys(node._get_node(key), f"{prefix}{key}.")
