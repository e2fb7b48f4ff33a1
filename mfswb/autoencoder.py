"""The convolutional autoencoder of the paper's study, sized to the pictures it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mfswb.errors import DataError

_SLOPE = 0.2
_HIDDEN = 128

# Pictures that go through the network together on a CPU: a quarter faster than 1000 in one piece, whose every layer
# needs fresh memory.
PARTS_ON_CPU = 100
_PARTS_ELSEWHERE = 2000


class ConvAutoencoder(nn.Module):
    """Encoder to ``latent_dim`` numbers a picture and decoder back.

    Encoder: three stages of two 3x3 convolutions (16, 32, 64 channels, LeakyReLU 0.2), each followed by 2x2 average
    pooling, then two linear layers with a ReLU between. The decoder mirrors it: two linear layers with ReLU, three
    doublings with two 3x3 convolutions each, one last convolution. The paper's network at 28 x 28 with one channel:
    511,443 parameters. Where a quarter of a side is odd (28: 7) the last pooling pads that side by one, and a
    convolution without padding takes it away again.

    Args:
        channels: 1 or 3.
        height: of the pictures, a multiple of 4.
        width: likewise.
        latent_dim: numbers a picture is encoded to.
        generator: draws the initial weights (PyTorch's usual distributions).

    Raises:
        DataError: pictures the network cannot be sized to.

    Source: Nguyen, Nguyen and Ho, ICLR 2025, with the sizes of their published code.

    Example:
        >>> network = ConvAutoencoder(1, 28, 28, 2, torch.Generator().manual_seed(0))
        >>> sum(parameter.numel() for parameter in network.parameters())
        511443
        >>> latents = network.encode(torch.zeros(5, 1, 28, 28))
        >>> latents.shape, network.logits(latents).shape
        (torch.Size([5, 2]), torch.Size([5, 1, 28, 28]))
    """

    def __init__(self, channels: int, height: int, width: int, latent_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise DataError(f"images: expected 1 or 3 channels, got {channels}")
        if height % 4 or width % 4 or min(height, width) < 4:
            raise DataError(f"images: height and width must be multiples of 4, got {height} x {width}")
        self.shape = (channels, height, width)
        self.latent_dim = latent_dim
        pad = (height // 4 % 2, width // 4 % 2)  # 1 where a quarter of the side is odd
        self._middle = (64, (height // 4 + pad[0]) // 2, (width // 4 + pad[1]) // 2)
        flat = math.prod(self._middle)
        with torch.device("meta"):  # so that nothing is drawn from the global random state
            self.encoder = nn.Sequential(
                *_convolutions(channels, 16),
                nn.AvgPool2d(2),
                *_convolutions(16, 32),
                nn.AvgPool2d(2),
                *_convolutions(32, 64),
                nn.AvgPool2d(2, padding=pad),
                nn.Flatten(),
                nn.Linear(flat, _HIDDEN),
                nn.ReLU(),
                nn.Linear(_HIDDEN, latent_dim),
            )
            self.decoder = nn.Sequential(
                nn.Linear(latent_dim, _HIDDEN),
                nn.ReLU(),
                nn.Linear(_HIDDEN, flat),
                nn.ReLU(),
                nn.Unflatten(1, self._middle),
                nn.Upsample(scale_factor=2),
                *_convolutions(64, 64),
                nn.Upsample(scale_factor=2),
                *_convolutions(64, 64, padding=(1 - pad[0], 1 - pad[1])),
                nn.Upsample(scale_factor=2),
                *_convolutions(64, 32),
                nn.Conv2d(32, channels, 3, padding=1),
            )
        self.to_empty(device="cpu")
        self._draw_weights(generator)

    def encode(self, images: Tensor) -> Tensor:
        """Latents ``(n, latent_dim)`` of pictures ``(n, channels, height, width)`` with values from 0 to 1."""
        latents: Tensor = self.encoder(images)
        return latents

    def logits(self, latents: Tensor) -> Tensor:
        """Pictures before the sigmoid, ``(n, channels, height, width)``: what cross-entropies are computed from."""
        logits: Tensor = self.decoder(latents)
        return logits

    def decode(self, latents: Tensor) -> Tensor:
        """Pictures with values from 0 to 1, ``(n, channels, height, width)``."""
        return torch.sigmoid(self.logits(latents))

    def _draw_weights(self, generator: torch.Generator) -> None:
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.bias is not None:
                bound = 1.0 / math.sqrt(layer.weight[0].numel())  # PyTorch's own: uniform within 1 / sqrt(fan-in)
                nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def _convolutions(channels: int, wider: int, padding: tuple[int, int] = (1, 1)) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, wider, 3, padding=padding),
        nn.LeakyReLU(_SLOPE, inplace=True),
        nn.Conv2d(wider, wider, 3, padding=1),
        nn.LeakyReLU(_SLOPE, inplace=True),
    ]


def reconstruction_loss(logits: Tensor, images: Tensor) -> Tensor:
    """Binary cross-entropy of a reconstruction against its picture: the mean over pictures, channels and pixels.

    ``-mean(x log y + (1 - x) log(1 - y))`` with the picture ``x`` as the target and ``y = sigmoid(logits)``, in nats.
    """
    return functional.binary_cross_entropy_with_logits(logits, images)


def encode_pixels(
    network: ConvAutoencoder, pixels: NDArray[np.uint8], *, autocast: bool = False
) -> NDArray[np.float32]:
    """Latents ``(n, latent_dim)`` of 8-bit pictures ``(n, channels, height, width)``, on the network's device."""

    def encode(part: Tensor, weight: Tensor) -> Tensor:
        return network.encode((part.to(weight) / 255).contiguous(memory_format=torch.channels_last))

    return _in_parts(network, encode, pixels, autocast)


def decode_latents(
    network: ConvAutoencoder, latents: NDArray[np.floating], *, autocast: bool = False
) -> NDArray[np.float32]:
    """Pictures ``(n, channels, height, width)`` with values from 0 to 1 of latents ``(n, latent_dim)``."""

    def decode(part: Tensor, weight: Tensor) -> Tensor:
        return network.decode(part.to(weight))

    return _in_parts(network, decode, latents, autocast)


def _in_parts(
    network: ConvAutoencoder, call: Callable[[Tensor, Tensor], Tensor], values: NDArray[Any], autocast: bool
) -> NDArray[np.float32]:
    weight = next(network.parameters())
    together = PARTS_ON_CPU if weight.device.type == "cpu" else _PARTS_ELSEWHERE
    with torch.no_grad(), torch.autocast(weight.device.type, torch.bfloat16, enabled=autocast):
        made = [call(part, weight).float().cpu() for part in torch.split(torch.from_numpy(values), together)]
    return torch.cat(made).numpy()
