"""The class-fair sliced Wasserstein autoencoder: latents follow a prior, and every class is about as far from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mfswb.adaptive import AdaptiveWeights
from mfswb.autoencoder import (
    PARTS_ON_CPU,
    ConvAutoencoder,
    decode_latents,
    encode_pixels,
    reconstruction_loss,
)
from mfswb.batches import Batches
from mfswb.data.labelled import LabelledImages
from mfswb.errors import ConfigError
from mfswb.files import replacing
from mfswb.latent_metrics import LatentMetrics
from mfswb.losses import is_none
from mfswb.priors import PRIORS
from mfswb.problem import Evaluation
from mfswb.seeding import stream
from mfswb.slicing import Slicing
from mfswb.tasks.free_support import Loss
from mfswb.trained import TrainedAutoencoder
from mfswb.wasserstein import sliced_costs

log = logging.getLogger(__name__)

_DRAWN_PRIOR, _SHOWN_SAMPLES, _SHOWN_PICTURES = 2000, 100, 20


class SlicedWassersteinAutoencoder:
    r"""An inverse barycenter problem: the prior ``mu_0`` is fixed, the marginals (latents of each class) are learnt.

    ``E[c(x, g(f(x)))] + kappa_1 SW_2^2(mu_0, f#X) + kappa_2 B(mu_0; f#X_1, ..., f#X_K)`` with encoder ``f``, decoder
    ``g``, ``c`` the binary cross-entropy plus the absolute difference (means over pixels), and ``B`` the loss. Both
    sliced terms see the same directions and the same prior sample, as large as the batch, so one cost matrix has them.

    Args:
        data: pictures with classes.
        loss: the fairness term, a reduction of the classes' cost matrix; :func:`mfswb.losses.none` for the plain
            autoencoder.
        slicing: directions of each step.
        device: where to compute.
        dtype: floating-point type of the network.
        seed: seeds the weights, the order of the pictures and the samples of an evaluation.
        kappa_1: weight of the distance of all latents from the prior.
        kappa_2: weight of the fairness term.
        latent_dim: numbers a picture is encoded to.
        prior: ``circle``, ``disk``, ``ring``, ``square`` or ``normal``; see :mod:`mfswb.priors`.
        batch_size: pictures a step.
        balanced: see :class:`mfswb.batches.Batches`.
        autocast: let the network compute in bfloat16; None does so on CUDA in float32 runs.
        eval_images: test pictures of an evaluation, seeded; None takes all.
        prior_draws: prior samples that an evaluation's distances are averaged over.

    Raises:
        ConfigError: settings that do not exist.

    Source: Nguyen, Nguyen and Ho, ICLR 2025 (sliced Wasserstein autoencoder with class-fair representation).
    """

    def __init__(
        self,
        data: LabelledImages,
        loss: Loss,
        slicing: Slicing,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        *,
        kappa_1: float = 8.0,
        kappa_2: float = 0.5,
        latent_dim: int = 2,
        prior: str = "circle",
        batch_size: int = 1000,
        balanced: bool = False,
        autocast: bool | None = None,
        eval_images: int | None = 2000,
        prior_draws: int = 5,
    ) -> None:
        if not isinstance(data, LabelledImages):
            raise ConfigError(
                "data: this task learns from pictures with classes: choose data=mnist, digits, fashion, idx or folder"
            )
        for name, value in (("kappa_1", kappa_1), ("kappa_2", kappa_2)):
            if not 0 <= value < float("inf"):
                raise ConfigError(f"task.{name}={value}: a weight must be finite and not negative")
        if latent_dim < 1:
            raise ConfigError(f"task.latent_dim={latent_dim}: at least one number is needed")
        if prior not in PRIORS:
            raise ConfigError(f"task.prior={prior}: choose {', '.join(PRIORS)}")
        if autocast and dtype != torch.float32:
            raise ConfigError("task.autocast=true: bfloat16 goes with trainer.dtype=float32 only")
        self.data, self.prior, self.seed = data, prior, seed
        self._loss, self._slicing = loss, slicing
        if isinstance(loss, AdaptiveWeights):
            loss.bind(len(data.classes))
        self._plain = is_none(loss) or kappa_2 == 0
        self._kappas = (kappa_1, kappa_2)
        self._device, self._dtype = device, dtype
        self._autocast = device.type == "cuda" and dtype == torch.float32 if autocast is None else autocast
        if self._autocast and device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            log.warning("task.autocast: this CPU has no bfloat16 instructions; it will be slower than without")
        slicing.directions(latent_dim, torch.Generator(), dtype, torch.device("cpu"))  # refuses what it cannot slice
        weights = torch.Generator().manual_seed(seed)
        network = ConvAutoencoder(*data.shape, latent_dim, weights)
        # PyTorch takes a memory format here, but declares no overload with one.
        self.network = network.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._batches = Batches(data.train.labels, batch_size, seed, balanced=balanced)
        # In 8 bits the whole set fits on the device, so no step waits for pictures.
        self._images = torch.from_numpy(data.train.images).to(device)
        self._metrics = LatentMetrics(data, prior, latent_dim, eval_images, prior_draws, seed)
        self._step = 0
        self._missing = 0
        log.info(
            "%s: %d images of %s to learn from, %d to test on, %d classes, batches of %d",
            data.name,
            len(data.train),
            " x ".join(map(str, data.shape)),
            len(data.test),
            len(data.classes),
            self._batches.batch_size,
        )

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which every picture is seen once, on average."""
        return self._batches.n / self._batches.batch_size

    def parameters(self) -> list[Tensor]:
        """Weights of encoder and decoder."""
        return list(self.network.parameters())

    def gradients(self, generator: torch.Generator) -> Tensor:
        """The objective of :meth:`loss`, its gradient left in the network's parameters."""
        loss = self.loss(generator)
        torch.autograd.backward(loss)
        return loss.detach()

    def loss(self, generator: torch.Generator) -> Tensor:
        """Objective on the next batch, with fresh directions and a fresh sample of the prior."""
        # By class, so that the latents of a class are one slice, and their numbers are known without asking the device.
        positions = self._batches.at(self._step)
        labels = self.data.train.labels[positions]
        order = np.argsort(labels, kind="stable")
        sizes = [int(size) for size in np.bincount(labels, minlength=len(self.data.classes))]
        self._count_missing(sizes)
        images = self._as_input(self._images[self._sent(torch.from_numpy(positions[order]))])
        latents, error = self._reconstruct(images)

        theta = self._slicing.directions(latents.shape[1], generator, self._dtype, self._device)
        sample = self._sent(PRIORS[self.prior](len(latents), latents.shape[1], generator)).to(self._dtype)
        classes = [] if self._plain else [part for part in torch.split(latents, sizes) if len(part)]
        costs = sliced_costs(sample, [latents, *classes], theta, chunk=self._slicing.chunk)  # (1 + K, L)
        kappa_1, kappa_2 = self._kappas
        total = error + kappa_1 * costs[0].mean()
        if not self._plain:
            total = total + kappa_2 * self._loss(costs[1:])
        self._step += 1
        return total

    def project(self) -> None:
        """Weights are free."""

    def evaluate(self) -> Evaluation:
        """The figures of the paper's table, on seeded samples of the test set and the prior."""
        found = self._metrics.evaluate(self.encode, self.decode)
        found.extra.update(epoch=round(self._step / self.steps_per_epoch, 4), missing_classes=self._missing)
        if isinstance(self._loss, AdaptiveWeights):
            found.extra.update(self._loss.report(found.fairness_gap))
        return found

    def close(self) -> None:
        """End what runs beside this process."""
        self._metrics.close()

    def state_dict(self) -> dict[str, Any]:
        """The weights, where in the data the run is, a fingerprint of the data, and what a loss that adapts keeps."""
        network = {name: value.detach() for name, value in self.network.state_dict().items()}
        state: dict[str, Any] = {"network": network, "step": self._step, "missing": self._missing}
        state["data"] = self.data.fingerprint
        if isinstance(self._loss, AdaptiveWeights):
            state["loss"] = self._loss.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved weights.

        Raises:
            ConfigError: they were learnt from other data.
        """
        if state.get("data") != self.data.fingerprint:
            raise ConfigError("trainer.resume: the data differ from those of the checkpoint; start a new run instead")
        self.network.load_state_dict(state["network"])
        self._step, self._missing = int(state["step"]), int(state["missing"])
        if isinstance(self._loss, AdaptiveWeights):
            self._loss.load_state_dict(state["loss"])

    def encode(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Latents ``(n, latent_dim)`` of 8-bit pictures ``(n, channels, height, width)``."""
        return encode_pixels(self.network, images, autocast=self._autocast)

    def decode(self, latents: NDArray[np.floating]) -> NDArray[np.float32]:
        """Pictures ``(n, channels, height, width)`` with values from 0 to 1."""
        return decode_latents(self.network, latents, autocast=self._autocast)

    def save(self, folder: Path, row: Mapping[str, Any]) -> list[Path]:
        """Write the model, the latents of the test set and four figures; returns the paths."""
        from mfswb.report import autoencoder_figures as figures

        test = self.data.test
        latents = self.encode(test.images)
        trained = TrainedAutoencoder(self.network, self.prior, self.data.classes, latents, test.labels)
        paths = trained.save(folder)
        rng = torch.Generator().manual_seed(int(stream(self.seed, "figures").integers(2**62)))
        sample = PRIORS[self.prior](_DRAWN_PRIOR, latents.shape[1], rng).numpy()
        shown = _spread(test.labels, _SHOWN_PICTURES)
        made = self.decode(latents[shown])
        pictures: dict[str, NDArray[np.floating]] = {
            "originals": test.images[shown] / 255.0,
            "reconstructions": made,
            "samples": self.decode(sample[:_SHOWN_SAMPLES]),
        }
        paths.append(folder / "pictures.npz")
        with replacing(paths[-1]) as temporary:
            in_bytes = {name: np.rint(255 * values).astype(np.uint8) for name, values in pictures.items()}
            np.savez(temporary, allow_pickle=False, prior=sample, **in_bytes)
        title = f"F = {row['fairness_gap']:.4g}, W = {row['mean_distance']:.4g}"
        figures.latent_figure(folder / "latents.png", latents, test.labels, self.data.classes, sample, title)
        figures.reconstruction_figure(folder / "reconstructions.png", pictures["originals"], made)
        figures.sample_figure(folder / "samples.png", pictures["samples"])
        figures.class_figure(folder / "classes.png", self.data.classes, row["distances"], title)
        return [*paths, *(folder / f"{name}.png" for name in ("latents", "reconstructions", "samples", "classes"))]

    def _reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Latents ``(n, latent_dim)`` and the reconstruction term, through the network part by part."""
        together = PARTS_ON_CPU if self._device.type == "cpu" else len(images)
        latents: list[Tensor] = []
        error = images.new_zeros(())
        for part in torch.split(images, together):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                found = self.network.encode(part)
                logits = self.network.logits(found)
            latents.append(found.to(self._dtype))
            logits = logits.to(self._dtype)
            share = reconstruction_loss(logits, part) + (torch.sigmoid(logits) - part).abs().mean()
            error = error + share * (len(part) / len(images))
        return torch.cat(latents), error

    def _as_input(self, pixels: Tensor) -> Tensor:
        return (pixels.to(self._dtype) / 255).contiguous(memory_format=torch.channels_last)

    def _sent(self, values: Tensor) -> Tensor:
        # From pinned memory a copy does not wait for what the device is doing.
        return values if self._device.type == "cpu" else values.pin_memory().to(self._device, non_blocking=True)

    def _count_missing(self, sizes: list[int]) -> None:
        missing = sizes.count(0)
        if missing and not self._missing:
            names = [name for name, size in zip(self.data.classes, sizes, strict=True) if not size]
            log.warning(
                "step %d: no picture of class %s in the batch; classes that are missing are left out of that step and "
                "counted as missing_classes",
                self._step + 1,
                ", ".join(names),
            )
        self._missing += missing


def _spread(labels: NDArray[np.int64], count: int) -> NDArray[np.intp]:
    """Positions of pictures to show: of each class in turn, until there are enough."""
    turn = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = labels == label
        turn[members] = np.arange(members.sum())
    return np.sort(np.lexsort((labels, turn))[:count])
