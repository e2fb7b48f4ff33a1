"""Marginals from the user's own point clouds and meshes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mfswb.data.arrays import existing_file, read_array, read_text
from mfswb.data.pcd import read_pcd
from mfswb.data.ply import read_ply
from mfswb.errors import ConfigError, DataError, first_line
from mfswb.measures import Measures
from mfswb.seeding import stream

log = logging.getLogger(__name__)

_ARRAYS = (".npy", ".npz")
_TEXTS = (".xyz", ".pts", ".txt", ".csv")
_CLOUDS = (".pcd",)
_MESHES = (".ply", ".obj", ".stl", ".off")


def load_clouds(
    paths: Sequence[str] | str,
    *,
    seed: int,
    n_points: int = 2048,
    normalize: bool = False,
    drop_invalid: bool = False,
) -> Measures:
    """Marginals from files: one a file, or one a slice of an array ``(K, n, d)``.

    Args:
        paths: PLY, PCD, OBJ, STL, OFF (these three through trimesh), XYZ, PTS, TXT, CSV, NPY and NPZ files
            (``FILE.npz:NAME`` for one of several arrays). Files without triangles give their points, all of them.
        seed: seeds the sampling of meshes.
        n_points: points sampled on a mesh, uniformly by area.
        normalize: see :meth:`mfswb.measures.Measures.of`.
        drop_invalid: leave out points that are NaN or infinite (of a mesh, the triangles at such vertices), with a
            note of how many; otherwise they are an error.

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
        path = Path(str(text))
        cloud = _read(path, stream(seed, f"mesh {position}"), n_points, drop_invalid)
        if cloud.ndim == 3:
            clouds.extend(_finite(f"{path}[{k}]", part, drop_invalid) for k, part in enumerate(cloud))
            names.extend(f"{path.stem} {k}" for k in range(len(cloud)))
        else:
            clouds.append(_finite(str(path), cloud, drop_invalid))
            names.append(path.stem)
    return Measures.of(clouds, names=names, normalize=normalize)


def _read(path: Path, rng: np.random.Generator, n_points: int, drop_invalid: bool) -> NDArray[Any]:
    suffix = Path(str(path).partition(".npz:")[0] + ".npz").suffix if ".npz:" in str(path) else path.suffix
    suffix = suffix.lower()
    if suffix in _ARRAYS:
        return read_array(path)
    if suffix in _TEXTS:
        return read_text(path)
    if suffix in _MESHES:
        found = read_ply(path) if suffix == ".ply" else _read_mesh(existing_file(path), suffix)
        return _sampled(path, *found, n_points, rng, drop_invalid)
    if suffix in _CLOUDS:
        return read_pcd(path)
    known = ", ".join(_MESHES + _CLOUDS + _TEXTS + _ARRAYS)
    raise DataError(f"{path}: unknown file type {suffix or '(no extension)'}; known are {known}")


def _read_mesh(path: Path, suffix: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices and triangles of an OBJ, STL or OFF file."""
    # Not Open3D: it drops an OBJ's quads.
    import trimesh

    try:
        with path.open("rb") as file:
            loaded = trimesh.load(file, file_type=suffix[1:], process=False, maintain_order=True, skip_materials=True)
        geometry: Any = loaded.to_geometry() if isinstance(loaded, trimesh.Scene) else loaded
        points = np.array(geometry.vertices, dtype=np.float64)
        faces = np.array(geometry.faces if isinstance(geometry, trimesh.Trimesh) else [], dtype=np.int64).reshape(-1, 3)
    except Exception as error:  # whatever a parser trips over, it is the file that is wrong
        raise DataError(f"{path}: damaged, or not of type {suffix} ({first_line(error)})") from None
    if points.ndim != 2 or points.shape[1] != 3 or len(points) == 0:
        raise DataError(f"{path}: no points could be read; the file is empty, damaged or not of type {suffix}")
    if faces.size and not (faces.min() >= 0 and faces.max() < len(points)):
        raise DataError(f"{path}: a face names a vertex that is not there; there are {len(points)} vertices")
    return points, faces


def _sampled(
    path: Path,
    points: NDArray[np.float64],
    faces: NDArray[np.int64],
    n_points: int,
    rng: np.random.Generator,
    drop_invalid: bool,
) -> NDArray[np.float64]:
    """The points themselves, or ``n_points`` uniform by area where there are triangles."""
    import trimesh

    if not len(faces):
        return points
    sound = np.asarray(np.isfinite(points).all(axis=1))
    if not sound.all():
        if not drop_invalid:
            raise _not_finite(f"{path}: its mesh", int((~sound).sum()), len(points))
        kept = faces[sound[faces].all(axis=1)]
        log.warning("%s: %d of %d triangles have NaN or infinite corners", path, len(faces) - len(kept), len(faces))
        faces, points = kept, np.where(sound[:, None], points, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        mesh = trimesh.Trimesh(points, faces, process=False)
        area = float(mesh.area)
    if not 0 < area < float("inf"):
        raise DataError(f"{path}: the mesh has no area to sample points on, or too large a one ({area:g})")
    sampled, _ = trimesh.sample.sample_surface(mesh, n_points, seed=rng)
    log.info("%s: a mesh of %d triangles, %d points sampled on it", path, len(faces), len(sampled))
    return np.array(sampled, dtype=np.float64)


def _finite(label: str, cloud: NDArray[Any], drop_invalid: bool) -> NDArray[Any]:
    """The points, if all of them are finite; else what is left of them, or an error."""
    if cloud.ndim != 2:
        return cloud  # refused with its shape, later
    bad = ~np.isfinite(cloud).all(axis=1)
    if not bad.any():
        return cloud
    if not drop_invalid:
        raise _not_finite(label, int(bad.sum()), len(cloud))
    if bad.all():
        raise DataError(f"{label}: none of its {len(cloud)} points is finite")
    log.warning("%s: %d of %d points are NaN or infinite and are left out", label, int(bad.sum()), len(cloud))
    kept: NDArray[Any] = cloud[~bad]
    return kept


def _not_finite(label: str, bad: int, n: int) -> DataError:
    return DataError(f"{label}: {bad} of {n} points are NaN or infinite; data.drop_invalid=true leaves them out")
