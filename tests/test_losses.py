"""Laws of the reductions."""

from __future__ import annotations

from functools import partial
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch import Tensor

from mfswb import losses
from mfswb.errors import ConfigError
from mfswb.loss_gradients import value_and_gradient
from mfswb.losses import LOSSES, es_mfswb, mfswb
from mfswb.wasserstein import sliced_costs

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


@given(matrices, st.floats(1e-4, 1e4))
def test_es_in_its_own_units_does_not_care_about_the_data_s(costs: Tensor, factor: float) -> None:
    es = partial(losses.es_mfswb, scale="auto")
    torch.testing.assert_close(es(factor * costs), factor * es(costs), rtol=1e-9, atol=0)
    assert float(losses.us_mfswb(costs)) <= float(es(costs)) + 1e-9 * (1 + float(costs.max()))
    torch.testing.assert_close(losses.es_mfswb(factor * costs, scale=factor), factor * losses.es_mfswb(costs))


@pytest.mark.parametrize("detach", [False, True])
def test_es_in_its_own_units_scales_with_the_points(detach: bool) -> None:
    """Data times c give the loss times c^2 and its gradient times c, so natural steps move alike."""
    theta = torch.nn.functional.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), dim=1).double()
    points = [torch.randn(20, 3, generator=torch.Generator().manual_seed(k)).double() + k for k in range(3)]
    found = []
    for factor in (1.0, 255.0):
        support = (factor * points[0]).requires_grad_()
        value = losses.es_mfswb(sliced_costs(support, [factor * y for y in points[1:]], theta), detach, "auto")
        (gradient,) = torch.autograd.grad(value, support)
        found.append((value.detach() / factor**2, gradient / factor))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("scale", ["mean", 0.0, -1.0, float("inf")])
def test_scales_of_es_are_checked(scale: float | str) -> None:
    with pytest.raises(ConfigError, match=r"loss\.scale="):
        losses.es_mfswb(torch.ones(2, 3), scale=scale)


@given(matrices)
def test_weighted_with_equal_weights_is_uswb(costs: Tensor) -> None:
    k = len(costs)
    torch.testing.assert_close(losses.weighted(costs, [1 / k] * k), losses.uswb(costs))
    torch.testing.assert_close(losses.weighted(costs, [1.0] + [0.0] * (k - 1)), costs[0].mean())


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "1 weights, but 2 marginals"), ([0.5, 0.6], "sum to one"), ([1.5, -0.5], "must not be negative")],
)
def test_weights_are_checked(weights: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses.weighted(torch.ones(2, 3), weights)


@pytest.mark.parametrize("name", [*LOSSES, "es, detached", "es, auto", "lam 10"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 10), (7, 3)], ids=str)
def test_closed_form_gradients_are_those_of_autograd(name: str, shape: tuple[int, int]) -> None:
    variants = {
        "es, detached": partial(es_mfswb, detach_weights=True),
        "es, auto": partial(es_mfswb, scale="auto"),
        "lam 10": partial(mfswb, lam=10.0),
    }
    loss = variants.get(name) or LOSSES[name]
    for seed, dtype in ((0, torch.float64), (1, torch.float32)):
        costs = (5 * torch.rand(shape, generator=torch.Generator().manual_seed(seed))).to(dtype).requires_grad_()
        objective = loss(costs)
        (expected,) = torch.autograd.grad(objective, costs)
        value, gradient = value_and_gradient(loss, costs)
        torch.testing.assert_close(value, objective.detach())
        torch.testing.assert_close(gradient, expected)
        assert gradient.dtype == dtype


@pytest.mark.parametrize("lam", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(lam: float) -> None:
    costs = torch.ones(2, 3)
    with pytest.raises(ConfigError, match=r"loss\.lam=.*not negative"):
        mfswb(costs, lam=lam)
    with pytest.raises(ConfigError, match=r"loss\.lam=.*not negative"):
        value_and_gradient(partial(mfswb, lam=lam), costs)
