"""Clouds, weights and configurations as careless or hostile hands make them: the right value, or one clear line."""

from __future__ import annotations

import ast
import logging
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import pcd
from hypothesis import given
from hypothesis import strategies as st

from mfswb import sliced_barycenter, sliced_costs
from mfswb.configuration import compose_config
from mfswb.data.clouds import load_clouds
from mfswb.errors import ConfigError, DataError
from mfswb.guard import check_hydra_section, explained
from mfswb.measures import Measures
from mfswb.run import run

ROOT = Path(__file__).resolve().parents[1]
POINTS = np.random.default_rng(0).normal(size=(6, 3)).round(3)
ROWS = [f"{x} {y} {z}" for x, y, z in POINTS.tolist()]
XYZ = "".join(f"property float {axis}\n" for axis in "xyz")
FLOATS = b"".join(struct.pack("<fff", *row) for row in POINTS.tolist())
LITTLE, BIG = "binary_little_endian", "binary_big_endian"
FACES = "property list uchar int vertex_indices\n"


def ply(kind: str, body: str | bytes, *, n: int = 6, properties: str = XYZ, more: str = "", end: str = "\n") -> bytes:
    head = f"ply\nformat {kind} 1.0\nobj_info by hand\nelement vertex {n}\n{properties}{more}end_header\n"
    return head.replace("\n", end).encode() + (body.replace("\n", end).encode() if isinstance(body, str) else body)


def text(rows: list[str]) -> str:
    return "\n".join(rows) + "\n"


def load(path: Path, content: bytes, **options: Any) -> np.ndarray:
    path.write_bytes(content)
    return load_clouds([str(path)], seed=0, **options).points[0]


@pytest.mark.parametrize(
    "content",
    [
        ply("ascii", text(ROWS)),
        ply("ascii", text(ROWS), end="\r\n"),
        ply(LITTLE, FLOATS, end="\r\n"),
        ply("ascii", text(ROWS), more=f"element face 0\n{FACES}"),
        ply("ascii", text([f"{row} 7" for row in ROWS]), properties=f"{XYZ}property uchar red\n"),
        ply(BIG, POINTS.astype(">f8").tobytes(), properties=XYZ.replace("float", "double")),
        ply(BIG, POINTS[:, ::-1].astype(">f4").tobytes(), properties="".join(f"property float32 {a}\n" for a in "zyx")),
        ply("ascii", text([f"2 8 9 {row}" for row in ROWS]), properties=f"property list uchar int tags\n{XYZ}"),
        ply(
            LITTLE,
            b"".join(struct.pack(f"<B{k}hfff", k, *[5] * k, *row) for k, row in enumerate(POINTS.tolist())),
            properties=f"property list uchar short tags\n{XYZ}",
        ),
        ply(LITTLE, b"".join(struct.pack("<Biifff", 2, 1, 1, *row) for row in POINTS.tolist()),
            properties=f"property list uint8 int32 tags\n{XYZ}"),
        ply("ascii", "1 2\n" + text(ROWS)).replace(
            b"element vertex", b"element camera 1\nproperty float f\nproperty int k\nelement vertex"
        ),
    ],
)  # fmt: skip
def test_any_ply_gives_its_points(tmp_path: Path, content: bytes) -> None:
    np.testing.assert_allclose(load(tmp_path / "a.ply", content), POINTS, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ply("ascii", text(ROWS), n=9), "its header promises 9 of vertex, found 6"),
        (ply("ascii", text(ROWS), n=4), "has 2 lines more than the 4 its header promises"),
        (ply(LITTLE, FLOATS, n=9), "its header promises 9 of vertex, but the file ends after 6"),
        (ply(LITTLE, FLOATS[:-1]), "its header promises 6 of vertex, but the file ends after 5"),
        (ply(LITTLE, FLOATS + b"xx"), "has 2 bytes more than its header promises"),
        (ply(LITTLE, b"", n=10**15 - 1), "but the file ends after 0"),
        (ply("ascii", "", n=0), "holds 0 vertices"),
        (ply("ascii", text([*ROWS[:2], "1 2 three", *ROWS[3:]])), "vertex 3: expected 3 numbers, found '1 2 three'"),
        (ply("ascii", text(ROWS), properties="property float u\nproperty float y\nproperty float z\n"),
         "its vertices have no x, only u, y, z"),
        (ply("ascii", text(ROWS), properties=XYZ + "property quad w\n"), "line 8: 'property quad w' is no line"),
        (ply("ascii", text([*ROWS, "3 0 1 77"]), more=f"element face 1\n{FACES}"), "there are vertices 0 to 5"),
        (ply(LITTLE, FLOATS + struct.pack("<Biii", 3, 0, 1, 2), more=f"element face 2\n{FACES}"),
         "promises 2 of face, but the file ends after 1"),
        (ply("ascii", text([ROWS[0], "nan 0 0", "0 inf 0", *ROWS[3:]])), "2 of 6 points are NaN or infinite; data"),
        (b"ply\nformat ascii 1.0\n", "'end_header' is missing"),
        (b"solid\n", "expected its first line to be 'ply'"),
    ],
)  # fmt: skip
def test_a_wrong_ply_says_what_was_expected_and_found(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path / "a.ply", content)
    assert str(tmp_path / "a.ply") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd_files(tmp_path: Path, kind: str) -> None:
    whole = pcd(kind, POINTS)
    np.testing.assert_allclose(load(tmp_path / "a.pcd", whole), POINTS, atol=1e-6)
    for wrong, message in [
        (whole[:-5], "promises|damaged|expected|cut off"),
        (whole.replace(b"POINTS 6", b"POINTS 60"), "WIDTH times HEIGHT must be the same"),
        (whole.replace(b"POINTS 6", b"POINTS 60").replace(b"WIDTH 6", b"WIDTH 60"), "promises"),
        (whole.replace(b"FIELDS x y z", b"FIELDS u v w"), "its points have no x, only u, v, w"),
        (whole.replace(b"DATA", b"DATE"), "is no PCD file|cut off"),
    ]:
        with pytest.raises(DataError, match=message):
            load(tmp_path / "a.pcd", wrong)


