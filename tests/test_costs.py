"""The cost matrix: against plain formulas, against finite differences, and the laws of optimal transport."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from helpers import cloud, masses, plain_costs, sphere
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mfswb.bins
import mfswb.transports
from mfswb import sliced_costs
from mfswb.loss_gradients import value_and_gradient
from mfswb.losses import LOSSES
from mfswb.rows import argsort_rows, back_in_place, in_order, sort_rows
from mfswb.wasserstein import sliced_gradient

sizes = st.integers(1, 12)
seeds = st.integers(0, 10_000)
orders = st.sampled_from([1.0, 1.5, 2.0, 3.0])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, list[Tensor], Tensor]:
    seed, d = draw(seeds), draw(st.integers(1, 5))
    counts = draw(st.lists(sizes, min_size=1, max_size=5))
    support = cloud(seed, draw(sizes), d)
    return support, [cloud(seed + 1 + k, n, d) + k for k, n in enumerate(counts)], sphere(seed + 99, draw(sizes), d)


@given(problems(), orders)
def test_matches_the_plain_formula(problem: tuple[Tensor, list[Tensor], Tensor], p: float) -> None:
    support, marginals, directions = problem
    expected = plain_costs(support, marginals, directions, p, None, [None] * len(marginals))
    np.testing.assert_allclose(
        sliced_costs(support, marginals, directions, p=p).numpy(), expected, rtol=1e-9, atol=1e-12
    )


@given(problems(), orders, seeds)
def test_matches_the_plain_formula_with_weights(
    problem: tuple[Tensor, list[Tensor], Tensor], p: float, seed: int
) -> None:
    support, marginals, directions = problem
    a = masses(seed, len(support))
    bs = [None if k % 3 == 2 else masses(seed + k, len(y)) for k, y in enumerate(marginals)]
    # scaled weights: the library brings them to a sum of one
    costs = sliced_costs(support, marginals, directions, p=p, support_weights=3 * a, marginal_weights=bs)
    np.testing.assert_allclose(
        costs.numpy(), plain_costs(support, marginals, directions, p, a, bs), rtol=1e-9, atol=1e-12
    )


@given(problems(), orders, st.booleans(), st.integers(1, 5))
def test_blocks_of_directions_change_nothing(
    problem: tuple[Tensor, list[Tensor], Tensor], p: float, weighted: bool, chunk: int
) -> None:
    support, marginals, directions = problem
    leaves = [support.requires_grad_(), *[y.requires_grad_() for y in marginals]]
    weights = masses(1, len(support)) if weighted else None
    results = []
    for size in (None, chunk):
        costs = sliced_costs(support, marginals, directions, p=p, support_weights=weights, chunk=size)
        results.append((costs, torch.autograd.grad(costs.square().sum(), leaves)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


@given(problems(), seeds)
def test_the_order_of_marginals_does_not_matter(problem: tuple[Tensor, list[Tensor], Tensor], seed: int) -> None:
    support, marginals, directions = problem
    order = np.random.default_rng(seed).permutation(len(marginals))
    costs = sliced_costs(support, marginals, directions)
    torch.testing.assert_close(sliced_costs(support, [marginals[k] for k in order], directions), costs[order])


@given(problems(), seeds)
def test_permuting_points_with_their_weights_changes_nothing(
    problem: tuple[Tensor, list[Tensor], Tensor], seed: int
) -> None:
    support, marginals, directions = problem
    rng = np.random.default_rng(seed)
    first, second = rng.permutation(len(support)), rng.permutation(len(marginals[0]))
    a, b = masses(seed, len(support)), masses(seed + 1, len(marginals[0]))
    before = sliced_costs(support, marginals[:1], directions, support_weights=a, marginal_weights=[b])
    after = sliced_costs(
        support[first], [marginals[0][second]], directions, support_weights=a[first], marginal_weights=[b[second]]
    )
    torch.testing.assert_close(before, after)
    torch.testing.assert_close(
        sliced_costs(support, marginals[:1], directions),
        sliced_costs(support[first], [marginals[0][second]], directions),
    )


@given(problems(), orders, st.floats(0.1, 10.0))
def test_translation_and_scaling_laws(problem: tuple[Tensor, list[Tensor], Tensor], p: float, scale: float) -> None:
    support, marginals, directions = problem
    costs = sliced_costs(support, marginals, directions, p=p)
    shift = torch.arange(1.0, support.shape[1] + 1, dtype=support.dtype)
    moved = sliced_costs(support + shift, [y + shift for y in marginals], directions, p=p)
    torch.testing.assert_close(moved, costs, rtol=1e-8, atol=1e-9)
    scaled = sliced_costs(scale * support, [scale * y for y in marginals], directions, p=p)
    torch.testing.assert_close(scaled, scale**p * costs, rtol=1e-8, atol=1e-9)


@given(problems())
def test_distance_to_itself_is_zero_and_to_a_shifted_copy_the_shift(
    problem: tuple[Tensor, list[Tensor], Tensor],
) -> None:
    support, _, directions = problem
    assert sliced_costs(support, [support], directions).abs().max() < 1e-25
    shift = cloud(5, 1, support.shape[1])
    expected = (directions @ shift[0]).square().unsqueeze(0)
    torch.testing.assert_close(sliced_costs(support, [support + shift], directions), expected, rtol=1e-8, atol=1e-10)


@given(problems(), st.integers(2, 4))
def test_repeating_every_point_changes_nothing(problem: tuple[Tensor, list[Tensor], Tensor], times: int) -> None:
    support, marginals, directions = problem
    repeated = sliced_costs(support.repeat(times, 1), marginals, directions)
    torch.testing.assert_close(repeated, sliced_costs(support, marginals, directions), rtol=1e-8, atol=1e-10)


def test_atoms_of_no_weight_do_not_count() -> None:
    support, marginal, directions = cloud(0, 6, 3), cloud(1, 5, 3), sphere(2, 7, 3)
    a = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    support.requires_grad_()
    costs = sliced_costs(support, [marginal], directions, support_weights=a)
    torch.testing.assert_close(costs, sliced_costs(support[[1, 3]], [marginal], directions))
    (gradient,) = torch.autograd.grad(costs.sum(), support)
    assert gradient[a == 0].abs().max() == 0
    assert gradient[a > 0].abs().min() > 0


@pytest.mark.parametrize("p", [1.5, 2.0])
@pytest.mark.parametrize("counts", [(7, [7, 7]), (6, [4, 9, 6]), (1, [1]), (1, [3, 2]), (5, [1])], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", [1, 3, 64])
def test_gradient_of_costs_is_that_of_finite_differences(
    p: float, counts: tuple[int, list[int]], weighted: bool, d: int
) -> None:
    n, others = counts
    leaves = [cloud(k, m, d).requires_grad_() for k, m in enumerate([n, *others])]
    directions = sphere(9, 3, d)
    a = masses(3, n) if weighted else None
    bs = [masses(4 + k, m) if k % 2 == 0 else None for k, m in enumerate(others)] if weighted else None

    def costs(support: Tensor, *marginals: Tensor) -> Tensor:
        return sliced_costs(support, marginals, directions, p=p, support_weights=a, marginal_weights=bs)

    # fast_mode compares along a random direction of the inputs instead of each of hundreds of them
    assert torch.autograd.gradcheck(costs, tuple(leaves), eps=1e-7, atol=1e-5, fast_mode=d > 3)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_of_every_loss_is_that_of_finite_differences(name: str) -> None:
    leaves = [cloud(k, m, 3).requires_grad_() for k, m in enumerate([8, 5, 8, 11])]
    directions = sphere(9, 6, 3)

    def value(support: Tensor, *marginals: Tensor) -> Tensor:
        return LOSSES[name](sliced_costs(support, marginals, directions))

    assert torch.autograd.gradcheck(value, tuple(leaves), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("offset", [1e3, 5e6])
@pytest.mark.parametrize("of_support", [True, False])
@pytest.mark.parametrize("size", [73, 1730])
def test_a_common_offset_costs_no_digits(offset: float, of_support: bool, size: int) -> None:
    support, marginal, directions = cloud(0, 100, 2), cloud(1, size, 2), sphere(2, 9, 2)
    expected = sliced_costs(support, [marginal], directions)
    moved = sliced_costs((support + offset).requires_grad_(of_support), [marginal + offset], directions)
    torch.testing.assert_close(moved.detach(), expected, rtol=1e-15 * offset + 1e-12, atol=0)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("p", [1.5, 2.0])
def test_gradient_by_the_marginals_alone_is_that_of_finite_differences(name: str, p: float) -> None:
    """The autoencoder's case: the prior is fixed, the marginals are learnt, some as large as the prior."""
    support, directions = cloud(7, 8, 2), sphere(9, 6, 2)
    leaves = [cloud(k, m, 2).requires_grad_() for k, m in enumerate([5, 8, 11, 16, 1])]

    def value(*marginals: Tensor) -> Tensor:
        return LOSSES[name](sliced_costs(support, marginals, directions, p=p))

    assert torch.autograd.gradcheck(value, tuple(leaves), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [[12, 12], [5, 12, 30, 7], [24, 36]], ids=str)
