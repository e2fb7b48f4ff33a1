"""Studies of F against W, of the problems behind them, and of the time that runs take."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from mfswb.data.gaussians import sample_gaussians
from mfswb.data.photos import load_builtin
from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError
from mfswb.report.tables import Table, to_csv
from mfswb.studies.cases import Case, colour_case, point_case
from mfswb.studies.intervals import half_width, mean_cell
from mfswb.studies.pareto import ParetoFronts, dominates
from mfswb.studies.solving import method
from mfswb.studies.study import Row

gaussians = partial(sample_gaussians, means=[[0, 0], [20, 0], [18, 8], [18, -8]], sizes=100, seed=0)
photos = partial(load_builtin, source="china", targets=["flower", "hopper"])


def fronts(**settings: Any) -> ParetoFronts:
    chosen: dict[str, Any] = {
        "gaussians": gaussians,
        "clouds": partial(load_shapes, ["airplane", "car"]),
        "photos": photos,
        "problems": ["gaussians"],
        "n_colours": 20,
        "lams": [0, 1],
        "shares": [0.5],
        "methods": ["minimax", "us"],
        "steps": {"gaussians": 300},
        "solutions": 2,
        "repetitions": 2,
    }
    return ParetoFronts(**{**chosen, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problems": ["gaussian"]}, r"study.problems=\['gaussian'\]: choose of gaussians, clouds, colour"),
        ({"problems": []}, "choose of gaussians, clouds, colour"),
        ({"steps": {"clouds": 5}}, "give a positive number for gaussians"),
        ({"steps": {"gaussians": 0}}, "give a positive number for gaussians"),
        ({"lams": []}, r"study.lams=\[\]: give numbers, not negative"),
        ({"lams": [-1.0]}, "give numbers, not negative"),
        ({"shares": [0.0]}, r"study.shares=\[0.0\]: give positive numbers"),
        ({"solutions": 0}, "study.solutions=0: give a positive number"),
        ({"repetitions": 0}, "study.repetitions=0: give a positive number"),
        ({"margin": 1.0}, "study.margin=1.0: give a share of W"),
        ({"methods": ["best"]}, "no method 'best'"),
    ],
)
def test_bad_settings_of_fronts_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fronts(**settings)


def test_intervals_of_few_seeds_are_students() -> None:
    rng = np.random.default_rng(0)
    covered = [abs(np.mean(x)) <= (half_width(x.tolist()) or 0.0) for x in rng.normal(size=(4000, 3))]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)
    assert half_width([4.0]) is None
    assert mean_cell([]).mean is None


@pytest.mark.parametrize(
    ("case", "published"),
    [
        (partial(point_case, "gaussians", gaussians()), (0.01, 100, 5000)),
        (partial(point_case, "clouds", load_shapes(["airplane", "car"])), (0.01, 10, 10000)),
        (partial(colour_case, photos, 20, 1), (0.0001, 10, 5000)),
    ],
    ids=["gaussians", "clouds", "colour"],
)
def test_problems_have_the_published_settings_and_starts(case: Any, published: tuple[float, int, int]) -> None:
    found: Case = case()
    settings = found.published
    assert (settings.lr, settings.n_projections, found.published_steps) == published
    assert found.fingerprint() == case().fingerprint()
    chosen = {"seed": 3, "steps": 2}
    start = found.solve(method("us", found.marginals.dim, published=True), published=settings, **chosen)
    assert start.rows[-1]["step"] == 2
    assert len(start.rows[-1]["distances"]) == len(found.marginals)
    if found.name == "colour":
        assert 0 <= start.support.min() <= start.support.max() <= 255
        assert len(start.support) == 20


def test_published_settings_are_those_of_the_command(tmp_path: Any) -> None:
    from mfswb.configuration import compose_config
    from mfswb.run import run

    typed = ["task=gaussian", "loss=es", "seed=2", "trainer.steps=40", "trainer.eval_steps=[]", "trainer.device=cpu"]
    run(compose_config(typed), tmp_path / "run", typed)
    case = point_case("gaussians", gaussians())
    found = case.solve(method("es", 2, published=True), seed=2, steps=40, published=case.published)
    np.testing.assert_allclose(found.support, np.load(tmp_path / "run" / "support.npy"), rtol=1e-5, atol=1e-4)


def test_seconds_are_those_of_steps_alone() -> None:
    case = point_case("gaussians", gaussians())
    few = case.solve(method("us", 2), seed=1, steps=200)
    many = case.solve(method("us", 2), seed=1, steps=200, eval_steps=tuple(range(0, 200, 2)))
    assert many.fairness_gap == few.fairness_gap
    assert (len(few.rows), len(many.rows)) == (1, 101)
    seconds = [row["processor_seconds"] for row in many.rows]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0.0
    assert seconds[-1] == pytest.approx(many.processor_seconds, abs=1e-5)
    assert many.processor_seconds > 0


def test_one_run_dominates_another_by_a_margin() -> None:
    best, other = {"F": 1.0, "W": 10.0}, {"F": 1.05, "W": 10.0}
    assert dominates(best, other)
    assert not dominates(best, other, margin=0.01)
    assert not dominates(other, best)
    assert not dominates(best, best)


# F and W by method; eps of the bound is 2.
FIGURES = {
    "mfswb lam=0": (8.0, 10.0),
    "mfswb lam=1": (2.0, 14.0),
    "mfswb lam=10": (3.0, 30.0),
    "constrained share=0.25": (1.9, 12.0),
    "us": (2.0, 13.0),
}


def rows_of_two_seeds() -> list[Row]:
    return [
        {
            "problem": "gaussians",
            "method": name,
            "seed": seed,
            "F": gap * (1 if seed == 1 else 1.1),
            "W": mean,
            "eps": 2.0 if name.startswith("constrained") else None,
            "seconds": 1.0,
            "processor_seconds": 0.5,
        }
        for seed in (1, 2)
        for name, (gap, mean) in FIGURES.items()
    ]


def figure(table: Table, row: str, title: str) -> float | None:
    position = [column.title for column in table.columns].index(title)
    return dict(table.rows)[row][position].mean


def test_fronts_are_told_from_rows() -> None:
    tables = fronts().tables(rows_of_two_seeds())
    ends = [label for label, _ in tables["ends"].rows]
    assert ends == [
        "gaussians, mfswb lam=0",
        "gaussians, mfswb lam=1 (its smallest F)",
        "gaussians, mfswb lam=10",
        "gaussians, constrained share=0.25",
        "gaussians, us",
    ]
    assert "F half width of the 95 % interval" in to_csv(tables["ends"]).splitlines()[0]
    assert figure(tables["ends"], ends[0], "F") == pytest.approx(8.4)
    bound = "gaussians, share=0.25 of F uniform"
    assert figure(tables["bounds"], bound, "seeds with F <= eps") == 1
    assert figure(tables["bounds"], bound, "F / eps") == pytest.approx((0.95 + 1.045) / 2)
    assert figure(tables["bounds"], bound, "W / W uniform") == pytest.approx(1.2)
    beaten = tables["dominated"]
    assert figure(beaten, "gaussians, mfswb lam > 1", "dominated by us") == 2
    assert figure(beaten, "gaussians, mfswb lam <= 1", "dominated by us") == 2  # lam=1 twice, lam=0 never
    assert figure(beaten, "gaussians, us", "dominated by constrained") == 2
    assert figure(beaten, "gaussians, constrained", "dominated by us") == 0
    assert figure(beaten, "gaussians, us", "dominated by us") is None


def test_fronts_are_measured_and_drawn() -> None:
    study = fronts()
    cells = study.cells()
    assert len(cells) == 2 * (2 + 1 + 2)
    rows = [row for cell in cells for row in study.measure(cell)]
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    found = {row["method"]: row for row in rows if row["seed"] == 1}
    assert found["constrained share=0.5"]["eps"] == pytest.approx(0.5 * found["mfswb lam=0"]["F"])
    assert found["constrained share=0.5"]["F"] <= found["constrained share=0.5"]["eps"]
    assert found["minimax"]["F"] < 0.3 * found["mfswb lam=0"]["F"]
    assert found["mfswb lam=0"]["W"] < found["constrained share=0.5"]["W"] < found["minimax"]["W"]
    # in a process of its own the piece of the bound measures uniform weights itself
    (alone,) = fronts().measure(next(cell for cell in cells if cell["method"] == "constrained share=0.5"))
    assert (alone["F"], alone["eps"]) == (found["constrained share=0.5"]["F"], found["constrained share=0.5"]["eps"])
    panel = study.pictures(rows)["pareto"].figure.axes[0]
    assert panel.get_title() == "gaussians"
    assert {"minimax", "us", "mfswb along lam"} <= set(panel.get_legend_handles_labels()[1])
