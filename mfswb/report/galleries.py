"""Figures of what runs made: barycenters, pictures, latents; a panel a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mfswb.data.arrays import read_archive
from mfswb.data.images import read_image
from mfswb.errors import DataError
from mfswb.report.autoencoder_figures import class_colours, grid, in_plane
from mfswb.report.figures import BARYCENTER_COLOUR, MARGINAL_COLOURS, MARGINALS
from mfswb.report.runs import Run

_COLUMNS = 4
_POINTS = 2048


def read_marginals(run: Run) -> dict[str, NDArray[np.float64]]:
    """The marginals a run left for figures, by name.

    Raises:
        DataError: they are missing or damaged.
    """
    arrays = read_archive(run.folder / MARGINALS, "names", "points0")
    return {str(name): arrays[f"points{k}"] for k, name in enumerate(arrays["names"])}


def plane_figure(runs: Mapping[str, Run]) -> Figure:
    """Marginals in the plane, and one panel a method with F and W in its title."""
    first = next(iter(runs.values()))
    marginals = read_marginals(first)
    start = first.support_at(0)
    figure, panels = _panels(1 + len(runs), (3.1, 2.7))
    shown = {label: np.load(run.folder / "support.npy") for label, run in runs.items()}
    clouds = [*marginals.values(), *shown.values(), *([start] if start is not None else [])]
    low, high = np.min([c.min(axis=0) for c in clouds], axis=0), np.max([c.max(axis=0) for c in clouds], axis=0)
    pad = 0.05 * (high - low)
    for position, axes in enumerate(panels):
        for k, (name, cloud) in enumerate(marginals.items()):
            colour = MARGINAL_COLOURS[k % len(MARGINAL_COLOURS)]
            axes.scatter(
                cloud[:, 0], cloud[:, 1], s=4, color=colour, linewidths=0, label=name if position == 0 else None
            )
        axes.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
        axes.tick_params(labelsize=7)
    panels[0].set_title("marginals and start", fontsize=9)
    if start is not None:
        panels[0].scatter(start[:, 0], start[:, 1], s=4, color="#555555", linewidths=0, label="start")
    for axes, (label, run) in zip(panels[1:], runs.items(), strict=True):
        support = shown[label]
        axes.scatter(support[:, 0], support[:, 1], s=4, color=BARYCENTER_COLOUR, linewidths=0)
        axes.set_title(_title(label, run), fontsize=9)
    figure.legend(loc="outside lower center", ncols=min(6, len(marginals) + 1), fontsize=8, markerscale=2.5)
    return figure


def iterations_figure(runs: Mapping[str, Run], steps: Sequence[int]) -> Figure:
    """Three-dimensional barycenters along the iterations, one row a method; the marginals stand above."""
    marginals = read_marginals(next(iter(runs.values())))
    columns = max(len(steps), len(marginals))
    rows = 1 + len(runs)
    figure = Figure(figsize=(1.75 * columns + 0.9, 1.6 * rows), layout="constrained")
    kept = [run.support_at(step) for run in runs.values() for step in steps]
    everything = np.concatenate([*marginals.values(), *(support for support in kept if support is not None)])
    middle = 0.5 * (everything.min(axis=0) + everything.max(axis=0))
    half = 0.5 * float((everything.max(axis=0) - everything.min(axis=0)).max())
    for k, (name, cloud) in enumerate(marginals.items()):
        axes = figure.add_subplot(rows, columns, k + 1, projection="3d")
        _draw_cloud(axes, cloud, MARGINAL_COLOURS[k % len(MARGINAL_COLOURS)], middle, half)
        axes.set_title(name, fontsize=8, pad=0)
    for row, (label, run) in enumerate(runs.items(), start=1):
        for column, step in enumerate(steps):
            axes = figure.add_subplot(rows, columns, row * columns + column + 1, projection="3d")
            support, figures = run.support_at(step), run.row_at(step)
            if support is None:
                axes.set_axis_off()
                continue
            _draw_cloud(axes, support, BARYCENTER_COLOUR, middle, half)
            told = "" if figures is None else f"\nF {figures['fairness_gap']:.3g}, W {figures['mean_distance']:.3g}"
            axes.set_title(f"{label}, {step}{told}", fontsize=7, pad=0)
    return figure


def picture_figure(runs: Mapping[str, Run]) -> Figure:
    """Source and targets of a colour harmonisation, and one harmonised picture a method with F and W."""
    first = next(iter(runs.values()))
    given = [first.folder / "source.png", *sorted(first.folder.glob("target*.png"))]
    titled = [(file.stem, file) for file in given if file.is_file()]
    titled += [(_title(label, run), run.folder / "harmonised.png") for label, run in runs.items()]
    shown = [(title, read_image(file)) for title, file in titled if file.is_file()]
    if not shown:
        raise DataError(f"{first.folder}: holds no pictures (its palettes came without any)")
    result = shown[-1][1]  # most panels have its shape; a target of another fits in
    figure, panels = _panels(len(shown), (3.0, min(3.0 * result.shape[0] / result.shape[1], 4.0) + 0.4))
    for axes, (title, picture) in zip(panels, shown, strict=True):
        step = -(-max(picture.shape[:2]) // 500)
        axes.imshow(picture[::step, ::step])
        axes.set_axis_off()
        axes.set_title(title, fontsize=9)
    return figure


def latents_figure(runs: Mapping[str, Run]) -> Figure:
    """Latents by class over the prior, one panel a method with F and W in its title."""
    figure, panels = _panels(len(runs), (3.0, 3.1))
    names: list[str] = []
    colours: list[Any] = []
    for axes, (label, run) in zip(panels, runs.items(), strict=True):
        found = read_archive(run.folder / "latents.npz", "latents", "labels", "classes")
        prior = read_archive(run.folder / "pictures.npz", "prior")["prior"]
        latents, prior = in_plane(found["latents"], prior)
        labels = found["labels"]
        names = [str(name) for name in found["classes"]]
        colours = class_colours(len(names))
        every = -(-len(latents) // 2000)
        if latents.shape[1] == 1:
            latents, prior = np.column_stack([latents, labels]), np.column_stack([prior, np.full(len(prior), -1)])
        axes.scatter(prior[:, 0], prior[:, 1], s=2, color="#b8b8b8", linewidths=0)
        shown = [colours[k] for k in labels[::every]]
        axes.scatter(latents[::every, 0], latents[::every, 1], s=3, c=shown, linewidths=0, alpha=0.85)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(_title(label, run), fontsize=9)
        axes.tick_params(labelsize=7)
    handles = [panels[0].scatter([], [], s=20, color=colour) for colour in colours]
    figure.legend(handles, names, loc="outside lower center", ncols=min(10, len(names)), fontsize=8, title="class")
    return figure


def sheets_figure(runs: Mapping[str, Run], kind: str) -> Figure:
    """``reconstructions`` under their originals, or ``samples`` of the prior, one panel a method."""
    shown: list[tuple[str, NDArray[np.floating]]] = []
    for label, run in runs.items():
        arrays = read_archive(run.folder / "pictures.npz", "originals", kind)
        count = 16 if kind == "samples" else 8
        if kind == "reconstructions" and not shown:
            shown.append(("originals", arrays["originals"][:count] / 255))
        shown.append((_title(label, run), arrays[kind][:count] / 255))
    columns = 4
    sheets = [(title, grid(pictures, columns)) for title, pictures in shown]
    height = sheets[0][1].shape[0] / sheets[0][1].shape[1]
    figure, panels = _panels(len(sheets), (2.4, 2.4 * height + 0.35))
    for axes, (title, sheet) in zip(panels, sheets, strict=True):
        axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(title, fontsize=8)
    return figure


def _panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, k + 1) for k in range(count)]


def _draw_cloud(axes: Any, cloud: NDArray[np.float64], colour: str, middle: NDArray[np.float64], half: float) -> None:
    drawn = cloud[:: -(-len(cloud) // _POINTS)]
    axes.scatter(
        drawn[:, 0], drawn[:, 1], drawn[:, 2], s=0.8, color=colour, linewidths=0, depthshade=True, rasterized=True
    )
    for axis, centre in zip("xyz", middle, strict=True):
        axes.set(**{f"{axis}lim": (centre - half, centre + half)})
    axes.set_box_aspect((1, 1, 1), zoom=1.6)
    axes.set_axis_off()


def _title(label: str, run: Run) -> str:
    return f"{label}\nF = {run.summary['fairness_gap']:.4g}, W = {run.summary['mean_distance']:.4g}"
