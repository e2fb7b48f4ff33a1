"""Faults of every kind, on purpose: kills at random moments, long runs, large sweeps. Prints what was tried and found.

python scripts/faults.py kills --times 50      SIGKILL, SIGTERM and Ctrl-C in turns, until so many runs a task were hit
                                               before their end; each run is then continued and must end like the
                                               uninterrupted one, byte by byte
python scripts/faults.py steps --times 200000  memory of one long run
python scripts/faults.py sweep --times 200     open files and processes of one sweep of so many jobs

Each run is a process of its own, forked from one that has imported everything, so that a run takes a second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
_COMMON = ("trainer.threads=1", "trainer.eval_every=40", "seed=3", "trainer.progress=false")
# Small runs of about a second that evaluate and write checkpoints all the time, to be hit there.
TASKS = {
    "gaussian": ("task=gaussian", "trainer.steps=400", "trainer.checkpoint_every=5", "optimizer=adam"),
    "pointcloud": ("task=pointcloud", "data=gaussians", "data.means=[[0,0,0],[5,1,0]]", "task.n_support=50",
                   "trainer.steps=400", "trainer.checkpoint_every=5"),
    # Large enough for evaluations beside the training, and with averaged iterates.
    "beside": (
        *("task=pointcloud", "recipe=fast", "data=gaussians", "data.means=[[0,0,0],[5,1,0]]", "data.sizes=1000"),
        *("task.n_support=1000", "trainer.steps=200", "trainer.checkpoint_every=5"),
    ),
    "color": ("task=color", "data=images", "data.palettes={folder}/palettes.npz", "trainer.steps=400",
              "trainer.checkpoint_every=5"),
    "swae": ("task=swae", "data=digits", "data.size=8", "task.batch_size=20", "task.eval_images=20",
             "task.prior_draws=1", "trainer.steps=80", "trainer.checkpoint_every=3"),
}  # fmt: skip


def command(folder: Path, arguments: Sequence[str]) -> int:
    """Start ``mfswb-run`` in a fork; returns its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["mfswb-run", *arguments]
        from mfswb.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = 130  # before the run began to listen; as Python itself ends
    finally:
        sys.stdout.flush()
        os._exit(code)


def _warm_up(folder: Path, arguments: Sequence[str]) -> None:
    """One short run in this process, which imports whatever the forks will need."""
    from mfswb.configuration import compose_config
    from mfswb.run import run

    overrides = [*arguments, "trainer.steps=2"]
    run(compose_config(overrides), folder / "warm", overrides)


