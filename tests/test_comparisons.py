"""Studies that compare methods: who wins."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.report.tables import Table, to_markdown
from mfswb.studies.contests import bootstrap
from mfswb.studies.problems import subsets
from mfswb.studies.study import Row
from mfswb.studies.win_rates import WinRates


def small_clouds() -> Measures:
    """Parts of four shapes, of 60 points each."""
    whole = load_shapes(["chair", "lamp", "mug", "table"])
    return Measures.of([cloud[::34][:60] for cloud in whole.points], names=whole.names)


def column(table: Table, title: str) -> dict[str, Any]:
    """Cells of a column by row."""
    position = [column.title for column in table.columns].index(title)
    return {label: cells[position] for label, cells in table.rows}


def test_intervals_of_a_mean_are_those_of_the_normal_law() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal([1.0, 5.0], [1.0, 3.0], (400, 2))
    found = bootstrap(values, np.random.default_rng(1), 4000)
    errors = values.std(axis=0, ddof=1) / np.sqrt(400)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    np.testing.assert_allclose(found.half_width, 1.96 * errors, rtol=0.06)
    np.testing.assert_allclose(found.high - found.value, 1.96 * errors, rtol=0.12)
    again = bootstrap(values, np.random.default_rng(1), 4000)
    np.testing.assert_array_equal(found.low, again.low)


def test_subsets_are_different_and_extended_by_more() -> None:
    few, many = subsets(50, 4, 20, 3), subsets(50, 4, 60, 3)
    assert many[:20] == few
    assert len(set(many)) == 60
    assert all(len(set(subset)) == 4 and list(subset) == sorted(subset) for subset in many)
    assert set(np.concatenate(many).tolist()) == set(range(50))
    assert len(subsets(5, 4, 100, 1)) == 5
    with pytest.raises(ConfigError, match="subsets of 7 are asked for, but there are 6 clouds"):
        subsets(6, 7, 1, 1)


def wins(**settings: Any) -> WinRates:
    chosen: dict[str, Any] = {
        "clouds": small_clouds(),
        "sizes": [2, 3],
        "counts": [2, 1],
        "methods": ["uswb", "mfswb lam=1", "us", "minimax", "constrained"],
        "steps": 120,
        "feedback_every": 40,
        "resamples": 500,
    }
    return WinRates(**{**chosen, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": [2]}, "give a count for every size"),
        ({"sizes": [2, 5]}, "give different numbers from 2 to 4"),
        ({"sizes": [2, 2]}, "give different numbers from 2 to 4"),
        ({"counts": [2, 0]}, r"study.counts=\[2, 0\]: give positive numbers"),
        ({"steps": 0}, "study.steps=0: give a positive number"),
        ({"share": 0.0}, "study.share=0.0: give a positive number"),
        ({"feedback_every": 120}, "study.feedback_every=120: give from 1 to below 120"),
        ({"methods": ["us", "es"]}, "several different ones, uswb among them"),
        ({"methods": ["uswb", "us", "us"]}, "several different ones, uswb among them"),
        ({"methods": ["uswb", "best"]}, "no method 'best'"),
    ],
)
def test_bad_settings_of_a_contest_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wins(**settings)


# By method, F and W on four problems.
FIGURES = {
    "uswb": ([4.0, 4.0, 4.0, 2.0], [1.0, 1.0, 1.0, 2.0]),
    "us": ([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 2.0, 1.0]),
    "minimax": ([0.5, 0.5, 0.5, 0.5], [3.0, 3.0, 0.5, 3.0]),
}


def rows_of(size: int) -> list[Row]:
    return [
        {"clouds": str(k), "size": size, "method": name, "F": gaps[k], "W": means[k], "eps": None, "seconds": 1.0}
        for k in range(4)
        for name, (gaps, means) in FIGURES.items()
    ]


def test_wins_and_ranks_are_counted() -> None:
    tables = wins().tables([*rows_of(2), *rows_of(3)])
    assert set(tables) == {"all_k2", "all_k3", "published_k2", "published_k3"}
    everyone, published = tables["all_k2"], tables["published_k2"]
    shares = {name: cell.mean for name, cell in column(everyone, "lowest F, %").items()}
    assert shares == {"uswb": 0.0, "us": 0.0, "minimax": 100.0}
    assert {name: cell.mean for name, cell in column(everyone, "lowest W, %").items()} == {
        "uswb": 50.0,
        "us": 25.0,
        "minimax": 25.0,
    }
    assert column(everyone, "both, %")["minimax"].mean == 25.0
    assert column(everyone, "mean rank by F")["us"].mean == 2.25
    assert column(everyone, "mean rank by F")["minimax"].std is None  # it is the first on each
    assert column(everyone, "mean rank by W")["uswb"].mean == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert column(everyone, "median F / F uswb")["us"].mean == pytest.approx(0.625)  # of 0.25, 0.5, 0.75, 2
    assert {name: cell.mean for name, cell in column(published, "lowest F, %").items()} == {"uswb": 25.0, "us": 75.0}
    assert column(published, "both, %")["us"].mean == 0.0
    assert [cell.best for cell in column(published, "mean rank by F").values()] == [False, True]
    assert "4 subsets" in to_markdown(everyone)


def test_a_contest_is_measured_and_drawn() -> None:
    study = wins()
    cells = study.cells()
    assert [len(cell["subset"]) for cell in cells] == [2, 3, 2]  # sizes take turns
    rows = study.measure(cells[1])
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    found = {row["method"]: row for row in rows}
    assert list(found) == study.methods
    assert found["constrained"]["eps"] == pytest.approx(0.1 * found["uswb"]["F"])
    assert found["minimax"]["F"] < 0.5 * found["uswb"]["F"]
    assert found["constrained"]["F"] < found["uswb"]["F"]
    again = {row["method"]: row["F"] for row in study.measure(cells[1])}
    assert again == {name: row["F"] for name, row in found.items()}
    pictures = study.pictures(rows)
    assert set(pictures) == {"all", "published"}
    panels = pictures["published"].figure.axes
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["uswb", "mfswb lam=1", "us"]
    assert len(panels[0].patches) == 3
