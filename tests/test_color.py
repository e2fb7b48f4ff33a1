"""Pictures of every kind people have, their palettes, and the colour task."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial import cKDTree
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_sample_image

from mfswb.configuration import compose_config
from mfswb.data.images import read_image, write_image
from mfswb.data.palettes import fit_palette
from mfswb.data.photos import Photos, load_builtin, load_images
from mfswb.errors import ConfigError, DataError
from mfswb.losses import us_mfswb
from mfswb.run import run
from mfswb.seeding import stream
from mfswb.slicing import Slicing, uniform
from mfswb.tasks.color import ColorHarmonization

RGB = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)


def smooth_picture(height: int = 12, width: int = 17) -> np.ndarray:
    """A picture JPEG hardly changes."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.stack([200 * x + 20, 180 * y + 30, 100 + 50 * x * y], axis=-1).round().astype(np.uint8)


@pytest.mark.parametrize(("suffix", "settings"), [("png", {}), ("webp", {"lossless": True}), ("bmp", {}), ("tiff", {})])
def test_lossless_rgb(tmp_path: Path, suffix: str, settings: dict[str, Any]) -> None:
    Image.fromarray(RGB).save(tmp_path / f"a.{suffix}", **settings)
    np.testing.assert_array_equal(read_image(tmp_path / f"a.{suffix}"), RGB)


def test_the_contents_decide_the_type_not_the_name(tmp_path: Path) -> None:
    Image.fromarray(smooth_picture()).save(tmp_path / "a.jpg", quality=98)
    (tmp_path / "a.jpg").rename(tmp_path / "a.bmp")
    np.testing.assert_allclose(read_image(tmp_path / "a.bmp").astype(float), smooth_picture(), atol=12)


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    rgba = np.zeros((1, 3, 4), dtype=np.uint8)
    rgba[0] = [[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 128]]
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    np.testing.assert_array_equal(read_image(tmp_path / "rgba.png")[0], [[10, 20, 30], [255] * 3, [127] * 3])
    la = np.array([[[50, 255], [50, 0]]], dtype=np.uint8)
    Image.fromarray(la).save(tmp_path / "la.png")
    np.testing.assert_array_equal(read_image(tmp_path / "la.png")[0], [[50] * 3, [255] * 3])
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 8, 7, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "p.png", transparency=0)
    np.testing.assert_array_equal(read_image(tmp_path / "p.png")[0], [[255] * 3, [200, 100, 50]])


def test_palette_and_grey_pictures(tmp_path: Path) -> None:
    Image.fromarray(RGB[..., 0] // 64 * 64).convert("P").save(tmp_path / "a.gif")
    np.testing.assert_array_equal(read_image(tmp_path / "a.gif")[..., 1], RGB[..., 0] // 64 * 64)
    Image.fromarray(RGB[..., 0]).save(tmp_path / "b.png")
    np.testing.assert_array_equal(read_image(tmp_path / "b.png"), np.repeat(RGB[..., :1], 3, axis=2))
    Image.fromarray(RGB[..., 0] > 128).save(tmp_path / "c.png")
    assert set(np.unique(read_image(tmp_path / "c.png"))) == {0, 255}


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 257, 32896, 65535]], dtype=np.uint16)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png")[0, :, 0], [0, 1, 128, 255])
    Image.fromarray(np.array([[0, 70000]], dtype=np.int32)).save(tmp_path / "b.tiff")
    with pytest.raises(DataError, match="exceed 16 bits"):
        read_image(tmp_path / "b.tiff")
    Image.fromarray(np.array([[0.0, 1.5]], dtype=np.float32)).save(tmp_path / "c.tiff")
    with pytest.raises(DataError, match="floating-point"):
        read_image(tmp_path / "c.tiff")


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.fromarray(smooth_picture()).convert("CMYK").save(tmp_path / "a.jpg", quality=98)
    np.testing.assert_allclose(read_image(tmp_path / "a.jpg").astype(float), smooth_picture(), atol=12)


def test_the_camera_s_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter
    Image.fromarray(smooth_picture(20, 10)).save(tmp_path / "a.jpg", exif=exif, quality=98)
    turned = np.rot90(smooth_picture(20, 10), -1)
    np.testing.assert_allclose(read_image(tmp_path / "a.jpg").astype(float), turned, atol=12)


