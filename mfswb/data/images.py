"""Reading pictures as 8-bit RGB, whatever kind of file they come in."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mfswb.data.arrays import existing_file
from mfswb.errors import DataError, first_line
from mfswb.files import replacing

log = logging.getLogger(__name__)

Pixels = NDArray[np.uint8]


def read_image(path: Path) -> Pixels:
    """A picture as ``(height, width, 3)`` 8-bit RGB.

    The contents decide the type, not the file's name. Of an animation the first frame is taken, with a note; the
    camera's orientation (EXIF) is applied; transparency is laid over white; 16-bit greyscale is scaled to 8 bits.

    Raises:
        DataError: the file is missing, no picture, truncated, of a type without 8- or 16-bit colours, or has more
            pixels than Pillow takes for safe.
    """
    existing_file(path)
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                frames = getattr(image, "n_frames", 1)
                image.load()
                rgb = _to_rgb(path, ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        raise DataError(f"{path}: is not a picture that Pillow can read") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{path}: has too many pixels to be read safely ({first_line(error)}); scale it down") from None
    except DataError:
        raise
    except Exception as error:  # whatever a decoder trips over, it is the file that is wrong
        raise DataError(f"{path}: the picture is damaged ({first_line(error)})") from None
    for text in sorted({" ".join(str(doubt.message).split()) for doubt in doubts}):
        log.warning("%s: %s", path, text)
    if frames > 1:
        log.info("%s: an animation of %d frames, the first is taken", path, frames)
    return np.array(rgb, dtype=np.uint8)


def read_grey_or_rgb(path: Path, size: tuple[int, int] | None = None) -> Pixels:
    """A picture as ``(height, width, 3)``, or ``(height, width, 1)`` where all its pixels are grey.

    Args:
        path: see :func:`read_image`.
        size: height and width to resize to (bicubic), if any.

    Raises:
        DataError: as :func:`read_image`.
    """
    pixels = read_image(path)
    if size is not None and pixels.shape[:2] != size:
        resized = Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        pixels = np.asarray(resized)
    grey = bool((pixels == pixels[..., :1]).all())
    return pixels[..., :1] if grey else pixels


def write_image(path: Path, pixels: Pixels) -> None:
    """Write ``(height, width, 3)`` 8-bit RGB, or ``(height, width)`` grey, as PNG, atomically."""
    with replacing(path) as temporary:
        Image.fromarray(pixels).save(temporary, format="PNG")


def _to_rgb(path: Path, image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # I;16 and its byte orders; I is what some readers make of it
        grey = np.asarray(image).astype(np.float64)
        if grey.min() < 0 or grey.max() > 65535:
            raise DataError(f"{path}: its greyscale values exceed 16 bits ({grey.min():g} to {grey.max():g})")
        return Image.fromarray(np.rint(grey / 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise DataError(f"{path}: holds floating-point values, which have no agreed white; save it with 8 or 16 bits")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
