"""Sweeps that are repeated, interrupted, spread over processes and searched: as a user starts them."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mfswb.configuration import cores, slug
from mfswb.errors import DivergedError

COMMAND = [sys.executable, "-m", "mfswb.cli"]
SMALL = ["data=gaussians", "data.means=[[0,0],[5,1]]", "data.sizes=30", "task.n_support=20", "trainer.eval_steps=[0]"]
SHORT = [*SMALL, "trainer.steps=20"]
FOUR = ["loss=us,es", "seed=1,2"]


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "-m", "hydra.sweep.dir=jobs", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)


def results(folder: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in folder.glob("jobs/*/support.npy")}


def told(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.parent.name: json.loads(file.read_text()) for file in folder.glob("jobs/*/summary.json")}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("serial")
    done = sweep(folder, *SHORT, *FOUR)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("4 of 4 finished")
    found = results(folder)
    assert len(found) == 4
    return found


def installed(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec("hydra_plugins") is None or importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("joblib", marks=installed("hydra_plugins.hydra_joblib_launcher")),
        pytest.param("processes", marks=installed("hydra_plugins.hydra_submitit_launcher")),
        pytest.param("ray", marks=[installed("hydra_plugins.hydra_ray_launcher"), pytest.mark.slow]),
    ],
)
def test_side_by_side_gives_the_same_bits(tmp_path: Path, serial: dict[str, bytes], launcher: str) -> None:
    done = sweep(tmp_path, f"hydra/launcher={launcher}", *SHORT, *FOUR)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path) == serial
    assert "UserWarning" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(
            ["hydra/launcher=slurm", "hydra.launcher.partition=gpu"],
            ["SlurmLauncher", "partition: gpu", "timeout_min: 600"],
            marks=installed("hydra_plugins.hydra_submitit_launcher"),
        ),
        pytest.param(
            ["hydra/launcher=cores", "hydra.launcher.n_jobs=3"],
            ["JoblibLauncher", "n_jobs: 3", "batch_size: '1'"],
            marks=installed("hydra_plugins.hydra_joblib_launcher"),
        ),
    ],
)
def test_presets_compose(tmp_path: Path, arguments: list[str], expected: list[str]) -> None:
    command = [*COMMAND, *arguments, "--cfg", "hydra"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "UserWarning" not in shown.stderr
    for text in expected:
        assert text in shown.stdout


@installed("hydra_plugins.hydra_joblib_launcher")
def test_a_job_that_fails_elsewhere_leaves_the_others_alone(tmp_path: Path) -> None:
    done = sweep(tmp_path, "hydra/launcher=joblib", *SMALL, "trainer.steps=300", "optimizer.lr=0.01,1e9,0.02")
    assert done.returncode == 1
    statuses = sorted(summary["status"] for summary in told(tmp_path).values())
    assert statuses == ["diverged", "finished", "finished"]
    (failed,) = (name for name, summary in told(tmp_path).items() if summary["status"] == "diverged")
    assert f"2 of 3 finished; not finished: {failed}" in done.stdout + done.stderr
    assert "DivergedError" in (tmp_path / "jobs" / failed / "traceback.txt").read_text()


@pytest.mark.parametrize("sweeper", ["search", "optuna"])
@installed("hydra_plugins.hydra_optuna_sweeper")
def test_a_search_minimises_the_objective(tmp_path: Path, sweeper: str) -> None:
    search = [f"hydra/sweeper={sweeper}", "hydra.sweeper.n_trials=4", "optimizer.lr=tag(log,interval(0.001,0.5))"]
    done = sweep(tmp_path, *search, *SHORT, "objective=mean_distance")
    assert done.returncode == 0, done.stderr
    figures = [summary["mean_distance"] for summary in told(tmp_path).values()]
    assert len(figures) == 4
    best = (tmp_path / "jobs" / "optimization_results.yaml").read_text()
    assert f"best_value: {min(figures)}" in best


def test_a_repeated_sweep_does_nothing_twice(tmp_path: Path) -> None:
    assert sweep(tmp_path, *SHORT, "loss=us", "seed=1,2").returncode == 0
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob("jobs/*/*") if file.name != "run.log"}
    done = sweep(tmp_path, *SHORT, "loss=us,es", "seed=1,2")  # more of them now
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("finished already") == 2
    assert len(told(tmp_path)) == 4
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    long = [*SMALL, "trainer.steps=3000", "trainer.checkpoint_every=100", "seed=1,2", "loss=us"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder in (whole, part):
        folder.mkdir()
    assert sweep(whole, *long).returncode == 0
    job = subprocess.Popen([*COMMAND, "-m", "hydra.sweep.dir=jobs", *long], cwd=part, stderr=subprocess.DEVNULL)
    second = part / "jobs" / next(name for name in results(whole) if "seed-2" in name)
    while not (second / "checkpoint.pt").exists():
        assert job.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    job.send_signal(signal.SIGKILL)
    job.wait()
    statuses = {name: summary["status"] for name, summary in told(part).items()}
    assert sorted(statuses.values()) == ["finished", "running"]
    (first,) = (name for name, status in statuses.items() if status == "finished")
    stamp = (part / "jobs" / first / "summary.json").stat().st_mtime_ns
    done = sweep(part, *long)
    assert done.returncode == 0, done.stderr
    assert (part / "jobs" / first / "summary.json").stat().st_mtime_ns == stamp
    assert results(part) == results(whole)
    assert told(part)[second.name]["steps_run"] < 3000


def test_jobs_that_fail_before_they_begin_are_named_too(tmp_path: Path) -> None:
    done = sweep(tmp_path, *SHORT, "seed=1,-1")
    assert done.returncode == 1
    (failed,) = {path.name for path in (tmp_path / "jobs").glob("*/")} - set(results(tmp_path))
    assert done.stdout.splitlines()[-1] == f"sweep jobs: 1 of 2 finished; not finished: {failed}"
    assert "seed=-1" in (tmp_path / "jobs" / failed / "traceback.txt").read_text()


def test_a_sweep_may_be_repeated_with_other_cores(tmp_path: Path) -> None:
    small = ["task=swae", "data=digits", "data.size=8", "task.batch_size=30", "task.eval_images=50", "trainer.steps=2"]
    assert sweep(tmp_path, *small, "seed=1").returncode == 0
    (told_before,) = told(tmp_path).values()
    assert told_before["threads"] == 1  # so that jobs give the same bits side by side
    done = sweep(tmp_path, *small, "seed=1", "trainer.threads=2", "debug=true")
    assert done.returncode == 0, done.stderr
    assert "finished already" in done.stderr


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    assert sweep(tmp_path, *SHORT, "seed=1").returncode == 0
    (folder,) = (tmp_path / "jobs").glob("*/")
    config = (folder / "config.yaml").read_text().replace("n_support: 20", "n_support: 21")
    (folder / "config.yaml").write_text(config)
    done = sweep(tmp_path, *SHORT, "seed=1")
    assert done.returncode == 1
    assert "holds a run with another configuration" in done.stderr
    assert "0 of 1 finished; not finished" in done.stdout.splitlines()[-1]


def test_names_of_jobs_differ_and_need_no_quotes() -> None:
    names = [
        slug(overrides)
        for overrides in (
            ["loss=us", "seed=1"],
            ["loss=us", "seed=11"],
            ["data.paths=['a b/c.ply',d.ply]", "loss=us"],
            ["data.paths=['ab/c.ply',d.ply]", "loss=us"],
            [*(f"task.key{k}={k}" for k in range(30)), "seed=1"],
            [*(f"task.key{k}={k}" for k in range(30)), "seed=2"],
        )
    ]
    assert len(set(names)) == len(names)
    assert names[0] == "loss-us_seed-1"
    assert slug(["loss=us", "debug=true", "trainer.progress=false", "seed=1"]) == names[0]
    long = ["task=pointcloud", "loss=es", "data.names=[chair,table]", "task.n_support=1024", "trainer.eval_steps=[0]"]
    assert len({slug([*long, f"optimizer.lr={k / 10_000}"]) for k in range(3000)}) == 3000
    for name in names:
        assert len(name) <= 69
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_errors_travel_between_processes() -> None:
    # what a launcher does with them; the bytes are our own
    error = pickle.loads(pickle.dumps(DivergedError(7, "diverged at step 7")))  # noqa: S301
    assert (error.step, str(error)) == (7, "diverged at step 7")


def test_cores_are_those_of_this_process() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
