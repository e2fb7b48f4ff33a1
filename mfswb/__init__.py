"""Marginal fairness sliced Wasserstein barycenters: averages of distributions that lie about equally far from all."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfswb import losses, metrics, slicing
    from mfswb.api import BarycenterResult, sliced_barycenter
    from mfswb.wasserstein import sliced_costs

__version__ = "0.1.0"
__all__ = ["BarycenterResult", "losses", "metrics", "sliced_barycenter", "sliced_costs", "slicing"]

# Loaded on first use: importing PyTorch takes a second that `mfswb-run --help` need not spend.
_HOMES = {"BarycenterResult": "mfswb.api", "sliced_barycenter": "mfswb.api", "sliced_costs": "mfswb.wasserstein"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"mfswb.{name}")
    raise AttributeError(f"module 'mfswb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
