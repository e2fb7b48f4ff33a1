"""Pictures whose colours are to be harmonised: a source, its targets, and their palettes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mfswb.data.arrays import read_archive
from mfswb.data.images import Pixels, read_image
from mfswb.data.palettes import Palette, fit_palette, nearest_colours
from mfswb.errors import ConfigError, DataError
from mfswb.measures import Measures
from mfswb.seeding import stream

# Photographs that come with scikit-learn and Matplotlib.
_BUILT_IN = {
    "china": ("sklearn.datasets", "images/china.jpg"),
    "flower": ("sklearn.datasets", "images/flower.jpg"),
    "hopper": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
}


@dataclass(frozen=True)
class Photos:
    """A source picture and its targets.

    Attributes:
        palettes: the source's palette, then one for each target.
        pictures: the pictures themselves, in the same order; None for a palette that came without one.
        names: what they are called.
    """

    palettes: tuple[Palette, ...]
    pictures: tuple[Pixels | None, ...]
    names: tuple[str, ...]


def load_builtin(source: str, targets: Sequence[str] | str, *, seed: int, n_colours: int = 3000) -> Photos:
    """Photographs that need no network: ``china``, ``flower`` and ``hopper``.

    Raises:
        ConfigError: another name, or no targets.
    """
    targets = [targets] if isinstance(targets, str) else targets
    unknown = [name for name in (source, *targets) if name not in _BUILT_IN]
    if unknown:
        raise ConfigError(f"data: no built-in photograph {unknown[0]!r}; there are {', '.join(_BUILT_IN)}")
    paths = {name: str(files(package).joinpath(inside)) for name, (package, inside) in _BUILT_IN.items()}
    return load_images(paths[source], [paths[name] for name in targets], seed=seed, n_colours=n_colours)


def load_images(
    source: str | None = None,
    targets: Sequence[str] | str | None = None,
    palettes: str | None = None,
    *,
    seed: int,
    n_colours: int = 3000,
) -> Photos:
    """Pictures of the user's own.

    Args:
        source: the picture whose colours move.
        targets: the pictures whose palettes are averaged, one or more, of any sizes.
        palettes: an ``.npz`` file with the arrays ``source``, ``target1``, ``target2``, ... ``(k, 3)`` of RGB values
            0..255; taken instead of palettes fitted here. Pictures are optional then.
        seed: seeds the fit of the palettes.
        n_colours: colours of a palette.

    Raises:
        ConfigError: no source, no targets, or too few colours.
        DataError: a file that cannot be read.
    """
    if n_colours < 1:
        raise ConfigError(f"data.n_colours={n_colours}: at least one colour is needed")
    if palettes is None and (not source or not targets):
        raise ConfigError("data: give data.source=FILE and 'data.targets=[FILE,...]' (or data.palettes=FILE.npz)")
    if isinstance(targets, str):
        targets = [targets]
    paths = [source, *(targets or [])]
    pictures = [None if path is None else read_image(Path(path)) for path in paths]
    names = ["source" if path is None else Path(path).stem for path in paths]
    if palettes is None:

        def fit(position: int) -> Palette:
            picture = pictures[position]
            assert picture is not None
            return fit_palette(picture, n_colours, stream(seed, f"palette {position}"), str(paths[position]))

        # Two at a time, each having stretches on one core. scikit-learn limits BLAS to one thread while it works, and
        # two such limits would lift each other; so the limit stands around both.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
            fitted = list(pool.map(fit, range(len(pictures))))
        return Photos(tuple(fitted), tuple(pictures), tuple(names))
    colours = _read_palettes(Path(palettes))
    given = len(pictures) - 1
    if given not in (0, len(colours) - 1):
        raise ConfigError(f"data.targets: {given} pictures, but {palettes} holds {len(colours) - 1} targets' palettes")
    if not given:
        pictures += [None] * (len(colours) - 1)
        names += [name for name in colours if name != "source"]
    found = [_labelled(values, picture) for values, picture in zip(colours.values(), pictures, strict=True)]
    return Photos(tuple(found), tuple(pictures), tuple(names))


def _read_palettes(path: Path) -> dict[str, NDArray[np.float64]]:
    arrays = read_archive(path)
    numbered = sorted((int(name[6:]), name) for name in arrays if re.fullmatch(r"target\d+", name))
    names = ["source", *(name for _, name in numbered)]
    if "source" not in arrays or len(names) < 2:
        raise DataError(
            f"{path}: expected the arrays 'source' and 'target1', 'target2', ..., found {', '.join(arrays)}"
        )
    checked = Measures.of([arrays[name] for name in names], names=[f"{path}:{name}" for name in names])
    for name, points in zip(names, checked.points, strict=True):
        if checked.dim != 3 or points.min() < 0 or points.max() > 255:
            raise DataError(f"{path}:{name}: expected (k, 3) RGB values from 0 to 255")
    return dict(zip(names, checked.points, strict=True))


def _labelled(colours: NDArray[np.float64], picture: Pixels | None) -> Palette:
    if picture is None:
        return Palette(colours, np.ones(len(colours), dtype=np.int64), np.zeros((0, 0), dtype=np.int32))
    labels, _ = nearest_colours(colours, picture.reshape(-1, 3))
    counts = np.bincount(labels, minlength=len(colours))
    return Palette(colours, counts, labels.reshape(picture.shape[:2]).astype(np.int32))
