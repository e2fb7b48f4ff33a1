"""Readers of the user's files: the right points, or one clear line."""

from __future__ import annotations

import hashlib
import importlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mfswb.data.arrays import read_array, read_text
from mfswb.data.clouds import load_clouds
from mfswb.data.download import fetch
from mfswb.data.gaussians import sample_gaussians
from mfswb.data.ply import write_ply
from mfswb.data.shapenet import load_shapenet50
from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError, DataError

POINTS = np.random.default_rng(0).normal(size=(20, 3))
CUBE_OBJ = "".join(f"v {x} {y} {z}\n" for x in (0, 2) for y in (0, 2) for z in (0, 2)) + (
    "f 1 2 4 3\nf 5 7 8 6\nf 1 5 6 2\nf 3 4 8 7\nf 1 3 7 5\nf 2 6 8 4\n"
)


@pytest.fixture(scope="module")
def open3d() -> None:
    try:
        importlib.import_module("open3d")
    except (ImportError, OSError) as error:
        pytest.skip(f"Open3D does not load here: {error}")


def load(*paths: Path, n_points: int = 2048) -> list[np.ndarray]:
    return list(load_clouds([str(path) for path in paths], seed=1, n_points=n_points).points)


def test_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", POINTS.astype(np.float32))
    np.savez(tmp_path / "b.npz", POINTS)
    np.savez(tmp_path / "c.npz", first=POINTS, second=2 * POINTS)
    np.save(tmp_path / "d.npy", np.arange(6).reshape(2, 3))
    np.save(tmp_path / "e.npy", np.stack([POINTS, POINTS + 1]))
    found = load(
        tmp_path / "a.npy", tmp_path / "b.npz", Path(f"{tmp_path}/c.npz:second"), tmp_path / "d.npy", tmp_path / "e.npy"
    )
    for got, expected in zip(
        found, [POINTS, POINTS, 2 * POINTS, np.arange(6).reshape(2, 3), POINTS, POINTS + 1], strict=True
    ):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_names_are_those_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "mit Leerzeichen und Ümlaut"
    folder.mkdir()
    np.save(folder / "wölfe 1.npy", POINTS)
    assert load_clouds([str(folder / "wölfe 1.npy")], seed=0).names == ("wölfe 1",)


def test_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("# a comment\nx y z\n1 2 3\n\n4 5 6 // another\n")
    (tmp_path / "b.csv").write_text("1,2,3,255\r\n4, 5, 6, 0\r\n")
    (tmp_path / "c.pts").write_text("2\n1 2 3 0.5 10 20 30\n4 5 6 0.5 10 20 30\n")
    (tmp_path / "d.txt").write_text("1\t2\t3\n4\t5\t6")
    (tmp_path / "e.txt").write_text("1 2\n3 4\n")
    for name in ("a.xyz", "b.csv", "c.pts", "d.txt"):
        np.testing.assert_array_equal(load(tmp_path / name)[0], [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(load(tmp_path / "e.txt")[0], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3\n4 5\n", "line 2: expected 3 numbers like the first point, found 2"),
        ("1 2 3\nfour five six\n", "line 2: expected numbers, found 'four five six'"),
        ("3\n1 2 3\n", "promises 3 points, but 1 follow"),
        ("# nothing\n", "no points"),
        ("1 2 nan\n", "1 of 1 points are NaN"),
    ],
)
def test_bad_text_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.xyz").write_text(text)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.xyz")


def test_a_cloud_survives_being_written_and_read(tmp_path: Path) -> None:
    far = POINTS + np.array([5e5, 5.4e6, 0])
    write_ply(tmp_path / "a.ply", far)
    np.testing.assert_array_equal(load(tmp_path / "a.ply")[0], far)
    write_ply(tmp_path / "b.ply", POINTS[:, :2])
    np.testing.assert_array_equal(load(tmp_path / "b.ply")[0][:, 2], 0)


