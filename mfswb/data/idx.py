"""IDX files, the format of MNIST and its kin, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mfswb.data.arrays import existing_file
from mfswb.data.labelled import LabelledImages, split
from mfswb.errors import DataError, first_line
from mfswb.seeding import stream

_IMAGES, _LABELS = 0x00000803, 0x00000801  # magic numbers: 8-bit values in 3 and in 1 dimension
_LARGEST_UNPACKED = 512 << 20
_KINDS = {_IMAGES: "images", _LABELS: "labels"}


def read_images(path: Path) -> NDArray[np.uint8]:
    """Pictures ``(n, height, width)`` of an IDX file.

    Raises:
        DataError: the file is missing, empty, truncated, of another kind, or longer than it says.
    """
    return _read(path, _IMAGES)


def read_labels(path: Path) -> NDArray[np.int64]:
    """Labels ``(n,)`` of an IDX file.

    Raises:
        DataError: as :func:`read_images`.
    """
    return _read(path, _LABELS).astype(np.int64)


def load_idx(
    images: str,
    labels: str,
    test_images: str | None = None,
    test_labels: str | None = None,
    *,
    test_fraction: float = 1 / 7,
    seed: int = 0,
) -> LabelledImages:
    """Pictures of the user's own in IDX files.

    Args:
        images: file of the pictures, plain or ``.gz``.
        labels: file of their labels.
        test_images: file of the test pictures; without it a part of the others is set aside.
        test_labels: file of their labels.
        test_fraction: share of every class that is set aside.
        seed: seeds what is set aside.

    Raises:
        DataError: a file that cannot be read, or files that do not belong together.
    """
    if (test_images is None) != (test_labels is None):
        raise DataError("data: give both data.test_images and data.test_labels, or neither")
    pictures, numbers = read_images(Path(images)), read_labels(Path(labels))
    if len(pictures) != len(numbers):
        raise DataError(f"{images}: holds {len(pictures)} images, but {labels} {len(numbers)} labels")
    name = Path(images).name
    if test_images is not None and test_labels is not None:
        test = read_images(Path(test_images)), read_labels(Path(test_labels))
        if len(test[0]) != len(test[1]):
            raise DataError(f"{test_images}: holds {len(test[0])} images, but {test_labels} {len(test[1])} labels")
        return LabelledImages.of((pictures, numbers), test, name)
    kept, aside = split(numbers, test_fraction, stream(seed, "test images"))
    return LabelledImages.of((pictures[kept], numbers[kept]), (pictures[aside], numbers[aside]), name)


def _read(path: Path, magic: int) -> NDArray[np.uint8]:
    content = read_unpacked(path)
    wanted = _KINDS[magic]
    header = 8 if magic == _LABELS else 16
    if len(content) < 4:
        raise DataError(f"{path}: expected an IDX file of {wanted}, found {len(content)} bytes")
    (found,) = struct.unpack(">I", content[:4])
    if found != magic:
        what = f"{_KINDS[found]} (magic number {found:#010x})" if found in _KINDS else f"the magic number {found:#010x}"
        raise DataError(f"{path}: expected an IDX file of {wanted} (magic number {magic:#010x}), found {what}")
    if len(content) < header:
        raise DataError(f"{path}: expected a header of {header} bytes, the file ends after {len(content)}")
    shape = struct.unpack(f">{header // 4 - 1}I", content[4:header])
    size = int(np.prod(shape, dtype=object))  # as Python's integers: a damaged header may promise anything
    if len(content) - header != size:
        raise DataError(
            f"{path}: its header promises {' x '.join(map(str, shape))} = {size} bytes of {wanted}, "
            f"found {len(content) - header}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()  # writable


def read_unpacked(path: Path) -> bytes:
    """Contents of a file, unpacked if they are compressed with gzip, whatever its name.

    Raises:
        DataError: the file is missing or empty, or the compressed data are damaged, cut off or far too large.
    """
    content = existing_file(path).read_bytes()
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            unpacked = packed.read(_LARGEST_UNPACKED + 1)  # no more: a few kilobytes can hold gigabytes of zeros
    except EOFError:
        raise DataError(f"{path}: the compressed file is cut off after {len(content)} bytes; fetch it again") from None
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: the compressed file is damaged ({first_line(error)}); fetch it again") from None
    if len(unpacked) > _LARGEST_UNPACKED:
        raise DataError(f"{path}: unpacks to more than {_LARGEST_UNPACKED >> 20} MiB, which no IDX file here needs")
    return unpacked
