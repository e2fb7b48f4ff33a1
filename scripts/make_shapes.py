"""Make the built-in point clouds, mfswb/data/shapes.npz, from Open3D primitives.

    python scripts/make_shapes.py [--preview FILE.png]

Every shape is a union of boxes, cylinders, cones, ellipsoids and tori, sampled evenly at 2048 points, centred at its
mean and scaled so that the farthest point lies on the unit sphere. z points up.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import open3d as o3d
from numpy.typing import NDArray

POINTS = 2048
OUTPUT = Path(__file__).resolve().parents[1] / "mfswb" / "data" / "shapes.npz"
Mesh = Any


def box(size: tuple[float, float, float], at: tuple[float, float, float]) -> Mesh:
    """A box centred at ``at``."""
    return o3d.geometry.TriangleMesh.create_box(*size).translate(np.subtract(at, np.divide(size, 2)))


def cylinder(radius: float, height: float, at: tuple[float, float, float], axis: str = "z") -> Mesh:
    """A cylinder centred at ``at`` along an axis."""
    return _turn(o3d.geometry.TriangleMesh.create_cylinder(radius, height, 40), axis).translate(at)


def cone(radius: float, height: float, at: tuple[float, float, float], axis: str = "z") -> Mesh:
    """A cone whose base is centred at ``at``, pointing along an axis."""
    return _turn(o3d.geometry.TriangleMesh.create_cone(radius, height, 40), axis).translate(at)


def ellipsoid(radii: tuple[float, float, float], at: tuple[float, float, float]) -> Mesh:
    """An ellipsoid with half axes ``radii``."""
    sphere = o3d.geometry.TriangleMesh.create_sphere(1.0, 30)
    sphere.vertices = o3d.utility.Vector3dVector(np.asarray(sphere.vertices) * radii)
    return sphere.translate(at)


def plate(corners: list[tuple[float, float]], thickness: float, plane: str, at: float) -> Mesh:
    """A flat quadrilateral plate: corners in the ``xy`` or ``xz`` plane, at a height (or depth) ``at``."""
    low, high = at - thickness / 2, at + thickness / 2
    vertices = [(*c, t) if plane == "xy" else (c[0], t, c[1]) for t in (low, high) for c in corners]
    faces = [(0, 1, 2), (0, 2, 3), (4, 6, 5), (4, 7, 6)]
    for a in range(4):
        b = (a + 1) % 4
        faces += [(a, b, b + 4), (a, b + 4, a + 4)]
    return o3d.geometry.TriangleMesh(
        o3d.utility.Vector3dVector(np.array(vertices)), o3d.utility.Vector3iVector(np.array(faces))
    )


def _turn(mesh: Mesh, axis: str) -> Mesh:
    turns = {"z": (0, 0, 0), "x": (0, np.pi / 2, 0), "y": (-np.pi / 2, 0, 0)}
    return mesh.rotate(o3d.geometry.get_rotation_matrix_from_xyz(turns[axis]), center=(0, 0, 0))


def airplane() -> list[Mesh]:
    """A swept-wing airliner, nose along +x."""
    wings = [
        plate([(0.35, 0.1 * s), (-0.1, 0.1 * s), (-0.55, 1.15 * s), (-0.35, 1.15 * s)], 0.04, "xy", -0.03)
        for s in (1, -1)
    ]
    tails = [
        plate([(-0.75, 0.05 * s), (-1.0, 0.05 * s), (-1.15, 0.42 * s), (-1.0, 0.42 * s)], 0.03, "xy", 0.06)
        for s in (1, -1)
    ]
    fin = plate([(-0.7, 0.08), (-1.0, 0.08), (-1.15, 0.5), (-1.0, 0.5)], 0.03, "xz", 0.0)
    engines = [cylinder(0.07, 0.3, (0.02, 0.42 * s, -0.13), "x") for s in (1, -1)]
    return [ellipsoid((1.1, 0.14, 0.14), (0, 0, 0)), *wings, *tails, fin, *engines]


def bottle() -> list[Mesh]:
    """A bottle with a neck and a cap."""
    return [
        cylinder(0.3, 1.1, (0, 0, 0)),
        cone(0.3, 0.5, (0, 0, 0.55)),
        cylinder(0.09, 0.5, (0, 0, 1.05)),
        cylinder(0.12, 0.1, (0, 0, 1.33)),
    ]


def car() -> list[Mesh]:
    """A saloon with four wheels, front along +x."""
    cabin = plate([(0.45, 0.2), (-0.62, 0.2), (-0.42, 0.52), (0.15, 0.52)], 0.76, "xz", 0.0)
    wheels = [cylinder(0.19, 0.14, (x, y, -0.14), "y") for x in (0.6, -0.6) for y in (0.4, -0.4)]
    return [box((2.0, 0.84, 0.34), (0, 0, 0.05)), cabin, *wheels]


def chair() -> list[Mesh]:
    """A chair with four legs and a back."""
    legs = [box((0.08, 0.08, 0.7), (x, y, -0.38)) for x in (0.33, -0.33) for y in (0.33, -0.33)]
    posts = [box((0.07, 0.07, 0.8), (-0.35, y, 0.4)) for y in (0.33, -0.33)]
    slats = [box((0.05, 0.7, 0.16), (-0.35, 0, z)) for z in (0.3, 0.52, 0.74)]
    return [box((0.8, 0.8, 0.08), (0, 0, 0)), *legs, *posts, *slats]


def lamp() -> list[Mesh]:
    """A standing lamp with a wide shade."""
    shade = o3d.geometry.TriangleMesh.create_cone(0.45, 0.9, 40)
    kept = np.asarray(shade.vertices)
    kept[:, 2] = np.minimum(kept[:, 2], 0.45)
    return [cylinder(0.35, 0.06, (0, 0, -0.9)), cylinder(0.035, 1.4, (0, 0, -0.2)), shade.translate((0, 0, 0.45))]


def mug() -> list[Mesh]:
    """A mug with a handle."""
    handle = o3d.geometry.TriangleMesh.create_torus(0.27, 0.055, 40, 20)
    upright = handle.rotate(o3d.geometry.get_rotation_matrix_from_xyz((np.pi / 2, 0, 0)), center=(0, 0, 0))
    wall = o3d.geometry.TriangleMesh.create_cylinder(0.42, 0.95, 40)
    lid = np.isclose(np.asarray(wall.vertices)[:, 2], 0.475) & (
        np.linalg.norm(np.asarray(wall.vertices)[:, :2], axis=1) < 0.1
    )
    wall.remove_vertices_by_mask(lid)
    return [wall, upright.translate((0.52, 0, 0))]


def sofa() -> list[Mesh]:
    """A sofa with two arms."""
    arms = [box((0.8, 0.2, 0.55), (0, y, 0.05)) for y in (0.9, -0.9)]
    feet = [box((0.08, 0.08, 0.14), (x, y, -0.29)) for x in (0.3, -0.3) for y in (0.85, -0.85)]
    return [box((0.8, 1.6, 0.3), (0, 0, -0.08)), box((0.22, 2.0, 0.9), (-0.35, 0, 0.2)), *arms, *feet]


def table() -> list[Mesh]:
    """A round table on one leg."""
    return [cylinder(0.85, 0.07, (0, 0, 0.4)), cylinder(0.07, 0.8, (0, 0, 0)), cylinder(0.4, 0.06, (0, 0, -0.42))]


def sample(parts: list[Mesh], seed: int) -> NDArray[np.float32]:
    """2048 evenly spread points in the unit ball."""
    mesh = o3d.geometry.TriangleMesh()
    for part in parts:
        mesh += part
    o3d.utility.random.seed(seed)
    points = np.asarray(mesh.sample_points_poisson_disk(POINTS).points)
    points = points - points.mean(axis=0)
    return np.asarray(points / np.linalg.norm(points, axis=1).max(), dtype=np.float32)


def main() -> None:
    """Write the data file, and a picture of it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preview", type=Path, help="also draw all shapes into this PNG")
    arguments = parser.parse_args()
    makers = [airplane, bottle, car, chair, lamp, mug, sofa, table]
    shapes = {make.__name__: sample(make(), seed) for seed, make in enumerate(makers)}
    np.savez_compressed(OUTPUT, allow_pickle=False, **shapes)
    if arguments.preview is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(16, 8))
        for position, (name, points) in enumerate(shapes.items()):
            axes = figure.add_subplot(2, 4, position + 1, projection="3d")
            axes.scatter(*points.T, s=2, c=points[:, 2])
            axes.set(title=name, xlim=(-1, 1), ylim=(-1, 1), zlim=(-1, 1))
            axes.set_box_aspect((1, 1, 1))
        figure.savefig(arguments.preview)


if __name__ == "__main__":
    main()
