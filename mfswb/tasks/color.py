"""Colour harmonisation: a source's palette moves to a fair average of its targets' palettes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mfswb.data.images import Pixels, write_image
from mfswb.data.photos import Photos
from mfswb.errors import ConfigError
from mfswb.files import replacing, save_array
from mfswb.measures import Measures, Points
from mfswb.problem import Begun, Evaluation
from mfswb.slicing import Slicing
from mfswb.tasks.free_support import FreeSupportBarycenter, Loss

# The coordinates of each space, between which the support is clamped after every step.
RGB_BOUNDS = ([0.0, 0.0, 0.0], [255.0, 255.0, 255.0])
_BOUNDS = {"rgb": RGB_BOUNDS, "lab": ([0.0, -128.0, -128.0], [100.0, 127.0, 127.0])}


class ColorHarmonization:
    """Moves the source's palette; each pixel follows its colour.

    Args:
        photos: source and targets.
        loss: a reduction of the cost matrix.
        slicing: directions of each step.
        device: where to optimise.
        dtype: floating-point type of the palette.
        seed: seeds what is random beside the directions.
        space: ``rgb`` (the paper's) or ``lab`` (CIELAB, closer to how differences look). F and W are in its units.
        weighted: let colours count by their number of pixels, in source and targets; the paper's are uniform.
        smooth: add back each pixel's difference from its palette colour, so that gradients show no banding.
        p: order of the one-dimensional distances in the loss.
        scale_loss: see :class:`mfswb.tasks.free_support.FreeSupportBarycenter`.
        metric_points: likewise.
        feedback: likewise.
        feedback_every: likewise.
    """

    shares_directions = True

    def __init__(
        self,
        photos: Photos,
        loss: Loss,
        slicing: Slicing,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        *,
        space: str = "rgb",
        weighted: bool = False,
        smooth: bool = False,
        p: float = 2,
        scale_loss: bool | str = True,
        metric_points: int | None = 5000,
        feedback: str = "sliced",
        feedback_every: int = 300,
    ) -> None:
        if not isinstance(photos, Photos):
            raise ConfigError("data: this task harmonises pictures: choose data=photos or data=images")
        if space not in _BOUNDS:
            raise ConfigError(f"task.space={space}: choose {' or '.join(_BOUNDS)}")
        self._photos, self._space, self._smooth = photos, space, smooth
        source, *targets = photos.palettes
        low, high = _BOUNDS[space]
        self._inner = FreeSupportBarycenter(
            Measures.of(
                [self._from_rgb(palette.colours) for palette in targets],
                [palette.counts if weighted else None for palette in targets],
                photos.names[1:],
            ),
            loss,
            slicing,
            device,
            dtype,
            seed,
            x_init=self._from_rgb(source.colours),
            weights=source.counts / source.counts.sum() if weighted else None,
            p=p,
            scale_loss=scale_loss,
            bounds=(np.array(low), np.array(high)),
            metric_points=metric_points,
            feedback=feedback,
            feedback_every=feedback_every,
            snapshots=False,  # a palette without its picture shows little
        )

    def parameters(self) -> list[Tensor]:
        """The palette, in working coordinates."""
        return self._inner.parameters()

    def gradients(self, generator: torch.Generator) -> Tensor:
        """Objective along fresh directions."""
        return self._inner.gradients(generator)

    def sliced_distances(self) -> list[float]:
        """``SW_p^p`` of the palette to every target's, along fixed directions."""
        return self._inner.sliced_distances()

    def project(self) -> None:
        """Clamp the palette to the colour space."""
        self._inner.project()

    def evaluate(self) -> Evaluation:
        """Exact W_2^2 of the palette to every target's palette, in squared units of the space."""
        return self._inner.evaluate()

    def begin_evaluation(self) -> Begun | None:
        """The same beside the training."""
        return self._inner.begin_evaluation()

    def state_dict(self) -> dict[str, Any]:
        """The palette, and a fingerprint of the source it belongs to."""
        return {**self._inner.state_dict(), "source": self._source_fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved palette.

        Raises:
            ConfigError: it was computed for other pictures.
        """
        if state.get("source") != self._source_fingerprint():
            raise ConfigError("trainer.resume: the source differs from that of the checkpoint; start a new run instead")
        self._inner.load_state_dict(state)

    def close(self) -> None:
        """End what runs beside this process."""
        self._inner.close()

    def palette(self) -> Points:
        """The harmonised palette as RGB values 0..255, ``(k, 3)``: one colour for each of the source's."""
        moved = self._inner.points()
        if self._space == "lab":
            from skimage.color import lab2rgb

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it tells of colours outside RGB, which are clipped
                moved = 255.0 * lab2rgb(moved)
        return np.clip(np.asarray(moved, dtype=np.float64), 0.0, 255.0)

    def picture(self) -> Pixels | None:
        """The source with its colours replaced, rounded to 8 bits; None where there is only a palette."""
        original, old = self._photos.pictures[0], self._photos.palettes[0]
        if original is None:
            return None
        recoloured = self.palette()[old.labels]
        if self._smooth:
            recoloured += original - old.colours[old.labels]
        return _to_bytes(recoloured)

    def save(self, folder: Path, row: Mapping[str, Any]) -> list[Path]:
        """Write the palettes, the harmonised and the compressed picture, and a figure; returns the paths."""
        from mfswb.report.figures import color_figure

        palette, old = self.palette(), self._photos.palettes[0]
        paths = [folder / "support.npy", folder / "palettes.npz"]
        save_array(paths[0], palette)
        targets = {f"target{k}": target.colours for k, target in enumerate(self._photos.palettes[1:], start=1)}
        with replacing(paths[1]) as temporary:
            np.savez(temporary, allow_pickle=False, source=old.colours, result=palette, **targets)
        picture = self.picture()
        if picture is not None:
            paths += [folder / "harmonised.png", folder / "compressed.png"]
            write_image(paths[2], picture)
            write_image(paths[3], _to_bytes(old.colours[old.labels]))
        for name, shown in zip(["source", *targets], self._photos.pictures, strict=True):
            if shown is not None:  # for reports, small
                step = -(-max(shown.shape[:2]) // 800)
                paths.append(folder / f"{name}.png")
                write_image(paths[-1], np.ascontiguousarray(shown[::step, ::step]))
        title = f"result, F = {row['fairness_gap']:.4g}, W = {row['mean_distance']:.4g}"
        colours = [each.colours for each in self._photos.palettes]
        panels = list(zip(self._photos.names, self._photos.pictures, colours, strict=True))
        paths.append(folder / "color.png")
        color_figure(paths[-1], [*panels, (title, picture, palette)])
        return paths

    def _source_fingerprint(self) -> str:
        palette = self._photos.palettes[0]
        digest = hashlib.sha256(np.ascontiguousarray(palette.colours).tobytes())
        digest.update(np.ascontiguousarray(palette.labels).tobytes())
        return digest.hexdigest()[:16]

    def _from_rgb(self, colours: Points) -> Points:
        if self._space == "rgb":
            return colours
        from skimage.color import rgb2lab

        return np.asarray(rgb2lab(colours / 255.0), dtype=np.float64)


def _to_bytes(values: NDArray[np.float64]) -> Pixels:
    return np.rint(np.clip(values, 0.0, 255.0)).astype(np.uint8)
