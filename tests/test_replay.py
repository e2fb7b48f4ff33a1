"""Steps recorded and replayed: by a graph of the CPU's that keeps CUDA's rules, and by CUDA's where there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import cloud, masses, sphere
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import mfswb.bins
import mfswb.quantiles
import mfswb.transports
from mfswb.adaptive import Minimax
from mfswb.geometry import Geometry
from mfswb.loss_gradients import value_and_gradient
from mfswb.losses import LOSSES, es_mfswb, weighted
from mfswb.measures import Measures
from mfswb.replay import CudaGraph, Outputs, Replayed, replayed
from mfswb.slicing import Slicing, uniform
from mfswb.tasks.free_support import FreeSupportBarycenter

LOSSES_ONCE: dict[str, Any] = {
    **LOSSES,
    "auto": partial(es_mfswb, scale="auto"),
    "weighted": partial(weighted, weights=[0.2, 0.8]),
}


class CpuGraph:
    """Recording gives no results, and a replay writes them to the memory that the recording gave."""

    def record(self, work: Callable[[], Outputs]) -> Outputs:
        self.work, self.outputs, self.replays = work, tuple(x.clone() for x in work()), 0
        for output in self.outputs:
            output.fill_(float("nan"))
        return self.outputs

    def replay(self) -> None:
        self.replays += 1
        for output, result in zip(self.outputs, self.work(), strict=True):
            output.copy_(result)


class Refuses(CpuGraph):
    def record(self, work: Callable[[], Outputs]) -> Outputs:
        raise RuntimeError("operation not permitted when stream is capturing")


def doubled(x: Tensor) -> Outputs:
    return (2 * x,)


def test_a_recorded_function_gives_what_it_gave_before() -> None:
    graphs: list[CpuGraph] = []

    def graph() -> CpuGraph:
        graphs.append(CpuGraph())
        return graphs[-1]

    call = Replayed(doubled, graph)
    for step in range(10):
        assert call(torch.full((3,), float(step)))[0].tolist() == [2.0 * step] * 3
    assert len(graphs) == 1
    assert graphs[0].replays == 7  # after three direct calls


def test_another_shape_is_called_directly_and_the_recording_stays() -> None:
    call = Replayed(doubled, CpuGraph)
    for n in (2, 2, 3, 3, 3, 3, 5, 3, 2, 3):  # the second shape is the one that stays
        assert call(torch.full((n,), float(n)))[0].tolist() == [2.0 * n] * n
    graph = call._graph
    assert isinstance(graph, CpuGraph)
    assert graph.replays == 3


def test_what_cannot_be_recorded_is_called_directly_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    call = Replayed(doubled, Refuses)
    for step in range(10):
        assert call(torch.tensor([1.0 * step]))[0].item() == 2.0 * step
    assert [record.message for record in caplog.records if "CUDA graph" in record.message] == [
        "a step cannot be recorded as a CUDA graph, so each is launched piece by piece: "
        "operation not permitted when stream is capturing"
    ]


def test_a_cpu_records_nothing_and_a_gpu_does() -> None:
    assert replayed(doubled, torch.device("cpu")) is doubled
    recorded = replayed(doubled, torch.device("cuda"))
    assert isinstance(recorded, Replayed)
    assert recorded._new_graph is CudaGraph


CACHES: list[Any] = [
    mfswb.bins._taps,
    mfswb.bins._edges,
    mfswb.transports._masses,
    mfswb.quantiles._merged_grid,
]


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On the CPU, but along the road of other devices: tensors instead of arrays, autograd for the losses, a graph."""
    for module in ("rows", "bins", "blocks", "transports"):
        monkeypatch.setattr(f"mfswb.{module}.rows_of", lambda values: values)
    monkeypatch.setattr("mfswb.loss_gradients._CLOSED_FORMS", {})
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


