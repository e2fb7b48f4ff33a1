"""The paper's three barycenter problems as studies run them, with the settings published for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from mfswb.configuration import config_dir
from mfswb.data.photos import Photos
from mfswb.errors import ConfigError, DataError
from mfswb.measures import Measures, Points
from mfswb.seeding import stream
from mfswb.starts import initial_support
from mfswb.studies.solving import Method, Published, Solution, solve
from mfswb.tasks.color import RGB_BOUNDS

# Problems by name, and the task whose file holds the published settings.
_TASKS: Mapping[str, str] = {"gaussians": "gaussian", "clouds": "pointcloud", "colour": "color"}


@dataclass(frozen=True)
class Case:
    """A problem with its start, and how the paper solves it.

    Attributes:
        name: one of ``gaussians``, ``clouds``, ``colour``.
        marginals: what to average.
        published: optimiser and slicing of the paper.
        published_steps: its length.
        start: points to start from; None draws them by the settings of the task.
        bounds: lowest and highest coordinates.
    """

    name: str
    marginals: Measures
    published: Published
    published_steps: int
    start: Points | None = None
    bounds: tuple[Points, Points] | None = None

    def solve(self, chosen: Method, *, seed: int, **settings: Any) -> Solution:
        """A barycenter from the problem's own start; settings are those of :func:`mfswb.studies.solving.solve`."""
        start = self._drawn(seed) if self.start is None else self.start
        return solve(self.marginals, chosen, seed=seed, x_init=start, bounds=self.bounds, **settings)

    def fingerprint(self) -> str:
        """A short hash of marginals and start: the same for the same problem."""
        marginals = self.marginals
        if self.start is None:
            return marginals.fingerprint()
        return Measures.of([*marginals.points, self.start], [*marginals.weights, None]).fingerprint()

    def _drawn(self, seed: int) -> Points:
        task = _settings(self.name)["task"]
        rng = stream(seed, "start")
        return initial_support(
            task["x_init"], self.marginals, rng, task["n_support"], mean=task["x_init_mean"], std=task["x_init_std"]
        )


def point_case(name: str, marginals: Measures) -> Case:
    """The problem of Gaussians or of clouds, whose start is drawn."""
    return Case(name, marginals, *_published(name))


def colour_case(load: Callable[..., Photos], n_colours: int, seed: int) -> Case:
    """The palette of a picture, which moves between those of its targets.

    Args:
        load: reads the pictures.
        n_colours: of a palette.
        seed: seeds their fit.

    Raises:
        DataError: the pictures cannot be had.
    """
    try:
        photos = load(n_colours=n_colours, seed=seed)
    except ConfigError as error:
        raise DataError(f"study.photos: {error}") from None
    source, *targets = [palette.colours for palette in photos.palettes]
    low, high = RGB_BOUNDS
    marginals = Measures.of(targets, names=photos.names[1:])
    return Case("colour", marginals, *_published("colour"), source, (np.array(low), np.array(high)))


def check_names(problems: Sequence[str]) -> None:
    """Refuse problems that there are not, and none at all."""
    unknown = [name for name in problems if name not in _TASKS]
    if unknown or not problems:
        raise ConfigError(f"study.problems={list(problems)}: choose of {', '.join(_TASKS)}")


def check_lengths(problems: Sequence[str], steps: Mapping[str, int], setting: str = "steps") -> None:
    """Refuse lengths that are missing or not positive."""
    wrong = [name for name in problems if not steps.get(name, 0) >= 1]
    if wrong:
        raise ConfigError(f"study.{setting}={dict(steps)}: give a positive number for {', '.join(wrong)}")


def _published(name: str) -> tuple[Published, int]:
    settings = _settings(name)
    rate, directions = settings["optimizer"]["lr"], settings["slicing"]["n_projections"]
    return Published(rate, directions, settings["task"]["scale_loss"]), int(settings["trainer"]["steps"])


def _settings(name: str) -> dict[str, Any]:
    """The task's file, which is the paper's settings."""
    file = config_dir() / "task" / f"{_TASKS[name]}.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return settings