def test_ply_variants(tmp_path: Path) -> None:
    values = "".join(f"{z} 7 {x} {y}\n" for x, y, z in POINTS.tolist())
    header = "ply\nformat ascii 1.0\ncomment hello\nelement vertex 20\nproperty double z\nproperty uchar red\n"
    (tmp_path / "ascii.ply").write_text(header + "property double x\nproperty double y\nend_header\n" + values)
    big = b"".join(struct.pack(">fff", *row) for row in POINTS)
    header = "ply\nformat binary_big_endian 1.0\nelement vertex 20\n" + "".join(f"property float {a}\n" for a in "xyz")
    (tmp_path / "big.ply").write_bytes(
        header.encode() + b"element face 0\nproperty list uchar int vertex_indices\nend_header\n" + big
    )
    for name in ("ascii.ply", "big.ply"):
        np.testing.assert_allclose(load(tmp_path / name)[0], POINTS, atol=1e-6)


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_ply_is_refused(tmp_path: Path, kept: float) -> None:
    write_ply(tmp_path / "whole.ply", POINTS)
    data = (tmp_path / "whole.ply").read_bytes()
    (tmp_path / "cut.ply").write_bytes(data[: int(kept * len(data))])
    with pytest.raises(DataError, match=r"cut\.ply"):
        load(tmp_path / "cut.ply")


def test_meshes_are_sampled_with_the_seed(tmp_path: Path) -> None:
    (tmp_path / "cube.obj").write_text(CUBE_OBJ)
    (first,) = load(tmp_path / "cube.obj", n_points=500)
    (second,) = load(tmp_path / "cube.obj", n_points=500)
    other = load_clouds([str(tmp_path / "cube.obj")], seed=2, n_points=500).points[0]
    assert first.shape == (500, 3)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    on_surface = np.isclose(first, 0) | np.isclose(first, 2)
    assert on_surface.any(axis=1).all()
    np.testing.assert_allclose(first.mean(axis=0), 1.0, atol=0.15)


def test_obj_with_negative_indices_or_without_faces(tmp_path: Path) -> None:
    (tmp_path / "a.obj").write_text("o x\nv 0 0 0\nv 1 0 0\nv 0 1 0\ns off\nf -3 -2 -1\n")
    (points,) = load(tmp_path / "a.obj", n_points=100)
    assert (points >= -1e-12).all()
    assert (points.sum(axis=1) <= 1 + 1e-12).all()
    (tmp_path / "b.obj").write_text("v 1 2 3\nv 4 5 6\n")
    np.testing.assert_array_equal(load(tmp_path / "b.obj")[0], [[1, 2, 3], [4, 5, 6]])
    (tmp_path / "c.obj").write_text("v 0 0 0\nv 1 1 1\nv 2 2 2\nf 1 2 3\n")
    with pytest.raises(DataError, match="no area"):
        load(tmp_path / "c.obj")


def test_other_cloud_and_mesh_types(tmp_path: Path, open3d: None) -> None:
    import open3d as o3d

    mesh = o3d.geometry.TriangleMesh.create_box(1.0, 1.0, 1.0)
    mesh.compute_triangle_normals()
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(POINTS))
    assert o3d.io.write_triangle_mesh(tmp_path / "a.stl", mesh)
    assert o3d.io.write_triangle_mesh(tmp_path / "a.off", mesh)
    assert o3d.io.write_triangle_mesh(tmp_path / "a.ply", mesh)
    assert o3d.io.write_point_cloud(tmp_path / "a.pcd", cloud)
    for name in ("a.stl", "a.off", "a.ply"):
        (points,) = load(tmp_path / name, n_points=50)
        assert points.shape == (50, 3)
        assert (np.isclose(points, 0) | np.isclose(points, 1)).any(axis=1).all()
    np.testing.assert_allclose(load(tmp_path / "a.pcd")[0], POINTS, atol=1e-6)