def ended(process: int) -> int:
    """Exit code of a process, negative for a signal, as ``subprocess`` has it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def result(run: Path) -> dict[str, Any]:
    """What must not depend on interruptions: the files of the result, and the rows but for their seconds."""
    import torch

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    found: dict[str, Any] = {"rows": [{k: v for k, v in row.items() if k != "seconds"} for row in rows]}
    found["tensors"] = [tensor.numpy().tobytes() for tensor in _tensors(state)]
    for name in ("support.npy", "palettes.npz", "model.pt", "latents.npz"):
        if (run / name).is_file():
            found[name] = _content(run / name)
    return found


def _tensors(value: Any) -> list[Any]:
    if hasattr(value, "numpy"):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value, key=str) for tensor in _tensors(value[key])]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list | tuple) else []


def _content(path: Path) -> Any:
    """The bytes of a file; of an archive those of its members, without their dates."""
    if path.suffix != ".npz":
        return path.read_bytes()
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name].tobytes() for name in archive.files}


def try_kills(task: str, times: int, seed: int) -> dict[str, int]:
    """Interrupt runs of a task at random moments and continue each, until so many were hit before their end.

    Raises:
        AssertionError: a checkpoint that does not load, a wrong exit code or message, or another result.
    """
    from mfswb.runfolder import load_earlier

    rng = np.random.default_rng([seed, len(task)])
    counts = dict.fromkeys(("interrupted", "ended before", "no checkpoint yet"), 0)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        colours = {name: np.random.default_rng(0).uniform(0, 255, (40, 3)) for name in ("source", "target1", "target2")}
        np.savez(folder / "palettes.npz", allow_pickle=False, **colours)
        arguments = [text.format(folder=folder) for text in (*TASKS[task], *_COMMON)]
        _warm_up(folder, arguments)
        started = time.perf_counter()
        assert ended(command(folder, [*arguments, "hydra.run.dir=whole"])) == 0, (folder / "output.txt").read_text()
        length = time.perf_counter() - started
        whole = result(folder / "whole")
        for k in count():
            if counts["interrupted"] == times:
                break
            number, run = SIGNALS[k % len(SIGNALS)], folder / f"run{k}"
            (folder / "output.txt").unlink()
            process = command(folder, [*arguments, f"hydra.run.dir={run}"])
            while not (run / "config.yaml").exists():
                time.sleep(0.002)
            # The first half of the trials by time, the others when a checkpoint or a row is just being written.
            moment = time.perf_counter() + rng.uniform(0, length)
            while k % 2 and time.perf_counter() < moment - 0.2 * length:
                time.sleep(0.001)
            while time.perf_counter() < moment and not (k % 2 and list(run.glob(".*.tmp*"))):
                time.sleep(0 if k % 2 else 0.001)
            os.kill(process, number)
            code, told = ended(process), (folder / "output.txt").read_text()
            # Python loses a signal that strikes while it collects garbage, and says so.
            assert "Traceback" not in told or "Exception ignored in" in told, told
            if code == 0:
                counts["ended before"] += 1
            else:
                counts["interrupted"] += 1
                assert code == CODES.get(number, -number), (code, told)
                if number in CODES:
                    assert f"continue with trainer.resume={run}" in told, told
            assert load_earlier(run)[1]["trainer"]["steps"] == int(arguments_steps(arguments))
            if not (run / "checkpoint.pt").exists():
                counts["no checkpoint yet"] += 1
            goes_on = run if k % 4 < 2 else folder / f"on{k}"  # in its own folder, or in another
            done = ended(command(folder, [f"trainer.resume={run}", f"hydra.run.dir={goes_on}"]))
            assert done == 0, (folder / "output.txt").read_text()
            differing = [name for name, value in result(goes_on).items() if value != whole[name]]
            assert not differing, f"{task}: trial {k} ended with other {', '.join(differing)}"
            assert not list(goes_on.glob("**/.*.tmp*"))
    return counts


def arguments_steps(arguments: Sequence[str]) -> str:
    """The number of steps among overrides."""
    return next(text.partition("=")[2] for text in arguments if text.startswith("trainer.steps="))


def try_steps(times: int) -> str:
    """Run so many steps and compare the memory in use after a tenth of them and at the end."""
    from mfswb import loop
    from mfswb.configuration import compose_config
    from mfswb.run import run

    sizes: list[tuple[int, float]] = []
    before = loop.Loop._on_schedule

    def watched(self: Any) -> None:
        if self.step % (times // 10) == 0:
            sizes.append((self.step, _resident()))
        before(self)

    loop.Loop._on_schedule = watched  # type: ignore[method-assign]
    overrides = ["task=gaussian", f"trainer.steps={times}", "trainer.eval_steps=[]", "slicing.n_projections=10",
                 f"trainer.eval_every={times // 200}", "task.snapshots=false"]  # fmt: skip
    with tempfile.TemporaryDirectory() as path:
        started = time.perf_counter()
        run(compose_config(overrides), Path(path) / "run", overrides)
    first, last = sizes[1], sizes[-1]
    return (
        f"{times} steps, 200 evaluations and {times // 1000} checkpoints in {time.perf_counter() - started:.0f} s: "
        f"{first[1]:.1f} MB after {first[0]} steps, {last[1]:.1f} MB at the end ({last[1] - first[1]:+.1f} MB)"
    )


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def try_sweep(times: int) -> str:
    """Run so many jobs in one sweep, in one process, and count its open files, threads and child processes."""
    from mfswb.cli import main

    def counted() -> tuple[int, int, int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(children)

    def sweep(folder: str, jobs: int) -> None:
        small = ("data=gaussians", "data.sizes=20", "task.n_support=10", "trainer.steps=5", "trainer.eval_steps=[]")
        sys.argv = ["mfswb-run", "-m", *small, f"hydra.sweep.dir={folder}", f"seed=range({jobs})"]
        main()

    with tempfile.TemporaryDirectory() as path:
        sweep(f"{path}/first", 2)
        started, before = time.perf_counter(), counted()
        sweep(f"{path}/many", times)
        after, seconds = counted(), time.perf_counter() - started
        finished = len(list(Path(path).glob("many/*/support.npy")))
    assert (finished, after) == (times, before), (finished, before, after)
    return f"{times} jobs in {seconds:.0f} s: open files, threads, child processes {before} before and {after} after"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "steps", "sweep"))
    parser.add_argument("--times", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    if options.what == "steps":
        print(try_steps(options.times or 200_000))
    elif options.what == "sweep":
        print(try_sweep(options.times or 200))
    else:
        for task in options.tasks:
            started = time.perf_counter()
            counts = try_kills(task, options.times or 50, options.seed)
            told = ", ".join(f"{number} {what}" for what, number in counts.items())
            print(f"{task}: {told}; all continued to the same bytes; {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
