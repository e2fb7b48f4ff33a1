"""The study of many marginals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.studies.many_marginals import ManyMarginals
from mfswb.studies.study import Row


def study(**settings: Any) -> ManyMarginals:
    whole = load_shapes(["airplane", "car", "chair", "lamp", "mug", "table"])
    chosen: dict[str, Any] = {
        "clouds": Measures.of([cloud[::34][:60] for cloud in whole.points], names=whole.names),
        "sizes": [2, 6],
        "repetitions": 2,
        "methods": ["uswb", "minimax"],
        "steps": 100,
    }
    return ManyMarginals(**{**chosen, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": []}, r"study.sizes=\[\]: give numbers from 2 to 6"),
        ({"sizes": [1, 2]}, "give numbers from 2 to 6"),
        ({"sizes": [7]}, "give numbers from 2 to 6"),
        ({"repetitions": 0}, "study.repetitions=0: give a positive number"),
        ({"steps": 0}, "study.steps=0: give a positive number"),
        ({"methods": ["us"]}, "give different ones, uswb among them"),
        ({"methods": ["uswb", "uswb"]}, "give different ones, uswb among them"),
        ({"methods": ["uswb", "best"]}, "no method 'best'"),
    ],
)
def test_bad_settings_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**settings)


def row(clouds: str, size: int, name: str, gap: float, mean: float) -> Row:
    return {"clouds": clouds, "size": size, "method": name, "F": gap, "W": mean, "spread": 2.0, "ms": 1.0}


def test_ratios_are_those_on_each_subset() -> None:
    rows = [row("a, b", 2, "uswb", 1.0, 1.0), row("a, c", 2, "uswb", 10.0, 2.0)]
    rows += [row("a, b", 2, "us", 0.5, 1.0), row("a, c", 2, "us", 1.0, 4.0), row("a, b, c", 3, "us", 7.0, 7.0)]
    table = study().tables(rows)["many_marginals"]
    titles = [column.title for column in table.columns]
    found = {label: dict(zip(titles, cells, strict=True)) for label, cells in table.rows}
    assert list(found) == ["K = 2, uswb", "K = 2, us", "K = 3, us"]
    assert found["K = 2, us"]["F / F uswb"].mean == pytest.approx((0.5 + 0.1) / 2)
    assert found["K = 2, us"]["W / W uswb"].mean == pytest.approx((1 + 2) / 2)
    assert found["K = 2, us"]["F"].mean == pytest.approx(0.75)
    assert found["K = 3, us"]["F / F uswb"].n == 0


def test_many_marginals_are_measured_and_drawn() -> None:
    chosen = study()
    cells = chosen.cells()
    assert [len(cell["subset"]) for cell in cells] == [2, 2, 2, 2, 6, 6]  # there is one subset of six
    rows = [row for cell in cells for row in chosen.measure(cell)]
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    uniform, fair = rows[-2:]
    assert (uniform["method"], fair["method"], fair["size"]) == ("uswb", "minimax", 6)
    assert fair["F"] < uniform["F"]
    assert fair["spread"] < uniform["spread"]
    panels = chosen.pictures(rows)["many_marginals"].figure.axes
    assert [tick.get_text() for tick in panels[0].get_xticklabels()] == ["2", "6"]
    assert len(panels[0].get_legend_handles_labels()[1]) == 2