def pickled(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.npy", pickled, "not a readable NumPy file"),
        ("a.npy", lambda path: path.write_bytes(b"\x93NUMPY\x01\x00garbage"), "not a readable NumPy file"),
        ("a.npz", lambda path: path.write_bytes(b"PK\x03\x04 cut"), "not a readable NumPy file"),
        ("a.npy", lambda path: np.save(path, np.array(["x"])), "expected an array of numbers"),
        ("a.npy", lambda path: np.save(path, np.zeros(5)), r"got shape \(5,\)"),
        ("a.npz", lambda path: np.savez(path, u=POINTS, v=POINTS), "holds 2 arrays .u, v.; say which"),
        ("a.npz:w", lambda path: np.savez(str(path)[:-2], u=POINTS), "has no array 'w'"),
        ("a.xyz", lambda path: path.write_bytes(b""), "the file is empty"),
        ("a.xyz", lambda path: path.write_bytes(b"\xff\xfe\x00\x81"), "not a text file"),
        ("a.xyz", Path.mkdir, "is a folder"),
        ("a.xyz", lambda path: None, "no such file"),
        ("a.docx", lambda path: path.write_text("1 2 3"), "unknown file type .docx"),
        ("a", lambda path: path.write_text("1 2 3"), "no extension"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.ply", "a.obj", "a.stl", "a.off", "a.pcd"])
def test_garbage_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is no geometry at all\n" * 20)
    with pytest.raises(DataError, match=name):
        load(tmp_path / name)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1 2 3")
    (tmp_path / "a.xyz").chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path / "a.xyz")


def test_no_paths_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one file"):
        load_clouds([], seed=0)


def test_built_in_shapes_are_in_the_unit_ball() -> None:
    measures = load_shapes(["airplane", "bottle", "car", "chair", "lamp", "mug", "sofa", "table"])
    assert measures.sizes == (2048,) * 8
    for cloud in measures.points:
        np.testing.assert_allclose(cloud.mean(axis=0), 0, atol=1e-6)
        assert np.linalg.norm(cloud, axis=1).max() == pytest.approx(1.0, abs=1e-6)
    assert load_shapes(["2", 0]).names == ("car", "airplane")
    assert load_shapes("chair").names == ("chair",)
    with pytest.raises(ConfigError, match="built-in shapes are airplane, bottle"):
        load_shapes(["dragon"])


def test_gaussian_samples_have_their_moments() -> None:
    covariance = [[4.0, 1.0], [1.0, 2.0]]
    measures = sample_gaussians([[0, 0], [20, 5]], [[[1, 0], [0, 1]], covariance], [10, 20_000], seed=0)
    assert measures.sizes == (10, 20_000)
    np.testing.assert_allclose(measures.points[1].mean(axis=0), [20, 5], atol=0.05)
    np.testing.assert_allclose(np.cov(measures.points[1].T), covariance, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"means": []}, "at least one mean"),
        ({"means": [[0, 0]], "covariances": [[[1, 2], [2, 1]]]}, "not symmetric positive semi-definite"),
        ({"means": [[0, 0], [1]]}, "marginal 1"),
        ({"means": [[0, 0]], "sizes": [1, 2]}, "2 sizes"),
        ({"means": [[0, 0]], "sizes": 0}, "at least one is needed"),
    ],
)
def test_bad_gaussians_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sample_gaussians(**settings, seed=0)


def test_shapenet_takes_the_published_array_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((50, 2048, 3), dtype=np.float32))
    with pytest.raises(DataError, match="sha256 differs"):
        load_shapenet50([6, 46], str(tmp_path / "a.npy"))
    with pytest.raises(ConfigError, match="numbers from 0 to 49"):
        load_shapenet50([6, 50], str(tmp_path / "a.npy"))


@pytest.mark.reference
def test_shapenet_pair(shapenet: Path) -> None:
    measures = load_shapenet50([6, 46], str(shapenet))
    assert measures.sizes == (2048, 2048)
    np.testing.assert_array_equal(measures.points[1], read_array(shapenet)[46])


def test_a_download_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mfswb.data.shapenet._URLS", ("http://127.0.0.1:9/nothing.npy",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"could not be fetched .* give data.path=FILE, or use data=shapes"):
        load_shapenet50([6, 46])


def test_text_of_one_or_many_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("5\n")
    np.testing.assert_array_equal(read_text(tmp_path / "a.txt"), [[5.0]])
    (tmp_path / "b.txt").write_text("2\n1.5\n2.5\n")
    np.testing.assert_array_equal(read_text(tmp_path / "b.txt"), [[2.0], [1.5], [2.5]])
    assert caplog.text == ""
    (tmp_path / "c.txt").write_text("1 2 3 4 5\n")
    np.testing.assert_array_equal(read_text(tmp_path / "c.txt"), [[1, 2, 3]])
    assert "of its 5 columns the first three" in caplog.text


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine with one file, ``thing.npy``."""
    folder = tmp_path / "served"
    folder.mkdir()
    np.save(folder / "thing.npy", POINTS)
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_downloads_are_verified_and_kept(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checksum = "sha256:" + hashlib.sha256((tmp_path / "served" / "thing.npy").read_bytes()).hexdigest()
    urls = [f"{server}/missing.npy", f"{server}/thing.npy"]
    path = fetch(urls, checksum, "thing.npy", "give a file")
    np.testing.assert_array_equal(read_array(path), POINTS)
    (tmp_path / "served" / "thing.npy").unlink()
    assert fetch(urls, checksum, "thing.npy", "give a file") == path
    (tmp_path / "served" / "thing.npy").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"other\.npy: could not be fetched .*checksum is wrong.*give a file"):
        fetch(urls[1:], checksum, "other.npy", "give a file")
    assert not (path.parent / "other.npy").exists()
