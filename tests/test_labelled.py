"""Pictures with classes: IDX files right and wrong, MNIST's four files, folders of pictures, digits."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mfswb.data.class_folders import load_folder
from mfswb.data.digits import load_digits
from mfswb.data.idx import load_idx, read_images, read_labels
from mfswb.data.labelled import LabelledImages, split
from mfswb.data.mnist import FILES, load_fashion, load_mnist
from mfswb.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (40, 8, 12), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 4


def idx_images(images: NDArray[np.uint8]) -> bytes:
    return struct.pack(">IIII", 0x803, *images.shape) + images.tobytes()


def idx_labels(labels: NDArray[np.uint8]) -> bytes:
    return struct.pack(">II", 0x801, len(labels)) + labels.tobytes()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "images").write_bytes(idx_images(PICTURES))
    (tmp_path / "labels").write_bytes(idx_labels(LABELS))
    (tmp_path / "images.gz").write_bytes(gzip.compress(idx_images(PICTURES)))
    (tmp_path / "labels.gz").write_bytes(gzip.compress(idx_labels(LABELS)))
    return tmp_path


def mnist_like(folder: Path, packed: bool = True) -> None:
    contents = [idx_images(PICTURES), idx_labels(LABELS), idx_images(PICTURES[:8]), idx_labels(LABELS[:8])]
    for name, content in zip(FILES, contents, strict=True):
        path = folder / (name if packed else name.removesuffix(".gz"))
        path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_read_packed_or_not(files: Path, suffix: str) -> None:
    np.testing.assert_array_equal(read_images(files / f"images{suffix}"), PICTURES)
    np.testing.assert_array_equal(read_labels(files / f"labels{suffix}"), LABELS)
    assert read_images(files / f"images{suffix}").flags.writeable  # PyTorch warns of others


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00\x00", "expected an IDX file of images, found 2 bytes"),
        (gzip.compress(idx_images(PICTURES))[:-900], "the compressed file is cut off after"),
        (gzip.compress(idx_images(PICTURES))[:300] + b"x" * 200 + gzip.compress(b"")[-8:], "the compressed file is"),
        (
            idx_labels(LABELS),
            r"expected .* images \(magic number 0x00000803\), found labels \(magic number 0x00000801\)",
        ),
        (b"\x89PNG\r\n", "found the magic number 0x89504e47"),
        (idx_images(PICTURES)[:10], "expected a header of 16 bytes, the file ends after 10"),
        (idx_images(PICTURES)[:-5], r"its header promises 40 x 8 x 12 = 3840 bytes of images, found 3835"),
        (idx_images(PICTURES) + b"more", r"promises 40 x 8 x 12 = 3840 bytes of images, found 3844"),
        (struct.pack(">IIII", 0x803, *[2**32 - 1] * 3), "bytes of images, found 0"),
    ],
)
def test_wrong_idx_files_say_what_was_expected_and_found(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "wrong").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_images(tmp_path / "wrong")
    assert str(caught.value).startswith(str(tmp_path / "wrong"))
    assert "\n" not in str(caught.value)


def test_images_in_the_place_of_labels_are_named(files: Path) -> None:
    with pytest.raises(DataError, match=r"expected an IDX file of labels .* found images"):
        read_labels(files / "images")


def test_numbers_that_differ_are_named(files: Path) -> None:
    (files / "four").write_bytes(idx_images(PICTURES[:4]))
    (files / "three").write_bytes(idx_labels(LABELS[:3]))
    with pytest.raises(DataError, match=r"four: holds 4 images, but .*three 3 labels"):
        load_idx(str(files / "four"), str(files / "three"))
    with pytest.raises(DataError, match=r"four: holds 4 images, but .*three 3 labels"):
        load_idx(str(files / "images"), str(files / "labels"), str(files / "four"), str(files / "three"))
    with pytest.raises(DataError, match="give both"):
        load_idx(str(files / "images"), str(files / "labels"), test_images=str(files / "four"))


def test_own_idx_files(files: Path) -> None:
    data = load_idx(str(files / "images.gz"), str(files / "labels"), test_fraction=0.2)
    assert data.shape == (1, 8, 12)
    assert (len(data.train), len(data.test)) == (32, 8)
    assert data.classes == ("0", "1", "2", "3")
    assert np.bincount(data.test.labels).tolist() == [2, 2, 2, 2]
    both = sorted(picture.tobytes() for part in (data.train, data.test) for picture in part.images)
    assert both == sorted(picture.tobytes() for picture in PICTURES)
    given = load_idx(*(str(files / name) for name in ("images", "labels", "images", "labels")))
    assert len(given.test) == len(given.train) == 40
    assert given.fingerprint != data.fingerprint


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_a_folder(tmp_path: Path, packed: bool) -> None:
    mnist_like(tmp_path, packed)
    for load in (load_mnist, load_fashion):
        data = load(str(tmp_path))
        np.testing.assert_array_equal(data.train.images[:, 0], PICTURES)
        assert len(data.test) == 8
    assert data.classes == ("T-shirt", "trousers", "pullover", "dress")


def test_mnist_without_files_or_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy"):  # nobody listens there, so no address can be reached
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(DataError) as caught:
        load_mnist(str(tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    for text in (*FILES, str(tmp_path), "data=digits", "could not be fetched"):
        assert text in message
    with pytest.raises(DataError, match=r"data\.dir=nowhere: no such folder"):
        load_mnist("nowhere")


def test_real_mnist(mnist: Path) -> None:
    data = load_mnist(str(mnist))
    assert (len(data.train), len(data.test), data.shape) == (60_000, 10_000, (1, 28, 28))
    assert np.bincount(data.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_digits_are_upright_and_split_by_class() -> None:
    data = load_digits()
    assert len(data.train) + len(data.test) == 1797
    assert data.train.images.max() > 250
    zero = data.train.images[data.train.labels == 0].mean(axis=0)[0]
    assert zero[12:16, 12:16].mean() < 0.2 * zero.max()  # a hole in the middle
    share = np.bincount(data.test.labels) / np.bincount(np.concatenate([data.train.labels, data.test.labels]))
    np.testing.assert_allclose(share, 0.2, atol=0.01)
    assert load_digits(size=8).shape == (1, 8, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in [("cat", (200, 10, 10)), ("dog", (90, 90, 90))]:
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(5):
            Image.new("RGB", (12, 8), tuple(c + k for c in colour)).save(tmp_path / "pets" / name / f"{k}.png")
    (tmp_path / "pets" / "notes").mkdir()
    (tmp_path / "pets" / "read.me").write_text("not a picture")
    return tmp_path / "pets"


def test_a_folder_of_pictures(folder: Path) -> None:
    data = load_folder(str(folder))
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 8, 12)
    assert (len(data.train), len(data.test)) == (8, 2)
    reds = data.train.images[data.train.labels == 0]
    assert set(reds[:, 0].ravel().tolist()) <= set(range(200, 205))
    grey = load_folder(str(folder), channels=1, size=[16, 4])
    assert grey.shape == (1, 16, 4)
    value = round(0.299 * 200 + 0.587 * 10 + 0.114 * 10)
    assert abs(int(grey.train.images[grey.train.labels == 0].min()) - value) <= 5


def test_grey_pictures_have_one_channel(folder: Path) -> None:
    for file in (folder / "cat").iterdir():
        file.unlink()
    Image.new("L", (12, 8), 7).save(folder / "cat" / "0.png")
    Image.new("L", (12, 8), 9).save(folder / "cat" / "1.png")
    assert load_folder(str(folder)).shape == (1, 8, 12)


def test_wrong_folders_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_folder(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match="one subfolder a class"):
        load_folder(str(folder / "notes"))
    with pytest.raises(ConfigError, match=r"data\.channels=2"):
        load_folder(str(folder), channels=2)
    with pytest.raises(ConfigError, match=r"data\.size=\[8\]"):
        load_folder(str(folder), size=[8])
    Image.new("RGB", (9, 8)).save(folder / "dog" / "odd.png")
    with pytest.raises(DataError, match=r"odd\.png: is 8 x 9 .* data\.size"):
        load_folder(str(folder))
    (folder / "dog" / "odd.png").write_bytes((folder / "dog" / "0.png").read_bytes()[:45])
    with pytest.raises(DataError, match=r"odd\.png: the picture is damaged"):
        load_folder(str(folder))
    for k in range(1, 5):
        (folder / "cat" / f"{k}.png").unlink()
    (folder / "dog" / "odd.png").unlink()
    with pytest.raises(DataError, match="cat: has one picture only"):
        load_folder(str(folder))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ((PICTURES, LABELS[:3]), (PICTURES, LABELS), "40 training images, but 3 labels"),
        (
            (PICTURES, LABELS),
            (PICTURES[:, :4], LABELS),
            "images are 1 x 8 x 12, but the test images 1 x 4 x 12",
        ),
        ((PICTURES, LABELS), (PICTURES, LABELS * 0), "the test images have none of class 1"),
        ((PICTURES, LABELS * 0), (PICTURES, LABELS), "the training images have none of class 1"),
        ((PICTURES[:0], LABELS[:0]), (PICTURES, LABELS), "there are no training images"),
        ((PICTURES / 255, LABELS), (PICTURES, LABELS), "expected training images of 8 bits, got float64"),
        ((PICTURES, LABELS / 2), (PICTURES, LABELS), "expected one whole number a label"),
    ],
)
def test_sets_that_do_not_fit_are_named(
    train: tuple[NDArray[np.uint8], NDArray[np.uint8]], test: tuple[NDArray[np.uint8], NDArray[np.uint8]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        LabelledImages.of(train, test, "mine")


def test_labels_may_be_any_numbers() -> None:
    data = LabelledImages.of((PICTURES, LABELS.astype(int) * 5 - 7), (PICTURES, LABELS.astype(int) * 5 - 7), "mine")
    assert data.classes == ("-7", "-2", "3", "8")
    np.testing.assert_array_equal(data.train.labels, LABELS)
    with pytest.raises(DataError, match="labels from 0 to 2 are expected, found 0 to 3"):
        LabelledImages.of((PICTURES, LABELS), (PICTURES, LABELS), "mine", ["a", "b", "c"])


def test_the_split_keeps_every_class_on_both_sides() -> None:
    labels = np.array([0] * 50 + [1] * 2 + [2] * 3)
    train, test = split(labels, 0.1, np.random.default_rng(0))
    assert sorted([*train, *test]) == list(range(55))
    assert np.bincount(labels[test]).tolist() == [5, 1, 1]
    with pytest.raises(DataError, match="class 9: has one image only"):
        split(np.array([0, 0, 9]), 0.5, np.random.default_rng(0))
    with pytest.raises(DataError, match="there are no images"):
        split(np.array([], dtype=np.int64), 0.5, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"test_fraction=1\.5"):
        split(labels, 1.5, np.random.default_rng(0))


def test_a_small_file_of_gigabytes_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mfswb.data.idx._LARGEST_UNPACKED", 1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(DataError, match=r"bomb\.gz: unpacks to more than 1 MiB"):
        read_images(tmp_path / "bomb.gz")
