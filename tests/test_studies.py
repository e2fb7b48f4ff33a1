"""Studies: pieces that are kept and never measured twice, settings, and what the study of slicing says."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mfswb import sliced_costs
from mfswb.data.shapes import load_shapes
from mfswb.errors import ConfigError, DataError
from mfswb.experiments import Experiment, load_experiments
from mfswb.losses import us_mfswb, uswb
from mfswb.paper_cli import main as mfswb_paper
from mfswb.slicing import uniform
from mfswb.studies.problems import mixtures_problem
from mfswb.studies.running import build_study, cell_key, make_study, read_rows
from mfswb.studies.slicing import SlicingErrors, averages

STUDIES = [experiment for experiment in load_experiments().values() if experiment.is_study]
SMALL = [
    "study.dims=[2]",
    "study.samplers=[uniform,design]",
    "study.n_projections=[3,6]",
    "study.table_projections=[3,6]",
    "study.repetitions=4",
    "study.reference=100",
    "study.n_points=20",
]


def by_name(name: str) -> Experiment:
    return load_experiments()[name]


@pytest.mark.parametrize("experiment", STUDIES, ids=lambda experiment: experiment.name)
def test_every_study_can_be_built_and_its_pieces_are_told_apart(experiment: Experiment, shapenet: Path) -> None:
    for quick in (True, False):
        for builtin in (True, False):
            settings = experiment.study(quick=quick, builtin=builtin, data_folder=shapenet.parent, extra=[])
            cells = build_study(settings).cells()
            assert len({cell_key(settings["_target_"], cell) for cell in cells}) == len(cells) > 1
    (first, *_), changed = cells, build_study({**settings, "seed": settings["seed"] + 1}).cells()
    assert cell_key(settings["_target_"], changed[0]) != cell_key(settings["_target_"], first)


def test_a_study_is_measured_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    command = ["slicing", "--builtin", "--quick", "--jobs", "1", "-o", str(tmp_path), *SMALL]
    folder = tmp_path / "slicing-quick-builtin"
    assert mfswb_paper(command) == 0
    assert "4 made, 0 kept, 0 failed" in caplog.text
    names = {"rows.jsonl", "rows.csv", "errors.md", "errors.csv", "errors.tex", "errors.png", "errors.pdf"}
    assert names | {"report.html", "report.json", "commands.txt"} == {file.name for file in folder.iterdir()}
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert mfswb_paper(command) == 0
    assert "0 made, 4 kept, 0 failed" in caplog.text
    assert stamps == {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}

    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3
    errors = {(row["sampler"], row["n_projections"], row["quantity"]): float(row["error"]) for row in rows}
    head, _, *lines = (folder / "errors.md").read_text().splitlines()
    assert len(head.split("|")) == 3 + 6
    assert f"{errors['uniform', '3', 'row_means']:.4g} ±" in lines[0]
    assert "mfswb-paper slicing" in (folder / "commands.txt").read_text()

    # more is measured beside what is there; half a line that a kill left counts for nothing
    with (folder / "rows.jsonl").open("a") as kept:
        kept.write('{"key": "cut off he')
    caplog.clear()
    assert mfswb_paper([*command, "study.n_projections=[3,6,9]"]) == 0
    assert "2 made, 4 kept, 0 failed" in caplog.text
    assert len(read_rows(folder / "rows.jsonl")) == 6


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    arguments = ["slicing", "--builtin", *SMALL, "study.n_projections=[3,4,5,6,7,8]", "study.repetitions=60"]
    command = [sys.executable, "-m", "mfswb.paper_cli", *arguments, "--jobs", "1", "-o", "out"]
    rows = tmp_path / "out" / "slicing-builtin" / "rows.jsonl"
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (rows.exists() and rows.read_text().count("\n") >= 2):
        assert job.poll() is None
        time.sleep(0.02)
    job.send_signal(signal.SIGKILL)
    job.wait()
    before = rows.read_text().rpartition("\n")[0]
    assert 2 <= len(before.splitlines()) < 12
    assert subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL, timeout=300).returncode == 0
    assert rows.read_text().startswith(before)
    assert len(read_rows(rows)) == 12 == len(rows.read_text().splitlines())
    straight = build_study(by_name("slicing").study(quick=False, builtin=True, data_folder=None, extra=arguments[2:]))
    cell = straight.cells()[-1]
    assert read_rows(rows)[cell_key("mfswb.studies.slicing.SlicingErrors", cell)] == straight.measure(cell)


def test_pieces_that_fail_are_named_and_the_others_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment = by_name("slicing")
    settings = experiment.study(quick=True, builtin=True, data_folder=None, extra=[*SMALL, "study.dims=[2,30000]"])
    settings["samplers"] = ["sobol"]
    settings["n_projections"] = [3]
    settings["reference"] = 1
    result = make_study(experiment, settings, tmp_path, workers=1, command="typed")
    assert list(result.failures.values()) == ["slicing=sobol: has 21201 dimensions, but the data 30000; use orthogonal"]
    assert (result.made, result.kept) == (2, 0)
    assert "dim=30000" in caplog.text
    assert "Failed: dim=30000" in (tmp_path / "report.html").read_text()
    assert len(read_rows(tmp_path / "rows.jsonl")) == 1


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"key": "a", "rows": []}\nnot ours\n')
    with pytest.raises(DataError, match=r"rows\.jsonl: line 2 is damaged"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slicing", "trainer.steps=3"], "trainer.steps=3: slicing is a study; its settings are study.KEY=VALUE"),
        (["gaussian", "study.dims=[2]"], "study.dims=[2]: gaussian is no study"),
        (["slicing", "study.dimz=[2]"], "study.dimz: unknown setting"),
        (["slicing", "study.dims=2"], "study.dims=2: expected"),
        (["slicing", "study.dims=[0]"], r"study.dims=[0]: give positive numbers"),
        (["slicing", "study.samplers=[best]"], "choose of uniform, orthogonal"),
        (["slicing", "study.dims=[2"], "give a number, a word or a list"),
        (["slicing", "study.seed.x=1"], "study.seed.x: seed has no settings of its own"),
        (["slicing", "study.clouds.names=[chair,sofa2]"], "built-in shapes are"),
    ],
)
def test_bad_settings_are_one_clear_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: list[str], message: str
) -> None:
    assert mfswb_paper([*arguments, "--builtin", "-o", str(tmp_path / "out")]) == 1
    assert message in caplog.text
    assert not (tmp_path / "out").exists()


def test_missing_data_are_named_with_a_way_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "shapenetcore55_50.npy", np.zeros((3, 4, 3), np.float32))
    assert mfswb_paper(["slicing", "--data", str(tmp_path), "-o", str(tmp_path / "out")]) == 1
    assert "expected the published array" in caplog.text
    assert "--builtin does without them" in caplog.text


def test_averages_are_those_of_the_losses() -> None:
    problem = mixtures_problem(5, 30, 1)
    theta = uniform(2500, 5, torch.Generator().manual_seed(0), torch.float64)
    found = averages(problem, theta)
    support = problem.support.clone().requires_grad_()
    costs = sliced_costs(support, problem.marginals, theta)
    (gradient,) = torch.autograd.grad(uswb(costs), support)
    torch.testing.assert_close(found.row_means, costs.mean(1))
    torch.testing.assert_close(found.worst, us_mfswb(costs))
    torch.testing.assert_close(found.gradient, gradient)
    assert found.squared_errors(found) == {"row_means": 0.0, "worst": 0.0, "gradient": 0.0}


def study(**settings: Any) -> SlicingErrors:
    chosen: dict[str, Any] = {
        "clouds": load_shapes(["chair", "mug"]),
        "dims": [3],
        "samplers": ["uniform", "design"],
        "n_projections": [6, 24],
        "repetitions": 30,
        "reference": 1280,
        "n_points": 50,
        "table_projections": [6],
    }
    return SlicingErrors(**{**chosen, **settings})


def test_errors_of_independent_directions_fall_with_the_root_of_their_number() -> None:
    measured = study(dims=[16], samplers=["uniform"], repetitions=150)
    rows = [row for cell in measured.cells() for row in measured.measure(cell)]
    errors = {(row["n_projections"], row["quantity"]): row["error"] for row in rows}
    for quantity in ("row_means", "worst", "gradient"):
        assert 1.6 < errors[6, quantity] / errors[24, quantity] < 2.5
    json.dumps(rows, allow_nan=False)


def test_designs_do_better_and_are_not_measured_twice() -> None:
    measured = study()
    rows = [row for cell in measured.cells() for row in measured.measure(cell)]
    errors = {(row["sampler"], row["n_projections"], row["quantity"]): row["error"] for row in rows}
    for (sampler, count, quantity), error in errors.items():
        if sampler == "design":
            assert error < 0.35 * errors["uniform", count, quantity]
    table = measured.tables(rows)["errors"]
    assert [label for label, _ in table.rows] == ["d = 3, uniform", "d = 3, design"]
    assert [cell.best for cell in table.rows[1][1]] == [True, True, True]
    both = study(dims=[2, 3, 4], samplers=["orthogonal", "design", "equispaced"])
    asked = {(cell["dim"], cell["sampler"]) for cell in both.cells()}
    assert asked == {
        (2, "orthogonal"),
        (2, "design"),
        (2, "equispaced"),
        (3, "orthogonal"),
        (3, "design"),
        (4, "orthogonal"),
    }


def test_clouds_must_lie_in_space() -> None:
    flat = load_shapes(["chair"])
    with pytest.raises(ConfigError, match="three is needed"):
        study(clouds=type(flat).of([np.zeros((4, 2))]))
