"""Laws of the reductions."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from mfswb import losses
from mfswb.losses import LOSSES

matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(0, 50)).map(
    torch.tensor
)


@given(matrices)
def test_losses_are_ordered(costs: Tensor) -> None:
    values = [float(f(costs)) for f in (losses.uswb, losses.s_mfswb, losses.us_mfswb, losses.es_mfswb)]
    for small, large in pairwise(values):
        assert small <= large + 1e-9 * (1 + large)


@given(matrices, st.floats(0, 20))
def test_mfswb_is_its_definition(costs: Tensor, lam: float) -> None:
    distances = costs.mean(1).tolist()
    pairs = list(combinations(distances, 2))
    gap = sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else 0.0
    assert float(losses.mfswb(costs, lam)) == pytest.approx(sum(distances) / len(distances) + lam * gap, abs=1e-9)


@given(matrices, st.integers(0, 1000), st.sampled_from(sorted(LOSSES)))
def test_order_of_marginals_and_of_directions_does_not_matter(costs: Tensor, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    mixed = costs[rng.permutation(costs.shape[0])][:, rng.permutation(costs.shape[1])]
    torch.testing.assert_close(LOSSES[name](mixed), LOSSES[name](costs))


@given(matrices)
def test_one_marginal_is_never_unfair(costs: Tensor) -> None:
    one = costs[:1]
    for value in (losses.mfswb(one, 10.0), losses.s_mfswb(one), losses.us_mfswb(one)):
        torch.testing.assert_close(value, losses.uswb(one))


@pytest.mark.parametrize("name", LOSSES)
def test_equal_distances_give_that_distance(name: str) -> None:
    torch.testing.assert_close(LOSSES[name](torch.full((4, 9), 2.5)), torch.tensor(2.5))


def test_es_weights_can_be_detached() -> None:
    costs = torch.tensor([[1.0, 2.0, 0.5], [0.5, 1.0, 1.5]], requires_grad=True)
    worst = torch.tensor([1.0, 2.0, 1.5])
    (attached,) = torch.autograd.grad(losses.es_mfswb(costs), costs)
    (detached,) = torch.autograd.grad(losses.es_mfswb(costs, detach_weights=True), costs)
    weights = torch.softmax(worst, 0)
    torch.testing.assert_close(detached.sum(0), weights)
    torch.testing.assert_close(attached.sum(0), weights * (1 + worst - (weights * worst).sum()))


def test_es_survives_large_distances() -> None:
    costs = torch.tensor([[1e6, 2e6], [3e5, 1e6]])
    assert float(losses.es_mfswb(costs)) == 2e6