@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_who_needs_a_gradient_changes_neither_costs_nor_gradients(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, sizes: list[int], budget: int
) -> None:
    monkeypatch.setattr("mfswb.wasserstein._MEMORY_BUDGET_BYTES", budget)  # nothing: all is done again
    support, directions = cloud(0, 12, 3, dtype), sphere(1, 9, 3, dtype)
    marginals = [cloud(2 + k, m, 3, dtype) for k, m in enumerate(sizes)]
    plain = sliced_costs(support, marginals, directions)
    scale = torch.linspace(0.5, 2.0, plain.numel(), dtype=dtype).view(plain.shape)
    gradients: dict[str, Tensor] = {}
    for of_support, of_marginals in [(True, False), (False, True), (True, True)]:
        x = support.clone().requires_grad_(of_support)
        ys = [y.clone().requires_grad_(of_marginals) for y in marginals]
        costs = sliced_costs(x, ys, directions, chunk=4)
        torch.testing.assert_close(costs, plain)
        torch.autograd.backward((costs * scale).sum())
        for name, leaf in [("support", x), *((f"marginal {k}", y) for k, y in enumerate(ys))]:
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad, gradients.setdefault(name, leaf.grad))
    assert len(gradients) == 1 + len(sizes)


def test_costs_of_near_copies_keep_their_digits() -> None:
    """Sums of squares would cancel: points around 100 that are 1e-3 apart, of unequal sizes, in float32."""
    support = 100 + cloud(0, 300, 2, torch.float32)
    marginal = torch.cat([support, support[:150]]) + 1e-3
    directions = sphere(1, 20, 2, torch.float32)
    exact = sliced_costs(support.double(), [marginal.double()], directions.double())
    torch.testing.assert_close(sliced_costs(support, [marginal], directions).double(), exact, rtol=1e-4, atol=1e-9)