def test_an_animation_gives_its_first_frame_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue", "green")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    caplog.set_level("INFO")
    assert (read_image(tmp_path / "a.gif") == [255, 0, 0]).all()
    assert "3 frames, the first is taken" in caplog.text


def cut(path: Path, fraction: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])


def truncated(path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(large).save(path)
    cut(path)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.png", truncated, "damaged"),
        ("a.jpg", truncated, "damaged"),
        ("a.webp", truncated, "damaged|not a picture"),
        ("a.gif", truncated, "damaged"),
        ("a.jpg", lambda path: path.write_text("no picture"), "not a picture"),
        ("a.jpg", lambda path: path.write_bytes(b""), "empty"),
        ("a.jpg", lambda path: None, "no such file"),
        ("a.jpg", Path.mkdir, "is a folder"),
    ],
)
def test_bad_pictures_are_named(tmp_path: Path, name: str, make: Callable[[Path], Any], message: str) -> None:
    make(tmp_path / name)
    with pytest.raises(DataError, match=message) as caught:
        read_image(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (300, 300)).save(tmp_path / "a.png")
    for limit in (50_000, 10_000):  # where Pillow warns, and where it refuses
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match="too many pixels"):
            read_image(tmp_path / "a.png")


# --- palettes ------------------------------------------------------------------------------------------------------


def error_of(colours: np.ndarray, pixels: np.ndarray) -> float:
    distances = np.asarray(cKDTree(colours).query(pixels.reshape(-1, 3))[0])
    return float((distances**2).mean())


@pytest.mark.parametrize("k", [40, 600, 3000])
def test_a_palette_is_as_good_as_the_full_fit(k: int) -> None:
    picture = load_sample_image("flower.jpg")[::2, ::2]
    palette = fit_palette(picture, k, stream(1, "palette"))
    full = MiniBatchKMeans(k, n_init="auto", random_state=0).fit(picture.reshape(-1, 3).astype(float))
    assert palette.colours.shape == (k, 3)
    assert error_of(palette.colours, picture) <= 1.02 * error_of(full.cluster_centers_, picture)
    nearest = cKDTree(palette.colours).query(picture.reshape(-1, 3))[0]
    own = np.linalg.norm(palette.colours[palette.labels].reshape(-1, 3) - picture.reshape(-1, 3), axis=1)
    np.testing.assert_allclose(own, nearest, atol=1e-9)
    assert palette.counts.sum() == picture.shape[0] * picture.shape[1]
    assert (np.bincount(palette.labels.ravel(), minlength=k) == palette.counts).all()
    assert palette.counts.min() > 0


