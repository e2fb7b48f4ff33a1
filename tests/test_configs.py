"""Contracts over every file in configs/: each choice of each group runs, and says the same as the library."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from PIL import Image

from mfswb.building import build
from mfswb.configuration import compose_config, config_dir
from mfswb.designs import SAMPLERS
from mfswb.errors import ConfigError
from mfswb.experiments import load_experiments
from mfswb.losses import LOSSES
from mfswb.report.runs import method_name
from mfswb.run import run


def choices(group: str) -> list[str]:
    found = sorted(file.stem for file in (config_dir() / group).glob("*.yaml"))
    assert found, group
    return found


SHORT = ["trainer.steps=3", "trainer.eval_steps=[]", "slicing.n_projections=5"]
# What makes a task, or a data set, small; every new one says it here.
_AUTOENCODER = ["task.batch_size=30", "task.eval_images=20", "task.prior_draws=1"]
SMALL_TASK = {
    "gaussian": ["task.n_support=30", "task.metric_points=50"],
    "pointcloud": ["task.n_support=30", "task.metric_points=50"],
    "color": ["task.metric_points=50"],
    "swae": _AUTOENCODER,
}
OWN_DATA = {
    "gaussian": ["data=clouds", "data.paths=[a.npy,b.npy]", "task.x_init_mean=null"],
    "pointcloud": ["data=clouds", "data.paths=[a.npy,b.npy]"],
    "color": ["data=images", "data.palettes=palettes.npz"],
    "swae": ["data=digits", "data.size=8"],
}
DATA = {
    "clouds": ["task=pointcloud", "data.paths=[a.npy,b.npy]", "task.n_support=30"],
    "digits": ["task=swae", "data.size=8", *_AUTOENCODER],
    "folder": ["task=swae", "data.path=pictures", *_AUTOENCODER],
    "gaussians": ["task=gaussian", "task.n_support=30"],
    "idx": ["task=swae", "data.images=images", "data.labels=labels", *_AUTOENCODER],
    "images": ["task=color", "data.palettes=palettes.npz"],
    "photos": ["task=color", "data.n_colours=20"],
    "shapes": ["task=pointcloud", "task.n_support=30", "task.metric_points=50"],
}
# What a loss cannot do without.
LOSS = {"weighted": ["loss.weights=[0.25,0.75]"], "constrained": ["loss.eps=0.1"]}
OF_ALL_CLASSES = {  # of the ten that the pictures have
    "weighted": ["loss.weights=[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]", "task.balanced=true"],
    "constrained": ["loss.eps=0.1", "task.balanced=true"],
    "minimax": ["task.balanced=true"],
}
NOT_BUILT_IN = {"fashion", "mnist", "shapenet50"}


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(40, 3)))
    colours = {name: np.random.default_rng(0).uniform(0, 255, (25, 3)) for name in ("source", "target1", "target2")}
    np.savez(tmp_path / "palettes.npz", allow_pickle=False, **colours)
    pictures = np.random.default_rng(1).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40, dtype=np.uint8) % 4
    (tmp_path / "images").write_bytes(struct.pack(">IIII", 0x803, 40, 8, 8) + pictures.tobytes())
    (tmp_path / "labels").write_bytes(struct.pack(">II", 0x801, 40) + labels.tobytes())
    for k in range(40):
        (tmp_path / "pictures" / str(labels[k])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[k]).save(tmp_path / "pictures" / str(labels[k]) / f"{k}.png")
    return tmp_path


def finish(folder: Path, overrides: list[str]) -> dict[str, Any]:
    summary = run(compose_config(overrides), folder / "run", overrides)
    assert summary["status"] == "finished"
    assert summary["step"] == 3
    assert np.isfinite(
        [summary["fairness_gap"], summary["mean_distance"], *summary["distances"], summary["loss"]]
    ).all()
    assert {"config.yaml", "metrics.jsonl", "summary.json", "checkpoint.pt"} <= {
        p.name for p in (folder / "run").iterdir()
    }
    return summary


@pytest.mark.parametrize("task", choices("task"))
@pytest.mark.parametrize("loss", choices("loss"))
def test_every_loss_runs_on_every_task(clouds: Path, task: str, loss: str) -> None:
    needed = (OF_ALL_CLASSES if task == "swae" else LOSS).get(loss, [])
    overrides = [f"task={task}", f"loss={loss}", *needed, *OWN_DATA[task], *SHORT, *SMALL_TASK[task]]
    if loss == "none" and task != "swae":
        with pytest.raises(ConfigError, match="loss=none: leaves nothing to optimise"):
            finish(clouds, overrides)
    else:
        finish(clouds, overrides)


@pytest.mark.parametrize("task", [task for task in choices("task") if task != "swae"])  # which refuses all but paper
@pytest.mark.parametrize("recipe", choices("recipe"))
def test_every_recipe_runs_on_every_barycenter_task(clouds: Path, task: str, recipe: str) -> None:
    overrides = [f"task={task}", f"recipe={recipe}", *OWN_DATA[task], *SHORT, *SMALL_TASK[task]]
    finish(clouds, overrides)
    finish(clouds / "typed", [*overrides, "loss=es"])
    cfg = compose_config(overrides)
    assert cfg.names.recipe == recipe
    assert cfg.names.loss == {"paper": "es", "fast": "us"}[recipe]


@pytest.mark.parametrize("feedback", ["sliced", "exact"])
@pytest.mark.parametrize("loss", ["minimax", "constrained"])
def test_every_feedback_runs(clouds: Path, loss: str, feedback: str) -> None:
    for task in ("pointcloud", "color"):
        overrides = [f"task={task}", f"loss={loss}", *LOSS.get(loss, []), *OWN_DATA[task], *SHORT, *SMALL_TASK[task]]
        summary = finish(clouds / task, [*overrides, f"task.feedback={feedback}", "task.feedback_every=1"])
        assert len(summary["weights"]) == 2
        assert ("seconds_feedback" in summary) == (feedback == "exact")


@pytest.mark.parametrize("data", [name for name in choices("data") if name not in NOT_BUILT_IN])
def test_every_data_set_runs(clouds: Path, data: str) -> None:
    finish(clouds, [f"data={data}", *DATA[data], *SHORT])


@pytest.mark.parametrize("group", ["slicing", "optimizer", "trainer"])
def test_every_other_choice_runs(clouds: Path, group: str) -> None:
    for position, choice in enumerate(choices(group)):
        folder = clouds / str(position)
        folder.mkdir()
        task = "swae" if choice in ("equispaced", "rmsprop") else "pointcloud"  # the others stand in the plane, or not
        finish(folder, [f"task={task}", f"{group}={choice}", *OWN_DATA[task], *SHORT, *SMALL_TASK[task]])


def test_normalised_and_chunked_runs_answer_in_the_user_s_coordinates(clouds: Path) -> None:
    np.save("a.npy", 100 * np.load("a.npy") + 1000)
    np.save("b.npy", 100 * np.load("b.npy") + 1000)
    base = [*OWN_DATA["pointcloud"], "trainer.steps=300", "trainer.eval_steps=[]", "loss=us", "task.n_support=40"]
    results = []
    for position, extra in enumerate([[], ["data.normalize=true"], ["slicing.chunk=3"]]):
        overrides = [*base, *extra]
        summary = run(compose_config(overrides), clouds / str(position), overrides)
        results.append((np.load(clouds / str(position) / "support.npy"), summary["mean_distance"]))
    (plain, distance), *others = results
    assert np.abs(plain.mean(axis=0) - 1000).max() < 50
    for support, other_distance in others:
        np.testing.assert_allclose(support, plain, atol=0.5)
        assert other_distance == pytest.approx(distance, rel=1e-3)


def test_samplers_by_name_are_those_of_the_configs() -> None:
    assert set(SAMPLERS) == set(choices("slicing"))
    for name, sampler in SAMPLERS.items():
        slicing = build("slicing", yaml.safe_load((config_dir() / "slicing" / f"{name}.yaml").read_text()))
        drawn = slicing.directions(2, torch.Generator().manual_seed(0), torch.float32, torch.device("cpu"))
        assert torch.equal(drawn, sampler(len(drawn), 2, torch.Generator().manual_seed(0), torch.float32))
        assert len(drawn) >= 10


def test_losses_by_name_are_those_of_the_configs() -> None:
    assert {*LOSSES, "none", "weighted", "minimax", "constrained"} == set(choices("loss"))
    costs = torch.rand(3, 7, generator=torch.Generator().manual_seed(0))
    for name, function in LOSSES.items():
        config: Any = OmegaConf.to_container(compose_config([f"loss={name}"]).loss)
        assert torch.equal(build("loss", config)(costs), function(costs))


@pytest.mark.parametrize("task", [task for task in choices("task") if task != "swae"])  # it has a test of its own
def test_published_settings(task: str) -> None:
    cfg = compose_config([f"task={task}"])
    published = {
        "gaussian": (100, 0.01, 5000, False, [0, 1000, 5000]),
        "pointcloud": (10, 0.01, 10000, True, [0, 1000, 5000, 10000]),
        "color": (10, 0.0001, 5000, True, []),
    }
    scaled = cfg.task.get("scale_loss", True)  # the colour task always scales
    found = (cfg.slicing.n_projections, cfg.optimizer.lr, cfg.trainer.steps, scaled, cfg.trainer.eval_steps)
    assert found == published[task]
    assert cfg.optimizer["_target_"] == "mfswb.optim.SGD"


@pytest.mark.parametrize(
    "file", sorted((config_dir().parent / "experiments").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_experiment_composes(file: Path) -> None:
    head = file.read_text()
    experiment = load_experiments()[file.stem]
    assert f"#   mfswb-paper {file.stem}" in head
    assert ("reference" in experiment.settings) == (f"compare_reference.py {file.stem}" in head)
    assert set(experiment.cost) == {"full", "quick"}
    if experiment.is_study:
        return  # tests/test_studies.py has those
    for quick in (True, False):
        jobs = experiment.jobs(quick=quick, builtin=True, data_folder=None, extra=["debug=true"])
        assert len(jobs) == len({(job.method, job.seed) for job in jobs}) >= 7
        for job in jobs:
            cfg = compose_config(list(job.overrides))
            assert cfg.names.loss in {*LOSSES, "none"}
            assert cfg.debug
            assert method_name(cfg) == job.method  # colours and order go by that name


CLOUDS: dict[str, Any] = {"_target_": "mfswb.data.clouds.load_clouds", "seed": 0}


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("loss", {"_target_": "mfswb.losses.mfswb", "lamda": 1}, r"loss\.lamda: unknown setting .* did you mean lam"),
        ("loss", {"_target_": "mfswb.losses.mfswb", "lam": "big"}, r"loss\.lam=big: expected float, got str"),
        (
            "trainer",
            {"_target_": "mfswb.trainer.Trainer", "steps": 2.5},
            r"trainer\.steps=2\.5: expected int \| None, got float",
        ),
        ("data", {"_target_": "os.mkdir", "path": "owned"}, r"data\._target_=os\.mkdir: only targets in"),
        (
            "slicing",
            {"_target_": "mfswb.slicing.Slicing", "sampler": {"_target_": "os.mkdir"}},
            r"slicing\.sampler\._target_",
        ),
        ("loss", {"_target_": "mfswb.losses.fair"}, "there is no such function"),
        # Inside our own packages there is code that imports, writes and fetches.
        *(
            ("data", {"_target_": target, **settings}, "is nothing that configurations name")
            for target, settings in [
                ("mfswb.building.import_module", {"name": "antigravity"}),
                ("mfswb.building.instantiate", {"config": ""}),
                ("mfswb.files.write_text", {"path": "owned", "text": "x"}),
                ("mfswb.data.download.fetch", {"file_name": "../x"}),
                ("mfswb.data.clouds.Path", {}),
                ("torch.optim.lr_scheduler.partial", {}),
                ("torch.optim.lr_scheduler.StepLR", {}),
            ]
        ),
        ("data", {"_target_": "mfswb.run.subprocess.run", "args": ["touch", "owned"]}, "there is no such function"),
        ("data", {"_target_": "mfswb.cli.sys.exit"}, "there is no such function"),
        (
            "data",
            {**CLOUDS, "paths": ["a.ply", {"_target_": "os.mkdir", "path": "owned"}]},
            r"data\.paths\[1\]\._target_",
        ),
        ("data", {**CLOUDS, "paths": [{"deep": [{"_target_": "os.mkdir"}]}]}, "only targets in"),
        ("data", {**CLOUDS, "paths": ["a.ply", 3]}, r"data\.paths=.*expected"),
    ],
)
def test_wrong_settings_are_named(section: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(section, settings)
    assert "\n" not in str(caught.value)
    assert not Path("owned").exists()


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match=r"data\.paths"):
        run(compose_config(["data=clouds"]), Path("never-made"), [])
    assert not Path("never-made").exists()
