"""How figures look: one colour a method everywhere, two files a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from mfswb.files import replacing

# Okabe and Ito's palette, safe for colour-blind readers; the weights of MFSWB are shades of one colour.
_METHOD_COLOURS = {"none": "#7f7f7f", "uswb": "#0072b2", "s": "#009e73", "us": "#e69f00", "es": "#d55e00"}
_SAMPLER_COLOURS = {
    "uniform": "#000000",
    "orthogonal": "#56b4e9",
    "sobol": "#a6761d",
    "equispaced": "#1b9e77",
    "design": "#6a3d9a",
}
_MFSWB_SHADES = ("#e3b5d1", "#cc79a7", "#8e3f6b")
_NAMED_COLOURS = {**_METHOD_COLOURS, **_SAMPLER_COLOURS}
_OTHERS = ("#56b4e9", "#000000", "#b2a800", "#6a3d9a", "#a6761d", "#1b9e77", "#e7298a")


def method_colours(labels: Sequence[str]) -> dict[str, Any]:
    """A colour for every label of a group; bare methods and samplers have the same in every figure."""
    found: dict[str, Any] = {}
    spare = iter(_OTHERS * (len(labels) // len(_OTHERS) + 1))
    lams = sorted({float(label.partition("lam=")[2]) for label in labels if _is_mfswb(label)})
    for label in labels:
        if label in _NAMED_COLOURS:
            found[label] = _NAMED_COLOURS[label]
        elif _is_mfswb(label):
            lam = float(label.partition("lam=")[2])
            known = {0.1: 0, 1.0: 1, 10.0: 2}
            shade = known.get(lam) if set(lams) <= set(known) else None
            if shade is not None:
                found[label] = _MFSWB_SHADES[shade]
            else:
                found[label] = matplotlib.colormaps["RdPu"](0.35 + 0.6 * lams.index(lam) / max(1, len(lams) - 1))
        else:
            found[label] = next(spare)
    return found


def _is_mfswb(label: str) -> bool:
    name, _, lam = label.partition(" lam=")
    return name == "mfswb" and lam.replace(".", "", 1).replace("e-", "", 1).isdecimal()


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as ``name.png`` and, in vectors, ``name.pdf``; returns the paths."""
    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    for path in paths:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=200, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return paths
