"""Small files of every kind the readers know, and ways to damage them."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from mfswb.data.arrays import read_archive, read_array
from mfswb.data.clouds import load_clouds
from mfswb.data.idx import read_images, read_labels
from mfswb.data.images import read_image

POINTS = np.random.default_rng(0).normal(size=(12, 3)).round(3)
_TRIANGLES = [(0, 1, 2), (2, 3, 4), (0, 4, 1)]
# Numbers, words and bytes that a header is likely to trip over.
_TOKENS = [
    *(b"0", b"-1", b"1", b"13", b"2147483648", b"99999999999999", b"18446744073709551615", b"1e400", b"nan", b"inf"),
    *(b"\xff" * 4, b"\x00" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\n", b"\r\n", b" ", b"#", b"//", b'"'),
    *(b"list", b"double", b"property", b"element face 3", b"end_header", b"f 1/2/3 9999 -4\n", b"(1000000000000,)"),
    *(b"binary_compressed", b"DATA binary\n", b"POINTS 5000000000\n", b"WIDTH", b"|O", b"solid", b"mtllib /etc/passwd"),
]


@dataclass(frozen=True)
class Sample:
    """A good file: what is damaged, how that is packed into the file, and what reads it."""

    name: str
    content: bytes
    read: Callable[[Path], object]
    pack: Callable[[bytes], bytes] = bytes

    def build(self, content: bytes) -> bytes:
        return self.pack(content)


def _cloud(path: Path) -> object:
    points = load_clouds([str(path)], seed=0, n_points=20).points
    assert all(np.isfinite(cloud).all() for cloud in points)
    return points


def _npy(values: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _zipped(content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("arr_0.npy", content)
    return buffer.getvalue()


def _ply(kind: str, faces: bool) -> bytes:
    names = "".join(f"property float {axis}\n" for axis in "xyz") + "property uchar red\n"
    header = f"ply\nformat {kind} 1.0\ncomment made here\nelement vertex {len(POINTS)}\n{names}"
    if faces:
        header += f"element face {len(_TRIANGLES)}\nproperty list uchar int vertex_indices\n"
    head = (header + "end_header\n").encode()
    if kind == "ascii":
        rows = [f"{x} {y} {z} 7" for x, y, z in POINTS.tolist()]
        rows += [f"3 {a} {b} {c}" for a, b, c in _TRIANGLES] if faces else []
        return head + ("\n".join(rows) + "\n").encode()
    order = "<" if "little" in kind else ">"
    body = b"".join(struct.pack(f"{order}fffB", *row, 7) for row in POINTS.tolist())
    return head + body + (b"".join(struct.pack(f"{order}Biii", 3, *t) for t in _TRIANGLES) if faces else b"")


def _obj() -> bytes:
    vertices = "".join(f"v {x} {y} {z}\n" for x, y, z in POINTS.tolist())
    return (vertices + "vt 0 0\nvn 0 0 1\ng part\nf 1 2 3 4\nf 1/1/1 2/1/1 3/1/1\nf -1 -2 -3\n").encode()


def _off() -> bytes:
    rows = [" ".join(map(str, row)) for row in POINTS.tolist()] + [f"3 {a} {b} {c}" for a, b, c in _TRIANGLES]
    return (f"OFF\n{len(POINTS)} {len(_TRIANGLES)} 0\n" + "\n".join(rows) + "\n").encode()


def _stl(binary: bool) -> bytes:
    corners = POINTS[np.array(_TRIANGLES)]
    if binary:
        facets = b"".join(struct.pack("<12fH", 0, 0, 1, *triangle.ravel(), 0) for triangle in corners)
        return b"made here".ljust(80) + struct.pack("<I", len(corners)) + facets
    facet = "facet normal 0 0 1\nouter loop\n{}endloop\nendfacet\n"
    loops = ["".join(f"vertex {x} {y} {z}\n" for x, y, z in triangle.tolist()) for triangle in corners]
    return ("solid it\n" + "".join(facet.format(loop) for loop in loops) + "endsolid it\n").encode()


def lzf_stored(content: bytes) -> bytes:
    """An LZF stream that only copies: runs of at most 32 bytes, each after its length minus one."""
    return b"".join(bytes([len(run) - 1]) + run for run in (content[k : k + 32] for k in range(0, len(content), 32)))


def pcd(kind: str, points: np.ndarray[Any, Any] = POINTS) -> bytes:
    n = len(points)
    head = (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F U\nCOUNT 1 1 1 1\n"
        f"WIDTH {n}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {n}\nDATA {kind}\n"
    ).encode()
    if kind == "ascii":
        return head + "".join(f"{x} {y} {z} 5\n" for x, y, z in points.tolist()).encode()
    if kind == "binary":
        return head + b"".join(struct.pack("<fffI", *row, 5) for row in points.tolist())
    columns = points.astype("<f4").T.tobytes() + np.full(n, 5, dtype="<u4").tobytes()
    packed = lzf_stored(columns)
    return head + struct.pack("<II", len(packed), len(columns)) + packed


def _picture(kind: str, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format=kind)
    return buffer.getvalue()


def _idx(labels: bool) -> bytes:
    values = np.arange(40, dtype=np.uint8) % 4
    if labels:
        return struct.pack(">II", 0x801, 40) + values.tobytes()
    return struct.pack(">IIII", 0x803, 40, 2, 3) + np.repeat(values, 6).tobytes()


def _samples() -> Mapping[str, Sample]:
    plys = [(kind, faces) for kind in ("ascii", "binary_little_endian", "binary_big_endian") for faces in (False, True)]
    text = "# a comment\nx,y,z\n" + "".join(f"{x},{y} {z} // here\n" for x, y, z in POINTS.tolist())
    packed = partial(gzip.compress, mtime=0)
    archive = _zipped(_npy(POINTS))
    found = [
        *(Sample(f"{kind}_{faces}.ply", _ply(kind, faces), _cloud) for kind, faces in plys),
        Sample("a.obj", _obj(), _cloud),
        Sample("a.off", _off(), _cloud),
        Sample("text.stl", _stl(False), _cloud),
        Sample("binary.stl", _stl(True), _cloud),
        *(Sample(f"{kind}.pcd", pcd(kind), _cloud) for kind in ("ascii", "binary", "binary_compressed")),
        Sample("a.xyz", text.encode(), _cloud),
        Sample("a.pts", b"12\n" + "".join(f"{x} {y} {z} 1\n" for x, y, z in POINTS.tolist()).encode(), _cloud),
        Sample("a.npy", _npy(POINTS), _cloud),
        Sample("a.npz", archive, _cloud),
        Sample("inside.npz", _npy(POINTS), _cloud, _zipped),
        Sample("stored.npz", _npy(POINTS), _cloud, partial(_zipped, compression=zipfile.ZIP_STORED)),
        Sample("archive.npz", archive, read_archive),
        Sample("start.npy", _npy(POINTS.astype(np.float32)), read_array),
        *(Sample(f"a.{kind.lower()}", _picture(kind), read_image) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF")),
        Sample("a.webp", _picture("WEBP"), read_image),
        Sample("a.ppm", _picture("PPM"), read_image),
        Sample("grey.png", _picture("PNG", "L"), read_image),
        Sample("palette.png", _picture("PNG", "P"), read_image),
        Sample("images.idx", _idx(False), read_images),
        Sample("labels.idx", _idx(True), read_labels),
        Sample("images.gz", packed(_idx(False)), read_images),
        Sample("inside.gz", _idx(False), read_images, packed),
        Sample("labels.gz", packed(_idx(True)), read_labels),
    ]
    return {sample.name: sample for sample in found}


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of Pillow, about modes it is asked to write
    SAMPLES = _samples()


def _edit(content: bytes, kind: str, where: float, length: int, token: bytes) -> bytes:
    at = int(where * (len(content) + 1))
    if kind == "cut":
        return content[:at]
    if kind == "drop":
        return content[:at] + content[at + length :]
    if kind == "repeat":
        return content[:at] + content[at : at + length] * 3 + content[at + length :]
    if kind == "insert":
        return content[:at] + token + content[at:]
    if kind == "overwrite":
        return content[:at] + token + content[at + len(token) :]
    if kind == "word":  # a whole word of a text, or of a header
        end = at
        while end < len(content) and content[end] not in b" \n\t,":
            end += 1
        return content[:at] + token + content[end:]
    return content[:at] + bytes([content[at] ^ 1 << length % 8]) + content[at + 1 :] if at < len(content) else content


_EDITS = st.tuples(
    st.sampled_from(["cut", "drop", "repeat", "insert", "overwrite", "word", "flip"]),
    st.floats(0, 1, exclude_max=True) | st.floats(0, 0.15),  # headers come first
    st.integers(0, 40),
    st.sampled_from(_TOKENS) | st.binary(min_size=1, max_size=8),
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Sample, bytes]:
    """A file of any kind with one damage or more, and what reads it."""
    sample = SAMPLES[draw(st.sampled_from(sorted(SAMPLES)))]
    content = sample.content
    for edit in draw(st.lists(_EDITS, min_size=1, max_size=6)):
        content = _edit(content, *edit)
    return sample, sample.build(content)