def run(loss: Any, sizes: list[int], weights: bool, steps: int = 12, device: str = "cpu") -> tuple[list[float], Any]:
    marginals = Measures.of(
        [cloud(k, n, 3).numpy() for k, n in enumerate(sizes)],
        [masses(k, n).numpy() if weights else None for k, n in enumerate(sizes)],
    )
    problem = FreeSupportBarycenter(
        marginals,
        loss,
        Slicing(uniform, 8),
        torch.device(device),
        torch.float32,
        seed=0,
        x_init=cloud(9, 12, 3).numpy(),
        bounds=(np.full(3, -1.0), np.full(3, 1.0)),
    )
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        losses.append(problem.gradients(generator))
        assert problem.support.grad is not None
        with torch.no_grad():
            problem.support.sub_(problem.support.grad, alpha=0.1)
        problem.project()
    replays = getattr(getattr(problem._objective, "_graph", None), "replays", None)
    problem.close()
    # read at the end: a step must not write to what an earlier one gave
    return [loss.item() for loss in losses], (problem.points(), replays)


@pytest.mark.usefixtures("like_a_gpu")
@pytest.mark.parametrize("name", LOSSES_ONCE)
@pytest.mark.parametrize(("sizes", "weights"), [([12, 12], False), ([7, 400], False), ([9, 12], True)], ids=str)
def test_a_replayed_run_is_the_direct_run(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: list[int], weights: bool
) -> None:
    direct, (expected, replays) = run(LOSSES_ONCE[name], sizes, weights)
    assert replays is None
    monkeypatch.setattr("mfswb.tasks.free_support.replayed", lambda work, device: Replayed(work, CpuGraph))
    recorded, (found, replays) = run(LOSSES_ONCE[name], sizes, weights)
    assert replays == 9
    assert recorded == direct
    np.testing.assert_array_equal(found, expected)


def test_losses_that_may_change_from_step_to_step_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mfswb.tasks.free_support.replayed", lambda work, device: Replayed(work, CpuGraph))
    for loss in (Minimax(), lambda costs: costs.mean()):
        assert run(loss, [12, 12], weights=False)[1][1] is None


class Transfers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of operations that bring values of the host to another device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type == "meta":
            values = [value for value in args if isinstance(value, Tensor) and value.device.type == "cpu"]
            if values or "lift" in str(func):
                self.found.append(str(func))
        return result


@pytest.mark.parametrize("name", LOSSES_ONCE)
@pytest.mark.parametrize("p", [1.5, 2.0])
@pytest.mark.parametrize(("sizes", "weights"), [([12, 12], False), ([7, 400], False), ([9, 12], True)], ids=str)
def test_a_step_on_a_device_is_not_waited_for(name: str, p: float, sizes: list[int], weights: bool) -> None:
    """Tensors of the meta device have no values, so that whatever reads one on the host raises."""
    clouds, support = [cloud(k, n, 3) for k, n in enumerate(sizes)], cloud(9, 12, 3)
    given: dict[str, Any] = {
        "support_weights": masses(8, 12),
        "marginal_weights": [masses(k, n) for k, n in enumerate(sizes)],
    }
    geometry = Geometry(support, clouds, p=p, **(given if weights else {}))
    plan = geometry._plan
    geometry._points = geometry._points.to("meta")
    if weights:
        assert plan.support_weights is not None
        assert plan.point_weights is not None
        geometry._plan = replace(
            plan, support_weights=plan.support_weights.to("meta"), point_weights=plan.point_weights.to("meta")
        )
    objective = partial(value_and_gradient, LOSSES_ONCE[name])
    support, directions = support.to("meta"), sphere(1, 8, 3).to("meta")
    geometry.gradient(objective, support, directions)
    with Transfers() as transfers:
        value, gradient = geometry.gradient(objective, support, directions)
    assert transfers.found == []
    assert (value.device.type, gradient.shape) == ("meta", (12, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", LOSSES_ONCE)
def test_a_run_on_a_gpu_is_recorded_and_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    recorded, (found, _) = run(LOSSES_ONCE[name], [12, 12], weights=False, device="cuda")
    monkeypatch.setattr("mfswb.tasks.free_support.replayed", lambda work, device: work)
    direct, (expected, _) = run(LOSSES_ONCE[name], [12, 12], weights=False, device="cuda")
    assert recorded == direct
    np.testing.assert_array_equal(found, expected)