def test_invalid_points_are_left_out_where_that_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = text([ROWS[0], "nan 0 0", *ROWS[2:5], "0 -inf 0"]).encode()
    np.testing.assert_array_equal(load(tmp_path / "a.xyz", rows, drop_invalid=True), POINTS[[0, 2, 3, 4]])
    assert "2 of 6 points are NaN or infinite and are left out" in caplog.text
    with pytest.raises(DataError, match=r"none of its 1 points is finite"):
        load(tmp_path / "a.xyz", b"nan 0 0\n", drop_invalid=True)
    mesh = b"v 0 0 0\nv 1 0 0\nv 0 1 0\nv nan 5 5\nf 1 2 3\nf 2 3 4\n"
    with pytest.raises(DataError, match="its mesh: 1 of 4 points are NaN"):
        load(tmp_path / "a.obj", mesh)
    sampled = load(tmp_path / "a.obj", mesh, drop_invalid=True, n_points=50)
    assert sampled.max() <= 1


def test_very_different_extents_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Measures.of([POINTS, 90 * POINTS, np.zeros((1, 3))])
    assert caplog.text == ""
    Measures.of([POINTS, 1000 * POINTS], names=["metres", "millimetres"])
    assert "metres extends over" in caplog.text
    assert "more than 100 times as far; are they in the same units?" in caplog.text


