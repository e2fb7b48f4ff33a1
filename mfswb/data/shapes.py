"""The built-in point clouds: eight shapes of 2048 points in the unit ball, made by ``scripts/make_shapes.py``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from io import BytesIO

import numpy as np

from mfswb.errors import ConfigError
from mfswb.measures import Measures


def load_shapes(names: Sequence[str | int] | str) -> Measures:
    """Built-in shapes by name, or by their number in alphabetical order.

    Raises:
        ConfigError: an unknown name, or none.
    """
    names = [names] if isinstance(names, str) else names
    with np.load(BytesIO(files("mfswb.data").joinpath("shapes.npz").read_bytes()), allow_pickle=False) as archive:
        known = sorted(archive.files)
        chosen = [known[int(n)] if str(n).isdecimal() and int(n) < len(known) else str(n) for n in names]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise ConfigError(f"data.names={list(names)}: built-in shapes are {', '.join(known)}")
        return Measures.of([archive[name] for name in chosen], names=chosen)
