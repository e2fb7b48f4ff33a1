"""A folder of pictures, one subfolder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mfswb.data.images import read_grey_or_rgb
from mfswb.data.labelled import LabelledImages, split
from mfswb.errors import ConfigError, DataError
from mfswb.seeding import stream

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def load_folder(
    path: str,
    channels: int | None = None,
    size: int | list[int] | None = None,
    test_fraction: float = 0.2,
    *,
    seed: int = 0,
) -> LabelledImages:
    """Pictures of one size in ``path/CLASS/*.png`` and so on; each subfolder with pictures is a class of its name.

    Args:
        path: the folder.
        channels: 1 for grey, 3 for colour; by default 3 if any picture is coloured.
        size: side, or height and width, the pictures are resized to; by default they must agree.
        test_fraction: share of every class that is set aside for testing.
        seed: seeds what is set aside.

    Raises:
        ConfigError: channels or a size that do not exist.
        DataError: no pictures, a damaged one, or different sizes.
    """
    if channels not in (None, 1, 3):
        raise ConfigError(f"data.channels={channels}: give 1 (grey), 3 (colour), or null for what the pictures have")
    shape = _shape(size)
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"data.path={path}: no such folder (looked from {Path.cwd()})")
    files = {sub.name: _pictures(sub) for sub in sorted(folder.iterdir()) if sub.is_dir()}
    classes = [name for name, found in files.items() if found]
    if not classes:
        raise DataError(f"{folder}: expected one subfolder a class with pictures in it, found none")
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    first: Path | None = None
    for label, name in enumerate(classes):
        for file in files[name]:
            pixels = read_grey_or_rgb(file, shape)
            if first is None:
                first = file
            elif pixels.shape[:2] != images[0].shape[:2]:
                raise DataError(
                    f"{file}: is {pixels.shape[0]} x {pixels.shape[1]} (height x width), but {first} is "
                    f"{images[0].shape[0]} x {images[0].shape[1]}; data.size=[HEIGHT,WIDTH] resizes all"
                )
            images.append(pixels)
            labels.append(label)
    wanted = channels or max(picture.shape[2] for picture in images)
    stacked = np.stack([with_channels(picture, wanted) for picture in images]).transpose(0, 3, 1, 2)
    numbers = np.array(labels)
    for label, name in enumerate(classes):
        if labels.count(label) < 2:
            raise DataError(
                f"{folder / name}: has one picture only, but one for training and one for testing are needed"
            )
    train, test = split(numbers, test_fraction, stream(seed, "test images"))
    return LabelledImages.of(
        (stacked[train], numbers[train]), (stacked[test], numbers[test]), folder.resolve().name, classes
    )


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


def _shape(size: int | list[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = [size, size] if isinstance(size, int) else size
    if len(sides) != 2 or min(sides) < 4:
        raise ConfigError(f"data.size={size}: give one side, or [HEIGHT,WIDTH], each a multiple of 4")
    return sides[0], sides[1]


def with_channels(picture: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """The picture ``(height, width, 1 or 3)`` with 1 channel (grey) or 3."""
    if picture.shape[2] == channels:
        return picture
    if channels == 3:
        return np.repeat(picture, 3, axis=2)
    # ITU-R 601 luma, as Pillow's conversion to grey
    luma = np.rint(picture.astype(np.float64) @ np.array([0.299, 0.587, 0.114]))
    return np.asarray(luma[..., None], dtype=np.uint8)
