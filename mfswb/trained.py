"""A trained autoencoder, apart from its training: encode pictures, decode latents, sample new pictures."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mfswb.autoencoder import ConvAutoencoder, decode_latents, encode_pixels
from mfswb.data.arrays import read_archive
from mfswb.errors import ConfigError, DataError, first_line
from mfswb.files import replacing, write_json
from mfswb.priors import PRIORS

MODEL, DESCRIPTION, LATENTS = "model.pt", "model.json", "latents.npz"


@dataclass(frozen=True)
class TrainedAutoencoder:
    """A network with what is needed to use it.

    Attributes:
        network: encoder and decoder.
        prior: name of the prior its latents follow.
        classes: names of the classes.
        latents: of the test set, ``(n, latent_dim)``.
        labels: class of each, from 0 on, ``(n,)``.
    """

    network: ConvAutoencoder
    prior: str
    classes: tuple[str, ...]
    latents: NDArray[np.float32]
    labels: NDArray[np.int64]

    @classmethod
    def load(cls, folder: str | Path) -> TrainedAutoencoder:
        """What a finished run left in its folder.

        Raises:
            ConfigError: it holds no trained autoencoder.
            DataError: a file of it is damaged.
        """
        path = Path(folder)
        for name in (DESCRIPTION, MODEL, LATENTS):
            if not (path / name).is_file():
                raise ConfigError(
                    f"{path}: holds no trained autoencoder ({name} is missing); a finished run of task=swae does"
                )
        name = DESCRIPTION
        try:
            told = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
            channels, height, width = told["shape"]
            network = ConvAutoencoder(channels, height, width, told["latent_dim"], torch.Generator())
            name = MODEL
            weights = torch.load(path / MODEL, map_location="cpu", weights_only=True)
            network.to(next(iter(weights.values())).dtype).load_state_dict(weights)
            arrays = read_archive(path / LATENTS, "latents", "labels")
            return cls(network.eval(), str(told["prior"]), tuple(told["classes"]), arrays["latents"], arrays["labels"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, AttributeError) as error:
            raise DataError(f"{path / name}: is damaged ({first_line(error)})") from None
        except (pickle.UnpicklingError, StopIteration) as error:
            raise DataError(f"{path / name}: is damaged ({first_line(error)})") from None

    def save(self, folder: Path) -> list[Path]:
        """Write ``model.pt`` (the state dict), ``model.json`` and ``latents.npz``; returns the paths."""
        paths = [folder / name for name in (MODEL, DESCRIPTION, LATENTS)]
        weights = {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}
        # Given a path, PyTorch would write its name, which has a process id, into the file.
        with replacing(paths[0]) as temporary, temporary.open("wb") as file:
            torch.save(weights, file)
        told = {
            "shape": list(self.network.shape),
            "latent_dim": self.network.latent_dim,
            "prior": self.prior,
            "classes": list(self.classes),
        }
        write_json(paths[1], told)
        with replacing(paths[2]) as temporary:
            np.savez(
                temporary,
                allow_pickle=False,
                latents=self.latents,
                labels=self.labels,
                classes=np.array(self.classes, dtype=np.str_),
            )
        return paths

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Latents ``(n, latent_dim)`` of 8-bit pictures ``(n, channels, height, width)``.

        Raises:
            DataError: pictures of another shape than the network was made for.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != self.network.shape or not len(pixels):
            raise DataError(
                f"images: expected 8-bit pictures of {' x '.join(map(str, self.network.shape))} "
                f"(channels x height x width), got {pixels.dtype} of shape {pixels.shape}"
            )
        return encode_pixels(self.network, np.ascontiguousarray(pixels))

    def decode(self, latents: NDArray[np.floating]) -> NDArray[np.float32]:
        """Pictures ``(n, channels, height, width)`` with values from 0 to 1.

        Raises:
            DataError: not ``(n, latent_dim)`` finite numbers.
        """
        expected = self.network.latent_dim
        if latents.ndim != 2 or latents.shape[1] != expected or not len(latents) or not np.isfinite(latents).all():
            raise DataError(f"latents: expected finite numbers of shape (n, {expected}), got shape {latents.shape}")
        return decode_latents(self.network, np.ascontiguousarray(latents, dtype=np.float32))

    def sample(self, n: int, *, seed: int = 0, label: str | None = None) -> NDArray[np.float32]:
        """New latents ``(n, latent_dim)``, to be decoded.

        Args:
            n: how many.
            seed: decides which.
            label: name of a class: latents are then drawn from a Gaussian kernel density estimate (Scott's rule) of
                that class's test latents instead of the prior.

        Raises:
            ConfigError: no such class, or no samples asked for.
            DataError: the class has too few test latents for a density.
        """
        if n < 1:
            raise ConfigError(f"{n} samples: give a positive number")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed {seed}: give a whole number, not negative")
        if label is None:
            return PRIORS[self.prior](n, self.network.latent_dim, torch.Generator().manual_seed(seed)).numpy()
        if label not in self.classes:
            raise ConfigError(f"class {label!r}: there is none; classes are {', '.join(self.classes)}")
        from scipy.stats import gaussian_kde

        members = self.latents[self.labels == self.classes.index(label)].astype(np.float64)
        try:
            density = gaussian_kde(members.T)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise DataError(f"class {label}: no density from {len(members)} latents ({first_line(error)})") from None
        drawn = density.resample(n, seed=np.random.default_rng(seed))
        return np.ascontiguousarray(drawn.T, dtype=np.float32)
