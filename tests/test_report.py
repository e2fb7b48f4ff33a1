"""Reports: tables with known numbers, grouping, figures, the page in a real browser, and the paper's command."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mfswb.configuration import compose_config
from mfswb.errors import ConfigError
from mfswb.experiments import choose, load_experiments
from mfswb.paper import run_name
from mfswb.paper_cli import main as mfswb_paper
from mfswb.report.curves import convergence_figure, pareto_front
from mfswb.report.runs import Run, find_runs, group, sections
from mfswb.report.style import method_colours
from mfswb.report.tables import Cell, cell_text, make_table, to_csv, to_latex, to_markdown
from mfswb.report_cli import main as mfswb_report
from mfswb.run import run

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def made_up(method: str, seed: int, f: float, w: float, **settings: Any) -> Run:
    loss = {"lam": float(method.partition("=")[2])} if "lam=" in method else {}
    names = {"task": "pointcloud", "loss": method.partition(" ")[0], "data": "shapes"}
    config = {"names": names, "seed": seed, "loss": loss, "data": {"names": ["a"]}, "task": settings, "trainer": {}}
    rows = [
        {"step": step, "seconds": step / 10, "fairness_gap": f * scale, "mean_distance": w * scale}
        for step, scale in ((0, 3.0), (10, 2.0), (20, 1.0))
    ]
    return Run(Path(f"{method}_{seed}"), config, {"status": "finished", **rows[-1]}, rows)


RUNS = [
    made_up("es", 1, 0.002, 4.0),
    made_up("uswb", 1, 1e-5, 5.0),
    made_up("uswb", 2, 3e-5, 7.0),
    made_up("mfswb lam=10", 1, 0.5, 6.5),
    made_up("mfswb lam=0.1", 1, 0.25, 6.75),
]


def test_tables_hold_means_and_deviations_over_seeds() -> None:
    table = make_table(group(RUNS))
    assert [label for label, _ in table.rows] == ["uswb", "mfswb lam=0.1", "mfswb lam=10", "es"]
    uswb = dict(table.rows)["uswb"]
    assert uswb[0].mean == pytest.approx(2e-5)
    assert uswb[0].std == pytest.approx(np.sqrt(2) * 1e-5)
    assert (uswb[0].n, uswb[0].best, uswb[1].best) == (2, True, False)
    assert dict(table.rows)["es"][1] == Cell(4.0, None, 1, best=True)
    assert to_markdown(table).splitlines() == [
        "| method | F | W |",
        "|---|---:|---:|",
        "| uswb | **2e-05 ± 1.4e-05** | 6 ± 1.4 |",
        "| mfswb lam=0.1 | 0.25 | 6.75 |",
        "| mfswb lam=10 | 0.5 | 6.5 |",
        "| es | 0.002 | **4** |",
    ]
    read = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert float(read[0]["F mean"]) == uswb[0].mean
    assert (read[3]["W mean"], read[3]["W std"], read[3]["W n"]) == ("4.0", "", "1")
    latex = to_latex(table)
    assert r"uswb & $\mathbf{2 \cdot 10^{-5} \pm 1.4 \cdot 10^{-5}}$ & $6 \pm 1.4$ \\" in latex
    assert latex.count("&") == 2 * 5


def test_columns_of_steps_and_missing_ones() -> None:
    table = make_table({"es": RUNS[:1]}, [0, 20, 99])
    assert [column.title for column in table.columns] == ["F (0)", "W (0)", "F (20)", "W (20)", "F (99)", "W (99)"]
    assert [cell.mean for cell in table.rows[0][1]] == [0.006, 12.0, 0.002, 4.0, None, None]
    assert cell_text(table.rows[0][1][-1]) == "-"
    assert "& --" in to_latex(table)


def test_a_column_of_equal_figures_has_no_best() -> None:
    table = make_table({"a": [made_up("es", 1, 1.0, 2.0)], "b": [made_up("us", 1, 1.0, 2.0)]})
    assert not any(cell.best for _, cells in table.rows for cell in cells)


def test_runs_are_grouped_by_what_differs() -> None:
    runs = [made_up("es", seed, 1.0, 1.0, p=p, n=3) for seed in (1, 2) for p in (1, 2)]
    assert {label: len(members) for label, members in group(runs).items()} == {"es, task.p=1": 2, "es, task.p=2": 2}
    assert {label: len(members) for label, members in group(runs, ["method"]).items()} == {"es": 4}
    with pytest.raises(ConfigError, match=r"--by task\.q"):
        group(runs, ["task.q"])


def test_settings_of_loss_and_length_set_runs_apart(caplog: pytest.LogCaptureFixture) -> None:
    runs = [made_up("es", 1, 1.0, 1.0), made_up("es", 1, 2.0, 2.0), made_up("uswb", 1, 1.0, 1.0)]
    for run_, detach, steps in zip(runs, (True, False, None), (5, 50, 5), strict=True):
        if detach is not None:
            run_.config["loss"]["detach_weights"] = detach
        run_.config["trainer"].update(steps=steps, threads=steps)
    assert list(group(runs)) == [
        "uswb, trainer.steps=5",
        "es, loss.detach_weights=False, trainer.steps=50",
        "es, loss.detach_weights=True, trainer.steps=5",
    ]
    assert {label: len(members) for label, members in group([*runs, runs[0]]).items()} == dict.fromkeys(group(runs), 1)
    assert "which is left out" in caplog.text


def test_runs_on_other_data_are_another_section() -> None:
    other = made_up("es", 1, 1.0, 1.0)
    other.config["data"]["names"] = ["b"]
    assert {title: len(members) for title, members in sections([*RUNS, other]).items()} == {
        "pointcloud, shapes": 5,
        "pointcloud, shapes (2)": 1,
    }


def test_a_method_has_one_colour_everywhere() -> None:
    every = ["none", "uswb", "mfswb lam=0.1", "mfswb lam=1", "mfswb lam=10", "s", "us", "es"]
    colours = method_colours(every)
    assert len(set(colours.values())) == 8
    for label in every:
        assert method_colours(["es, lr=1", label])[label] == colours[label]
    many = method_colours([f"mfswb lam={lam}" for lam in (0.1, 0.3, 1, 3, 10)])
    assert len(set(many.values())) == 5


def test_the_pareto_front_has_no_point_another_beats() -> None:
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in rng.uniform(size=(50, 2))]
    front = pareto_front(points)
    assert front == sorted(front)
    for point in points:
        beaten = any(q[0] <= point[0] and q[1] <= point[1] and q != point for q in points)
        assert (point in front) != beaten


def test_curves_take_the_steps_all_seeds_share() -> None:
    long = made_up("uswb", 3, 1.0, 1.0)
    longer = Run(long.folder, long.config, long.summary, [*long.rows, {**long.rows[-1], "step": 30}])
    figure = convergence_figure({"uswb": [RUNS[1], RUNS[2], longer]})
    line = figure.axes[0].lines[0]
    assert np.asarray(line.get_xdata()).tolist() == [0, 10, 20]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), np.array([3, 2, 1]) * (1e-5 + 3e-5 + 1) / 3)


def test_what_cannot_be_read_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match="no runs there"):
        find_runs([tmp_path])
    assert "left out" in caplog.text
    with pytest.raises(ConfigError, match="no such folder"):
        find_runs([tmp_path / "nothing"])


# --- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small runs on built-in shapes, and one that never began."""
    folder = tmp_path_factory.mktemp("clouds")
    for loss in ("uswb", "es"):
        for seed in (1, 2):
            size = ["task.n_support=200", "task.metric_points=100", "trainer.steps=20", "trainer.eval_steps=[0,10]"]
            overrides = [f"loss={loss}", f"seed={seed}", *size]
            run(compose_config(overrides), folder / f"{loss}{seed}", overrides)
    with pytest.raises(ConfigError):
        run(compose_config(["task.n_support=0"]), folder / "wrong", [])
    assert mfswb_report([str(folder)]) == 0
    return folder


