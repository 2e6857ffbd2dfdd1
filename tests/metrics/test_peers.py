"""Against Quantus, captum and torchcam, where they are right."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from egcam import metrics
from metrics.conftest import make_scene, measured

pytestmark = pytest.mark.peers
quantus = pytest.importorskip("quantus")


class SinglePrecisionDoor(torch.nn.Module):
    """Quantus hands the model single-precision images; behind this door they are double again."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images.double())


def representable(scene):
    """The scene with images that single precision holds exactly."""
    scene.images = scene.images.float().double()
    return scene


@pytest.fixture
def grey():
    """One channel: Quantus 0.6 flips the channels of a pixel one by one, which is another metric for colour images."""
    scene = representable(make_scene(channels=1))
    scene.maps = scene.maps / scene.maps.amax((1, 2), keepdim=True)
    return scene


def ask(metric, scene, **options):
    """Quantus's scores, one image at a time: its normalisation mixes the images of a batch."""
    found = []
    for n in range(len(scene.images)):
        part = slice(n, n + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(
                metric(
                    model=SinglePrecisionDoor(scene.model).eval(),
                    x_batch=scene.images[part].numpy(),
                    y_batch=scene.target[part].numpy(),
                    a_batch=scene.maps[part, None].numpy().copy(),
                    s_batch=scene.masks[part, None].numpy(),
                    **options,
                )[0]
            )
    return np.array(found, dtype=float)


QUIET = {"disable_warnings": True, "display_progressbar": False}


def close(ours, theirs, **tolerance):
    np.testing.assert_allclose(ours.numpy(), theirs, **({"rtol": 1e-6, "atol": 1e-7} | tolerance))


def test_quantus_faithfulness_estimate(grey):
    theirs = ask(quantus.FaithfulnessEstimate(features_in_step=12, **QUIET), grey, softmax=False)
    close(
        metrics.FaithfulnessEstimate(step=12, baseline="darkest")(grey.model, grey.images, grey.maps, grey.target),
        theirs,
    )


def test_quantus_pixel_flipping(grey):
    theirs = ask(quantus.PixelFlipping(features_in_step=12, **QUIET), grey, softmax=True)
    curve = metrics.PixelFlipping(step=12, baseline="darkest").curve(
        metrics.Case(grey.model, grey.images, grey.maps, grey.target)
    )
    close(curve.scores[:, 1:], theirs)
    area = np.trapezoid(theirs, axis=1)
    close(metrics.PixelFlipping.made("paper", step=12)(grey.model, grey.images, grey.maps, grey.target), area)


def test_quantus_infidelity(grey):
    theirs = ask(quantus.Infidelity(perturb_patch_sizes=[4], n_perturb_samples=1, **QUIET), grey, softmax=False)
    ours = metrics.Infidelity(patch=4, scale="raw", cumulative=True, baseline="darkest")(
        grey.model, grey.images, grey.maps, grey.target
    )
    close(ours, theirs)


def test_quantus_sufficiency():
    scene = representable(make_scene(count=9))
    scene.maps /= scene.maps.amax((1, 2), keepdim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = quantus.Sufficiency(threshold=0.97, **QUIET)(
            model=SinglePrecisionDoor(scene.model).eval(),
            x_batch=scene.images.numpy(),
            y_batch=scene.target.numpy(),
            a_batch=scene.maps[:, None].numpy().copy(),
            batch_size=9,
        )
    close(metrics.Sufficiency(threshold=0.97)(scene.model, scene.images, scene.maps), theirs)
    assert 0 < np.mean(theirs) < 1


def explain(images, target):
    classes = torch.as_tensor(target).expand(len(images)).to(images)
    return (images.mean(1) * (1 + classes.view(-1, 1, 1))).sin() + 1.5


def quantus_explain(model, inputs, targets, **options):
    inputs = torch.as_tensor(inputs)
    return explain(inputs, torch.as_tensor(targets))[:, None].numpy()


def drawn_in_turn(noise, seed=5):
    """A Quantus perturbation that adds our noise 0, 1, 2, …"""
    calls = []

    def perturb(arr, indices, **options):
        like = torch.zeros(1, 12, 12, dtype=torch.float64)
        added = noise.draw(seed, len(calls), like).numpy().reshape(1, -1)
        calls.append(1)
        return arr + added

    return perturb


ROBUST = {
    "local_lipschitz": ("LocalLipschitzEstimate", metrics.Noise("normal", 0, 0.1)),
    "max_sensitivity": ("MaxSensitivity", metrics.Noise("uniform", -0.2, 0.2)),
    "avg_sensitivity": ("AvgSensitivity", metrics.Noise("uniform", -0.2, 0.2)),
    "relative_input_stability": ("RelativeInputStability", metrics.Noise("uniform", 0.02, 0.2)),
    "relative_output_stability": ("RelativeOutputStability", metrics.Noise("uniform", 0.02, 0.2)),
}


@pytest.mark.parametrize("name", ROBUST)
def test_quantus_robustness(name, grey):
    theirs_name, noise = ROBUST[name]
    grey.maps = explain(grey.images, grey.target)
    if name == "local_lipschitz":
        grey.maps = grey.maps / grey.maps.abs().amax((1, 2), keepdim=True)
    theirs = []
    for n in range(3):
        metric = getattr(quantus, theirs_name)(
            nr_samples=6, perturb_func=drawn_in_turn(noise), return_nan_when_prediction_changes=False, **QUIET
        )
        one = make_scene(channels=1)
        one.images, one.target = grey.images[n : n + 1], grey.target[n : n + 1]
        one.maps, one.masks = grey.maps[n : n + 1], grey.masks[n : n + 1]
        theirs.append(ask(metric, one, explain_func=quantus_explain)[0])
    predicted = grey.predict(grey.images.numpy()).argmax(1)
    for number in range(6):
        moved = grey.images + noise.draw(5, number, grey.images[0])
        assert (grey.predict(moved.numpy()).argmax(1) == predicted).all()
    ours = measured(name, grey.model, grey.images, explain, grey.target, samples=6, seed=5, protocol="paper")
    # Their model sees the noisy images rounded to single precision.
    close(ours, theirs, rtol=1e-5 if name == "relative_output_stability" else 1e-6)


OF_MASKS = {
    "attribution_localization": "AttributionLocalisation",
    "relevance_mass_accuracy": "RelevanceMassAccuracy",
    "relevance_rank_accuracy": "RelevanceRankAccuracy",
    "pointing_game": "PointingGame",
}


@pytest.mark.parametrize("name", OF_MASKS)
def test_quantus_localization(name, grey):
    theirs = ask(getattr(quantus, OF_MASKS[name])(**QUIET), grey)
    close(measured(name, grey.maps, grey.masks), theirs, atol=1e-8)


def test_quantus_top_k(grey):
    theirs = ask(quantus.TopKIntersection(k=20, **QUIET), grey)
    close(metrics.TopKIntersection(k=20)(grey.maps, grey.masks), theirs)


def test_quantus_complexity(grey):
    close(metrics.Complexity()(grey.maps), ask(quantus.Complexity(**QUIET), grey))
    # 1e-7 is added to their map.
    close(metrics.Sparseness()(grey.maps), ask(quantus.Sparseness(**QUIET), grey), atol=1e-6)


@pytest.mark.parametrize("scale", ["raw", "best"])
def test_captum_infidelity(scale):
    """captum draws perturbations; given our patches in turn, it must find our number."""
    from captum.metrics import infidelity

    scene = make_scene()
    groups = torch.arange(12).view(-1, 1) // 4 * 3 + torch.arange(12) // 4
    for n in range(3):
        image = scene.images[n : n + 1]

        def perturb(inputs, image=image):
            masks = torch.stack([(groups == k) for k in range(9)])[:, None]
            change = masks * (image - image.min())
            return change, inputs - change

        theirs = infidelity(
            scene.model,
            perturb,
            image,
            scene.maps[n : n + 1, None].expand(-1, 3, -1, -1),
            target=int(scene.target[n]),
            n_perturb_samples=9,
            normalize=scale == "best",
        )
        ours = metrics.Infidelity(patch=4, scale=scale, baseline="darkest")(
            scene.model, image, scene.maps[n : n + 1], int(scene.target[n])
        )
        close(ours, theirs.numpy())


class FixedMaps:
    """As much of a torchcam extractor as its metrics use, around maps that are given."""

    def __init__(self, model, maps):
        self.model, self.maps = model, maps

    def __call__(self, *_, **__):
        return [self.maps]

    def fuse_cams(self, maps):
        return maps[0]

    def _hooks_off(self):
        from contextlib import nullcontext

        return nullcontext()


def test_torchcam_insertion_and_deletion(scene):
    from torchcam.metrics import DeletionInsertionMetric

    theirs = DeletionInsertionMetric(FixedMaps(scene.model, scene.maps), lambda out: out.softmax(1), steps=12)
    theirs.update(scene.images, scene.target.tolist())
    found = theirs.summary()
    ours = (
        metrics.Deletion()(scene.model, scene.images, scene.maps, scene.target).mean(),
        metrics.Insertion(baseline="zero")(scene.model, scene.images, scene.maps, scene.target).mean(),
    )
    # torchcam keeps its fractions in single precision.
    assert ours[0].item() == pytest.approx(found["deletion_auc"], abs=1e-6)
    assert ours[1].item() == pytest.approx(found["insertion_auc"], abs=1e-6)


def test_torchcam_average_drop(scene):
    from torchcam.metrics import ClassificationMetric

    maps = scene.maps / scene.maps.amax((1, 2), keepdim=True)
    theirs = ClassificationMetric(FixedMaps(scene.model, maps), lambda out: out.softmax(1))
    theirs.update(scene.images, scene.target.tolist())
    found = theirs.summary()
    drop = metrics.AverageDrop()(scene.model, scene.images, maps, scene.target)
    rise = metrics.IncreaseInConfidence()(scene.model, scene.images, maps, scene.target)
    assert drop.mean().item() == pytest.approx(found["avg_drop"], abs=1e-6)
    assert rise.mean().item() == pytest.approx(found["conf_increase"], abs=1e-6)


def test_quantus_batch_mates_matter_and_ours_do_not(grey):
    """The reason these metrics exist: Quantus's Local Lipschitz of an image changes with the batch."""
    grey.images[1] *= 30
    ours = [metrics.LocalLipschitz(samples=3)(grey.model, grey.images[:k], explain, grey.target[:k])[0] for k in (1, 3)]
    torch.testing.assert_close(*ours)