def test_palettes_are_seeded() -> None:
    picture = load_sample_image("china.jpg")[::4, ::4]
    one, two, other = (fit_palette(picture, 50, stream(seed, "palette")).colours for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_few_colours_are_kept_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    picture = np.array([[[1, 2, 3], [200, 0, 0], [1, 2, 3]]], dtype=np.uint8)
    palette = fit_palette(picture, 3000, stream(0, "palette"), "tiny.png")
    assert sorted(map(tuple, palette.colours.tolist())) == [(1, 2, 3), (200, 0, 0)]
    assert sorted(palette.counts.tolist()) == [1, 2]
    np.testing.assert_array_equal(palette.colours[palette.labels], picture)
    assert "tiny.png: its palette has the 2 colours that occur" in caplog.text


def test_a_picture_with_large_flat_areas_has_a_full_palette() -> None:
    picture = np.full((300, 300, 3), 255, dtype=np.uint8)
    picture[:80, :80] = np.random.default_rng(0).integers(0, 256, (80, 80, 3))
    palette = fit_palette(picture, 3000, stream(0, "palette"))
    assert palette.colours.shape == (3000, 3)
    assert palette.counts.max() >= 300 * 300 - 80 * 80


# --- the task ------------------------------------------------------------------------------------------------------


def task(photos: Photos, **settings: Any) -> ColorHarmonization:
    return ColorHarmonization(photos, us_mfswb, Slicing(uniform, 5), torch.device("cpu"), torch.float32, 0, **settings)


def pictures(folder: Path, *arrays: np.ndarray) -> list[str]:
    paths = [folder / f"{position}.png" for position in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        write_image(path, array)
    return [str(path) for path in paths]


def harmonise(folder: Path, *overrides: str) -> tuple[dict[str, Any], np.ndarray]:
    arguments = ["task=color", "trainer.eval_steps=[]", *overrides]
    summary = run(compose_config(arguments), folder / "run", arguments)
    return summary, read_image(folder / "run" / "harmonised.png")


def test_a_flat_picture_whose_targets_are_the_same_stays(tmp_path: Path) -> None:
    flat = np.full((4, 5, 3), 40, dtype=np.uint8)
    source, target = pictures(tmp_path, flat, flat)
    summary, result = harmonise(
        tmp_path, "data=images", f"data.source={source}", f"data.targets=[{target}]", "trainer.steps=50"
    )
    np.testing.assert_array_equal(result, flat)
    assert summary["mean_distance"] == 0


def test_one_pixel_moves_between_its_targets(tmp_path: Path) -> None:
    pixels = [np.full((1, 1, 3), value, dtype=np.uint8) for value in (0, 100, 200)]
    source, *targets = pictures(tmp_path, *pixels)
    options = ["trainer.steps=300", "optimizer.lr=0.05", f"data.source={source}", f"data.targets=[{','.join(targets)}]"]
    summary, result = harmonise(tmp_path, "data=images", *options)
    assert abs(int(result[0, 0, 0]) - 150) <= 8
    assert summary["fairness_gap"] < 0.3 * summary["mean_distance"]


@pytest.mark.parametrize("space", ["rgb", "lab"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_run_fills_its_folder(tmp_path: Path, space: str, weighted: bool) -> None:
    paths = pictures(tmp_path, smooth_picture(40, 60), RGB, smooth_picture(9, 9)[..., ::-1].copy())
    own = ["data=images", f"data.source={paths[0]}", f"data.targets=[{paths[1]},{paths[2]}]", "data.n_colours=30"]
    options = [
        f"task.space={space}",
        f"task.weighted={str(weighted).lower()}",
        "trainer.steps=200",
        "optimizer.lr=0.01",
    ]
    summary, result = harmonise(tmp_path, *own, *options)
    assert result.shape == (40, 60, 3)
    shown = ["source.png", "target1.png", "target2.png"]  # small, for reports
    assert summary["files"] == ["support.npy", "palettes.npz", "harmonised.png", "compressed.png", *shown, "color.png"]
    with np.load(tmp_path / "run" / "palettes.npz") as archive:
        assert sorted(archive.files) == ["result", "source", "target1", "target2"]
        assert archive["result"].min() >= 0
        assert archive["result"].max() <= 255
    first = first_distance(tmp_path, paths, space, weighted)
    assert summary["mean_distance"] < first


def first_distance(folder: Path, paths: list[str], space: str, weighted: bool) -> float:
    photos = load_images(paths[0], paths[1:], seed=1, n_colours=30)
    return task(photos, space=space, weighted=weighted).evaluate().mean_distance


def test_the_palette_stays_inside_the_colour_space(tmp_path: Path) -> None:
    dark, bright = np.zeros((3, 3, 3), dtype=np.uint8), np.full((3, 3, 3), 255, dtype=np.uint8)
    paths = pictures(tmp_path, dark, bright, bright)
    problem = task(load_images(paths[0], paths[1:], seed=0))
    with torch.no_grad():
        problem.parameters()[0].add_(1e4)
    problem.project()
    np.testing.assert_allclose(problem.palette(), 255.0, atol=1e-3)


def test_smoothing_adds_back_each_pixel_s_difference(tmp_path: Path) -> None:
    gradient = np.repeat(np.arange(0, 250, dtype=np.uint8)[None, :, None], 3, axis=2)
    paths = pictures(tmp_path, gradient, gradient)
    photos = load_images(paths[0], paths[1:], seed=0, n_colours=8)
    banded, smooth = task(photos).picture(), task(photos, smooth=True).picture()
    assert banded is not None
    assert smooth is not None
    assert len(np.unique(banded)) <= 8
    # nothing has moved yet, so the original comes back, but for rounding
    assert np.abs(smooth.astype(int) - gradient).max() <= 1


def test_weights_are_the_numbers_of_pixels(tmp_path: Path) -> None:
    black_and_white = np.zeros((1, 4, 3), dtype=np.uint8)
    black_and_white[0, 3] = 200
    source, target = pictures(tmp_path, np.zeros((1, 1, 3), dtype=np.uint8), black_and_white)
    photos = load_images(source, [target], seed=0)
    assert task(photos).evaluate().mean_distance == pytest.approx(3 * 200**2 / 2)
    assert task(photos, weighted=True).evaluate().mean_distance == pytest.approx(3 * 200**2 / 4)


def test_palettes_of_one_s_own(tmp_path: Path) -> None:
    colours = {"target10": np.full((3, 3), 10.0), "source": np.zeros((2, 3)), "target2": np.full((3, 3), 2.0)}
    np.savez(tmp_path / "p.npz", allow_pickle=False, **colours, result=np.ones((2, 3)))
    photos = load_images(palettes=str(tmp_path / "p.npz"), seed=0)
    assert photos.names == ("source", "target2", "target10")
    assert [palette.colours.max() for palette in photos.palettes] == [0, 2, 10]
    assert task(photos).picture() is None
    (picture,) = pictures(tmp_path, RGB)
    labelled = load_images(picture, palettes=str(tmp_path / "p.npz"), seed=0)
    assert labelled.palettes[0].labels.shape == RGB.shape[:2]


def test_built_in_photographs_are_real() -> None:
    photos = load_builtin("china", ["hopper"], seed=0, n_colours=10)
    shapes = [picture.shape for picture in photos.pictures if picture is not None]
    assert shapes == [(427, 640, 3), (600, 512, 3)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give data.source=FILE"),
        ({"source": "a.png"}, "give data.source=FILE"),
        ({"source": "a.png", "targets": ["b.png"], "n_colours": 0}, "data.n_colours=0"),
        ({"palettes": "missing.npz"}, "missing.npz: no such file"),
        ({"palettes": "one.npz"}, "expected the arrays"),
        ({"palettes": "range.npz"}, "RGB values from 0 to 255"),
        ({"palettes": "array.npy"}, "not a readable .npz"),
        (
            {"source": "a.png", "targets": ["a.png", "a.png"], "palettes": "good.npz"},
            "2 pictures, but good.npz",
        ),
    ],
)
def test_bad_colour_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "a.png", RGB)
    np.savez("one.npz", source=np.zeros((2, 3)))
    np.savez("good.npz", source=np.zeros((2, 3)), target1=np.zeros((2, 3)))
    np.savez("range.npz", source=np.zeros((2, 3)), target1=np.full((2, 3), 300.0))
    np.save("array.npy", np.zeros((2, 3)))
    with pytest.raises((ConfigError, DataError), match=message):
        load_images(**settings, seed=0)


def test_unknown_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are china, flower, hopper"):
        load_builtin("mona", ["lisa"], seed=0)
    with pytest.raises(ConfigError, match="choose rgb or lab"):
        task(load_builtin("china", ["flower"], seed=0, n_colours=2), space="hsv")


def test_pictures_of_one_name_are_told_apart(tmp_path: Path) -> None:
    options = ["data.source=china", "data.targets=[china,flower]", "data.n_colours=10", "trainer.steps=2"]
    summary, _ = harmonise(tmp_path, *options)
    assert summary["distances"][0] < summary["distances"][1]


def test_another_source_is_not_continued(tmp_path: Path) -> None:
    paths = pictures(tmp_path, RGB, np.ascontiguousarray(RGB[::-1]), RGB // 2)
    first, second = (load_images(source, [paths[2]], seed=0, n_colours=5) for source in paths[:2])
    with pytest.raises(ConfigError, match="source differs"):
        task(second).load_state_dict(task(first).state_dict())


def test_a_failing_picture_leaves_no_output(tmp_path: Path) -> None:
    truncated(tmp_path / "a.jpg")
    arguments = ["task=color", "data=images", f"data.source={tmp_path}/a.jpg", f"data.targets=[{tmp_path}/a.jpg]"]
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"a\.jpg"):
        run(compose_config(arguments), tmp_path / "run", arguments)
    assert not list((tmp_path / "run").glob("*.png"))
