"""The reference cases: values and gradients of every loss, and the exact metrics."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mfswb import losses, sliced_costs
from mfswb.metrics import fairness_gap, mean_distance, wasserstein2_squared

pytestmark = pytest.mark.reference

METHODS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "uswb": losses.uswb,
    "s": losses.s_mfswb,
    "us": losses.us_mfswb,
    "es": losses.es_mfswb,
    **{f"mfswb_lam{lam}": partial(losses.mfswb, lam=lam) for lam in (0.1, 1.0, 10.0)},
}


@pytest.fixture(scope="module")
def cases(reference: Path) -> dict[str, Any]:
    with np.load(reference / "loss_cases.npz") as archive:
        return dict(archive)


@pytest.mark.parametrize("case", range(6))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("fixed_support", [False, True])
def test_values_and_gradients(
    cases: dict[str, Any], case: int, dtype: torch.dtype, tolerance: float, chunk: int | None, fixed_support: bool
) -> None:
    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(cases[f"case{case}_{name}"], dtype=dtype)

    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    count = len(tensor("w1d"))
    names = ["barycenter", *(f"marginal{k}" for k in range(count))]
    points = [tensor(name).requires_grad_(name != "barycenter" or not fixed_support) for name in names]
    leaves = {name: leaf for name, leaf in zip(names, points, strict=True) if leaf.requires_grad}
    costs = sliced_costs(points[0], points[1:], tensor("theta"), p=int(cases[f"case{case}_p"]), chunk=chunk)
    close(costs, tensor("w1d"))
    compared = 0
    for name, loss in METHODS.items():
        value = loss(costs)
        gradients = torch.autograd.grad(value, list(leaves.values()), retain_graph=True)
        close(value, tensor(f"{name}_value"))
        for of, gradient in zip(leaves, gradients, strict=True):
            if f"case{case}_{name}_grad_{of}" in cases:
                close(gradient, tensor(f"{name}_grad_{of}"))
                compared += 1
    assert compared >= len(METHODS)  # of every loss by the support, or by the marginals, at least


@pytest.mark.parametrize("case", range(6))
def test_metrics(cases: dict[str, Any], case: int) -> None:
    def array(name: str) -> Any:
        return cases[f"case{case}_{name}"]

    expected = array("exact_w2")
    distances = [wasserstein2_squared(array("barycenter"), array(f"marginal{k}")) for k in range(len(expected))]
    np.testing.assert_allclose(distances, expected, rtol=1e-9)
    assert mean_distance(distances) == pytest.approx(float(array("W_metric")), rel=1e-9)
    assert fairness_gap(distances) == pytest.approx(float(array("F_metric")), rel=1e-8, abs=1e-10)


def test_published_runs_are_followed(reference: Path) -> None:
    """The first thousand steps of the published point-cloud and Gaussian runs; the script compares all of them."""
    script = Path(__file__).resolve().parents[1] / "scripts" / "compare_reference.py"
    options = ["--reference", str(reference), "--last-step", "1000", "--method", "es"]
    command = [sys.executable, str(script), "pointcloud", "gaussian", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| es | 999 |" in done.stdout
    assert "| es | 1000 |" in done.stdout
