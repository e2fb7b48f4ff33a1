"""The same seed gives the same bytes, and what the number of threads changes: the last digits of projections only.

Across processes see test_cli.py, across launchers test_sweeps.py, of the kernels alone test_costs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mfswb import blocks
from mfswb.configuration import compose_config
from mfswb.run import run

# 15,000 points along ten directions: enough for the directions to be shared out.
LARGE = [
    *("data=gaussians", "data.means=[[0,0,0],[5,1,0]]", "data.sizes=5000", "task.n_support=5000", "loss=us"),
    *("trainer.steps=10", "trainer.eval_steps=[]", "task.metric_points=50", "task.snapshots=false"),
]


@pytest.fixture
def shared_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """How many threads the directions were shared by; the number of threads is put back afterwards."""
    found: set[int] = set()
    together: Callable[[Any], Any] = vars(blocks)["together"]

    def counted(calls: Any) -> Any:
        found.add(len(calls))
        return together(calls)

    monkeypatch.setattr(blocks, "together", counted)
    threads = torch.get_num_threads()
    yield found
    torch.set_num_threads(threads)


def support(folder: Path, *overrides: str) -> bytes:
    chosen = [*LARGE, *overrides]
    run(compose_config(chosen), folder, chosen)
    return (folder / "support.npy").read_bytes()


def values(folder: Path) -> np.ndarray:
    loaded: np.ndarray = np.load(folder / "support.npy")
    return loaded


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-12)])
def test_threads_keep_the_bytes_and_another_number_of_them_all_but_rounding(
    tmp_path: Path, shared_by: set[int], dtype: str, tolerance: float
) -> None:
    of_two = ["trainer.threads=2", f"trainer.dtype={dtype}"]
    first, again, other = (support(tmp_path / str(k), *of_two, f"seed={seed}") for k, seed in enumerate((1, 1, 2)))
    assert shared_by == {2}
    assert first == again
    assert first != other
    support(tmp_path / "alone", "trainer.threads=1", f"trainer.dtype={dtype}", "seed=1")
    assert shared_by == {1, 2}
    np.testing.assert_allclose(values(tmp_path / "alone"), values(tmp_path / "0"), rtol=0, atol=tolerance)
    assert np.abs(values(tmp_path / "2") - values(tmp_path / "0")).max() > 0.1


def _on_one_thread(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def alone(*factors: torch.Tensor) -> torch.Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return product(*factors)
        finally:
            torch.set_num_threads(threads)

    return alone


@pytest.mark.parametrize("more", [["task=pointcloud"], ["task=pointcloud", "recipe=fast"], ["optimizer=adam"]])
def test_matrix_products_are_all_that_depends_on_threads(
    tmp_path: Path, shared_by: set[int], monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(torch, "mm", _on_one_thread(torch.mm))
    more = [*more, "data.sizes=9000"]  # six directions a step in the fast recipe
    one, two = (support(tmp_path / str(k), f"trainer.threads={k}", "seed=1", *more) for k in (1, 2))
    assert shared_by == {1, 2}
    assert one == two
