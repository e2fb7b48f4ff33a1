"""The study of the bias of s-MFSWB: estimates that are none themselves, and what must hold between its rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError
from mfswb.measures import Measures
from mfswb.slicing import uniform
from mfswb.studies.bias import LargestBias, excesses, squared_bias
from mfswb.studies.study import Row
from mfswb.wasserstein import sliced_costs


def study(**settings: Any) -> LargestBias:
    whole = load_shapes(["airplane", "car"])
    chosen: dict[str, Any] = {
        "clouds": Measures.of([cloud[::34][:60] for cloud in whole.points], names=whole.names),
        "samplers": ["uniform", "design"],
        "n_projections": [1, 3, 10],
        "draws": 400,
        "reference": 4000,
        "steps": 300,
    }
    return LargestBias(**{**chosen, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samplers": ["best"]}, r"study.samplers=\['best'\]: choose of uniform"),
        ({"samplers": []}, "choose of uniform"),
        ({"n_projections": [0]}, r"study.n_projections=\[0\]: give positive numbers"),
        ({"draws": 35}, "study.draws=35: give a multiple of 10, at least 30"),
        ({"draws": 20}, "study.draws=20: give a multiple of 10, at least 30"),
        ({"reference": 0}, "study.reference=0: give a positive number"),
        ({"steps": 0}, "study.steps=0: give a positive number"),
        ({"clouds": Measures.of([np.zeros((3, 2))])}, "one marginal is always the farthest"),
    ],
)
def test_bad_settings_of_the_bias_are_one_clear_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**settings)


def test_excesses_are_those_of_the_losses() -> None:
    problem = study().truth("start").problem
    drawn = torch.stack([uniform(4, 3, torch.Generator().manual_seed(k), torch.float64) for k in range(7)])
    values, gradients, farthest = excesses(problem, drawn, 1)
    support = problem.support.clone().requires_grad_()
    for name in ("s", "us"):
        total = torch.zeros((), dtype=torch.float64)
        for k, theta in enumerate(drawn):
            costs = sliced_costs(support, problem.marginals, theta)
            means = costs.mean(1)
            loss = means.max() if name == "s" else costs.max(0).values.mean()
            torch.testing.assert_close(values[name][k], (loss - means[1]).detach())
            assert int(means.argmax()) == int(farthest[k])
            total = total + (loss - means[1]) / len(drawn)
        torch.testing.assert_close(gradients[name], torch.autograd.grad(total, support)[0])


def test_the_squared_bias_is_told_without_its_noise() -> None:
    rng = np.random.default_rng(0)
    truth, biased = torch.zeros(50), torch.full((50,), 0.2)
    found = [
        squared_bias(biased + torch.from_numpy(rng.normal(size=(10, 50))), truth, torch.ones(50))[0] for _ in range(400)
    ]
    assert np.mean(found) == pytest.approx(0.04, abs=4 * float(np.std(found)) / 20)
    assert np.std(found) / 20 < 0.002


def test_biases_are_what_they_must_be() -> None:
    chosen = study()
    cells = chosen.cells()
    assert len(cells) == 2 * 2 * 3
    rows = [row for cell in cells for row in chosen.measure(cell)]
    assert rows == json.loads(json.dumps(rows, allow_nan=False))
    found = {(row["support"], row["sampler"], row["loss"], row["n_projections"]): row for row in rows}

    def clear(row: Row) -> float:
        """The bias in standard errors."""
        return float(row["bias"] / row["standard_error"])

    for support in ("start", "minimax"):
        truth = chosen.truth(support)
        for sampler in ("uniform", "design"):
            one = found[support, sampler, "s", 1]
            exact = truth.values["us"] / truth.values["s"] - 1  # along a single direction both losses are one
            assert one["bias"] == pytest.approx(exact, abs=4 * one["standard_error"])
            assert all(row["bias"] >= 0 for key, row in found.items() if key[2] == "s")
            assert all(abs(clear(found[support, sampler, "us", count])) < 4 for count in (1, 3, 10))
    equal = [found["minimax", "uniform", "s", count] for count in (1, 3, 10)]
    assert all(clear(row) > 4 for row in equal)
    assert equal[0]["bias"] > equal[1]["bias"] > equal[2]["bias"]
    tables, pictures = chosen.tables(rows), chosen.pictures(rows)
    assert set(tables) == {"value", "gradient", "farthest"}
    assert tables["value"].rows[0][1][0].mean == pytest.approx(100 * rows[0]["bias"])
    assert len(pictures["bias"].figure.axes) == 6