def test_far_off_origins_cost_no_digits(tmp_path: Path) -> None:
    cloud = np.random.default_rng(1).uniform(0, 50, (200, 3)) + [5e5, 5.4e6, 100]
    for name, shift in (("a", 0.0), ("b", 0.01)):
        np.save(tmp_path / f"{name}.npy", cloud + shift)
    measures = load_clouds([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")], seed=0)
    a, b = (torch.tensor(measures.frame.inward(points), dtype=torch.float32) for points in measures.points)
    exact = sliced_barycenter([measures.points[1]], x_init=measures.points[0], steps=0).mean_distance
    assert exact == pytest.approx(3.0e-4, rel=1e-5)
    axes = torch.eye(3)
    assert float(sliced_costs(a, [b], axes).sum()) == pytest.approx(3.0e-4, rel=0.01)


def test_degenerate_and_uneven_clouds_have_finite_results() -> None:
    point = np.full((30, 3), 2.0)
    for marginals in ([point, point], [np.repeat(POINTS, 5, axis=0), point], [POINTS[:1], POINTS]):
        result = sliced_barycenter(marginals, "es", steps=5, n_support=20)
        assert np.isfinite([result.fairness_gap, result.mean_distance]).all()
        assert np.isfinite(result.support).all()
    large = np.random.default_rng(0).normal(size=(200_000, 3))
    result = sliced_barycenter([large[:500], large], "us", steps=2, n_support=300, metric_points=200)
    assert np.isfinite(result.distances).all()


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_permuting_weighted_points_changes_nothing(seed: int, zeros: bool) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(7, 2)), rng.normal(size=(9, 2))
    a, b = rng.uniform(0.1, 1, 7), rng.uniform(0.1, 1, 9)
    if zeros:
        a[:3], b[4:] = 0.0, 0.0
    i, j = rng.permutation(7), rng.permutation(9)

    def costs(x: np.ndarray, a: np.ndarray, y: np.ndarray, b: np.ndarray) -> torch.Tensor:
        x_, a_, y_, b_ = (torch.from_numpy(values) for values in (x, a / a.sum(), y, b / b.sum()))
        return sliced_costs(x_, [y_], torch.eye(2).double(), support_weights=a_, marginal_weights=[b_])

    torch.testing.assert_close(costs(x, a, y, b), costs(x[i], a[i], y[j], b[j]), rtol=1e-9, atol=1e-12)
    kept = a > 0  # points without mass count for nothing
    torch.testing.assert_close(costs(x, a, y, b), costs(x[kept], a[kept], y, b), rtol=1e-9, atol=1e-12)


# --- configurations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["los=es"], "los: unknown key; did you mean loss?"),
        (["trainer.stps=5"], "trainer.stps: unknown key; did you mean trainer.steps"),
        (["lr=0.1"], "lr: unknown key; did you mean optimizer.lr?"),
        (["optimiser.lr=1"], "optimiser: unknown key; did you mean optimizer"),
        (["data=clouds", "data.pahts=[a]"], "data.pahts: unknown key; did you mean data.paths"),
        (["loss=esx"], "loss=esx: there is no such loss; did you mean es? choices are "),
        (["task=cloud"], "task=cloud: there is no such task; did you mean pointcloud"),
        (["data=shapse"], "data=shapse: there is no such data; did you mean shapes"),
        (["hydra/launcher=slrm"], "hydra/launcher=slrm: there is no such launcher; did you mean slurm?"),
        (["hydra.run.dri=x"], "hydra.run.dri: unknown key; did you mean hydra.run.dir?"),
        (["loss"], "loss: cannot be understood"),
        (["data.names=[a"], r"data.names=[a: cannot be understood"),
    ],
)
def test_unknown_names_come_with_the_nearest_ones(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_launcher_that_is_not_installed_names_its_extra() -> None:
    from hydra.errors import MissingConfigException

    for choice, extra in (("hydra/launcher/ray", "ray"), ("hydra/sweeper/optuna", "optuna")):
        told = explained(MissingConfigException("many lines\nof Hydra's", choice, ["basic"]))
        assert told.endswith(f"is not installed; pip install 'mfswb[{extra}]'")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+foo=1"], "foo: unknown key"),
        (["debug=maybe"], "debug=maybe: expected true or false"),
        (["allow_foreign_targets=yes"], "allow_foreign_targets=yes: expected true or false"),
        (["trainer.steps=-5"], "trainer.steps=-5"),
        (["slicing.n_projections=-1"], "slicing.n_projections=-1"),
        (["slicing.n_projections=many"], "expected int"),
        (["task.n_support=0"], "task.n_support=0"),
        (["data=clouds", "data.paths=[]"], "give at least one file"),
        (["data.names=[]"], "data.names"),
        (["task.metric_points=0"], "task.metric_points=0"),
        (["trainer.device=cuda:7"], "trainer.device=cuda:7"),
        (["loss=mfswb", "loss.lam=big"], "loss.lam=big: expected float"),
        (["optimizer=adam", "+optimizer.eps=-1"], "optimizer: Invalid epsilon value: -1"),
        (["optimizer.lr=nan"], "optimizer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    overrides = ["trainer.steps=1", "task.n_support=20", "data.names=[car,chair]", *overrides]
    if "data=clouds" in overrides:
        overrides.remove("data.names=[car,chair]")
    with pytest.raises(ConfigError) as caught:
        run(compose_config(overrides), tmp_path / "run", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("run/*.npy"))


def test_no_rate_moves_nothing(tmp_path: Path) -> None:
    start = np.random.default_rng(0).normal(size=(20, 3))
    result = sliced_barycenter([POINTS, POINTS + 1], x_init=start, lr=0, steps=3)
    np.testing.assert_allclose(result.support, start, atol=1e-6)


def test_marginals_of_different_dimensions_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", POINTS[:, :2])
    np.save(tmp_path / "solid.npy", POINTS)
    with pytest.raises(DataError, match="solid: its points have dimension 3, but those of flat have 2"):
        load_clouds([str(tmp_path / "flat.npy"), str(tmp_path / "solid.npy")], seed=0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    overrides = ["trainer.steps=1"]
    with pytest.raises(ConfigError, match="the run's folder cannot be written"):
        run(compose_config(overrides), tmp_path / "file" / "run", overrides)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.name != "posix" or os.geteuid() != 0 or mount is None:
        pytest.skip("only root may mount a small disk")
    mounted = subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tiny_disk: Path) -> None:
    overrides = ["trainer.steps=3", "task.n_support=2000", "task.metric_points=50", "trainer.eval_steps=[]"]
    with pytest.raises(ConfigError, match=r"a file could not be written .* continue with trainer\.resume="):
        run(compose_config(overrides), tiny_disk / "run", overrides)
    assert not list(tiny_disk.glob("**/.*.tmp*"))


# --- security -------------------------------------------------------------------------------------------------------


def test_nothing_of_ours_loads_pickles() -> None:
    for file in sorted((ROOT / "mfswb").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert called not in ("pickle.load", "pickle.loads", "pickle.Unpickler", "eval", "exec", "yaml.load"), file
            assert called != "torch.load" or given.get("weights_only") == "True", file
            assert given.get("allow_pickle", "False") == "False", file


@pytest.mark.parametrize(
    "section",
    [
        {"callbacks": {"mine": {"_target_": "os.system"}}},
        {"launcher": {"_target_": "mfswb.files.write_text"}},
        {"job_logging": {"handlers": {"mine": {"class": "subprocess.Popen", "args": ["touch", "owned"]}}}},
        {"job_logging": {"formatters": {"mine": {"()": "os.system"}}}},
        {"sweeper": {"list": [{"_target_": "shutil.rmtree"}]}},
    ],
)
def test_hydra_s_section_names_no_stranger_s_code(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^hydra\..*: only Hydra's own"):
        check_hydra_section(section)


def test_a_stranger_s_configuration_folder_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "data").mkdir(parents=True)
    hidden = "# @package _global_\nhydra:\n  callbacks:\n    x: {_target_: os.mkdir, path: owned}\n"
    (tmp_path / "theirs" / "data" / "evil.yaml").write_text(hidden)
    command = [sys.executable, "-m", "mfswb.cli", "--config-dir", "theirs", "data=evil"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("hydra.callbacks.x._target_=os.mkdir: only Hydra's own")
    assert not (tmp_path / "owned").exists()


def test_logging_is_quiet_about_good_input(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "größe mit Leerzeichen.ply", ply("ascii", text(ROWS)))
    assert caplog.text == ""
