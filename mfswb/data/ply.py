"""PLY files: points and triangles out of any of them, points into one.

Of our own because what a file promises is held against what it has: readers that trust its header give fewer points
than promised without a word, or memory that was never written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.data.arrays import existing_file
from mfswb.errors import DataError
from mfswb.files import replacing

_TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"},
    **{"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"},
}
_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "f4": "f", "f8": "d"}
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_CORNERS = ("vertex_indices", "vertex_index")

Triangles = NDArray[np.int64]


@dataclass(frozen=True)
class _Property:
    name: str
    kind: str
    counted_by: str | None  # type of a list's length; None for a single value


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: list[_Property] = field(default_factory=list)

    @property
    def has_lists(self) -> bool:
        return any(entry.counted_by for entry in self.properties)


def read_ply(path: Path) -> tuple[NDArray[np.float64], Triangles]:
    """Vertices ``(n, 3)`` and triangles ``(m, 3)`` of a PLY file; polygons are cut into fans, other properties ignored.

    Raises:
        DataError: the header is none, promises more or less than there is, or lacks coordinates; a row is malformed.
    """
    content = existing_file(path).read_bytes()
    order, elements, start = _header(path, content)
    body: _Text | _Binary = _Text(path, content[start:]) if not order else _Binary(path, content[start:], order)
    points, triangles = np.empty((0, 3)), np.empty((0, 3), dtype=np.int64)
    corners: list[Any] = []
    for element in elements:
        columns = body.take(element)
        if element.name == "vertex":
            lacking = [axis for axis in "xyz" if axis not in columns]
            if lacking:
                raise DataError(f"{path}: its vertices have no {lacking[0]}, only {', '.join(columns) or 'nothing'}")
            with np.errstate(invalid="ignore"):  # NaN is counted later
                points = np.stack([np.asarray(columns[axis], dtype=np.float64) for axis in "xyz"], axis=1)
            if points.ndim != 2:
                raise DataError(f"{path}: x, y and z of its vertices are lists, expected numbers")
        elif element.name == "face":
            corners = next((columns[name] for name in _CORNERS if name in columns), [])
    body.finish()
    if not len(points):
        raise DataError(f"{path}: holds 0 vertices")
    if len(corners):
        triangles = _fans(path, corners, len(points))
    return points, triangles


def _header(path: Path, content: bytes) -> tuple[str, list[_Element], int]:
    """Byte order (empty for text), elements, and where the data begin."""
    if content[:3] != b"ply" or content[3:4] not in (b"\n", b"\r"):
        raise DataError(f"{path}: is no PLY file (expected its first line to be 'ply')")
    order: str | None = None
    elements: list[_Element] = []
    number, position = 0, 0
    while True:
        end = content.find(b"\n", position)
        if end < 0:
            raise DataError(f"{path}: its header has no end ('end_header' is missing)")
        line, position, number = content[position:end].decode("latin-1").strip(), end + 1, number + 1
        words = line.split()
        if not words or words[0] in ("ply", "comment", "obj_info"):
            continue
        if words == ["end_header"]:
            break
        if words[0] == "format" and len(words) == 3 and words[1] in _ORDERS:
            order = _ORDERS[words[1]]
        elif words[0] == "element" and len(words) == 3 and words[2].isdecimal() and len(words[2]) < 16:
            elements.append(_Element(words[1], int(words[2])))
        elif words[0] == "property" and elements and (read := _property(words)) is not None:
            if read.name in [known.name for known in elements[-1].properties]:
                raise DataError(f"{path}: line {number}: property {read.name} is there twice")
            elements[-1].properties.append(read)
        else:
            raise DataError(f"{path}: line {number}: {line[:60]!r} is no line of a PLY header")
    names = [element.name for element in elements]
    if order is None or "vertex" not in names or len(set(names)) < len(names):
        raise DataError(f"{path}: its header needs one 'format' and 'element vertex', and no element twice")
    return order, elements, position


def _property(words: list[str]) -> _Property | None:
    if len(words) == 3 and words[1] in _TYPES:
        return _Property(words[2], _TYPES[words[1]], None)
    is_list = len(words) == 5 and words[1] == "list" and words[2] in _TYPES and words[3] in _TYPES
    if is_list and _TYPES[words[2]][0] != "f":
        return _Property(words[4], _TYPES[words[3]], _TYPES[words[2]])
    return None


class _Text:
    """The data of a text file: one line an item."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._rows = [row for row in (line.split() for line in content.splitlines()) if row]
        self._next = 0

    def take(self, element: _Element) -> dict[str, Any]:
        rows = self._rows[self._next : self._next + element.count]
        if len(rows) < element.count:
            raise DataError(f"{self._path}: its header promises {element.count} of {element.name}, found {len(rows)}")
        self._next += element.count
        columns: dict[str, list[Any]] = {entry.name: [] for entry in element.properties}
        for number, row in enumerate(rows, start=1):
            try:
                values = [float(text) for text in row]
                for entry, value in zip(element.properties, _items(element, values), strict=True):
                    columns[entry.name].append(value)
            except ValueError:
                expected = "as many numbers as the header says" if element.has_lists else f"{len(columns)} numbers"
                shown = b" ".join(row).decode("latin-1")[:60]
                raise DataError(
                    f"{self._path}: {element.name} {number}: expected {expected}, found {shown!r}"
                ) from None
        return columns

    def finish(self) -> None:
        if self._next < len(self._rows):
            raise DataError(
                f"{self._path}: has {len(self._rows) - self._next} lines more than the {self._next} its header promises"
            )


