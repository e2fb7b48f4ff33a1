"""Directions: the promised stream, and the sphere."""

from __future__ import annotations

import pytest
import torch

from mfswb.errors import ConfigError
from mfswb.slicing import Slicing, uniform


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
