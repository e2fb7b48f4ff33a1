"""How good an autoencoder is: the figures of the paper's table, by exact transport on seeded samples."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mfswb.data.labelled import LabelledImages
from mfswb.errors import ConfigError
from mfswb.metrics import fairness_gap, mean_distance, wasserstein2_squared
from mfswb.priors import PRIORS
from mfswb.problem import Evaluation
from mfswb.seeding import stream
from mfswb.transport_worker import TransportSolver

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]


class LatentMetrics:
    """Evaluations of an autoencoder on one fixed sample of the test set and fixed samples of the prior.

    Args:
        data: pictures with classes; the test part is measured on.
        prior: name of the prior.
        latent_dim: dimension of the latents.
        n_images: test pictures taken, seeded, with the same share of every class; None takes all. The prior samples
            and the generated pictures are as many.
        prior_draws: independent prior samples; figures are means over them.
        seed: seeds the samples, which are the same at every evaluation.

    Raises:
        ConfigError: no images or draws, or fewer images than classes.
    """

    def __init__(
        self, data: LabelledImages, prior: str, latent_dim: int, n_images: int | None, prior_draws: int, seed: int
    ) -> None:
        if n_images is not None and n_images < len(data.classes):
            raise ConfigError(f"task.eval_images={n_images}: {len(data.classes)} classes need as many at least")
        if prior_draws < 1:
            raise ConfigError(f"task.prior_draws={prior_draws}: at least one is needed")
        positions = _sample(data.test.labels, n_images, seed)
        self.images, self.labels = data.test.images[positions], data.test.labels[positions]
        self._members = [self.labels == k for k in range(len(data.classes))]
        rng = torch.Generator().manual_seed(int(stream(seed, "prior draws").integers(2**62)))
        n = len(positions)
        self.priors = [PRIORS[prior](n, latent_dim, rng).double().numpy() for _ in range(prior_draws)]
        self._solver = TransportSolver(n, [n] * prior_draws)

    def evaluate(self, encode: Callable[[NDArray[np.uint8]], Floats], decode: Callable[[Floats], Floats]) -> Evaluation:
        """Measure an encoder and a decoder.

        Returns:
            ``distances``: W_2^2 of each class's latents to the prior; ``fairness_gap`` and ``mean_distance`` of them;
            in ``extra``: ``reconstruction_loss`` (binary cross-entropy of the reconstruction against the picture, mean
            over pixels, in nats), ``latent_distance`` (W_2^2 of all latents to the prior), ``generated_distance``
            (W_2^2 of decoded prior samples to the test pictures as vectors of values from 0 to 1), each distance a mean
            over prior draws with its standard deviation under ``..._std``; and the sizes of the samples.
        """
        latents = encode(self.images)
        pictures = self.images.reshape(len(self.images), -1) / 255.0
        error = _cross_entropy(decode(latents), self.images)
        own = latents.astype(np.float64)
        to_prior = self._solver.distances((own, None), [(prior, None) for prior in self.priors])
        generated = [decode(prior.astype(np.float32)).reshape(len(pictures), -1) for prior in self.priors]
        to_pictures = self._solver.distances((pictures, None), [(each.astype(np.float64), None) for each in generated])
        by_class = np.array(
            [[wasserstein2_squared(own[members], prior) for members in self._members] for prior in self.priors]
        )
        gaps, means = [fairness_gap(row) for row in by_class], [mean_distance(row) for row in by_class]
        extra: dict[str, Any] = {
            "fairness_gap_std": _deviation(gaps),
            "mean_distance_std": _deviation(means),
            "reconstruction_loss": error,
            "latent_distance": float(np.mean(to_prior)),
            "latent_distance_std": _deviation(to_prior),
            "generated_distance": float(np.mean(to_pictures)),
            "generated_distance_std": _deviation(to_pictures),
            "eval_images": len(pictures),
            "prior_draws": len(self.priors),
        }
        distances = [float(value) for value in by_class.mean(axis=0)]
        return Evaluation(distances, float(np.mean(gaps)), float(np.mean(means)), extra)

    def close(self) -> None:
        """End what runs beside this process."""
        self._solver.close()


def _sample(labels: NDArray[np.int64], n: int | None, seed: int) -> NDArray[np.intp]:
    """Positions of a stratified sample: every class's share is that of the whole, and at least one."""
    if n is None or n >= len(labels):
        return np.arange(len(labels))
    rng = stream(seed, "test sample")
    counts = np.bincount(labels)
    # Largest remainders: shares rounded down, what is left goes to those that lost most.
    exact = n * counts / len(labels)
    sizes = np.maximum(np.floor(exact).astype(int), 1)
    for k in np.argsort(sizes - exact, kind="stable")[: max(0, n - int(sizes.sum()))]:
        sizes[k] += 1
    chosen = [rng.permutation(np.flatnonzero(labels == k))[:size] for k, size in enumerate(sizes)]
    return np.sort(np.concatenate(chosen))


def _cross_entropy(reconstructions: Floats, images: NDArray[np.uint8]) -> float:
    total = 0.0
    for made, given in zip(np.array_split(reconstructions, 10), np.array_split(images, 10), strict=True):
        x, y = torch.from_numpy(given) / 255, torch.from_numpy(made)
        total += float(torch.nn.functional.binary_cross_entropy(y.double(), x.double(), reduction="sum"))
    return total / images.size


def _deviation(values: list[float]) -> float:
    """Standard deviation of one value about their mean (n - 1 in the denominator); 0 for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