def test_a_report_has_its_files(clouds: Path) -> None:
    report = clouds / "report"
    names = {"table.md", "table.csv", "table.tex", "iterations.md", "report.html"}
    names |= {f"{name}.{kind}" for name in ("convergence", "pareto", "barycenters") for kind in ("png", "pdf")}
    assert names <= {file.name for file in report.iterdir()}
    table = (report / "table.md").read_text()
    figures = [json.loads((clouds / f"es{seed}" / "summary.json").read_text())["fairness_gap"] for seed in (1, 2)]
    assert f"{np.mean(figures):.4g} ± {np.std(figures, ddof=1):.2g}" in table
    assert (report / "pareto.pdf").read_bytes().startswith(b"%PDF")
    page = (report / "report.html").read_text()
    assert "Not finished and left out" in page
    assert "wrong (failed)" in page


def test_the_page_needs_no_network(clouds: Path) -> None:
    page = (clouds / "report" / "report.html").read_text()
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # the plotting library names addresses it may use
    assert not re.findall(r"""(?:src|href)=["']?(?!data:)[a-z]+:""", ours)
    assert not re.findall(r"<(?:link|iframe)|<script[^>]+src", page.split("</head>")[1])


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_the_page_works_in_a_browser_offline(clouds: Path, tmp_path: Path) -> None:
    page = (clouds / "report" / "report.html").read_text()
    click = '<script>document.querySelectorAll("table.sortable th button")[1].click()</script></body>'
    report = "<script>document.body.dataset.errors = String(window.problems)</script></body>"
    watch = "<head><script>window.problems = 0; window.onerror = () => { window.problems++ }</script>"
    (tmp_path / "page.html").write_text(
        page.replace("<head>", watch).replace("</body>", click.replace("</body>", report))
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--virtual-time-budget=8000"]
    offline = "--host-resolver-rules=MAP * ~NOTFOUND"
    asked = [str(BROWSER), *flags, offline, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    shown = subprocess.run([*asked, f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=120).stdout
    assert 'data-errors="0"' in shown
    assert 'aria-sort="ascending"' in shown
    body = shown.split("<tbody>")[1].split("</tbody>")[0]
    values = [float(re.findall(r'data-value="([^"]+)"', row)[0]) for row in body.split("</tr>")[:-1]]
    assert values == sorted(values)
    assert len(values) == 2
    assert "js-plotly-plot" in shown  # the view of point clouds was drawn
    assert "<canvas" in shown


QUICK: dict[str, Any] = {"quick": True, "builtin": True, "data_folder": None}
TINY = ["trainer.steps=20", "trainer.eval_steps=[0,10]", "--builtin", "--quick"]


def test_the_paper_s_command_runs_what_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    arguments = ["gaussian", *TINY, "-o", str(tmp_path)]
    assert mfswb_paper(arguments) == 0
    assert "7 made, 0 kept, 0 failed" in caplog.text
    folder = tmp_path / "gaussian-quick-builtin"
    made = {file.name for file in folder.iterdir()}
    assert {"table.md", "table.csv", "table.tex", "barycenters.pdf", "barycenters.png", "report.html"} <= made
    commands = (folder / "commands.txt").read_text()
    assert "mfswb-paper gaussian" in commands
    assert commands.count("\nmfswb-run ") == 7
    stamps = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    caplog.clear()
    assert mfswb_paper(arguments) == 0
    assert "0 made, 7 kept" in caplog.text
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()} == stamps
    caplog.clear()
    shutil.rmtree(next(folder.glob("runs/es*")))
    assert mfswb_paper([*arguments, "trainer.progress=false"]) == 0
    assert "1 made, 6 kept" in caplog.text
    caplog.clear()
    (changed,) = (
        job for job in choose(["gaussian"])[0].jobs(**QUICK, extra=["optimizer.lr=0.02"]) if job.method == "es"
    )
    assert run_name(changed) not in {run_folder.name for run_folder in folder.glob("runs/*")}  # made anew, beside


def test_a_failing_method_does_not_stop_the_paper_s_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    # so large a rate that the loss overflows for the unscaled, too
    assert mfswb_paper(["gaussian", *TINY, "-o", str(tmp_path), "optimizer.lr=1e30"]) == 1
    assert "7 failed" in caplog.text
    assert "diverged at step" in caplog.text
    folders = list((tmp_path / "gaussian-quick-builtin" / "runs").iterdir())
    assert len([folder for folder in folders if (folder / "traceback.txt").is_file()]) == 7


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_process_that_dies_costs_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when memory runs out: the worker that finds a certain folder kills itself."""
    (tmp_path / "sitecustomize.py").write_text(
        "import mfswb.run, os, signal\n"
        "real = mfswb.run.run\n"
        "def run(cfg, folder, *rest, **more):\n"
        "    if 'us_seed' in folder.name and 'uswb' not in folder.name:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(cfg, folder, *rest, **more)\n"
        "mfswb.run.run = run\n"
    )
    arguments = [sys.executable, "-m", "mfswb.paper_cli", "gaussian", *TINY, "-o", "out"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "1 failed" in done.stderr
    assert "us, seed 1 (its process died" in done.stderr
    assert len(list((tmp_path / "out").rglob("support.npy"))) == 6


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_stops_the_command(tmp_path: Path) -> None:
    arguments = ["gaussian", "--builtin", "--quick", "trainer.steps=3000", "trainer.eval_steps=[0]", "--jobs", "1"]
    command = [sys.executable, "-m", "mfswb.paper_cli", *arguments, "-o", "out"]
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list((tmp_path / "out").rglob("checkpoint.pt")):
        assert job.poll() is None
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGINT)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 130
    assert "interrupted; the same command goes on" in errors
    assert len(list((tmp_path / "out").rglob("summary.json"))) <= 2


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_command_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    arguments = ["gaussian", "--builtin", "--quick", "trainer.steps=1000", "trainer.eval_steps=[0]", "--jobs", "2"]
    command = [sys.executable, "-m", "mfswb.paper_cli", *arguments, "-o", "out"]
    job = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)

    def finished() -> set[str]:
        summaries = (tmp_path / "out").rglob("summary.json")
        return {file.parent.name for file in summaries if '"finished"' in file.read_text()}

    while not finished():
        assert job.poll() is None
        time.sleep(0.05)
    job.send_signal(signal.SIGKILL)
    job.wait()
    deadline = time.monotonic() + 30
    while subprocess.run(["pgrep", "-s", str(job.pid)], capture_output=True).returncode == 0:
        assert time.monotonic() < deadline, "workers outlived the command"
        time.sleep(0.2)
    before = finished()
    stamps = {name: next((tmp_path / "out").rglob(f"{name}/summary.json")).stat().st_mtime_ns for name in before}
    assert 0 < len(before) < 7
    assert subprocess.run(command, cwd=tmp_path, stderr=subprocess.DEVNULL, timeout=300).returncode == 0
    assert len(finished()) == 7
    for name, stamp in stamps.items():
        assert next((tmp_path / "out").rglob(f"{name}/summary.json")).stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dragon"], "dragon: no such experiment; there are bias, color, constrained"),
        (["trainer.steps=3"], "no experiment is named"),
        (["gaussian", "--data", "nowhere"], "--data nowhere: no such folder"),
        (["gaussian", "--jobs", "0"], "--jobs 0"),
        (["color"], "data.source=FILE"),
        (["color", "--data", "."], "there is no images/s6.bmp, images/t4.bmp, images/t6.bmp"),
        (["gaussian", "trainer.stepz=5"], "trainer.stepz"),
        (["gaussian", "optimizer=bogus"], "optimizer=bogus: there is no such optimizer"),
        (["gaussian", "loss=us"], "loss=us: losses and seeds are the experiment's"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: list[str], message: str
) -> None:
    assert mfswb_paper([*arguments, "-o", str(tmp_path / "out")]) == 1
    assert message in caplog.text
    assert not (tmp_path / "out").exists()


def test_the_list_names_every_experiment(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert mfswb_paper(["list"]) == 0
    for experiment in load_experiments().values():
        assert experiment.name in caplog.text
        assert experiment.makes in caplog.text
    assert [experiment.name for experiment in choose(["all"])] == sorted(load_experiments())


def test_data_of_the_paper_are_found_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("s6", "t4", "t6"):
        (tmp_path / "images" / f"{name}.bmp").write_bytes(b"x")
    (color,) = choose(["color"])
    overrides = color.jobs(quick=False, builtin=False, data_folder=tmp_path, extra=[])[0].overrides
    cfg = compose_config(list(overrides))
    assert cfg.data.source == str(tmp_path / "images" / "s6.bmp")
    assert [Path(target).name for target in cfg.data.targets] == ["t4.bmp", "t6.bmp"]
    (cloud,) = choose(["pointcloud"])
    lacking = cloud.jobs(quick=False, builtin=False, data_folder=tmp_path, extra=[])[0]
    assert compose_config(list(lacking.overrides)).data.path is None  # to be fetched


def test_a_length_that_was_typed_counts() -> None:
    (swae,) = choose(["swae"])
    chosen = swae.jobs(quick=True, builtin=True, data_folder=None, extra=["trainer.epochs=5"])[0].overrides
    assert not [text for text in chosen if text.startswith("trainer.steps=")]
