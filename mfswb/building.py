"""Objects from the ``_target_`` entries of a configuration, with settings checked before anything is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, get_type_hints

import typeguard
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from mfswb.configuration import config_dir
from mfswb.errors import ConfigError, MfswbError, first_line
from mfswb.experiments import experiments_dir

# Only code of these packages is called for a configuration, which may come from a stranger's checkpoint; and of it only
# what was made to be configured: inside they import, write files and fetch addresses like any other.
_TRUSTED = ("mfswb.", "torch.optim.")
_TARGET = re.compile(r"^\s*_target_:\s*(\S+)", re.MULTILINE)


def build(section: str, config: Mapping[str, Any], *, allow_foreign: bool = False) -> Any:
    """Build what a section of the configuration describes.

    Args:
        section: its name, for error messages.
        config: settings with a ``_target_``, and ``_partial_: true`` where more arguments come later.
        allow_foreign: let targets lie outside this package and ``torch.optim``.

    Raises:
        ConfigError: an unknown target or setting, a value of a wrong type, or a constructor that refuses.
        MfswbError: whatever the constructor raises on purpose, as it is.
    """
    _check(section, config, allow_foreign)
    try:
        return instantiate(dict(config), _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, MfswbError):
            raise error.__cause__ from None
        raise ConfigError(f"{section}: {first_line(error.__cause__ or error)}") from error


def bare(call: Callable[..., Any]) -> Callable[..., Any]:
    """The plain partial behind Hydra's: that one checks its target anew at every call, which takes a millisecond.

    For what is called every step; the target has been checked when it was built.
    """
    return partial(call.func, *call.args, **call.keywords) if isinstance(call, partial) else call


@lru_cache(maxsize=1)
def _shipped() -> frozenset[str]:
    """The targets that the configurations and experiments of this program name."""
    files = (file for folder in (config_dir(), experiments_dir()) for file in folder.rglob("*.yaml"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return frozenset(target for text in texts for target in _TARGET.findall(text))


def _may_be_called(target: str, call: Any) -> bool:
    """Whether a thing is one of the shipped targets, or an optimiser that PyTorch itself defines."""
    is_optimizer = inspect.isclass(call) and any(base.__name__ == "Optimizer" for base in call.__mro__)
    return target in _shipped() or (is_optimizer and str(call.__module__).startswith("torch.optim."))


def _check(section: str, config: Mapping[str, Any], allow_foreign: bool) -> None:
    target = str(config.get("_target_"))
    if not (allow_foreign or target.startswith(_TRUSTED)):
        raise ConfigError(
            f"{section}._target_={target}: only targets in {' and '.join(t.rstrip('.') for t in _TRUSTED)} are called; "
            "allow_foreign_targets=true lifts that"
        )
    module, _, name = target.rpartition(".")
    try:
        call = getattr(import_module(module), name)
        if not (allow_foreign or _may_be_called(target, call)):
            raise ConfigError(
                f"{section}._target_={target}: is nothing that configurations name, nor an optimiser of torch.optim; "
                "allow_foreign_targets=true lifts that"
            )
        parameters = inspect.signature(call).parameters
        hints = get_type_hints(call.__init__ if inspect.isclass(call) else call)
    except ConfigError:
        raise
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(f"{section}._target_={target}: there is no such function or class") from None
    except (NameError, TypeError):  # annotations that exist for type checkers only
        hints = {}
    for key, value in config.items():
        if key in ("_target_", "_partial_"):
            continue
        if key not in parameters:
            near = get_close_matches(key, parameters, n=3) or list(parameters)
            raise ConfigError(f"{section}.{key}: unknown setting of {target}; did you mean {', '.join(near)}?")
        built = _check_nested(f"{section}.{key}", value, allow_foreign)
        if key in hints and not built:
            _check_type(f"{section}.{key}", value, hints[key])


def _check_nested(name: str, value: Any, allow_foreign: bool) -> bool:
    """Check the targets anywhere inside a value; whether there are any."""
    if isinstance(value, Mapping) and "_target_" in value:
        _check(name, value, allow_foreign)
        return True
    inside: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inside = [(f"{name}.{key}", inner) for key, inner in value.items()]
    elif isinstance(value, list):
        inside = [(f"{name}[{k}]", inner) for k, inner in enumerate(value)]
    found = [_check_nested(*entry, allow_foreign) for entry in inside]  # every one, so no early end
    return any(found)


def _check_type(name: str, value: Any, hint: Any) -> None:
    try:
        typeguard.check_type(value, hint, collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS)
    except typeguard.TypeCheckError:
        expected = getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise ConfigError(f"{name}={value}: expected {expected}, got {type(value).__name__}") from None
