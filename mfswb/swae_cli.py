"""``mfswb-swae``: encode, decode and sample with a trained autoencoder. PyTorch is imported only when it is needed."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mfswb.command import carry_out, make_parser
from mfswb.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mfswb.trained import TrainedAutoencoder

log = logging.getLogger(__name__)

_EXAMPLES = """\
  mfswb-swae encode outputs/swae/FOLDER a.png b.png t10k-images-idx3-ubyte.gz -o latents.npy
  mfswb-swae decode outputs/swae/FOLDER latents.npy -o pictures.png
  mfswb-swae sample outputs/swae/FOLDER -n 100 -o new.png
  mfswb-swae sample outputs/swae/FOLDER -n 25 --class 7 --seed 3 -o sevens.npy
"""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("mfswb-swae", "Use an autoencoder trained by mfswb-run task=swae.", _EXAMPLES)
    actions = parser.add_subparsers(dest="action", required=True)
    encode = actions.add_parser("encode", help="pictures to latents")
    decode = actions.add_parser("decode", help="latents to pictures")
    sample = actions.add_parser("sample", help="new pictures from the prior, or of one class")
    for action in (encode, decode, sample):
        action.add_argument("run", type=Path, metavar="RUN_FOLDER", help="folder of a finished run of task=swae")
    encode.add_argument(
        "images",
        nargs="+",
        type=Path,
        help="picture files, IDX files, or .npy arrays of 8-bit pictures, one after another",
    )
    encode.add_argument("-o", "--output", type=Path, required=True, help="FILE.npy for the latents (n, latent_dim)")
    decode.add_argument("latents", type=Path, help="FILE.npy, FILE.npz:NAME or text of latents, (n, latent_dim)")
    sample.add_argument("-n", "--count", type=int, default=64, help="how many (64)")
    sample.add_argument("--class", dest="label", help="a class's name: from a density of its test latents")
    sample.add_argument("--seed", type=int, default=0, help="decides which (0)")
    for action in (decode, sample):
        action.add_argument(
            "-o", "--output", type=Path, required=True,
            help="FILE.png for one sheet of all, or FILE.npy for values 0..1 of shape (n, channels, height, width)",
        )  # fmt: skip
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``mfswb-swae``."""
    return carry_out(_work, _parser().parse_args(arguments))


def _work(options: argparse.Namespace) -> int:
    _check_output(options.output, (".npy",) if options.action == "encode" else (".npy", ".png"))
    from mfswb.files import save_array
    from mfswb.trained import TrainedAutoencoder

    model = TrainedAutoencoder.load(options.run)
    if options.action == "encode":
        found: NDArray[Any] = np.concatenate([model.encode(_pictures(path, model)) for path in options.images])
    elif options.action == "decode":
        found = model.decode(_latents(options.latents))
    else:
        found = model.decode(model.sample(options.count, seed=options.seed, label=options.label))
    if options.output.suffix.lower() == ".png":
        _write_sheet(options.output, found)
    else:
        save_array(options.output, found)
    log.info("%s: %s", options.output, " x ".join(map(str, found.shape)))
    return 0


def _check_output(path: Path, suffixes: tuple[str, ...]) -> None:
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"--output {path}: give a file name ending in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")


def _pictures(path: Path, model: TrainedAutoencoder) -> NDArray[np.uint8]:
    """8-bit pictures ``(n, channels, height, width)`` of a file, resized where it is a picture of another size."""
    from mfswb.data.arrays import read_array
    from mfswb.data.class_folders import SUFFIXES, with_channels
    from mfswb.data.idx import read_images
    from mfswb.data.images import read_grey_or_rgb

    channels, height, width = model.network.shape
    if path.suffix.lower() in SUFFIXES:
        return with_channels(read_grey_or_rgb(path, (height, width)), channels).transpose(2, 0, 1)[None]
    images = read_array(path) if path.suffix.lower() == ".npy" or ".npz" in path.name else read_images(path)
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(f"{path}: expected 8-bit pictures, got {images.dtype} of shape {images.shape}")
    return images[:, None] if images.ndim == 3 else images


def _latents(path: Path) -> NDArray[np.floating]:
    from mfswb.data.arrays import read_array, read_text

    values = read_array(path) if ".np" in path.name else read_text(path, all_columns=True)
    return np.asarray(values, dtype=np.float64)


def _write_sheet(path: Path, made: NDArray[np.float32]) -> None:
    from mfswb.data.images import write_image
    from mfswb.report.autoencoder_figures import grid

    sheet = grid(made, max(1, round(len(made) ** 0.5)))
    write_image(path, np.rint(sheet * 255).astype(np.uint8))


if __name__ == "__main__":
    sys.exit(main())
