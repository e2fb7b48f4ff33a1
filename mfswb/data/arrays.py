"""Point arrays from NumPy and text files."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import DataError, first_line

log = logging.getLogger(__name__)


def existing_file(path: Path) -> Path:
    """``path``, if it is a file that can be read.

    Raises:
        DataError: it is missing, a folder, empty or unreadable.
    """
    try:
        if path.is_dir():
            raise DataError(f"{path}: is a folder, expected a file")
        with path.open("rb") as file:
            if not file.read(1):
                raise DataError(f"{path}: the file is empty")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (looked from {Path.cwd()})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return path


@contextmanager
def _parsed(path: Path, expected: str) -> Iterator[None]:
    """Whatever NumPy trips over in a damaged file, it is the file that is wrong."""
    try:
        with warnings.catch_warnings():  # of headers written by Python 2, which are read all the same
            warnings.simplefilter("ignore", UserWarning)
            yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path}: is damaged, or {expected} ({first_line(error)})") from None


def read_array(path: Path) -> NDArray[Any]:
    """A numeric array from ``FILE.npy``, ``FILE.npz`` (with one array) or ``FILE.npz:NAME``.

    Raises:
        DataError: the file cannot be read, holds Python objects (never loaded) or no numbers, or a name is needed.
    """
    text = str(path)
    name: str | None = None
    if ".npz:" in text:
        text, _, name = text.rpartition(":")
    file = existing_file(Path(text))
    # Left to NumPy, the file stays open when an archive turns out to be damaged.
    with _parsed(path, "not a readable NumPy file of numbers"), file.open("rb") as handle:
        loaded = np.load(handle, allow_pickle=False)
        values = _member(file, loaded, name) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
        array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise DataError(f"{path}: expected an array of numbers, got {array.dtype}")
    return array


def read_archive(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz`` file, among them at least those named.

    Raises:
        DataError: the file is missing or damaged, holds Python objects, or lacks an array.
    """
    with (
        _parsed(path, "not a readable .npz archive"),
        existing_file(path).open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        arrays = dict(archive)
    for name in names:
        if name not in arrays:
            raise DataError(f"{path}: has no array {name!r}; it holds {', '.join(arrays)}")
    return arrays


def _member(file: Path, archive: np.lib.npyio.NpzFile, name: str | None) -> NDArray[Any]:
    with archive:
        if name is None:
            if len(archive.files) != 1:
                raise DataError(
                    f"{file}: holds {len(archive.files)} arrays ({', '.join(archive.files)}); say which: {file}:NAME"
                )
            name = archive.files[0]
        if name not in archive.files:
            raise DataError(f"{file}: has no array {name!r}; it holds {', '.join(archive.files)}")
        values: NDArray[Any] = archive[name]
        return values


def read_text(path: Path, *, all_columns: bool = False) -> NDArray[np.float64]:
    """Points from XYZ, PTS or TXT text: one point a line, numbers separated by blanks or commas.

    Of four or more columns the first three are the coordinates, with a note, unless ``all_columns`` are. ``#`` and
    ``//`` start comments; one heading line and the point count that begins a PTS file are skipped, and the count is
    checked.

    Raises:
        DataError: a line does not hold numbers, has another number of columns than the first, or points are missing.
    """
    try:
        lines = existing_file(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not a text file") from None
    rows: list[list[float]] = []
    promised: int | None = None
    width = 0
    heading_allowed = True
    for number, line in enumerate(lines, start=1):
        fields = line.split("#")[0].split("//")[0].replace(",", " ").replace(";", " ").split()
        if not fields:
            continue
        try:
            row = [float(text) for text in fields]
        except ValueError:
            if heading_allowed:
                heading_allowed = False
                continue
            raise DataError(f"{path}: line {number}: expected numbers, found {line.strip()[:60]!r}") from None
        heading_allowed = False
        if len(row) == 1 and not rows and promised is None and row[0].is_integer():
            promised = int(row[0])
            continue
        width = width or len(row)
        if len(row) != width:
            raise DataError(f"{path}: line {number}: expected {width} numbers like the first point, found {len(row)}")
        rows.append(row if all_columns else row[:3])
    if promised is not None and width <= 1:  # numbers on a line, not a count and points
        rows, promised, width = [[float(promised)], *rows], None, 1
    if width > 3 and not all_columns:
        log.warning("%s: of its %d columns the first three are taken as coordinates", path, width)
    if not rows:
        raise DataError(f"{path}: no points found")
    if promised is not None and promised != len(rows):
        raise DataError(f"{path}: its first line promises {promised} points, but {len(rows)} follow")
    return np.array(rows, dtype=np.float64)
