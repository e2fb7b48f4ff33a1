"""``mfswb-run`` as a user runs it: in a shell, from a folder of their own."""

from __future__ import annotations

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
import yaml
from fuzzing import pcd

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "mfswb.cli"]
QUICK = ["trainer.steps=20", "trainer.eval_steps=[0,10]", "task.n_support=50", "trainer.threads=1"]
SMALL_DATA = ["data=gaussians", "data.means=[[0,0,0],[5,1,0]]", "data.sizes=[40,60]"]


def mfswb_run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def only_run(folder: Path) -> Path:
    (found,) = sorted((folder / "outputs").glob("*/*"))
    return found


def summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return loaded


def test_the_main_job_fills_its_folder(tmp_path: Path) -> None:
    done = mfswb_run(
        tmp_path, "task=pointcloud", "loss=es", "trainer.steps=20", "trainer.eval_steps=[0]", "task.metric_points=300"
    )
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    expected = {
        "barycenter.ply", "barycenter.png", "checkpoint.pt", "config.yaml",
        "marginals.npz", "metrics.jsonl", "run.log", "snapshots", "summary.json", "support.npy",
    }  # fmt: skip
    assert {path.name for path in folder.iterdir()} == expected
    told = summary(folder)
    assert told["status"] == "finished"
    assert told["names"]["loss"] == "es"
    assert told["versions"]["torch"] == torch.__version__
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 20]
    assert told["distances"] == rows[-1]["distances"]
    support = np.load(folder / "support.npy")
    assert support.shape == (2048, 3)
    np.testing.assert_array_equal(np.load(folder / "snapshots" / "support_00000020.npy"), support)
    assert len(list((folder / "snapshots").iterdir())) == 2
    (last,) = done.stdout.splitlines()
    assert (
        last == f"done: {folder.relative_to(tmp_path)}  F = {told['fairness_gap']:.6g}  W = {told['mean_distance']:.6g}"
    )
    assert last in (folder / "run.log").read_text()
    assert "it/s" not in done.stderr  # no progress bar without a terminal
    assert (folder / "barycenter.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["steps"] == 20


def test_help_lists_choices_and_examples_quickly(tmp_path: Path) -> None:
    shown = mfswb_run(tmp_path, "--help")
    assert shown.returncode == 0
    for group in ("task", "loss", "data"):
        files = sorted(file.stem for file in (ROOT / "configs" / group).glob("*.yaml"))
        assert f"{group}: {', '.join(files)}" in shown.stdout
    assert shown.stdout.count("\n  mfswb-run ") >= 5
    check = "import sys, mfswb.cli; sys.exit(bool({'torch', 'ot', 'open3d', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, timeout=60).returncode == 0


def test_the_main_job_needs_no_open3d(tmp_path: Path) -> None:
    (tmp_path / "open3d.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "a.pcd").write_bytes(pcd("binary_compressed"))
    done = mfswb_run(tmp_path, "data=clouds", "data.paths=[a.pcd]", *QUICK, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_own_clouds_from_the_folder_the_user_stands_in(tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    cloud = np.random.default_rng(0).normal(size=(30, 3)) + np.array([5e5, 5.4e6, 0])
    np.save(tmp_path / "my data" / "größe.npy", cloud)
    (tmp_path / "b.xyz").write_text("\n".join(f"{5e5 + k} 5400000 {k}" for k in range(25)))
    done = mfswb_run(tmp_path, "data=clouds", "data.paths=['my data/größe.npy',b.xyz]", *QUICK)
    assert done.returncode == 0, done.stderr
    support = np.load(only_run(tmp_path) / "support.npy")
    assert np.abs(support - [5e5 + 6, 5.4e6, 6]).max() < 100


def test_runs_started_together_do_not_collide(tmp_path: Path) -> None:
    command = [*COMMAND, *SMALL_DATA, *QUICK]
    jobs = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(3)
    ]
    assert [job.wait(timeout=300) for job in jobs] == [0, 0, 0]
    folders = sorted((tmp_path / "outputs").glob("*/*"))
    assert len(folders) == 3
    assert len({(folder / "support.npy").read_bytes() for folder in folders}) == 1


def test_multirun(tmp_path: Path) -> None:
    done = mfswb_run(tmp_path, "-m", "loss=uswb,mfswb,s,us,es", "seed=1,2", *SMALL_DATA, *QUICK)
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "outputs" / "sweeps").glob("*/*/summary.json"))
    assert len(folders) == 10
    told = [summary(folder.parent) for folder in folders]
    assert {(t["names"]["loss"], t["seed"]) for t in told} == {
        (m, s) for m in ("uswb", "mfswb", "s", "us", "es") for s in (1, 2)
    }
    assert done.stdout.count("done: ") == 10


def test_a_failing_job_of_a_sweep_leaves_the_others_alone(tmp_path: Path) -> None:
    done = mfswb_run(tmp_path, "-m", "task.n_support=0,20", *SMALL_DATA, "trainer.steps=3", "trainer.eval_steps=[]")
    assert done.returncode == 1
    folders = {p.parent.name[-9:-5]: p.parent for p in (tmp_path / "outputs" / "sweeps").glob("*/*/summary.json")}
    told = {summary(folder)["status"]: (folder, summary(folder)) for folder in folders.values()}
    assert set(told) == {"failed", "finished"}
    folder, failed = told["failed"]
    assert "task.n_support=0" in failed["error"]
    assert "Traceback" in (folder / "traceback.txt").read_text()
    assert "Traceback" not in done.stderr
    assert f"1 of 2 finished; not finished: {folder.name}" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=clouds", "data.paths=[nothing.ply]"], "nothing.ply: no such file"),
        (["data=clouds"], "data.paths"),
        (["task.n_support=0"], "task.n_support=0: at least one support point"),
        (["slicing.n_projections=0"], "slicing.n_projections=0"),
        (["trainer.steps=-5"], "trainer.steps=-5"),
        (["trainer.steps=many"], "trainer.steps=many"),
        (["trainer.device=cuda:7"], "trainer.device=cuda:7"),
        (["optimizer.lr=-1"], "optimizer: Invalid learning rate: -1"),
        (["trainer.resume=nowhere"], "trainer.resume=nowhere: no run there"),
        (["task.x_init=cube"], "task.x_init=cube: unknown start"),
        (["data=gaussians", "data.means=[[0,0],[1]]"], "marginal 1"),
        (["data.names=[dragon]"], "built-in shapes are"),
        (["seed=-1"], "seed=-1: give a whole number"),
        (["seed=1.5"], "seed=1.5: give a whole number"),
        (["task=color", "data=shapes"], "choose data=photos or data=images"),
        (["data=photos", "data.n_colours=5"], "this task averages point sets"),
        (["optimizer=adam", "optimizer._target_=torch.optim.LBFGS"], "LBFGS needs a closure"),
        (["trainer.resume=3"], "trainer.resume=3: no run there"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = mfswb_run(tmp_path, *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["los=es"], "los: unknown key; did you mean loss?"),
        (["-m", "loss=us,esx"], "loss=esx: there is no such loss; did you mean es?"),
        (["+hydra.callbacks.mine._target_=os.system"], "hydra.callbacks.mine._target_=os.system: only Hydra's own"),
    ],
)
def test_errors_of_the_command_line_are_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = mfswb_run(tmp_path, *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(message)
    assert not list(tmp_path.glob("outputs/*/*/*/"))


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in mfswb_run(tmp_path, "debug=true", "task.x_init=cube").stderr
    assert "Traceback" in mfswb_run(tmp_path, "task.x_init=cube", HYDRA_FULL_ERROR="1").stderr


def test_divergence_stops_the_run_and_keeps_what_was(tmp_path: Path) -> None:
    done = mfswb_run(tmp_path, *SMALL_DATA, "optimizer.lr=1e9", "trainer.steps=500", "trainer.eval_steps=[0]")
    assert done.returncode == 1
    assert "diverged at step" in done.stderr.splitlines()[-1]
    folder = only_run(tmp_path)
    told = summary(folder)
    assert told["status"] == "diverged"
    assert f"diverged at step {told['step']}:" in told["error"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert torch.isfinite(state["problem"]["support"]).all()


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    arguments = [*SMALL_DATA, *QUICK, "hydra.run.dir=here"]
    assert mfswb_run(tmp_path, *arguments).returncode == 0
    before = {
        path.name: path.read_bytes()
        for path in (tmp_path / "here").iterdir()
        if path.suffix in (".npy", ".json", ".pt")
    }
    refused = mfswb_run(tmp_path, *arguments, "seed=2")
    assert refused.returncode == 1
    assert "already holds a run" in refused.stderr
    assert {name: (tmp_path / "here" / name).read_bytes() for name in before} == before


# --- resuming ------------------------------------------------------------------------------------------------------

LONG = [
    *SMALL_DATA,
    *("trainer.steps=600", "trainer.eval_every=150", "trainer.checkpoint_every=50", "trainer.threads=1"),
    *("seed=4", "task.n_support=50"),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert mfswb_run(folder, *LONG).returncode == 0
    return only_run(folder)


def rows(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in read]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3, 0.7])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, uninterrupted: Path, delay: float) -> None:
    job = subprocess.Popen([*COMMAND, *LONG, "hydra.run.dir=killed"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (tmp_path / "killed" / "config.yaml").exists():
        assert job.poll() is None
        time.sleep(0.005)
    time.sleep(delay)
    job.send_signal(signal.SIGKILL)
    job.wait()
    done = mfswb_run(tmp_path, "trainer.resume=killed", "hydra.run.dir=resumed")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "resumed" / "support.npy").read_bytes() == (uninterrupted / "support.npy").read_bytes()
    assert rows(tmp_path / "resumed") == rows(uninterrupted)


def test_resuming_in_place_and_from_a_checkpoint_file(tmp_path: Path, uninterrupted: Path) -> None:
    short = [argument for argument in LONG if "trainer.steps" not in argument]
    assert mfswb_run(tmp_path, *short, "trainer.steps=320", "hydra.run.dir=a").returncode == 0
    for path, target in [("a/checkpoint.pt", "b"), ("a", "a")]:
        done = mfswb_run(tmp_path, f"trainer.resume={path}", "trainer.steps=600", f"hydra.run.dir={target}")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / target / "support.npy").read_bytes() == (uninterrupted / "support.npy").read_bytes()
    assert summary(tmp_path / "a")["steps_run"] == 280
    steps = [row["step"] for row in rows(tmp_path / "a")]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["optimizer.lr=0.5"], "that run has optimizer.lr=0.01, not 0.5"),
        (["loss=us"], "that run has loss=es, not us"),
        (["task=gaussian"], "that run has task=pointcloud, not gaussian"),
        (["seed=9"], "that run has seed=4, not 9"),
    ],
)
def test_another_configuration_is_not_continued(
    tmp_path: Path, uninterrupted: Path, change: list[str], message: str
) -> None:
    refused = mfswb_run(tmp_path, f"trainer.resume={uninterrupted}", *change)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert mfswb_run(tmp_path, f"trainer.resume={uninterrupted}", "loss=es", "trainer.device=cpu").returncode == 0


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_damaged_checkpoints_are_named(tmp_path: Path, uninterrupted: Path, damage: bytes | None) -> None:
    whole = (uninterrupted / "checkpoint.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    refused = mfswb_run(tmp_path, "trainer.resume=cut.pt")
    assert refused.returncode == 1
    assert "cut.pt: not a readable checkpoint" in refused.stderr.splitlines()[-1]


def test_a_checkpoint_cannot_permit_itself_to_run_code(tmp_path: Path, uninterrupted: Path) -> None:
    state = torch.load(uninterrupted / "checkpoint.pt", weights_only=True)
    state["config"]["allow_foreign_targets"] = True
    state["config"]["data"] = {"_target_": "os.makedirs", "name": str(tmp_path / "owned")}
    torch.save(state, tmp_path / "evil.pt")
    refused = mfswb_run(tmp_path, "trainer.resume=evil.pt")
    assert refused.returncode == 1
    assert "only targets in" in refused.stderr
    assert not (tmp_path / "owned").exists()


def test_resuming_needs_a_run_and_steps_to_go(tmp_path: Path, uninterrupted: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    assert "holds no configuration of a run" in mfswb_run(tmp_path, "trainer.resume=.").stderr
    refused = mfswb_run(tmp_path, f"trainer.resume={uninterrupted}", "trainer.steps=10", "debug=false")
    assert refused.returncode == 1
    assert "trainer.steps=10: the run to be continued is at step 600 already" in refused.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_one_line_and_leaves_no_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [*COMMAND, "trainer.eval_steps=[]", "hydra.run.dir=here", "trainer.steps=1000000"]
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (tmp_path / "here" / "checkpoint.pt").exists():
        assert job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, number)
    # It ends when nobody holds standard error any more, so the transport process must have ended, too.
    _, errors = job.communicate(timeout=60)
    assert job.returncode == code
    assert "Traceback" not in errors
    assert "interrupted; continue with trainer.resume=" in errors
    assert summary(tmp_path / "here")["status"] == "interrupted"


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, ("owned",)

    torch.save({"format": 1, "config": Evil()}, tmp_path / "evil.pt")
    refused = mfswb_run(tmp_path, "trainer.resume=evil.pt")
    assert refused.returncode == 1
    assert not (tmp_path / "owned").exists()


def test_tensorboard_is_written_beside(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert mfswb_run(tmp_path, *SMALL_DATA, *QUICK, "trainer.tensorboard=true").returncode == 0
    assert list((only_run(tmp_path) / "tensorboard").glob("events.*"))


def test_a_built_wheel_works_from_another_folder(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    assert subprocess.run(install, timeout=300).returncode == 0
    ask = [sys.executable, "-c", "import mfswb.configuration as c; print(c.config_dir())"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = subprocess.run(
        ask, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    assert where == str(site / "mfswb" / "configs")
    done = mfswb_run(elsewhere, *QUICK, "task.metric_points=100", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert only_run(elsewhere).name
