"""MNIST and Fashion-MNIST: from a folder of the user's, or fetched once from public mirrors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mfswb.data.download import cache_folder, fetch
from mfswb.data.idx import read_images, read_labels
from mfswb.data.labelled import LabelledImages
from mfswb.errors import DataError

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
FILES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


@dataclass(frozen=True)
class _Source:
    """Where a data set can be had: addresses of the mirrors and a checksum a file."""

    name: str
    mirrors: tuple[str, ...]
    checksums: dict[str, str]
    of_contents: bool  # whether checksums are of the unpacked files: mirrors may compress differently
    classes: tuple[str, ...]


_MNIST = _Source(
    "MNIST",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {
        TRAIN_IMAGES: "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        TRAIN_LABELS: "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        TEST_IMAGES: "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        TEST_LABELS: "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    True,
    tuple("0123456789"),
)
_FASHION = _Source(
    "Fashion-MNIST",
    (
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    {
        TRAIN_IMAGES: "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        TRAIN_LABELS: "md5:25c81989df183df01b3e8a0aad5dffbe",
        TEST_IMAGES: "md5:bef4ecab320f06d8554ea6380940ec79",
        TEST_LABELS: "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
    False,
    ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
)


def load_mnist(dir: str | None = None) -> LabelledImages:
    """Handwritten digits: 60,000 pictures of 28 x 28 to learn from, 10,000 to test on.

    Args:
        dir: folder with the four files, compressed or not; what it lacks is fetched into the user's cache folder.

    Raises:
        DataError: files that cannot be had or read.
    """
    return _load(_MNIST, dir)


def load_fashion(dir: str | None = None) -> LabelledImages:
    """Fashion-MNIST: clothes in ten classes, in files of the same names and format as MNIST's.

    Args:
        dir: see :func:`load_mnist`.

    Raises:
        DataError: files that cannot be had or read.
    """
    return _load(_FASHION, dir)


def _load(source: _Source, folder: str | None) -> LabelledImages:
    if folder is not None and not Path(folder).is_dir():
        raise DataError(f"data.dir={folder}: no such folder (looked from {Path.cwd()})")
    paths = {file: _find(source, folder, file) for file in FILES}
    parts = []
    for images, labels in ((TRAIN_IMAGES, TRAIN_LABELS), (TEST_IMAGES, TEST_LABELS)):
        pictures, numbers = read_images(paths[images]), read_labels(paths[labels])
        if len(pictures) != len(numbers):
            raise DataError(f"{paths[images]}: holds {len(pictures)} images, but {paths[labels]} {len(numbers)} labels")
        parts.append((pictures, numbers))
    return LabelledImages.of(parts[0], parts[1], source.name, source.classes)


def _find(source: _Source, folder: str | None, file: str) -> Path:
    if folder is not None:
        for name in (file, file.removesuffix(".gz")):
            if (Path(folder) / name).is_file():
                return Path(folder) / name
    cache = source.name.lower()
    where = folder if folder is not None else cache_folder() / cache
    return fetch(
        [mirror + file for mirror in source.mirrors],
        source.checksums[file],
        f"{cache}/{file}",
        f"put {', '.join(FILES)} into {where} and give data.dir={where}, or use data=digits, which needs no network",
        of_contents=source.of_contents,
    )
