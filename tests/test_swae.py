"""The class-fair autoencoder: its objective and gradients, its figures and its runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mfswb import losses
from mfswb.autoencoder import ConvAutoencoder
from mfswb.batches import Batches
from mfswb.configuration import compose_config
from mfswb.data.digits import load_digits
from mfswb.data.labelled import LabelledImages
from mfswb.errors import ConfigError
from mfswb.latent_metrics import LatentMetrics
from mfswb.losses import LOSSES
from mfswb.metrics import fairness_gap, mean_distance, wasserstein2_squared
from mfswb.priors import PRIORS
from mfswb.run import run
from mfswb.slicing import Slicing, equispaced, uniform
from mfswb.swae_cli import main as mfswb_swae
from mfswb.tasks.swae import SlicedWassersteinAutoencoder
from mfswb.trained import TrainedAutoencoder
from mfswb.wasserstein import sliced_costs

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> LabelledImages:
    return load_digits(size=8)


def task(data: LabelledImages, loss: Any = losses.es_mfswb, **settings: Any) -> SlicedWassersteinAutoencoder:
    settings = {"batch_size": 60, "eval_images": 100, "prior_draws": 2, **settings}
    dtype = settings.pop("dtype", torch.float32)
    slicing = settings.pop("slicing", Slicing(equispaced, 32))
    return SlicedWassersteinAutoencoder(data, loss, slicing, CPU, dtype, settings.pop("seed", 1), **settings)


# --- objective -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", *LOSSES])
def test_the_objective_is_its_three_terms(digits: LabelledImages, name: str) -> None:
    loss = getattr(losses, name, None) or LOSSES[name]
    problem = task(digits, loss, dtype=torch.float64, kappa_1=3.0, kappa_2=0.7)
    value = problem.loss(torch.Generator().manual_seed(5))

    positions = Batches(digits.train.labels, 60, 1).at(0)
    images = torch.from_numpy(digits.train.images[positions]).double() / 255
    labels = digits.train.labels[positions]
    latents = problem.network.encode(images)
    made = problem.network.decode(latents)
    cross = -(images * made.log() + (1 - images) * (1 - made).log()).mean()
    generator = torch.Generator().manual_seed(5)
    theta = equispaced(32, 2, generator, torch.float64)
    prior = PRIORS["circle"](60, 2, generator).double()
    fair = 0.0 if name == "none" else loss(sliced_costs(prior, [latents[labels == k] for k in range(10)], theta))
    whole = sliced_costs(prior, [latents], theta).mean()
    expected = cross + (images - made).abs().mean() + 3.0 * whole + 0.7 * fair
    torch.testing.assert_close(value, expected)


def test_the_fairness_term_reaches_the_encoder(digits: LabelledImages) -> None:
    """MFSWB(lam) must train its fairness term: its gradient is not the plain one's, and grows with lam."""
    gradients = []
    for loss in (losses.none, *(partial(losses.mfswb, lam=lam) for lam in (0.0, 1.0, 10.0))):
        problem = task(digits, loss, dtype=torch.float64)
        torch.autograd.backward(problem.loss(torch.Generator().manual_seed(0)))
        weight = problem.network.encoder[0].weight.grad
        assert isinstance(weight, torch.Tensor)
        gradients.append(weight)
    plain, *fair = gradients
    assert all((gradient - plain).norm() > 1e-3 * plain.norm() for gradient in fair)
    torch.testing.assert_close(fair[2] - fair[0], 10 * (fair[1] - fair[0]))


def test_pictures_in_parts_are_the_whole_batch(digits: LabelledImages, monkeypatch: pytest.MonkeyPatch) -> None:
    values = []
    for together in (7, 1000):
        monkeypatch.setattr("mfswb.tasks.swae.PARTS_ON_CPU", together)
        problem = task(digits, dtype=torch.float64)
        value = problem.loss(torch.Generator().manual_seed(0))
        torch.autograd.backward(value)
        values.append([value.detach(), *(p.grad for p in problem.parameters())])
    torch.testing.assert_close(values[0], values[1])


def test_bfloat16_gives_the_same_within_its_digits(digits: LabelledImages) -> None:
    plain, half = (task(digits, autocast=autocast).loss(torch.Generator().manual_seed(0)) for autocast in (False, True))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=0.02, atol=0)
    assert not torch.equal(half, plain)
    with pytest.raises(ConfigError, match=r"task\.autocast=true"):
        task(digits, autocast=True, dtype=torch.float64)


