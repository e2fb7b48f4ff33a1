"""Pictures of a trained autoencoder: latents over the prior, reconstructions, samples, distances a class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mfswb.files import replacing

Values = NDArray[np.floating]

_PRIOR_COLOUR = "#b0b0b0"
_MOST_DRAWN = 5000
_MOST_NAMED = 20


def latent_figure(
    path: Path, latents: Values, labels: NDArray[np.int64], classes: Sequence[str], prior: Values, title: str
) -> None:
    """Scatter latents by class over a sample of the prior.

    Dimensions above two are shown in the plane of the latents' first two principal axes.
    """
    names = ("latent 1", "latent 2" if latents.shape[1] == 2 else "class")
    if latents.shape[1] > 2:
        names = ("first principal axis", "second principal axis")
    latents, prior = in_plane(latents, prior)
    figure = Figure(figsize=(6.2, 4.8), layout="constrained")
    axes = figure.add_subplot()
    step = -(-len(latents) // _MOST_DRAWN)
    latents, labels = latents[::step], labels[::step]
    if latents.shape[1] == 1:
        latents = np.column_stack([latents[:, 0], labels])
        prior = np.column_stack([prior[:, 0], np.full(len(prior), -1)])
    axes.scatter(prior[:, 0], prior[:, 1], s=5, color=_PRIOR_COLOUR, linewidths=0, label="prior")
    colours = class_colours(len(classes))
    # All classes in one scatter in the order of the data: drawn one after the other, the last would cover the rest.
    axes.scatter(latents[:, 0], latents[:, 1], s=6, c=[colours[k] for k in labels], linewidths=0, alpha=0.8)
    for colour, name in list(zip(colours, classes, strict=True))[:_MOST_NAMED]:
        axes.scatter([], [], s=30, color=colour, label=name)
    axes.set(xlabel=names[0], ylabel=names[1], title=title)
    if names[1] != "class":
        axes.set_aspect("equal", adjustable="datalim")
    figure.legend(loc="outside right upper", fontsize=9)
    _save(figure, path)


def in_plane(latents: Values, prior: Values) -> tuple[Values, Values]:
    """Latents and prior in the plane of the latents' first two principal axes, where they have more dimensions."""
    if latents.shape[1] <= 2:
        return latents, prior
    centre = latents.mean(axis=0)
    axes = np.linalg.svd(latents - centre, full_matrices=False)[2][:2]
    return (latents - centre) @ axes.T, (prior - centre) @ axes.T


def reconstruction_figure(path: Path, originals: Values, made: Values) -> None:
    """Rows of originals, each above its reconstructions; pictures ``(n, channels, height, width)`` from 0 to 1."""
    columns = min(10, len(originals))
    rows = [
        grid(part[start : start + columns], columns)
        for start in range(0, len(originals), columns)
        for part in (originals, made)
    ]
    figure = Figure(figsize=(0.75 * columns + 1.2, 0.75 * len(rows) + 0.2), layout="constrained")
    for k, row in enumerate(rows):
        axes = figure.add_subplot(len(rows), 1, k + 1)
        _show(axes, row)
        name = "original" if k % 2 == 0 else "decoded"
        axes.text(-0.01, 0.5, name, transform=axes.transAxes, ha="right", va="center", fontsize=8)
    _save(figure, path)


def sample_figure(path: Path, made: Values) -> None:
    """A grid of decoded samples of the prior, ``(n, channels, height, width)`` from 0 to 1."""
    columns = max(1, round(len(made) ** 0.5))
    whole = grid(made, columns)
    figure = Figure(figsize=(0.6 * columns, 0.6 * columns * whole.shape[0] / whole.shape[1]), layout="constrained")
    _show(figure.add_subplot(), whole)
    _save(figure, path)


def class_figure(path: Path, classes: Sequence[str], distances: Sequence[float], title: str) -> None:
    """Bars of the exact W_2^2 of each class's latents to the prior, with their mean as a line."""
    figure = Figure(figsize=(max(4.8, 0.45 * len(classes) + 1.5), 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(range(len(classes)), distances, color=class_colours(len(classes)))
    axes.axhline(float(np.mean(distances)), color="black", linewidth=1, linestyle="--", label="mean, W")
    long = max(map(len, classes)) > 3
    axes.set_xticks(range(len(classes)), classes, rotation=45 if long else 0, ha="right" if long else "center")
    axes.set(xlabel="class", ylabel="$W_2^2$ (class, prior)", title=title)
    axes.legend(fontsize=9)
    _save(figure, path)


def grid(pictures: Values, columns: int) -> Values:
    """Pictures ``(n, channels, height, width)`` laid out in rows with a rim between: ``(rows, columns[, 3])``."""
    n, channels, height, width = pictures.shape
    rows = -(-n // columns)
    sheet = np.ones((rows * (height + 2) - 2, columns * (width + 2) - 2, channels))
    for k, picture in enumerate(pictures):
        top, left = k // columns * (height + 2), k % columns * (width + 2)
        sheet[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    return sheet[..., 0] if channels == 1 else sheet


def class_colours(count: int) -> list[Any]:
    """A colour a class: ten that are easily told apart, or points along a spectrum where there are more."""
    return [
        matplotlib.colormaps["tab10" if count <= 10 else "turbo"](k if count <= 10 else k / (count - 1))
        for k in range(count)
    ]


def _show(axes: Any, sheet: Values) -> None:
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
