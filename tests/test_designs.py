"""Designs, orthonormal bases and Sobol' directions: exact moments, no bias, smaller errors than independent ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import cloud
from torch import Tensor

from mfswb import sliced_costs
from mfswb.designs import design, orthogonal, sobol
from mfswb.errors import ConfigError
from mfswb.slicing import Sampler, uniform

SAMPLERS = [design, orthogonal, sobol]
F64 = torch.float64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations: a second thread is only in the way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fourth_moment_of_the_sphere(d: int) -> Tensor:
    """E theta_i theta_j theta_k theta_l = (d_ij d_kl + d_ik d_jl + d_il d_jk) / (d (d + 2))."""
    eye = torch.eye(d, dtype=F64)
    pairs = [torch.einsum(f"{a},{b}->ijkl", eye, eye) for a, b in (("ij", "kl"), ("ik", "jl"), ("il", "jk"))]
    return torch.stack(pairs).sum(0) / (d * (d + 2))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("count", [1, 6, 33])
def test_draws_are_unit_vectors_and_a_seed_repeats_them(sampler: Sampler, d: int, count: int) -> None:
    before = torch.get_rng_state()
    theta = sampler(count, d, generator(7), F64)
    assert theta.shape == (count, d)
    torch.testing.assert_close(theta.norm(dim=1), torch.ones(count, dtype=F64), rtol=1e-13, atol=0)
    assert torch.equal(sampler(count, d, generator(7), F64), theta)
    assert torch.equal(sampler(count, d, generator(7), torch.float32), theta.float())
    stream = generator(7)
    later = [sampler(count, d, stream, F64) for _ in range(12)]
    assert torch.equal(later[0], theta)
    assert any(not torch.equal(draw, theta) for draw in later)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_each_direction_is_uniform_on_the_sphere(sampler: Sampler, d: int) -> None:
    stream = generator(0)
    count, draws = 4, 2000
    drawn = torch.stack([sampler(count, d, stream, F64) for _ in range(draws)])
    products = drawn.unsqueeze(3) * drawn.unsqueeze(2)
    second = products.mean(0)
    expected = torch.eye(d, dtype=F64) / d
    torch.testing.assert_close(second, expected.expand_as(second), rtol=0, atol=0.05)
    fourth = torch.einsum("rlij,rlkm->lijkm", products, products) / draws
    torch.testing.assert_close(fourth, fourth_moment_of_the_sphere(d).expand_as(fourth), rtol=0, atol=0.05)
    assert drawn.mean(0).abs().max() < 0.06


@pytest.mark.parametrize(("axes", "degree"), [(3, 2), (4, 2), (6, 4), (10, 4)])
def test_axes_of_solids_are_spherical_designs(axes: int, degree: int) -> None:
    theta = design(axes, 3, generator(3), F64)
    torch.testing.assert_close(theta.T @ theta / axes, torch.eye(3, dtype=F64) / 3, rtol=0, atol=1e-12)
    fourth = torch.einsum("li,lj,lk,lm->ijkm", theta, theta, theta, theta) / axes
    error = float((fourth - fourth_moment_of_the_sphere(3)).abs().max())
    assert (error < 1e-12) == (degree == 4)  # octahedron and cube have the second moments only
    apart = theta @ theta.T - 2 * torch.eye(axes, dtype=F64)
    assert apart.abs().fill_diagonal_(0).max() < 0.99  # no axis twice


@pytest.mark.parametrize("d", [2, 3, 7])
def test_orthogonal_directions_are_bases(d: int) -> None:
    theta = orthogonal(2 * d + 1, d, generator(1), F64)
    for block in (theta[:d], theta[d : 2 * d]):
        torch.testing.assert_close(block @ block.T, torch.eye(d, dtype=F64))
    assert not torch.allclose(theta[:d].abs(), theta[d : 2 * d].abs())
    few = orthogonal(d - 1, d, generator(1), F64)
    torch.testing.assert_close(few @ few.T, torch.eye(d - 1, dtype=F64))


def problem(d: int) -> tuple[Tensor, list[Tensor]]:
    stretch = torch.linspace(1.0, 2.0, d, dtype=F64)
    return cloud(0, 60, d), [cloud(k, 40 + 20 * k, d) * stretch + 0.3 * k for k in (1, 2)]


def row_means(sampler: Sampler, count: int, d: int, draws: int, stream: torch.Generator) -> Tensor:
    support, marginals = problem(d)
    theta = torch.cat([sampler(count, d, stream, F64) for _ in range(draws)])
    return sliced_costs(support, marginals, theta).reshape(len(marginals), draws, count).mean(2)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("d", [2, 3, 6])
def test_row_means_are_unbiased_and_better_than_independent_ones(sampler: Sampler, d: int) -> None:
    truth = row_means(uniform, 50_000, d, 1, generator(1))
    # in six dimensions a handful of points of a sequence stands no better than random ones
    count, draws = 64 if sampler is sobol and d == 6 else 6, 400
    plain = (row_means(uniform, count, d, draws, generator(2)) / truth - 1).square().mean()
    errors = row_means(sampler, count, d, draws, generator(3)) / truth - 1
    tolerance = 5 * errors.std(1) / draws**0.5 + 0.01  # of the mean, and of the truth
    assert bool((errors.mean(1).abs() < tolerance).all())
    assert errors.square().mean() < (0.1 if d == 3 and sampler is design else 0.6) * plain


@pytest.mark.parametrize("count", [16, 100])
def test_directions_in_space_are_relaxed(count: int) -> None:
    """Every direction's nearest one, as a line, is as far as its share of the area asks, and low moments fit."""
    theta = design(count, 3, generator(5), F64)
    cosines = (theta @ theta.T).abs().fill_diagonal_(0).max(dim=1).values
    spacing = torch.arccos(cosines) / (2 * torch.pi / count) ** 0.5
    assert 0.85 < float(spacing.min()) < float(spacing.max()) < 1.1
    torch.testing.assert_close(theta.T @ theta / count, torch.eye(3, dtype=F64) / 3, rtol=0, atol=1e-3)


def test_many_directions_in_space_are_blocks_with_their_own_rotations() -> None:
    theta = design(201, 3, generator(5), F64)
    stream = generator(5)
    assert torch.equal(theta, torch.cat([design(100, 3, stream, F64), design(101, 3, stream, F64)]))


def test_a_sequence_has_only_so_many_dimensions() -> None:
    with pytest.raises(ConfigError, match="use orthogonal"):
        sobol(2, 30_000, generator(0))