def test_stacked_and_listed_marginals_agree_with_gradients() -> None:
    support, directions = cloud(0, 20, 3).requires_grad_(), sphere(1, 5, 3)
    stacked = torch.stack([cloud(2, 20, 3), cloud(3, 20, 3)]).requires_grad_()
    listed = [part.detach().clone().requires_grad_() for part in stacked]
    one, two = sliced_costs(support, stacked, directions), sliced_costs(support, listed, directions)
    torch.testing.assert_close(one, two)
    (gradient,) = torch.autograd.grad(one.square().sum(), stacked)
    torch.testing.assert_close(gradient, torch.stack(torch.autograd.grad(two.square().sum(), listed)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("sizes", [(2000,), (1000, 1000), (200, 1700, 100)], ids=str)
def test_sorts_agree_with_torch(dtype: torch.dtype, rows: int, sizes: tuple[int, ...]) -> None:
    values = cloud(7, rows, 2000, dtype)
    values[:, 1:50] = values[:, 1:2]  # ties
    values[0, 60:63] = torch.tensor([0.0, -0.0, 1e-42], dtype=dtype)
    expected = torch.cat([part.sort(dim=-1).values for part in torch.split(values, list(sizes), dim=1)], dim=1)
    for rows_given in (values.numpy(), values):  # arrays, and tensors of other devices
        ranked, order = argsort_rows(rows_given, sizes)
        assert torch.equal(torch.as_tensor(ranked), expected)
        assert torch.equal(torch.as_tensor(in_order(rows_given, order)), expected)
        back = rows_given * 0
        back_in_place(ranked, order, back)
        assert torch.equal(torch.as_tensor(back), values)
    assert torch.equal(torch.from_numpy(sort_rows(values.clone().numpy(), sizes)), expected)


@pytest.mark.parametrize("sizes", [[6000, 6000], [5000, 3000, 7000]], ids=str)
def test_numbers_of_threads_give_the_same_bits(sizes: list[int]) -> None:
    support = cloud(0, 6000, 3, torch.float32).requires_grad_()
    marginals = [cloud(k, n, 3, torch.float32).requires_grad_() for k, n in enumerate(sizes, start=1)]
    threads = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        costs = sliced_costs(support, marginals, sphere(2, 16, 3).float())
        found.append([costs.detach(), *torch.autograd.grad(costs.max(0).values.mean(), [support, *marginals])])
    torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("p", [1.5, 2.0])
@pytest.mark.parametrize("leaves", [["support"], ["marginals"], ["support", "marginals"]], ids=str)
@pytest.mark.parametrize("largest", [30, 31, 400])
def test_the_road_of_other_devices_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, weighted: bool, p: float, leaves: list[str], largest: int
) -> None:
    support, directions = cloud(0, 30, 3), sphere(1, 8, 3)
    marginals = [cloud(k, n, 3) for k, n in enumerate([30, 17, largest], start=2)]
    given = {"support": [support], "marginals": marginals}
    inputs = [leaf.requires_grad_() for name in leaves for leaf in given[name]]
    weights = masses(5, 30) if weighted else None

    def everything() -> tuple[Tensor, tuple[Tensor, ...]]:
        costs = sliced_costs(support, marginals, directions, p=p, support_weights=weights)
        return costs, torch.autograd.grad(costs.square().sum(), inputs)

    here = everything()
    caches = [mfswb.transports._masses, mfswb.bins._taps, mfswb.bins._edges]
    for module in ("blocks", "transports", "bins"):  # rows are tensors then
        monkeypatch.setattr(f"mfswb.{module}.rows_of", lambda values: values)
    for cache in caches:
        cache.cache_clear()
    torch.testing.assert_close(here, everything())
    for cache in caches:
        cache.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same() -> None:
    def everything(device: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        leaves = [cloud(k, n, 3).to(device).requires_grad_() for k, n in enumerate([30, 30, 17])]
        costs = sliced_costs(leaves[0], leaves[1:], sphere(1, 8, 3).to(device))
        gradients = torch.autograd.grad(costs.square().sum(), leaves)
        return costs.cpu(), tuple(g.cpu() for g in gradients)

    torch.testing.assert_close(everything("cpu"), everything("cuda"))


POINTS, THETA = torch.zeros(3, 2), torch.eye(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: sliced_costs(POINTS, [], THETA), "at least one"),
        (lambda: sliced_costs(torch.zeros(0, 2), [POINTS], THETA), "support: expected a non-empty"),
        (lambda: sliced_costs(POINTS, [torch.zeros(3, 3)], THETA), r"marginals\[0\]: has dimension 3"),
        (lambda: sliced_costs(POINTS, [POINTS.double()], THETA), "float64"),
        (lambda: sliced_costs(POINTS.half(), [POINTS.half()], THETA.half()), "expected float32 or float64"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, p=0.5), "at least 1"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, chunk=0), "chunk"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA.clone().requires_grad_()), "directions"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, support_weights=torch.ones(2)), r"expected shape \(3,\)"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, support_weights=-torch.ones(3)), "not negative"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, marginal_weights=[None, None]), "expected 1 entries"),
        (lambda: sliced_costs(POINTS, [POINTS], THETA, support_weights=torch.ones(3, requires_grad=True)), "detach"),
    ],
)
def test_bad_arguments_are_named(arguments: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments()


@pytest.mark.parametrize("sizes", [[4, 4], [3, 5]], ids=str)
def test_what_is_not_finite_comes_out_as_it_does_from_autograd(sizes: list[int]) -> None:
    support = cloud(0, 4, 2, torch.float32)
    support[1, 0] = float("inf")
    marginals = [cloud(k, n, 2, torch.float32) for k, n in enumerate(sizes, start=1)]
    for name, loss in LOSSES.items():
        value, gradient = sliced_gradient(
            partial(value_and_gradient, loss), support, marginals, sphere(5, 3, 2).float()
        )
        assert not torch.isfinite(value), name
        assert gradient.shape == support.shape