def _items(element: _Element, values: list[float]) -> Iterator[float | list[float]]:
    at = 0
    for entry in element.properties:
        if entry.counted_by is None:
            if at >= len(values):
                raise ValueError("too few numbers")
            yield values[at]
            at += 1
        else:
            if at >= len(values) or not values[at].is_integer() or not 0 <= values[at] < len(values) - at:
                raise ValueError("a list that ends too soon")
            length = int(values[at])
            yield values[at + 1 : at + 1 + length]
            at += 1 + length
    if at < len(values):
        raise ValueError("too many numbers")


class _Binary:
    """The data of a binary file, in one byte order."""

    def __init__(self, path: Path, content: bytes, order: str) -> None:
        self._path, self._content, self._order, self._at = path, content, order, 0

    def take(self, element: _Element) -> dict[str, Any]:
        left = len(self._content) - self._at
        # A list takes at least its length; so no header can make us ask for more than the file could hold.
        least = sum(int((entry.counted_by or entry.kind)[1]) for entry in element.properties)
        if element.count * least > left:
            self._refuse(element, left // least)
        if not element.count:
            return {entry.name: [] for entry in element.properties}
        alike = self._alike(element)
        return alike if alike is not None else self._one_by_one(element)

    def _alike(self, element: _Element) -> dict[str, Any] | None:
        """All items at once, where every list is as long as that of the first; else None."""
        parts: list[Any] = []
        at = self._at
        for k, entry in enumerate(element.properties):
            if entry.counted_by is None:
                parts.append((f"v{k}", self._order + entry.kind))
                at += int(entry.kind[1])
                continue
            if at + int(entry.counted_by[1]) > len(self._content):
                return None
            (length,) = struct.unpack_from(self._order + _CODES[entry.counted_by], self._content, at)
            if not 0 <= length <= len(self._content):
                return None
            parts += [
                (f"n{k}", self._order + entry.counted_by),
                (f"v{k}", self._order + entry.kind, (length,)),
            ]
            at += int(entry.counted_by[1]) + length * int(entry.kind[1])
        if element.count * (at - self._at) > len(self._content) - self._at:
            return None
        records = np.frombuffer(self._content, dtype=np.dtype(parts), count=element.count, offset=self._at)
        for k, entry in enumerate(element.properties):
            if entry.counted_by is not None and (records[f"n{k}"] != records[f"n{k}"][0]).any():
                return None
        self._at += element.count * records.itemsize
        return {entry.name: records[f"v{k}"] for k, entry in enumerate(element.properties)}

    def _one_by_one(self, element: _Element) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {entry.name: [] for entry in element.properties}
        readers = [
            (columns[entry.name], entry.counted_by and struct.Struct(self._order + _CODES[entry.counted_by]), entry)
            for entry in element.properties
        ]
        at, content = self._at, self._content
        for number in range(element.count):
            for column, counter, entry in readers:
                length = 1
                if counter:
                    if at + counter.size > len(content):
                        self._refuse(element, number)
                    (length,) = counter.unpack_from(content, at)
                    at += counter.size
                if length < 0 or at + length * int(entry.kind[1]) > len(content):
                    self._refuse(element, number)
                values = struct.unpack_from(f"{self._order}{length}{_CODES[entry.kind]}", content, at)
                column.append(list(values) if counter else values[0])
                at += length * int(entry.kind[1])
        self._at = at
        return columns

    def _refuse(self, element: _Element, found: int) -> None:
        raise DataError(
            f"{self._path}: its header promises {element.count} of {element.name}, but the file ends after {found}; "
            "it is cut off or damaged"
        )

    def finish(self) -> None:
        if self._at < len(self._content):
            raise DataError(f"{self._path}: has {len(self._content) - self._at} bytes more than its header promises")


def _fans(path: Path, corners: Any, n: int) -> Triangles:
    """Triangles ``(0, k, k + 1)`` of every polygon."""
    if isinstance(corners, np.ndarray):
        polygons = corners.astype(np.int64)
        fans = [polygons[:, [0, k, k + 1]] for k in range(1, polygons.shape[1] - 1)]
        found = np.stack(fans, axis=1).reshape(-1, 3) if fans else np.empty((0, 3), dtype=np.int64)
    else:
        listed = [(face[0], face[k], face[k + 1]) for face in corners for k in range(1, len(face) - 1)]
        numbers = np.array(listed, dtype=np.float64).reshape(-1, 3)
        if not np.isfinite(numbers).all():
            raise DataError(f"{path}: a face names a vertex that is no number")
        found = numbers.clip(-1, n).astype(np.int64)
    if found.size and not (found.min() >= 0 and found.max() < n):
        raise DataError(f"{path}: a face names a vertex that is not there; there are vertices 0 to {n - 1}")
    return found


def write_ply(path: Path, points: NDArray[np.float64]) -> None:
    """Write points ``(n, d)``, ``d <= 3``, as a binary PLY in double precision; missing coordinates are 0."""
    n, d = points.shape
    padded = np.zeros((n, 3), dtype="<f8")
    padded[:, :d] = points
    properties = "".join(f"property double {axis}\n" for axis in "xyz")
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {n}\n{properties}end_header\n"
    with replacing(path) as temporary:
        temporary.write_bytes(header.encode("ascii") + padded.tobytes())
