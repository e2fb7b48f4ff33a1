"""PCD files, the format of the Point Cloud Library: as text, binary, or compressed.

Of our own because Open3D's reader takes what the header says for granted: a damaged file ends the process, or gives
points that were never read.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.data.arrays import existing_file
from mfswb.errors import DataError

_KINDS = {"F": "f", "I": "i", "U": "u"}
_SIZES = {"F": (4, 8), "I": (1, 2, 4, 8), "U": (1, 2, 4, 8)}
_DATA = ("ascii", "binary", "binary_compressed")

Header = dict[str, list[str]]


def read_pcd(path: Path) -> NDArray[np.float64]:
    """Points ``(n, 3)`` of a PCD file; other fields are ignored.

    Raises:
        DataError: the header is none, promises more than there is, or lacks coordinates; a row is malformed.
    """
    content = existing_file(path).read_bytes()
    header, start = _header(path, content)
    record = _record(path, header)
    count = _count(path, header)
    lacking = [axis for axis in "xyz" if axis not in header["FIELDS"]]
    if lacking:
        raise DataError(f"{path}: its points have no {lacking[0]}, only {', '.join(header['FIELDS'])}")
    kind = " ".join(header["DATA"])
    body = memoryview(content)[start:]
    if kind == "ascii":
        return _from_text(path, bytes(body), header, count)
    if kind == "binary":
        if count * record.itemsize > len(body):
            raise DataError(
                f"{path}: its header promises {count} points of {record.itemsize} bytes, but the file ends after "
                f"{len(body) // record.itemsize}; it is cut off or damaged"
            )
        columns = np.frombuffer(body, dtype=record, count=count)
        return _stacked([columns[str(header["FIELDS"].index(axis))] for axis in "xyz"], count)
    return _from_columns(path, _unpacked(path, body, count * record.itemsize), record, header, count)


def _header(path: Path, content: bytes) -> tuple[Header, int]:
    header: Header = {}
    position = 0
    while "DATA" not in header:
        end = content.find(b"\n", position)
        if end < 0:
            raise DataError(f"{path}: is no PCD file, or its header is cut off (its last line, 'DATA ...', is missing)")
        line, position = content[position:end].decode("latin-1").strip(), end + 1
        key, *words = line.split() or ["#"]
        if not key.startswith("#"):
            header[key] = words
    if header["DATA"] not in [[kind] for kind in _DATA]:
        raise DataError(f"{path}: DATA {' '.join(header['DATA'])[:40]}: expected {', '.join(_DATA)}")
    for key in ("FIELDS", "SIZE", "TYPE"):
        if key not in header:
            raise DataError(f"{path}: its header has no line {key}")
    header.setdefault("COUNT", ["1"] * len(header["FIELDS"]))
    return header, position


def _record(path: Path, header: Header) -> np.dtype[np.void]:
    """One point as it lies in the file, its fields named ``0``, ``1``, ... in their order."""
    parts = []
    described = [header[key] for key in ("FIELDS", "TYPE", "SIZE", "COUNT")]
    if len({len(words) for words in described}) != 1 or not header["FIELDS"]:
        raise DataError(f"{path}: FIELDS, TYPE, SIZE and COUNT of its header must have as many entries as each other")
    for k, (name, kind, size, times) in enumerate(zip(*described, strict=True)):
        if kind not in _KINDS or not size.isdecimal() or int(size[:9]) not in _SIZES[kind]:
            raise DataError(f"{path}: field {name[:40]}: there are no numbers of type {kind[:9]} and size {size[:9]}")
        if not times.isdecimal() or not 0 < int(times[:9]) < 1 << 20 or len(times) > 9:
            raise DataError(f"{path}: field {name[:40]}: COUNT {times[:20]} is not a number of values")
        shape = (int(times),) if times != "1" else ()
        parts.append((str(k), f"<{_KINDS[kind]}{size}", shape))
    return np.dtype(parts)


def _count(path: Path, header: Header) -> int:
    given = {key: " ".join(header[key]) for key in ("WIDTH", "HEIGHT", "POINTS") if key in header}
    wrong = [key for key, text in given.items() if not text.isdecimal() or len(text) > 15]
    if wrong:
        raise DataError(f"{path}: {wrong[0]} {given[wrong[0]][:40]}: expected a whole number")
    numbers = {key: int(text) for key, text in given.items()}
    area = numbers["WIDTH"] * numbers["HEIGHT"] if {"WIDTH", "HEIGHT"} <= numbers.keys() else None
    count = numbers.get("POINTS", area)
    if count is None or (area is not None and area != count):
        raise DataError(f"{path}: its header needs POINTS, and WIDTH times HEIGHT must be the same")
    if count == 0:
        raise DataError(f"{path}: holds 0 points")
    return count


def _from_text(path: Path, body: bytes, header: Header, count: int) -> NDArray[np.float64]:
    rows = [row for row in (line.split() for line in body.splitlines()) if row]
    if len(rows) != count:
        raise DataError(f"{path}: its header promises {count} points, found {len(rows)}")
    widths = [int(times) for times in header["COUNT"]]
    columns = [sum(widths[: header["FIELDS"].index(axis)]) for axis in "xyz"]
    points = np.empty((count, 3))
    for number, row in enumerate(rows):
        try:
            if len(row) != sum(widths):
                raise ValueError("too many or too few")
            points[number] = [float(row[column]) for column in columns]
        except ValueError:
            shown = b" ".join(row).decode("latin-1")[:60]
            raise DataError(f"{path}: point {number + 1}: expected {sum(widths)} numbers, found {shown!r}") from None
    return points


def _from_columns(
    path: Path, unpacked: bytes, record: np.dtype[np.void], header: Header, count: int
) -> NDArray[np.float64]:
    """Compressed files hold field after field, each of all points."""
    found = {}
    at = 0
    for k, name in enumerate(header["FIELDS"]):
        part = record[k]
        values = count * part.itemsize // part.base.itemsize
        found[name] = np.frombuffer(unpacked, dtype=part.base, count=values, offset=at)
        at += count * part.itemsize
    return _stacked([found[axis] for axis in "xyz"], count)


def _stacked(columns: list[NDArray[Any]], count: int) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # NaN is counted later
        return np.stack([column.reshape(count, -1)[:, 0].astype(np.float64) for column in columns], axis=1)


def _unpacked(path: Path, body: memoryview, size: int) -> bytes:
    if len(body) < 8:
        raise DataError(f"{path}: the compressed data are cut off")
    packed, promised = struct.unpack_from("<II", body)
    if promised != size or packed > len(body) - 8:
        raise DataError(
            f"{path}: its header promises {size} bytes of points; the compressed part says {promised}, "
            f"packed to {packed}, of which {max(0, len(body) - 8)} are there"
        )
    try:
        return unpack_lzf(bytes(body[8 : 8 + packed]), size)
    except (IndexError, ValueError):
        raise DataError(f"{path}: the compressed data are damaged") from None


def unpack_lzf(packed: bytes, size: int) -> bytes:
    """Undo LZF compression (Marc Lehmann's format).

    A byte below 32 is followed by so many bytes, plus one, to copy; another one holds a length in its upper three bits
    (7: one more byte adds to it) and, with the byte after, how far back in the output to copy from.

    Raises:
        ValueError: it does not give ``size`` bytes.
        IndexError: it is cut off.

    Example:
        >>> unpack_lzf(bytes([1]) + b"ab" + bytes([0xE0, 1, 1]), 12)
        b'abababababab'
    """
    out = bytearray()
    at = 0
    while at < len(packed) and len(out) <= size:
        control = packed[at]
        at += 1
        if control < 32:
            out += packed[at : at + control + 1]
            at += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += packed[at]
            at += 1
        start = len(out) - ((control & 31) << 8) - packed[at] - 1
        at += 1
        if start < 0:
            raise ValueError("a reference to before the beginning")
        piece = out[start : start + length + 2]
        out += (piece * (length // len(piece) + 3))[: length + 2]
    if len(out) != size:
        raise ValueError("another size than promised")
    return bytes(out)
