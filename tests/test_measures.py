"""Marginals are checked at the door, and working coordinates lose nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mfswb.errors import ConfigError, DataError
from mfswb.measures import Measures
from mfswb.seeding import stream
from mfswb.starts import initial_support


def test_weights_are_scaled_and_sizes_told() -> None:
    measures = Measures.of([np.zeros((2, 3)), np.ones((4, 3))], [[1, 3], None], ["a", "b"])
    assert measures.sizes == (2, 4)
    assert measures.dim == 3
    assert measures.names == ("a", "b")
    assert measures.weights[0] is not None
    assert measures.weights[0].tolist() == [0.25, 0.75]


def test_float32_working_coordinates_keep_the_digits_of_far_off_data() -> None:
    cloud = np.random.default_rng(0).random((50, 3)) + np.array([5e5, 5.4e6, 0])
    frame = Measures.of([cloud]).frame
    there_and_back = frame.outward(frame.inward(cloud).astype(np.float32).astype(np.float64))
    assert np.abs(there_and_back - cloud).max() < 1e-7


def test_normalised_coordinates_fill_the_unit_ball() -> None:
    clouds = [np.random.default_rng(k).normal(5 * k, 3, (40, 2)) for k in range(3)]
    measures = Measures.of(clouds, normalize=True)
    inside = [np.linalg.norm(measures.frame.inward(cloud), axis=1).max() for cloud in measures.points]
    assert max(inside) == pytest.approx(1.0)
    np.testing.assert_allclose(measures.frame.outward(measures.frame.inward(clouds[1])), clouds[1])


def test_one_point_can_be_normalised() -> None:
    assert Measures.of([[[3.0, 4.0]]], normalize=True).frame.scale == 1.0


def test_fingerprints_tell_data_apart() -> None:
    points = np.arange(6.0).reshape(3, 2)
    prints = {
        Measures.of([points]).fingerprint(),
        Measures.of([points + 1]).fingerprint(),
        Measures.of([points.reshape(2, 3)]).fingerprint(),
        Measures.of([points], [[1, 1, 2]]).fingerprint(),
        Measures.of([points, points]).fingerprint(),
    }
    assert len(prints) == 5
    assert Measures.of([points]).fingerprint() in prints


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        ([], None, "at least one"),
        ([np.zeros((0, 2))], None, "marginal 0: expected a non-empty"),
        ([np.zeros(3)], None, r"got shape \(3,\)"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], None, "marginal 1: its points have dimension 3"),
        ([[[0.0, np.nan], [1.0, 1.0]]], None, "1 of 2 points are NaN"),
        ([[["a", "b"]]], None, "not an array of numbers"),
        ([np.zeros((2, 2))], [[1.0]], "expected 2 weights"),
        ([np.zeros((2, 2))], [[-1.0, 2.0]], "not negative"),
        ([np.zeros((2, 2))], [[0.0, 0.0]], "not all zero"),
        ([np.zeros((2, 2))], [None, None], "2 weights"),
    ],
)
def test_what_does_not_fit_is_named(points: list[Any], weights: list[Any] | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Measures.of(points, weights)


MARGINALS = Measures.of([np.random.default_rng(0).normal(3, 1, (30, 3)), np.zeros((4, 3))])


def test_sphere_start_surrounds_the_marginals() -> None:
    start = initial_support("sphere", MARGINALS, stream(1, "start"))
    assert start.shape == (30, 3)
    np.testing.assert_allclose(np.linalg.norm(start - MARGINALS.centroid, axis=1), MARGINALS.radius)


def test_sphere_start_of_unit_ball_clouds_is_the_unit_sphere() -> None:
    cloud = np.random.default_rng(0).normal(size=(100, 3))
    cloud -= cloud.mean(0)
    cloud /= np.linalg.norm(cloud, axis=1).max()
    start = initial_support("sphere", Measures.of([cloud, -cloud]), stream(0, "start"), 500)
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), 1.0)


def test_gaussian_start_has_its_mean_and_deviation() -> None:
    start = initial_support("gaussian", MARGINALS, stream(1, "start"), 20_000, mean=[1, 2, 3], std=2.0)
    np.testing.assert_allclose(start.mean(0), [1, 2, 3], atol=0.05)
    np.testing.assert_allclose(start.std(0), 2.0, atol=0.05)


def test_marginal_and_file_starts(tmp_path: Any) -> None:
    np.testing.assert_array_equal(initial_support("marginal:1", MARGINALS, stream(1, "start")), np.zeros((4, 3)))
    np.save(tmp_path / "x.npy", np.ones((7, 3), dtype=np.float32))
    assert initial_support(str(tmp_path / "x.npy"), MARGINALS, stream(1, "start")).shape == (7, 3)
    np.savez(tmp_path / "x.npz", a=np.ones((6, 3)), b=np.ones((5, 3)))
    assert initial_support(f"{tmp_path}/x.npz:b", MARGINALS, stream(1, "start")).shape == (5, 3)


@pytest.mark.parametrize(
    ("start", "n", "message"),
    [
        ("cube", None, "unknown start"),
        ("marginal:2", None, "marginals 0 to 1"),
        ("marginal", None, "write marginal:K"),
        ("marginal:1", 9, "has 4 points"),
        ("sphere", 0, "at least one support point"),
        ("missing.npy", None, "no such file"),
    ],
)
def test_bad_starts_are_named(start: str, n: int | None, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        initial_support(start, MARGINALS, stream(1, "start"), n)
