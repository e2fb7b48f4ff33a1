"""Marginals from the user's own point clouds and meshes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.data.arrays import existing_file, read_array, read_text
from mfswb.errors import ConfigError, DataError, first_line
from mfswb.measures import Measures
from mfswb.seeding import stream

log = logging.getLogger(__name__)

_ARRAYS = (".npy", ".npz")
_TEXTS = (".xyz", ".pts", ".txt", ".csv")
_CLOUDS = (".pcd",)
_MESHES = (".ply", ".obj", ".stl", ".off")


def load_clouds(paths: Sequence[str] | str, *, seed: int, n_points: int = 2048, normalize: bool = False) -> Measures:
    """Marginals from files: one a file, or one a slice of an array ``(K, n, d)``.

    Args:
        paths: PLY, OBJ, STL, OFF (through trimesh), PCD (through Open3D), XYZ, PTS, TXT, CSV, NPY and NPZ files
            (``FILE.npz:NAME`` for one of several arrays). Files without triangles give their points, all of them.
        seed: seeds the sampling of meshes.
        n_points: points sampled on a mesh, uniformly by area.
        normalize: see :meth:`mfswb.measures.Measures.of`.

    Raises:
        ConfigError: no paths, or ``n_points`` below 1.
        DataError: a file cannot be read, or does not hold what it promises.
    """
    if isinstance(paths, str):
        paths = [paths]
    if not paths:
        raise ConfigError("data.paths: give at least one file, as in 'data.paths=[a.ply,b.ply]'")
    if n_points < 1:
        raise ConfigError(f"data.n_points={n_points}: at least one point is needed")
    clouds: list[NDArray[Any]] = []
    names: list[str] = []
    for position, text in enumerate(paths):
        cloud = _read(Path(str(text)), seed, position, n_points)
        stem = Path(str(text)).stem
        if cloud.ndim == 3:
            clouds.extend(cloud)
            names.extend(f"{stem} {k}" for k in range(len(cloud)))
        else:
            clouds.append(cloud)
            names.append(stem)
    return Measures.of(clouds, names=names, normalize=normalize)


def _read(path: Path, seed: int, position: int, n_points: int) -> NDArray[Any]:
    suffix = Path(str(path).partition(".npz:")[0] + ".npz").suffix if ".npz:" in str(path) else path.suffix
    suffix = suffix.lower()
    if suffix in _ARRAYS:
        return read_array(path)
    if suffix in _TEXTS:
        return read_text(path)
    if suffix in _MESHES:
        return _read_mesh(existing_file(path), suffix, seed, position, n_points)
    if suffix in _CLOUDS:
        return _read_with_open3d(existing_file(path))
    known = ", ".join(_MESHES + _CLOUDS + _TEXTS + _ARRAYS)
    raise DataError(f"{path}: unknown file type {suffix or '(no extension)'}; known are {known}")


def _read_mesh(path: Path, suffix: str, seed: int, position: int, n_points: int) -> NDArray[np.float64]:
    # Not Open3D: it fills reordered or missing PLY properties with uninitialised memory, and drops an OBJ's quads.
    import trimesh

    try:
        with path.open("rb") as file:
            loaded = trimesh.load(file, file_type=suffix[1:], process=False, maintain_order=True, skip_materials=True)
        geometry: Any = loaded.to_geometry() if isinstance(loaded, trimesh.Scene) else loaded
        points = np.array(geometry.vertices, dtype=np.float64)
    except Exception as error:  # whatever a parser trips over, it is the file that is wrong
        raise DataError(f"{path}: damaged, or not of type {suffix} ({first_line(error)})") from None
    if points.ndim != 2 or len(points) == 0:
        raise DataError(f"{path}: no points could be read; the file is empty, damaged or not of type {suffix}")
    if not isinstance(geometry, trimesh.Trimesh) or len(geometry.faces) == 0:
        return points
    if not np.isfinite(points).all():
        raise DataError(f"{path}: the mesh has vertices that are NaN or infinite")
    if not geometry.area > 0:
        raise DataError(f"{path}: the mesh has no area to sample points on")
    sampled, _ = trimesh.sample.sample_surface(geometry, n_points, seed=stream(seed, f"mesh {position}"))
    log.info("%s: a mesh of %d triangles, %d points sampled on it", path, len(geometry.faces), len(sampled))
    return np.array(sampled, dtype=np.float64)


def _read_with_open3d(path: Path) -> NDArray[np.float64]:
    o3d = import_open3d(path)
    # Open3D raises nothing: it logs, and returns something empty.
    with o3d.utility.VerbosityContextManager(o3d.utility.VerbosityLevel.Error):
        points = np.array(o3d.io.read_point_cloud(str(path)).points, dtype=np.float64)
    if len(points) == 0:
        raise DataError(f"{path}: no points could be read; the file is empty, damaged or not of type .pcd")
    return points


def import_open3d(path: Path) -> Any:
    """Open3D, which takes seconds to import and needs a few system libraries.

    Raises:
        DataError: it does not load here.
    """
    try:
        import open3d
    except (ImportError, OSError) as error:
        raise DataError(
            f"{path}: reading this type needs Open3D, which does not load here ({first_line(error)}); "
            "on Debian and Ubuntu: apt-get install libusb-1.0-0 libgl1 libegl1 libgomp1 libx11-6"
        ) from None
    return open3d
