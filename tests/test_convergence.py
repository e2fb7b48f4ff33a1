"""The study of convergence: exact F and W against seconds, by the published settings and by the fast recipe."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfswb.data.gaussians import sample_gaussians
from mfswb.data.photos import load_builtin
from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError
from mfswb.studies.convergence import Convergence, look_steps
from mfswb.studies.study import Row


def study(**settings: Any) -> Convergence:
    chosen: dict[str, Any] = {
        "gaussians": partial(sample_gaussians, means=[[0, 0], [20, 0], [18, 8], [18, -8]], sizes=100, seed=0),
        "clouds": partial(load_shapes, ["airplane", "car"]),
        "photos": partial(load_builtin, source="china", targets=["flower", "hopper"]),
        "problems": ["gaussians"],
        "n_colours": 20,
        "published": ["uswb", "es"],
        "fast": ["uswb", "minimax"],
        "published_steps": {"gaussians": 300},
        "fast_steps": {"gaussians": 150},
        "looks": 3,
        "repetitions": 2,
    }
    return Convergence(**{**chosen, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problems": ["swae"]}, r"study.problems=\['swae'\]: choose of gaussians, clouds, colour"),
        ({"published_steps": {}}, "study.published_steps={}: give a positive number for gaussians"),
        ({"fast_steps": {"gaussians": 0}}, "study.fast_steps={'gaussians': 0}: give a positive number for gaussians"),
        ({"looks": 1}, "study.looks=1: give 2 or more"),
        ({"repetitions": 0}, "study.repetitions=0: give a positive number"),
        ({"within": 0.0}, "study.within=0.0: give a positive share of W"),
        ({"fast": ["best"]}, "no method 'best'"),
        ({"published": ["worst"]}, "no method 'worst'"),
    ],
)
def test_bad_settings_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**settings)


@given(steps=st.integers(1, 20_000), looks=st.integers(2, 12))
def test_looks_are_steps_of_the_run_before_its_last(steps: int, looks: int) -> None:
    found = look_steps(steps, looks)
    assert list(found) == sorted(set(found))
    assert all(1 <= step < steps for step in found)
    assert len(found) < looks


def row(settings: str, seed: int, step: int, seconds: float, mean: float) -> Row:
    return {
        "problem": "gaussians",
        "settings": settings,
        "method": "uswb",
        "seed": seed,
        "step": step,
        "processor_seconds": seconds,
        "F": 10 * mean,
        "W": mean,
    }


def test_seconds_are_told_where_every_seed_comes_near() -> None:
    rows = [row("published", 1, 100, 10.0, 1.05), row("published", 1, 10, 1.0, 3.0)]
    rows += [row("published", 2, 10, 1.0, 1.04), row("published", 2, 100, 10.0, 1.06)]
    rows += [row("fast", 1, 10, 0.1, 1.05), row("fast", 1, 20, 0.2, 1.0)]
    rows += [row("fast", 2, 10, 0.2, 1.2), row("fast", 2, 20, 0.4, 1.01)]
    table = study().tables(rows)["convergence"]
    titles = [column.title for column in table.columns]
    found = {label: dict(zip(titles, cells, strict=True)) for label, cells in table.rows}
    near = "seconds until W within 5% of the method's lowest"
    published, fast = found["gaussians, uswb, published, 100 steps"], found["gaussians, uswb, fast, 20 steps"]
    assert published["W"].mean == pytest.approx(1.055)
    assert published["F at the end"].mean == pytest.approx(10.55)
    assert published[near].mean == pytest.approx((10 + 1) / 2)
    assert fast[near].mean == pytest.approx((0.1 + 0.4) / 2)
    # the second seed's W now stays above the lowest by more than 5 %
    rows = [{**line, "W": 2.0} if (line["settings"], line["seed"]) == ("published", 2) else line for line in rows]
    (_, cells), _ = study().tables(rows)["convergence"].rows
    assert dict(zip(titles, cells, strict=True))[near].mean is None


def test_runs_are_looked_at_on_their_way() -> None:
    chosen = study()
    cells = chosen.cells()
    assert len(cells) == (2 + 2) * 2
    rows = [row for cell in cells for row in chosen.measure(cell)]
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    steps = {
        settings: sorted({row["step"] for row in rows if row["settings"] == settings})
        for settings in ("published", "fast")
    }
    assert steps == {"published": [1, 17, 300], "fast": [1, 12, 150]}
    ends = {(row["settings"], row["method"], row["seed"]): row for row in rows if row["step"] in (300, 150)}
    # the paper's rate is far from its aim after 300 steps, the recipe's steps are at theirs after 150
    assert ends["fast", "uswb", 1]["W"] < 0.8 * ends["published", "uswb", 1]["W"]
    assert ends["fast", "minimax", 1]["F"] < ends["fast", "uswb", 1]["F"]
    seconds = [row["processor_seconds"] for row in rows[:3]]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 0
    upper, lower = chosen.pictures(rows)["convergence"].figure.axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("exact F", "exact W")
    labels = upper.get_legend_handles_labels()[1]
    assert labels == ["uswb, published", "es, published", "uswb, fast", "minimax, fast"]