def test_missing_classes_are_left_out_and_counted(digits: LabelledImages, caplog: pytest.LogCaptureFixture) -> None:
    problem = task(digits, losses.s_mfswb, batch_size=7)
    with caplog.at_level("WARNING"):
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            value = problem.loss(generator)
            assert torch.isfinite(value)
    assert len([record for record in caplog.records if "missing" in record.message]) == 1
    labels = digits.train.labels
    expected = sum(10 - len(set(labels[Batches(labels, 7, 1).at(step)])) for step in range(4))
    extra = problem.evaluate().extra
    assert extra["missing_classes"] == expected > 0
    balanced = task(digits, losses.s_mfswb, batch_size=20, balanced=True)
    balanced.loss(generator)
    assert balanced.evaluate().extra["missing_classes"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kappa_1": -1.0}, r"task\.kappa_1=-1"),
        ({"kappa_2": float("inf")}, r"task\.kappa_2=inf"),
        ({"latent_dim": 0}, r"task\.latent_dim=0"),
        ({"prior": "moon"}, r"task\.prior=moon: choose circle, disk"),
        ({"batch_size": 0}, r"task\.batch_size=0"),
        ({"eval_images": 3}, r"task\.eval_images=3: 10 classes"),
        ({"prior_draws": 0}, r"task\.prior_draws=0"),
        ({"latent_dim": 3}, "slicing=equispaced: works in the plane, but the data have dimension 3"),
    ],
)
def test_wrong_settings_are_named(digits: LabelledImages, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(digits, **settings)


# --- figures -------------------------------------------------------------------------------------------------------


def test_the_figures_are_what_they_say(digits: LabelledImages) -> None:
    metrics = LatentMetrics(digits, "disk", 2, 100, 3, seed=0)
    rng = np.random.default_rng(0)
    latents = rng.normal(size=(100, 2)).astype(np.float32)
    grey = np.full((100, 1, 8, 8), 0.25, dtype=np.float32)
    found = metrics.evaluate(lambda images: latents, lambda given: grey)
    metrics.close()
    assert np.bincount(metrics.labels).min() >= 9
    by_class = np.array(
        [[wasserstein2_squared(latents[metrics.labels == k], prior) for k in range(10)] for prior in metrics.priors]
    )
    np.testing.assert_allclose(found.distances, by_class.mean(axis=0))
    assert found.fairness_gap == pytest.approx(np.mean([fairness_gap(row) for row in by_class]))
    assert found.mean_distance == pytest.approx(np.mean([mean_distance(row) for row in by_class]))
    x = metrics.images / 255
    extra = found.extra
    assert extra["reconstruction_loss"] == pytest.approx(-(x * np.log(0.25) + (1 - x) * np.log(0.75)).mean())
    to_grey = ((x.reshape(100, -1) - 0.25) ** 2).sum(axis=1).mean()  # all generated pictures are one: no choice
    assert extra["generated_distance"] == pytest.approx(to_grey)
    assert extra["generated_distance_std"] == pytest.approx(0, abs=1e-9)
    whole = [wasserstein2_squared(latents, prior) for prior in metrics.priors]
    assert extra["latent_distance"] == pytest.approx(np.mean(whole))
    assert extra["latent_distance_std"] == pytest.approx(np.std(whole, ddof=1))
    assert (extra["eval_images"], extra["prior_draws"]) == (100, 3)


def as_latents(latents: NDArray[np.float32], images: NDArray[np.uint8]) -> NDArray[np.float32]:
    assert len(latents) == len(images)
    return latents


def test_latents_that_are_the_prior_s_have_little_distance_and_no_gap(digits: LabelledImages) -> None:
    metrics = LatentMetrics(digits, "circle", 2, None, 2, seed=0)
    assert len(metrics.images) == len(digits.test)
    rng = torch.Generator().manual_seed(3)
    good = PRIORS["circle"](len(metrics.images), 2, rng).numpy()
    bad = good + 0.3 * (metrics.labels[:, None] - 4.5)
    pictures = np.full((len(good), 1, 8, 8), 0.5, dtype=np.float32)
    best, worst = (
        metrics.evaluate(partial(as_latents, latents.astype(np.float32)), lambda given: pictures)
        for latents in (good, bad)
    )
    metrics.close()
    assert best.fairness_gap < 0.02 < 0.5 < worst.fairness_gap
    assert best.extra["latent_distance"] < 0.02


# --- runs ----------------------------------------------------------------------------------------------------------

SHORT = [
    *("task=swae", "data=digits", "data.size=8", "task.batch_size=50", "task.eval_images=100", "task.prior_draws=2"),
    *("trainer.threads=1", "trainer.eval_every=null"),
]


def finished(folder: Path, *overrides: str) -> dict[str, Any]:
    given = [*SHORT, *overrides]
    return run(compose_config(given), folder, given)


def test_a_run_fills_its_folder_and_is_usable_afterwards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    summary = finished(tmp_path / "run", "trainer.epochs=0.5", "loss=us")
    assert summary["step"] == 15  # half of 1438 / 50, rounded up
    folder = tmp_path / "run"
    for name in ("latents", "reconstructions", "samples", "classes"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {"model.pt", "model.json", "latents.npz"} <= set(summary["files"])
    model = TrainedAutoencoder.load(folder)
    digits = load_digits(size=8)
    np.testing.assert_allclose(model.encode(digits.test.images), model.latents, atol=1e-5)
    np.testing.assert_array_equal(model.labels, digits.test.labels)
    state = torch.load(folder / "model.pt", weights_only=True)
    assert set(state) == set(ConvAutoencoder(1, 8, 8, 2, torch.Generator()).state_dict())

    def swae(*arguments: str | Path) -> int:
        return mfswb_swae([str(argument) for argument in arguments])

    sheet, values, latents = tmp_path / "s.png", tmp_path / "v.npy", tmp_path / "z.npy"
    assert swae("sample", folder, "-n", "9", "--class", "3", "-o", sheet) == 0
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert swae("sample", folder, "-n", "9", "--seed", "4", "-o", values) == 0
    np.testing.assert_allclose(np.load(values), model.decode(model.sample(9, seed=4)))
    np.save(tmp_path / "given.npy", digits.test.images[:5, 0])
    assert swae("encode", folder, tmp_path / "given.npy", sheet, "-o", latents) == 0
    np.testing.assert_allclose(np.load(latents)[:5], model.latents[:5], atol=1e-5)
    assert swae("decode", folder, latents, "-o", values) == 0
    assert np.load(values).shape == (6, 1, 8, 8)
    near = model.sample(2000, label="3").mean(axis=0) - model.latents[model.labels == 3].mean(axis=0)
    assert np.abs(near).max() < 0.2 * model.latents.std() + 0.01

    caplog.clear()
    wrong: list[tuple[str, list[str | Path]]] = [
        ("'z': there is none", ["sample", folder, "--class", "z", "-o", sheet]),
        ("ending in .npy", ["encode", folder, sheet, "-o", tmp_path / "z.txt"]),
        ("no such file", ["encode", folder, "nothing.png", "-o", latents]),
        ("there is no folder", ["decode", folder, latents, "-o", tmp_path / "no" / "x.png"]),
        ("expected finite numbers of shape (n, 2)", ["decode", folder, tmp_path / "given1.npy", "-o", values]),
        ("model.json is missing", ["sample", tmp_path, "-o", sheet]),
        ("0 samples", ["sample", folder, "-n", "0", "-o", sheet]),
        ("seed -1", ["sample", folder, "--class", "1", "--seed", "-1", "-o", sheet]),
        (
            "expected finite numbers of shape (n, 2), got shape (3, 4)",
            ["decode", folder, tmp_path / "z.txt", "-o", values],
        ),
    ]
    np.save(tmp_path / "given1.npy", np.zeros((4, 3)))
    (tmp_path / "z.txt").write_text("1 2 3 4\n" * 3)
    for message, arguments in wrong:
        assert swae(*arguments) == 1
        assert message in caplog.records[-1].message
        assert "\n" not in caplog.records[-1].message
    (folder / "model.pt").write_bytes((folder / "model.pt").read_bytes()[:1000])
    assert swae("sample", folder, "-o", sheet) == 1
    assert "model.pt: is damaged" in caplog.records[-1].message
    finished(tmp_path / "other", "trainer.steps=1")
    archive = tmp_path / "other" / "latents.npz"
    archive.write_bytes(archive.read_bytes()[:200])
    assert swae("sample", tmp_path / "other", "-o", sheet) == 1
    assert "latents.npz: is damaged" in caplog.records[-1].message


@pytest.mark.parametrize("stop", [0, 3, 7])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path, stop: int) -> None:
    whole = finished(tmp_path / "whole", "trainer.steps=10", "trainer.checkpoint_every=1")
    finished(tmp_path / "part", f"trainer.steps={stop}")
    given = [f"trainer.resume={tmp_path / 'part'}", "trainer.steps=10"]
    again = run(compose_config(given), tmp_path / "again", given)
    for key in ("fairness_gap", "mean_distance", "reconstruction_loss", "loss", "missing_classes"):
        assert again[key] == whole[key]
    first, second = (torch.load(tmp_path / name / "model.pt", weights_only=True) for name in ("whole", "again"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_another_data_set_is_not_continued(tmp_path: Path) -> None:
    finished(tmp_path / "part", "trainer.steps=1")
    saved = torch.load(tmp_path / "part" / "checkpoint.pt", weights_only=True)
    saved["config"]["data"]["seed"] = 1
    torch.save(saved, tmp_path / "other.pt")
    given = [f"trainer.resume={tmp_path / 'other.pt'}", "trainer.steps=2"]
    with pytest.raises(ConfigError, match="the data differ from those of the checkpoint"):
        run(compose_config(given), tmp_path / "again", given)


def test_epochs_and_steps(tmp_path: Path) -> None:
    assert finished(tmp_path / "a", "trainer.steps=2", "trainer.epochs=3")["step"] == 2  # steps go before
    given = [f"trainer.resume={tmp_path / 'a'}", "trainer.epochs=0.1"]
    assert run(compose_config(given), tmp_path / "b", given)["step"] == 3
    given = ["task=gaussian", "trainer.epochs=1"]
    with pytest.raises(ConfigError, match="this task has no epochs"):
        run(compose_config(given), tmp_path / "c", given)
    for wrong in (["task=gaussian", "loss=none"], ["task=swae", "data=shapes"], ["task=gaussian", "data=digits"]):
        with pytest.raises(ConfigError, match=r"loss=none: leaves nothing|data: this task"):
            run(compose_config(wrong), tmp_path / wrong[-1], wrong)


def two_hundred_steps(folder: Path, loss: str, batch_size: int) -> dict[str, Any]:
    full = ["data.size=28", f"task.batch_size={batch_size}", "task.eval_images=null", "trainer.steps=200"]
    summary = finished(folder, f"loss={loss}", *full)
    figures = [summary[key] for key in ("fairness_gap", "mean_distance", "reconstruction_loss", "loss")]
    figures += [summary["latent_distance"], summary["generated_distance"], *summary["distances"]]
    assert np.isfinite(figures).all()
    assert summary["reconstruction_loss"] < np.log(2)
    return summary


def test_es_makes_the_latents_of_digits_fairer(tmp_path: Path) -> None:
    plain, fair = (two_hundred_steps(tmp_path / loss, loss, 32) for loss in ("none", "es"))
    assert fair["fairness_gap"] < 0.8 * plain["fairness_gap"]


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "es"])
def test_every_loss_trains_on_digits(tmp_path: Path, loss: str) -> None:
    two_hundred_steps(tmp_path / "run", loss, 8)


def test_settings_of_the_paper() -> None:
    cfg = compose_config(["task=swae"])
    assert (cfg.task.kappa_1, cfg.task.kappa_2, cfg.task.latent_dim, cfg.task.prior) == (8.0, 0.5, 2, "circle")
    assert (cfg.task.batch_size, cfg.trainer.epochs, cfg.trainer.steps) == (1000, 250, None)
    assert (cfg.optimizer["_target_"], cfg.optimizer.lr, cfg.optimizer.alpha) == ("torch.optim.RMSprop", 0.001, 0.9)
    assert (cfg.names.slicing, cfg.slicing.n_projections, cfg.names.data) == ("equispaced", 32, "mnist")
    paper = compose_config(["task=swae", "slicing=uniform", "slicing.n_projections=10000"])
    assert paper.slicing.sampler["_target_"] == f"{uniform.__module__}.uniform"
