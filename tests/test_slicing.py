"""Directions: the promised stream, and the sphere."""

from __future__ import annotations

import pytest
import torch
from helpers import cloud

from mfswb import sliced_costs
from mfswb.errors import ConfigError
from mfswb.slicing import Sampler, Slicing, equispaced, uniform


def test_the_stream_of_a_seed_is_normalised_torch_randn() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    for _ in range(3):
        expected = torch.randn(10, 3)
        expected = expected / expected.norm(dim=1, keepdim=True)
        assert torch.equal(uniform(10, 3, generator), expected)


def test_float64_sees_the_same_directions() -> None:
    single = uniform(50, 4, torch.Generator().manual_seed(1))
    double = uniform(50, 4, torch.Generator().manual_seed(1), torch.float64)
    torch.testing.assert_close(double.float(), single)
    torch.testing.assert_close(double.norm(dim=1), torch.ones(50, dtype=torch.float64), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 3, 16])
def test_second_moment_is_that_of_the_sphere(d: int) -> None:
    theta = uniform(20_000, d, torch.Generator().manual_seed(0))
    torch.testing.assert_close(theta.t() @ theta / len(theta), torch.eye(d) / d, rtol=0, atol=0.02)


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    Slicing(uniform, 5).directions(3, torch.Generator().manual_seed(0), torch.float32, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("setting", [{"n_projections": 0}, {"chunk": 0}])
def test_bad_settings_are_named(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"slicing.{next(iter(setting))}=0"):
        Slicing(uniform, **setting)


def test_equispaced_directions_are_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([equispaced(3, 2, generator, torch.float64) for _ in range(20_000)])
    torch.testing.assert_close(drawn.norm(dim=2), torch.ones(20_000, 3, dtype=torch.float64))
    # as lines, which is all a cost sees: the second moment of each draw is that of the circle, exactly
    moments = drawn.transpose(1, 2) @ drawn / 3
    torch.testing.assert_close(moments, (torch.eye(2, dtype=torch.float64) / 2).expand_as(moments))
    # and the angle of each, modulo the spacing, is uniform
    turn = torch.atan2(drawn[:, 0, 1], drawn[:, 0, 0]) / (torch.pi / 3)
    counts = torch.histc(turn.float(), bins=10, min=0, max=1)
    assert counts.sum() == 20_000
    torch.testing.assert_close(counts, torch.full((10,), 2000.0), rtol=0.1, atol=0)


def test_a_few_equispaced_directions_beat_ten_thousand_random_ones() -> None:
    """Error of the sliced distances C.mean(1): the default of the autoencoder against the paper's setting."""
    prior = cloud(0, 400, 2)
    marginals = [0.5 * cloud(k, 40 + 7 * k, 2) + torch.tensor([0.3 * k, -0.2]) for k in range(1, 6)]

    def error(sampler: Sampler, count: int, draws: int) -> float:
        generator = torch.Generator().manual_seed(1)
        means = [
            sliced_costs(prior, marginals, sampler(count, 2, generator, torch.float64)).mean(1) for _ in range(draws)
        ]
        return float((torch.stack(means) / truth - 1).square().mean().sqrt())

    exact = equispaced(20_000, 2, torch.Generator().manual_seed(2), torch.float64)
    truth = sliced_costs(prior, marginals, exact).mean(1)
    few, many = error(equispaced, 32, 20), error(uniform, 10_000, 5)
    assert few < 0.2 * many
    assert few < 1e-3


def test_equispaced_directions_are_refused_outside_the_plane() -> None:
    with pytest.raises(ConfigError, match="dimension 3; use design"):
        equispaced(5, 3, torch.Generator())
