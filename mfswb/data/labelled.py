"""Pictures with classes, in a training and a test part: what the autoencoder learns from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mfswb.errors import DataError

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ImageSet:
    """Pictures ``(n, channels, height, width)`` of 8 bits, and the number of each one's class ``(n,)``."""

    images: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class LabelledImages:
    """A training and a test set with the same classes; validated at the door.

    Attributes:
        train: what is learnt from.
        test: what is measured on.
        classes: names of the classes, in the order of their numbers.
        name: of the data set, for logs and figures.
    """

    train: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    name: str

    @classmethod
    def of(
        cls,
        train: tuple[NDArray[np.uint8], Sequence[int] | NDArray[np.integer]],
        test: tuple[NDArray[np.uint8], Sequence[int] | NDArray[np.integer]],
        name: str,
        classes: Sequence[str] | None = None,
    ) -> LabelledImages:
        """Validate pictures and number their classes from 0 on.

        Args:
            train: pictures ``(n, height, width)`` or ``(n, channels, height, width)`` in 8 bits, and their labels.
            test: likewise.
            name: of the data set.
            classes: names for the labels 0, 1, ...; the labels themselves by default.

        Raises:
            DataError: no pictures, numbers of pictures and labels that differ, other shapes in the test set, or a
                class that one of the two parts lacks.
        """
        parts = {"training": _checked(name, "training", *train), "test": _checked(name, "test", *test)}
        shapes = {part: images.shape[1:] for part, (images, _) in parts.items()}
        if shapes["training"] != shapes["test"]:
            raise DataError(
                f"{name}: the training images are {_shape(shapes['training'])}, but the test images "
                f"{_shape(shapes['test'])}"
            )
        present = {part: set(labels.tolist()) for part, (_, labels) in parts.items()}
        for part, other in (("training", "test"), ("test", "training")):
            lacking = sorted(present[other] - present[part])
            if lacking:
                raise DataError(f"{name}: the {part} images have none of class {lacking[0]}, the {other} images do")
        known = sorted(present["training"])
        numbered = [ImageSet(images, np.searchsorted(known, labels)) for images, labels in parts.values()]
        if classes is not None and not (known[0] >= 0 and known[-1] < len(classes)):
            raise DataError(
                f"{name}: labels from 0 to {len(classes) - 1} are expected, found {known[0]} to {known[-1]}"
            )
        names = [str(label) if classes is None else classes[label] for label in known]
        return cls(numbered[0], numbered[1], tuple(names), name)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of pictures and labels: tells whether a checkpoint belongs to these data."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            digest.update(repr(part.images.shape).encode())
            digest.update(np.ascontiguousarray(part.images).data)
            digest.update(np.ascontiguousarray(part.labels).data)
        return digest.hexdigest()[:16]


def split(labels: Labels, test_fraction: float, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of a training and a test part with the same share of every class, each class in both.

    Raises:
        DataError: a class of one picture only, or a fraction that is none.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"data.test_fraction={test_fraction}: give a fraction between 0 and 1")
    if not len(labels):
        raise DataError("there are no images")
    train: list[NDArray[np.intp]] = []
    test: list[NDArray[np.intp]] = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < 2:
            raise DataError(f"class {label}: has one image only, but one for training and one for testing are needed")
        n_test = min(max(1, round(test_fraction * len(members))), len(members) - 1)
        test.append(members[:n_test])
        train.append(members[n_test:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _checked(
    name: str, part: str, images: NDArray[np.uint8], labels: Sequence[int] | NDArray[np.integer]
) -> tuple[Pixels, Labels]:
    pixels, numbers = np.asarray(images), np.asarray(labels)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise DataError(f"{name}: expected {part} images of 8 bits, got {pixels.dtype} of shape {pixels.shape}")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"{name}: expected one whole number a label, got {numbers.dtype} of shape {numbers.shape}")
    if len(pixels) != len(numbers):
        raise DataError(f"{name}: {len(pixels)} {part} images, but {len(numbers)} labels")
    if not len(pixels):
        raise DataError(f"{name}: there are no {part} images")
    return np.ascontiguousarray(pixels), numbers.astype(np.int64)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
