"""Parts of the autoencoder: batches, priors, the network and its reconstruction loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mfswb.autoencoder import ConvAutoencoder, reconstruction_loss
from mfswb.batches import Batches
from mfswb.errors import ConfigError, DataError
from mfswb.priors import PRIORS

# --- batches -------------------------------------------------------------------------------------------------------


@given(
    labels=st.lists(st.integers(0, 3), min_size=4, max_size=30).filter(lambda found: len(set(found)) == 4),
    size=st.integers(4, 40),
    balanced=st.booleans(),
)
def test_batches_depend_on_seed_and_step_alone(labels: list[int], size: int, balanced: bool) -> None:
    batches, again = (Batches(np.array(labels), size, 7, balanced=balanced) for _ in range(2))
    forwards = [batches.at(step) for step in range(6)]
    for step in (5, 0, 3):
        np.testing.assert_array_equal(again.at(step), forwards[step])
    assert {len(batch) for batch in forwards} == {min(size, len(labels))}


def test_every_epoch_has_every_picture_once() -> None:
    batches = Batches(np.zeros(20, dtype=np.int64), 6, 0)
    taken = np.concatenate([batches.at(step) for step in range(10)]).reshape(3, 20)
    for epoch in taken:
        assert sorted(epoch) == list(range(20))
    assert (taken[0] != taken[1]).any()
    assert (Batches(np.zeros(20, dtype=np.int64), 6, 1).at(0) != batches.at(0)).any()


def test_balanced_batches_have_as_many_of_each_class() -> None:
    labels = np.array([0] * 90 + [1] * 9 + [2] * 1)
    batches = Batches(labels, 10, 0, balanced=True)
    counts = np.array([np.bincount(labels[batches.at(step)], minlength=3) for step in range(30)])
    assert set(counts.ravel()) == {3, 4}
    assert counts.sum(axis=0).tolist() == [100, 100, 100]
    with pytest.raises(ConfigError, match=r"task\.batch_size=2: a balanced batch of 3 classes"):
        Batches(labels, 2, 0, balanced=True)


# --- priors and network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", PRIORS)
def test_priors_are_centred_and_of_their_size(name: str, dim: int) -> None:
    points = PRIORS[name](20_000, dim, torch.Generator().manual_seed(0))
    assert points.shape == (20_000, dim)
    assert points.mean(dim=0).abs().max() < 0.03
    radius = points.norm(dim=1)
    squares = {"circle": 1 / 3, "disk": dim / (dim + 2), "square": dim / 3, "normal": float(dim)}
    squares["ring"] = dim / (dim + 2) * (1 - 0.8 ** (dim + 2)) / (1 - 0.8**dim)
    assert float(radius.square().mean()) == pytest.approx(squares[name], rel=0.03)
    if name != "normal":
        assert points.abs().max() <= 1.0001


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 4, 4), (3, 8, 12), (1, 64, 20)])
@pytest.mark.parametrize("latent_dim", [1, 2, 5])
def test_the_network_fits_the_pictures(shape: tuple[int, int, int], latent_dim: int) -> None:
    network = ConvAutoencoder(*shape, latent_dim, torch.Generator().manual_seed(0))
    latents = network.encode(torch.rand(3, *shape))
    assert latents.shape == (3, latent_dim)
    pictures = network.decode(latents)
    assert pictures.shape == (3, *shape)
    assert 0 < pictures.min() <= pictures.max() < 1


@pytest.mark.parametrize("shape", [(2, 28, 28), (1, 30, 28), (1, 28, 2)])
def test_other_pictures_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(DataError, match="images: "):
        ConvAutoencoder(*shape, 2, torch.Generator())


def test_weights_are_spread_as_pytorch_s_and_leave_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    network = ConvAutoencoder(1, 28, 28, 2, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    theirs = torch.nn.Conv2d(64, 64, 3)
    ours = network.decoder[8]
    assert isinstance(ours, torch.nn.Conv2d)
    assert ours.bias is not None
    assert theirs.bias is not None
    assert ours.weight.shape == theirs.weight.shape
    assert float(ours.weight.detach().std()) == pytest.approx(float(theirs.weight.detach().std()), rel=0.05)
    assert float(ours.bias.detach().abs().max()) <= float(theirs.bias.detach().abs().max()) * 1.3


def test_reconstruction_is_measured_against_the_picture() -> None:
    """Cross-entropy is not symmetric: against a black picture a grey guess costs log 2, not infinity."""
    picture, guess = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4)  # logits 0: probability 1/2
    assert float(reconstruction_loss(guess, picture)) == pytest.approx(np.log(2))
    sure = torch.full((1, 1, 4, 4), -20.0)
    assert float(reconstruction_loss(sure, picture)) < 1e-8
