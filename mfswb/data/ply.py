"""PLY files: writing clouds, and checking that a file holds what its header promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import DataError
from mfswb.files import replacing

_SIZES = {
    **dict.fromkeys(("char", "uchar", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "int32", "uint32", "float", "float32"), 4),
    **dict.fromkeys(("double", "float64"), 8),
}
_LONGEST_HEADER = 1 << 20


def write_ply(path: Path, points: NDArray[np.float64]) -> None:
    """Write points ``(n, d)``, ``d <= 3``, as a binary PLY in double precision; missing coordinates are 0."""
    n, d = points.shape
    padded = np.zeros((n, 3), dtype="<f8")
    padded[:, :d] = points
    properties = "".join(f"property double {axis}\n" for axis in "xyz")
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {n}\n{properties}end_header\n"
    with replacing(path) as temporary:
        temporary.write_bytes(header.encode("ascii") + padded.tobytes())


def promised_vertices(path: Path) -> tuple[int, int]:
    """Numbers of vertices and faces a PLY file's header promises, after checking that the file is long enough.

    Open3D fills the missing points of a truncated binary file with whatever lies in memory, without a word.

    Raises:
        DataError: no PLY header, or fewer bytes (binary) or lines (ASCII) than promised.
    """
    data = path.read_bytes()
    head, separator, _ = data[:_LONGEST_HEADER].partition(b"end_header")
    if not data.startswith(b"ply") or not separator:
        raise DataError(f"{path}: is not a PLY file (no header from 'ply' to 'end_header')")
    encoding, elements = _parse_header(path, head.decode("ascii", errors="replace"))
    body = data[len(head) + len(separator) :]
    counts = {name: count for name, count, _ in elements}
    if encoding == "ascii":
        found, needed, unit = len(body.split(b"\n", 1)[-1].split()), sum(c * k for _, c, (_, k) in elements), "values"
    else:
        found, needed, unit = len(body) - 1, sum(c * size for _, c, (size, _) in elements), "bytes"
    if found < needed:
        raise DataError(
            f"{path}: is truncated: its header promises {counts.get('vertex', 0)} vertices, which takes at least "
            f"{needed} {unit}, but only {found} follow"
        )
    return counts.get("vertex", 0), counts.get("face", 0)


def _parse_header(path: Path, header: str) -> tuple[str, list[tuple[str, int, tuple[int, int]]]]:
    """Encoding, and for each element its name, count and least size a row: in bytes and in values."""
    encoding = ""
    elements: list[tuple[str, int, tuple[int, int]]] = []
    for line in header.splitlines():
        words = line.split()
        try:
            if words[:1] == ["format"]:
                encoding = words[1]
            elif words[:1] == ["element"]:
                elements.append((words[1], int(words[2]), (0, 0)))
            elif words[:1] == ["property"]:
                name, count, (size, values) = elements[-1]
                # a list takes at least its length field
                elements[-1] = (name, count, (size + _SIZES[words[2] if words[1] == "list" else words[1]], values + 1))
        except (IndexError, KeyError, ValueError):
            raise DataError(f"{path}: cannot understand the PLY header line {line.strip()!r}") from None
    if encoding not in ("ascii", "binary_little_endian", "binary_big_endian"):
        raise DataError(f"{path}: unknown PLY format {encoding!r}")
    if any(count < 0 for _, count, _ in elements):
        raise DataError(f"{path}: its PLY header promises a negative number of elements")
    return encoding, elements
