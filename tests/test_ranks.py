"""One problem on several processes: the same result as on one, for the same directions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import cloud, sphere
from torch import Tensor

from mfswb.errors import ConfigError
from mfswb.ranks import Ranks

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "mfswb")
QUICK = (
    "task=pointcloud",
    "task.n_support=300",
    "slicing.n_projections=7",
    "trainer.steps=40",
    "trainer.eval_steps=[20]",
    "trainer.dtype=float64",
    "data.names=[airplane,car,chair]",
    "task.metric_points=200",
)


def started(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_two_processes_give_the_result_of_one(tmp_path: Path) -> None:
    one = started((sys.executable, "-m", "mfswb", *QUICK, "loss=mfswb", "hydra.run.dir=one"), tmp_path)
    two = started((*TORCHRUN, *QUICK, "loss=mfswb", "hydra.run.dir=two"), tmp_path)
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    supports = [np.load(tmp_path / name / "support.npy") for name in ("one", "two")]
    np.testing.assert_allclose(supports[0], supports[1], rtol=0, atol=1e-6)
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    assert len(rows[0]) == len(rows[1]) == 2
    for mine, shared in zip(*rows, strict=True):
        assert json.loads(mine)["distances"] == pytest.approx(json.loads(shared)["distances"], abs=1e-6)
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["processes"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]  # the second process leaves nothing


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    few = started((*TORCHRUN, *QUICK, "slicing.n_projections=1"), tmp_path)
    assert few.returncode != 0
    assert "slicing.n_projections=1: cannot be shared by 2 processes" in few.stderr


def test_a_single_process_shares_nothing() -> None:
    directions = sphere(0, 3, 2)
    alone = Ranks()
    assert alone.share(directions) is directions

    def objective(costs: Tensor) -> tuple[Tensor, Tensor]:
        return costs.sum(), torch.ones_like(costs)

    assert alone.joined(objective, 3) is objective
    gradient = cloud(1, 4, 2)
    assert alone.total(gradient) is gradient
    with pytest.raises(ConfigError, match="shared by 4 processes"):
        Ranks(1, 4).share(directions)
    parts = [Ranks(rank, 2).share(directions) for rank in range(2)]
    assert torch.equal(torch.cat(parts)[[0, 2, 1]], directions)
