"""Pictures of finished runs, drawn with Matplotlib without its global state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mfswb.files import replacing
from mfswb.measures import Measures, Points

BARYCENTER_COLOUR = "#c1272d"
# Okabe and Ito's palette, safe for colour-blind readers; vermilion is left out: it is too like the barycenter's red.
MARGINAL_COLOURS = ("#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#999999", "#f0e442")
MARGINALS = "marginals.npz"
_MOST_PANELS = 8
_MOST_DRAWN = 20_000


def write_drawn_marginals(path: Path, marginals: Measures) -> None:
    """Write the marginals as figures show them: at most 20,000 points each, under the names ``points0`` and so on."""
    arrays = {f"points{k}": _thinned(cloud) for k, cloud in enumerate(marginals.points)}
    with replacing(path) as temporary:
        np.savez(temporary, allow_pickle=False, names=np.array(marginals.names, dtype=np.str_), **arrays)


def barycenter_figure(path: Path, support: Points, marginals: Measures, title: str | None = None) -> None:
    """Draw the marginals and their barycenter: one panel each in 3-D, one panel for all otherwise.

    Dimensions above three are shown in the plane of the marginals' first two principal axes.
    """
    figure = _in_space(support, marginals) if marginals.dim == 3 else _in_plane(support, marginals)
    if title:
        figure.suptitle(title)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _in_space(support: Points, marginals: Measures) -> Figure:
    shown = list(zip(marginals.names, marginals.points, strict=True))[:_MOST_PANELS]
    panels = [*shown, ("barycenter", support)]
    columns = min(len(panels), 5)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.5 * rows), layout="constrained")
    everything = np.concatenate([cloud for _, cloud in panels])
    low, high = everything.min(axis=0), everything.max(axis=0)
    half = 0.5 * max(float((high - low).max()), 1e-12)
    for position, (name, cloud) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, position + 1, projection="3d")
        last = position == len(panels) - 1
        drawn = _thinned(cloud)
        colour = BARYCENTER_COLOUR if last else _colour(position)
        size = min(max(3000 / len(drawn), 1.5), 30)  # few points must not vanish
        axes.scatter(drawn[:, 0], drawn[:, 1], drawn[:, 2], s=size, color=colour, linewidths=0, depthshade=True)
        for axis, middle in zip("xyz", 0.5 * (low + high), strict=True):
            axes.set(**{f"{axis}lim": (middle - half, middle + half)})
        axes.set_box_aspect((1, 1, 1), zoom=1.5)
        axes.set_axis_off()
        axes.set_title(name, y=0.94, fontsize=10, color=BARYCENTER_COLOUR if last else "black")
    return figure


def _in_plane(support: Points, marginals: Measures) -> Figure:
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes: Axes = figure.add_subplot()
    flatten, labels = _plane(marginals)
    for k, (name, cloud) in enumerate(zip(marginals.names, marginals.points, strict=True)):
        _draw(axes, flatten(cloud), name if k < _MOST_PANELS else None, _colour(k), height=k)
    _draw(axes, flatten(support), "barycenter", BARYCENTER_COLOUR, height=len(marginals))
    axes.set(xlabel=labels[0], ylabel=labels[1])
    if marginals.dim > 1:
        axes.set_aspect("equal", adjustable="datalim")
    else:
        axes.set_yticks([])
    # Outside: wherever it stood inside, it would cover points.
    figure.legend(loc="outside right upper", fontsize=9, markerscale=2)
    return figure


def _plane(marginals: Measures) -> tuple[Callable[[Points], Points], tuple[str, str]]:
    """How points come to lie on paper, ``(n, d) -> (n, 1 or 2)``, and the labels of the axes."""
    if marginals.dim <= 2:
        return (lambda cloud: cloud), ("x", "y" if marginals.dim == 2 else "")
    everything = np.concatenate(marginals.points)
    centre = everything.mean(axis=0)
    axes = np.linalg.svd(_thinned(everything - centre), full_matrices=False)[2][:2]
    return (lambda cloud: np.asarray((cloud - centre) @ axes.T)), ("first principal axis", "second principal axis")


def _draw(axes: Axes, cloud: Points, label: str | None, colour: str, height: int) -> None:
    drawn = _thinned(cloud)
    y = drawn[:, 1] if drawn.shape[1] > 1 else np.full(len(drawn), -float(height))
    axes.scatter(drawn[:, 0], y, s=9, color=colour, label=label, alpha=0.7, linewidths=0)


def _colour(k: int) -> str:
    return MARGINAL_COLOURS[k % len(MARGINAL_COLOURS)]


def _thinned(cloud: Points) -> Points:
    return cloud[:: -(-len(cloud) // _MOST_DRAWN)]


def color_figure(path: Path, panels: Sequence[tuple[str, NDArray[np.uint8] | None, Points]]) -> None:
    """Draw pictures above their palettes, as scatters in RGB space; a panel is ``(name, picture or None, colours)``."""
    pictured = any(picture is not None for _, picture, _ in panels)
    rows, columns = (2 if pictured else 1), len(panels)
    figure = Figure(figsize=(3.1 * columns, 2.6 * rows), layout="constrained")
    for position, (name, picture, colours) in enumerate(panels):
        if picture is not None:
            axes = figure.add_subplot(rows, columns, position + 1)
            axes.imshow(picture[:: -(-picture.shape[0] // 800), :: -(-picture.shape[1] // 800)], vmin=0, vmax=255)
            axes.set_axis_off()
            axes.set_title(name, fontsize=9)
        space = figure.add_subplot(rows, columns, (rows - 1) * columns + position + 1, projection="3d")
        space.scatter(colours[:, 0], colours[:, 1], colours[:, 2], s=3, c=np.clip(colours / 255, 0, 1), linewidths=0)
        space.set(xlim=(0, 255), ylim=(0, 255), zlim=(0, 255))
        for axis, label in zip((space.xaxis, space.yaxis, space.zaxis), "RGB", strict=True):
            axis.set_ticks([0, 128, 255])
            axis.set_tick_params(labelsize=6, pad=-2)
            axis.set_label_text(label, fontsize=8)
            axis.labelpad = -6
        space.set_box_aspect((1, 1, 1), zoom=0.9)
        if picture is None:
            space.set_title(name, fontsize=9)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
