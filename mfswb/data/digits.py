"""Scikit-learn's handwritten digits: real, small, and at hand without a network."""

from __future__ import annotations

import numpy as np
from PIL import Image

from mfswb.data.labelled import LabelledImages, split
from mfswb.errors import ConfigError
from mfswb.seeding import stream


def load_digits(size: int = 28, test_fraction: float = 0.2, *, seed: int = 0) -> LabelledImages:
    """The 1797 digits of 8 x 8 pixels, resized.

    Args:
        size: side of the resized pictures (bicubic), a multiple of 4.
        test_fraction: share of every class that is set aside for testing.
        seed: seeds what is set aside.

    Raises:
        ConfigError: a size below 4.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI; as shipped by scikit-learn.

    Example:
        >>> digits = load_digits()
        >>> digits.shape, len(digits.train), len(digits.test), digits.classes[3]
        ((1, 28, 28), 1438, 359, '3')
    """
    from sklearn.datasets import load_digits as shipped

    if size < 4:
        raise ConfigError(f"data.size={size}: give a multiple of 4, such as 28")
    pixels, labels = shipped(return_X_y=True)
    small = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # as shipped from 0 to 16
    images = np.stack(
        [np.asarray(Image.fromarray(each).resize((size, size), Image.Resampling.BICUBIC)) for each in small]
    )
    train, test = split(labels, test_fraction, stream(seed, "test images"))
    return LabelledImages.of(
        (images[train], labels[train]), (images[test], labels[test]), "digits", tuple("0123456789")
    )
