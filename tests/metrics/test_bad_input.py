"""Bad input: a defined value, or a NaN that names its image and cause; never a silent NaN, never a lost batch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import egcam
from egcam import metrics
from egcam.errors import EgcamError, InputError, TargetError
from egcam.evaluation.evaluate import evaluate
from egcam.metrics import UndefinedScoreWarning
from egcam.metrics.registry import metric
from metrics.conftest import make_scene, measured
from metrics.test_invariances import OPTIONS, PER_IMAGE, explain, factory, scores

OF_MAPS = [name for name in PER_IMAGE if "heatmaps" in metric(name).needs]
OF_EXPLAINER = ("local_lipschitz", "max_sensitivity", "avg_sensitivity")
RELATIVE = ("relative_input_stability", "relative_output_stability")


@pytest.mark.parametrize("name", OF_MAPS)
@pytest.mark.parametrize("kind", ["zero", "constant", "negative", "one pixel", "tiny", "huge", "integer"])
def test_strange_maps_have_finite_scores(name, kind, scene):
    one_pixel = torch.zeros(3, 12, 12).double()
    one_pixel[:, 5, 6] = 1
    maps = {
        "zero": torch.zeros(3, 12, 12).double(),
        "constant": torch.full((3, 12, 12), 0.3).double(),
        "negative": -scene.maps - 0.1,
        "one pixel": one_pixel,
        "tiny": scene.maps * 1e-150,
        "huge": scene.maps * 1e100,
        "integer": (scene.maps * 9).long(),
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scores(name, scene, maps=maps)
    assert found.isfinite().all()


@pytest.mark.parametrize("name", OF_MAPS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_map_that_is_not_finite_is_named_and_the_others_keep_their_scores(name, value, scene):
    clean = scores(name, scene)
    scene.maps[1, 3, 3] = value
    with pytest.warns(UndefinedScoreWarning, match=rf"{name} is undefined for image 1: its map holds NaN"):
        found = scores(name, scene)
    assert found.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(found[[0, 2]], clean[[0, 2]])


def test_the_warning_can_be_an_error(scene):
    scene.maps[2] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UndefinedScoreWarning)
        with pytest.raises(UndefinedScoreWarning, match="image 2"):
            metrics.Complexity()(scene.maps)


def test_sufficiency_without_a_usable_map(scene):
    others = metrics.Sufficiency()(scene.model, scene.images[[0, 2]], scene.maps[[0, 2]])
    scene.maps[1] = float("nan")
    with pytest.warns(UndefinedScoreWarning, match="image 1"):
        found = metrics.Sufficiency()(scene.model, scene.images, scene.maps)
    assert torch.equal(found[[0, 2]], others)


def test_sufficiency_of_one_image_and_of_equal_maps(scene):
    with pytest.warns(UndefinedScoreWarning, match="there is no other"):
        assert metrics.Sufficiency()(scene.model, scene.images[:1], scene.maps[:1]).isnan().all()
    equal = metrics.Sufficiency()(scene.model, scene.images, scene.maps[:1].expand(3, -1, -1))
    predicted = scene.predict(scene.images.numpy()).argmax(1)
    expected = [np.mean([predicted[j] == predicted[i] for j in range(3) if j != i]) for i in range(3)]
    assert equal.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", PER_IMAGE)
def test_images_that_are_not_finite_are_named(name, scene):
    if "model" not in metric(name).needs or name == "random-logit" or "model-rand" in name:
        pytest.skip("needs no model, or compares maps only")
    clean = scores(name, scene)
    scene.images[0, 1, 2, 2] = float("nan")
    with pytest.warns(UndefinedScoreWarning, match="image 0"):
        found = scores(name, scene)
    assert found.isnan().tolist() == [True, False, False]
    torch.testing.assert_close(found[1:], clean[1:])


MASK_KINDS = {
    "boolean": lambda mask: mask,
    "bytes": lambda mask: mask.to(torch.uint8) * 255,
    "float": lambda mask: mask.double() * 0.9,
    "soft": lambda mask: torch.where(mask, 0.7, 0.3),
    "channel": lambda mask: mask[:, None],
    "numpy": lambda mask: mask.numpy(),
}


@pytest.mark.parametrize("name", [name for name in OF_MAPS if "masks" in metric(name).needs])
class TestMasks:
    @pytest.mark.parametrize("kind", MASK_KINDS)
    def test_kinds(self, name, kind, scene):
        function = metrics.make(name)
        assert torch.equal(function(scene.maps, MASK_KINDS[kind](scene.masks)), function(scene.maps, scene.masks))

    def test_empty(self, name, scene):
        clean = scores(name, scene)
        scene.masks[2] = False
        with pytest.warns(UndefinedScoreWarning, match="image 2: its mask is empty"):
            found = scores(name, scene)
        assert found[2].isnan()
        assert torch.equal(found[:2], clean[:2])

    def test_full(self, name, scene):
        scene.masks[:] = True
        torch.testing.assert_close(scores(name, scene), torch.ones(3).double())

    def test_of_another_size(self, name, scene):
        scene.masks = scene.masks[:, ::2, ::2]
        with pytest.raises(InputError, match=r"masks are \(6, 6\) and maps \(12, 12\)"):
            scores(name, scene)

    def test_with_nan(self, name, scene):
        masks = scene.masks.double()
        masks[1, 0, 0] = float("nan")
        with pytest.raises(InputError, match="image 1"):
            measured(name, scene.maps, masks)


def test_signed_maps_that_cancel_have_no_mass_accuracy():
    maps = torch.tensor([[[1.0, -1.0]], [[3.0, -1.0]]])
    mask = torch.tensor([[[True, False]], [[True, False]]])
    with pytest.warns(UndefinedScoreWarning, match="image 0: its map's positive and negative values cancel"):
        found = metrics.RelevanceMassAccuracy()(maps, mask)
    assert found[1].item() == 1.5


def test_maps_of_another_size_are_upsampled_like_heat_maps(scene):
    small = scene.maps[:, ::3, ::3]
    large = torch.nn.functional.interpolate(small[:, None], (12, 12), mode="bilinear")[:, 0]
    assert torch.equal(
        metrics.Deletion()(scene.model, scene.images, small), metrics.Deletion()(scene.model, scene.images, large)
    )


def test_maps_as_arrays_and_explanations(scene):
    expected = metrics.Deletion()(scene.model, scene.images, scene.maps)
    explanation = type("Explanation", (), {"heatmaps": scene.maps})()
    for given in (scene.maps.numpy(), scene.maps[:, None], explanation):
        assert torch.equal(metrics.Deletion()(scene.model, scene.images, given), expected)


WRONG = {
    "one map for three images": lambda s: metrics.Deletion()(s.model, s.images, s.maps[:1]),
    "flat maps": lambda s: metrics.Deletion()(s.model, s.images, s.maps.flatten(1)),
    "no batch": lambda s: metrics.Deletion()(s.model, s.images[0], s.maps),
    "no images": lambda s: metrics.Deletion()(s.model, s.images[:0], s.maps[:0]),
    "whole-number images": lambda s: metrics.Deletion()(s.model, (s.images * 9).long(), s.maps),
    "text for maps": lambda s: metrics.Complexity()("maps"),
    "unknown baseline": lambda s: metrics.Deletion(baseline="blakc")(s.model, s.images, s.maps),
    "baseline of another shape": lambda s: metrics.Deletion(baseline=torch.ones(5, 1, 1))(s.model, s.images, s.maps),
    "baseline with NaN": lambda s: metrics.Deletion(baseline=float("nan"))(s.model, s.images, s.maps),
    "step of none": lambda s: metrics.Deletion(step=0)(s.model, s.images, s.maps),
    "batch of none": lambda s: metrics.Deletion()(s.model, s.images, s.maps, batch_size=0),
    "patch larger than the image": lambda s: metrics.Infidelity(patch=13)(s.model, s.images, s.maps),
    "paper's patch on a small image": lambda s: metrics.Infidelity.made("paper")(s.model, s.images, s.maps),
    "a patch by an unknown name": lambda s: metrics.Infidelity(patch="quarter")(s.model, s.images, s.maps),
    "a metric without what it needs": lambda s: metrics.Deletion().of(metrics.Case(s.model, s.images)),
    "unknown scale": lambda s: metrics.Infidelity(scale="bset")(s.model, s.images, s.maps),
    "unknown protocol": lambda s: metrics.PixelFlipping.made("papre")(s.model, s.images, s.maps),
    "k of none": lambda s: metrics.TopKIntersection(k=0)(s.maps, s.masks),
    "negative tolerance": lambda s: metrics.PointingGame(tolerance=-1)(s.maps, s.masks),
    "shares out of range": lambda s: metrics.Road(shares=(0.5, 1.5))(s.model, s.images, s.maps),
    "float segments": lambda s: metrics.Irof(segments=s.maps)(s.model, s.images, s.maps),
    "segments of another size": lambda s: metrics.Irof(segments=torch.zeros(3, 3).long())(s.model, s.images, s.maps),
    "no perturbations": lambda s: metrics.MaxSensitivity(samples=0)(s.model, s.images, explain),
    "an explainer that drops images": lambda s: metrics.MaxSensitivity()(s.model, s.images, lambda x, y: x[:1, 0]),
    "an explainer without maps": lambda s: metrics.MaxSensitivity()(s.model, s.images, lambda x, y: x),
    "unknown similarity": lambda s: metrics.RandomLogit(similarity="sism")(s.model, s.images, explain),
    "a plain callable for MPRT": lambda s: metrics.ModelRandomization()(s.model, s.images, explain),
    "unknown metric": lambda s: metrics.metric("pixel-flippin"),
    "noise without width": lambda s: metrics.Noise("uniform", 0.2, 0.2),
    "unknown class": lambda s: metrics.Deletion()(s.model, s.images, s.maps, 4),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_say_so(case, scene):
    with pytest.raises(EgcamError) as caught:
        WRONG[case](scene)
    assert len(str(caught.value)) > 20


def test_callable_targets(scene):
    """A callable target is scored as it is, and refused where classes are needed."""
    by_class = metrics.Deletion(score="logit")(scene.model, scene.images, scene.maps, 2)
    by_call = metrics.Deletion()(scene.model, scene.images, scene.maps, lambda out: out[:, 2])
    assert torch.equal(by_class, by_call)
    with pytest.raises(InputError, match="class targets"):
        metrics.RelativeOutputStability()(scene.model, scene.images, lambda x, y: x[:, 0], lambda out: out[:, 2])
    with pytest.raises(TargetError, match="class targets"):
        metrics.Road(score="accuracy")(scene.model, scene.images, scene.maps, lambda out: out[:, 2])


@pytest.mark.parametrize("name", [*OF_EXPLAINER, *RELATIVE])
def test_one_class_for_all_images_may_be_a_tensor_without_dimensions(name, scene):
    function = metrics.make(name)
    found = function(scene.model, scene.images, explain, torch.tensor(2))
    assert torch.equal(found, function(scene.model, scene.images, explain, torch.tensor([2, 2, 2])))
    for wrong in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0, 0.0]), torch.tensor([True, False, True])):
        with pytest.raises(TargetError, match="target"):
            function(scene.model, scene.images, explain, wrong)


@pytest.mark.parametrize("name", PER_IMAGE)
def test_one_image_without_a_batch_scores_as_a_batch_of_one(name, scene):
    one = metric(name)
    alone = egcam.explain(scene.model, scene.images[0], "grad-cam", 3, layer="4", signed=True)
    batch = egcam.explain(scene.model, scene.images[:1], "grad-cam", 3, layer="4", signed=True)
    makes = factory if name.endswith("model-randomization") else explain
    single = {"model": [scene.model, scene.images[0]], "heatmaps": [alone], "masks": [scene.masks[0]]}
    several = {"model": [scene.model, scene.images[:1]], "heatmaps": [batch], "masks": [scene.masks[:1]]}
    found, expected = (
        measured(one, *(value for need in one.needs for value in ({"explainer": [makes]} | given)[need]), **more)
        for given in (single, several)
        for more in [OPTIONS.get(name, {})]
    )
    assert found.shape == (1,)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_one_map_without_a_batch(scene):
    expected = metrics.Deletion()(scene.model, scene.images[:1], scene.maps[:1])
    assert torch.equal(metrics.Deletion()(scene.model, scene.images[0], scene.maps[0]), expected)
    table = evaluate(
        scene.model, scene.images[0], {"own": explain}, ["deletion", "pointing-game"], masks=scene.masks[0]
    )
    assert [row.cause for row in table.rows] == [None, None]
    for flat in (scene.maps.flatten(1), scene.maps[0]):
        # Rows of pixels, one for each image, would be taken for one map.
        with pytest.raises(InputError, match=r"one map is maps\[None\]"):
            metrics.Sparseness()(flat)
    with pytest.raises(InputError, match=r"one per map"):
        metrics.PointingGame()(scene.maps, scene.masks[0])


def test_one_group_has_no_correlation(scene):
    with pytest.warns(UndefinedScoreWarning, match="one group"):
        assert metrics.FaithfulnessEstimate(step=144)(scene.model, scene.images, scene.maps).isnan().all()


def test_steps_larger_than_the_image_leave_the_two_ends(scene):
    curve = metrics.Deletion(step=1000).curve(metrics.Case(scene.model, scene.images, scene.maps))
    assert curve.fractions.tolist() == [[0.0, 1.0]] * 3


class TestZeroMapsUnderPerturbation:
    """Zero maps: what cannot be divided by has no score, what can has one."""

    def test_zero_map_of_the_image(self, scene):
        def zero(images, target):
            return torch.zeros(len(images), 12, 12)

        for name in ("max_sensitivity", "avg_sensitivity", *RELATIVE):
            with pytest.warns(UndefinedScoreWarning, match="image 0: its map is zero everywhere"):
                assert measured(name, scene.model, scene.images, zero).isnan().all()
        assert torch.equal(metrics.LocalLipschitz()(scene.model, scene.images, zero), torch.zeros(3))

    def test_zero_map_of_a_perturbed_copy(self, scene):
        first = scene.images.clone()

        def forgetful(images, target):
            known = torch.tensor([bool((image == first).flatten(1).all(1).any()) for image in images])
            return images[:, 0] * known.view(-1, 1, 1)

        noise = metrics.Noise("uniform", -1e-3, 1e-3)
        for name in RELATIVE:
            with pytest.warns(UndefinedScoreWarning, match="becomes zero everywhere under perturbation"):
                found = measured(name, scene.model, scene.images, forgetful, noise=noise)
            assert found.isnan().all()
        ones = metrics.MaxSensitivity()(scene.model, scene.images, forgetful)
        torch.testing.assert_close(ones, torch.ones(3).double())

    @pytest.mark.parametrize("name", [*OF_EXPLAINER, *RELATIVE])
    def test_nan_map_of_a_perturbed_copy(self, name, scene):
        keep = scene.images[1]

        def breaks(images, target):
            maps = images[:, 0].clone()
            for number, image in enumerate(images):
                if (image - keep).abs().max() < 0.9 and not torch.equal(image, keep):
                    maps[number] = float("nan")
            return maps

        with pytest.warns(UndefinedScoreWarning, match="image 1: the explainer's map of a perturbed copy holds NaN"):
            found = measured(name, scene.model, scene.images, breaks)
        assert found.isnan().tolist() == [False, True, False]


def test_predictions_that_always_or_never_change(scene):
    class Flip(torch.nn.Module):
        """Class 0 for the images themselves, class 1 for anything else."""

        def forward(self, images):
            known = torch.tensor([bool((image == scene.images).flatten(1).all(1).any()) for image in images])
            return torch.stack([known.double(), 0.5 + images.mean((1, 2, 3)) * 0], 1)

    for name in RELATIVE:
        with pytest.warns(UndefinedScoreWarning, match="every perturbation changes the prediction"):
            assert measured(name, Flip(), scene.images, explain).isnan().all()
    small = metrics.Noise("uniform", -1e-4, 1e-4)
    for name in RELATIVE:
        never = measured(name, scene.model, scene.images, explain, noise=small, samples=3)
        paper = measured(name, scene.model, scene.images, explain, noise=small, samples=3, protocol="paper")
        torch.testing.assert_close(never, paper)
    large = metrics.Noise("uniform", -1.5, 1.5)
    with pytest.warns(UndefinedScoreWarning, match="the paper's protocol drops the image"):
        metrics.RelativeInputStability.made("paper", noise=large, samples=30)(scene.model, scene.images, explain)


def test_paper_protocol_draws_two_hundred(scene):
    seen = []

    def counting(images, target):
        seen.append(len(images))
        return explain(images, target)

    for name in (*OF_EXPLAINER, *RELATIVE):
        seen.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedScoreWarning)
            measured(
                name, scene.model, scene.images[:1], counting, protocol="paper", heatmaps=explain(scene.images[:1], 0)
            )
        assert sum(seen) == 200, name


def test_rectangular_single_channel_images():
    layers = torch.nn.Conv2d(1, 2, 1), torch.nn.Flatten(), torch.nn.Linear(2 * 5 * 9, 3)  # metrics of a layer need one
    model = torch.nn.Sequential(*layers).double()
    images, maps = torch.rand(1, 1, 5, 9).double(), torch.rand(1, 5, 9).double()
    for name in PER_IMAGE:
        one = metric(name)
        if one.needs == ("model", "heatmaps"):
            segments = {"segments": torch.arange(45).view(5, 9) // 9} if name == "irof" else {}
            assert measured(one, model, images, maps, **segments).isfinite().all(), name


def test_many_undefined_images_are_summed_up():
    maps = torch.full((20, 4, 4), float("nan"))
    with pytest.warns(UndefinedScoreWarning, match="and 12 more"):
        metrics.Sparseness()(maps)


def test_scene_count_does_not_matter_for_names():
    scene = make_scene(count=5)
    scene.maps[3] = float("nan")
    with metrics.causes_collected() as causes:
        metrics.Deletion()(scene.model, scene.images, scene.maps)
    assert causes == {3: "its map holds NaN or infinite values"}
