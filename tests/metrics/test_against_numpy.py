"""Every metric equals its slow NumPy twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import egcam
from egcam import metrics
from egcam.errors import SameForNextClassWarning
from egcam.metrics.noise import generator
from egcam.metrics.sanity import top_overlap
from egcam.rng import generator as seeded
from metrics.conftest import make_scene, measured
from support import numpy_metrics as slow

STEP = 10  # does not divide 144


def explain(images, target):
    """A differentiable-looking explainer that depends on the class: something to be robust about."""
    classes = torch.as_tensor(target, device=images.device).expand(len(images)).to(images)
    return (images.mean(1) * (1 + classes.view(-1, 1, 1))).sin() + 0.4 * images[:, 0] ** 2 + 0.3


def explain_numpy(x, y):
    return np.sin(x.mean(0) * (1 + y)) + 0.4 * x[0] ** 2 + 0.3


def noisy(scene, x, noise, samples, seed=5):
    like = torch.zeros(x.shape, dtype=torch.float64)
    return [x + noise.draw(seed, number, like).numpy() for number in range(samples)]


OF_MAPS = {
    "faithfulness_estimate": (
        {"step": STEP, "baseline": "darkest"},
        lambda s, x, a, y: slow.faithfulness_estimate(s.predict, x, a, y, STEP),
    ),
    "pixel_flipping": (
        {"step": STEP, "baseline": "darkest"},
        lambda s, x, a, y: slow.pixel_flipping(s.predict, x, a, y, STEP),
    ),
    "pixel_flipping/paper": (
        {"step": STEP, "protocol": "paper"},
        lambda s, x, a, y: slow.pixel_flipping_paper(s.predict, x, a, y, STEP),
    ),
    "deletion": ({"step": STEP}, lambda s, x, a, y: slow.deletion(s.predict, x, a, y, STEP)),
    "insertion": ({"step": STEP}, lambda s, x, a, y: slow.insertion(s.predict, x, a, y, STEP)),
    "insertion_deletion": (
        {"step": STEP},
        lambda s, x, a, y: slow.insertion(s.predict, x, a, y, STEP) - slow.deletion(s.predict, x, a, y, STEP),
    ),
    "monotonicity": (
        {"step": STEP, "baseline": "darkest"},
        lambda s, x, a, y: slow.monotonicity(s.predict, x, a, y, STEP),
    ),
    "infidelity": ({"patch": 5, "baseline": "darkest"}, lambda s, x, a, y: slow.infidelity(s.predict, x, a, y, 5)),
    "infidelity/default-patch": ({"baseline": "darkest"}, lambda s, x, a, y: slow.infidelity(s.predict, x, a, y, 3)),
    "infidelity/unit-sum": (
        {"patch": 5, "scale": "unit-sum", "baseline": "darkest"},
        lambda s, x, a, y: slow.infidelity(s.predict, x, a, y, 5, "unit-sum"),
    ),
    "infidelity/raw": (
        {"patch": 5, "scale": "raw", "baseline": "darkest"},
        lambda s, x, a, y: slow.infidelity(s.predict, x, a, y, 5, "raw"),
    ),
    "infidelity/cumulative": (
        {"patch": 4, "scale": "raw", "cumulative": True, "baseline": "darkest"},
        lambda s, x, a, y: slow.infidelity(s.predict, x, a, y, 4, "raw", True),
    ),
    "average_drop": ({}, lambda s, x, a, y: slow.average_drop(s.predict, x, a, y)),
    "increase_in_confidence": ({}, lambda s, x, a, y: slow.increase_in_confidence(s.predict, x, a, y)),
    "average_gain": ({}, lambda s, x, a, y: slow.average_gain(s.predict, x, a, y)),
}


@pytest.mark.parametrize("case", OF_MAPS)
@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
def test_metrics_of_maps(case, signed, scene):
    options, slowly = OF_MAPS[case]
    if signed:
        scene.maps -= 0.4
    ours = measured(case.split("/")[0], scene.model, scene.images, scene.maps, scene.target, **options)
    expected = [slowly(scene, x, a, y) for x, a, y in scene.each()]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6, rtol=1e-6)
    assert np.ptp(expected) > 1e-9 or "increase" in case  # a metric that is the same for all would prove little


def test_prediction_is_the_default_target(scene):
    predicted = scene.predict(scene.images.numpy()).argmax(1)
    ours = metrics.Deletion()(scene.model, scene.images, scene.maps)
    named = metrics.Deletion()(scene.model, scene.images, scene.maps, predicted.tolist())
    assert torch.equal(ours, named)


@pytest.mark.parametrize("paper", [False, True])
def test_irof(scene, paper):
    rows, columns = np.indices((12, 12))
    labels = np.stack([(rows // 4) * 3 + columns // 4, (rows // 6) * 2 + columns // 6, rows // 3])
    ours = metrics.Irof.made("paper" if paper else "default", segments=labels)(
        scene.model, scene.images, scene.maps, scene.target
    )
    slowly = slow.irof_paper if paper else slow.irof
    expected = [slowly(scene.predict, x, a, y, labels[n]) for n, (x, a, y) in enumerate(scene.each())]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


def test_irof_makes_superpixels(scene):
    from skimage.segmentation import slic

    expected = []
    for x, a, y in scene.each():
        stretched = (x - x.min()) / (x.max() - x.min())
        segments = slic(np.moveaxis(stretched, 0, -1), n_segments=9, start_label=0, channel_axis=-1)
        expected.append(slow.irof(scene.predict, x, a, y, segments))
    ours = metrics.Irof(n_segments=9)(scene.model, scene.images, scene.maps, scene.target)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


def test_sufficiency():
    scene = make_scene(count=9)
    scene.maps[4:] = scene.maps[:5] + 0.2 * scene.maps[4:]
    scene.maps[:, 0, 0] = 0.0  # one constant pixel must not spoil it
    ours = metrics.Sufficiency(threshold=0.8)(scene.model, scene.images, scene.maps)
    expected = slow.sufficiency(scene.predict, scene.images.numpy(), scene.maps.numpy(), threshold=0.8)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)
    assert 0 < np.mean(expected) < 1


def test_sensitivity_n(scene):
    shares, subsets = (0.1, 0.45), 6
    orders = [torch.randperm(144, generator=generator(3, number)).numpy() for number in range(subsets)]
    ours = metrics.SensitivityN(shares=shares, subsets=subsets, seed=3, baseline="darkest")(
        scene.model, scene.images, scene.maps, scene.target
    )
    expected = [slow.sensitivity_n(scene.predict, x, a, y, orders, (14, 65)) for x, a, y in scene.each()]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


def test_road(scene):
    shares = (0.2, 0.5, 0.9)
    like = torch.zeros(3, 12, 12, dtype=torch.float64)
    noises = [metrics.Noise("normal", 0.0, 0.01).draw(2, number, like).numpy() for number in range(3)]
    ours = metrics.Road(shares=shares, seed=2)(scene.model, scene.images, scene.maps, scene.target)
    expected = [slow.road(scene.predict, x, a, y, shares, noises) for x, a, y in scene.each()]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


NORMAL, UNIFORM = metrics.Noise("normal", 0.0, 0.1), metrics.Noise("uniform", -0.2, 0.2)
ROBUST = {
    "local_lipschitz": (NORMAL, lambda s, x, a, xs, maps: slow.local_lipschitz(x, a, xs, maps)),
    "max_sensitivity": (UNIFORM, lambda s, x, a, xs, maps: max(slow.sensitivities(a, maps))),
    "avg_sensitivity": (UNIFORM, lambda s, x, a, xs, maps: np.mean(slow.sensitivities(a, maps))),
    "relative_input_stability": (
        UNIFORM,
        lambda s, x, a, xs, maps: slow.relative_input_stability(s.predict, x, a, xs, maps),
    ),
    "relative_output_stability": (
        UNIFORM,
        lambda s, x, a, xs, maps: slow.relative_output_stability(s.predict, x, a, xs, maps),
    ),
}


@pytest.mark.parametrize("name", ROBUST)
def test_robustness(name, scene):
    noise, slowly = ROBUST[name]
    ours = measured(name, scene.model, scene.images, explain, scene.target, samples=7, seed=5)
    expected = []
    for x, _, y in scene.each():
        xs = noisy(scene, x, noise, 7)
        expected.append(slowly(scene, x, explain_numpy(x, y), xs, [explain_numpy(z, y) for z in xs]))
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6)


def test_relative_stability_leaves_out_changed_predictions():
    """With noise large enough to flip some predictions, only the others count."""
    scene = make_scene(count=4)
    noise = metrics.Noise("uniform", -1.5, 1.5)
    before = scene.predict(scene.images.numpy()).argmax(1)
    changed = np.zeros((4, 8), bool)
    for n, (x, _, _) in enumerate(scene.each()):
        changed[n] = scene.predict(np.stack(noisy(scene, x, noise, 8))).argmax(1) != before[n]
    assert changed.any()
    assert not changed.all(1).any()
    ours = metrics.RelativeOutputStability(noise=noise, samples=8, seed=5)(
        scene.model, scene.images, explain, scene.target
    )
    expected = []
    for x, _, y in scene.each():
        xs = noisy(scene, x, noise, 8)
        maps = [explain_numpy(z, y) for z in xs]
        expected.append(slow.relative_output_stability(scene.predict, x, explain_numpy(x, y), xs, maps))
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6)


OF_MAPS_ALONE = ("complexity", "sparseness")
OF_MASKS = (
    "attribution_localization",
    "relevance_mass_accuracy",
    "relevance_rank_accuracy",
    "pointing_game",
    "energy_pointing_game",
)


@pytest.mark.parametrize("name", OF_MAPS_ALONE)
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_complexity(name, shift, scene):
    maps = scene.maps - shift
    expected = [getattr(slow, name)(a) for a in maps.numpy()]
    np.testing.assert_allclose(measured(name, maps).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("name", OF_MASKS)
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_localization(name, shift, scene):
    maps = scene.maps - shift
    expected = [getattr(slow, name)(a, m) for a, m in zip(maps.numpy(), scene.masks.numpy(), strict=True)]
    np.testing.assert_allclose(measured(name, maps, scene.masks).numpy(), expected, atol=1e-9)


def test_top_k(scene):
    expected = [slow.top_k_intersection(a, m, 17) for a, m in zip(scene.maps.numpy(), scene.masks.numpy(), strict=True)]
    np.testing.assert_allclose(metrics.TopKIntersection(k=17)(scene.maps, scene.masks).numpy(), expected)


def test_adcc(scene):
    ours = metrics.Adcc()(scene.model, scene.images, explain, scene.target)
    expected = [slow.adcc(scene.predict, explain_numpy, x, y) for x, _, y in scene.each()]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


def test_arcc(scene):
    """ADCC's first two terms, read off ADCC itself, with ROAD from both ends as the third."""
    options = {"shares": (0.3, 0.6), "seed": 2}
    ours = metrics.Arcc(**options)(scene.model, scene.images, explain, scene.target)
    road = metrics.RoadBothOrders(**options)(
        scene.model, scene.images, explain(scene.images, scene.target), scene.target
    )
    third = (2 * road).clamp(0, 1)
    adcc = metrics.Adcc()(scene.model, scene.images, explain, scene.target)
    drop = metrics.AverageDrop()(scene.model, scene.images, explain(scene.images, scene.target), scene.target)
    first_two = 3 / adcc - 1 / (1 - drop)
    expected = torch.where(third > 0, 3 / (first_two + 1 / third.clamp(min=1e-12)), 0.0)
    assert (third > 0).any()
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("similarity", ["ssim", "spearman", "pearson"])
def test_random_logit(scene, similarity):
    from scipy.stats import spearmanr
    from skimage.metrics import structural_similarity

    asked = []

    def watched(images, target):
        asked.append(torch.as_tensor(target).tolist())
        return explain(images, target)

    ours = metrics.RandomLogit(similarity=similarity)(scene.model, scene.images, watched, scene.target)
    first, other = asked
    shifts = {(b - a) % 4 for a, b in zip(first, other, strict=True)}
    assert first == scene.target.tolist()
    assert len(shifts) == 1
    assert shifts != {0}
    for n, x in enumerate(scene.images.numpy()):
        a, b = explain_numpy(x, first[n]), explain_numpy(x, other[n])
        spread = max(a.max(), b.max()) - min(a.min(), b.min())
        expected = {
            "ssim": lambda a=a, b=b, spread=spread: structural_similarity(a, b, data_range=spread),
            "spearman": lambda a=a, b=b: spearmanr(a.ravel(), b.ravel())[0],
            "pearson": lambda a=a, b=b: slow.correlation(a.ravel(), b.ravel()),
        }[similarity]()
        assert ours[n].item() == pytest.approx(expected, abs=1e-6)


def test_model_randomization(scene):
    """The maps of ever more random copies, recorded while they are made, compared by SciPy's rank correlation."""
    from scipy.stats import spearmanr

    recorded, weights = [], []

    def factory(copy):
        def gradient(images, target):
            images = images.clone().requires_grad_()
            scores = copy(images).gather(1, target[:, None]).sum()
            found = torch.autograd.grad(scores, images)[0].sum(1)
            recorded.append(found.numpy())
            weights.append([value.detach().clone() for value in copy.parameters()])
            return found

        return gradient

    before = [value.detach().clone() for value in scene.model.state_dict().values()]
    curve = metrics.ModelRandomization().curve(
        metrics.Case(scene.model, scene.images, explainer=factory, target=scene.target)
    )
    assert curve.shape == (3, 4)  # conv, norm, conv, linear
    for stage in range(4):
        for n in range(3):
            expected = spearmanr(np.abs(recorded[0][n]).ravel(), np.abs(recorded[stage + 1][n]).ravel())[0]
            assert curve[n, stage].item() == pytest.approx(expected, abs=1e-9)
        # From the top: parameters come in pairs, and after stage s the last s + 1 pairs differ from the originals.
        same = [torch.equal(a, b) for a, b in zip(weights[0], weights[stage + 1], strict=True)]
        assert same == [True] * (8 - 2 * (stage + 1)) + [False] * (2 * (stage + 1))
    assert all(torch.equal(a, b) for a, b in zip(before, scene.model.state_dict().values(), strict=True))
    total = metrics.ModelRandomization()(scene.model, scene.images, factory, scene.target)
    assert torch.allclose(total, curve.mean(1))
    last = metrics.ModelRandomization(stages=1).curve(
        metrics.Case(scene.model, scene.images, explainer=factory, target=scene.target)
    )
    assert torch.equal(last, curve[:, -1:])


def gradients_of(copy):
    def gradient(images, target):
        images = images.clone().requires_grad_()
        return torch.autograd.grad(copy(images).gather(1, target[:, None]).sum(), images)[0].sum(1)

    return gradient


def test_smooth_model_randomization(scene):
    """MPRT of an explainer that averages over the same noisy images itself."""

    def averaged(copy):
        plain = gradients_of(copy)

        def explain(images, target):
            extent = images.amax((1, 2, 3)) - images.amin((1, 2, 3))
            drawn = [torch.randn(3, 12, 12, generator=generator(5, number), dtype=torch.float64) for number in range(3)]
            return sum(plain(images + 0.2 * extent[:, None, None, None] * one, target) for one in drawn) / 3

        return explain

    options = {"seed": 5, "stages": 2}
    ours = metrics.SmoothModelRandomization(samples=3, noise=0.2, **options)(
        scene.model, scene.images, gradients_of, scene.target
    )
    theirs = metrics.ModelRandomization(**options)(scene.model, scene.images, averaged, scene.target)
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(
        ours, metrics.ModelRandomization(**options)(scene.model, scene.images, gradients_of, scene.target)
    )


def test_efficient_model_randomization(scene):
    from scipy.stats import entropy

    recorded = []

    def factory(copy):
        def watched(images, target):
            recorded.append(gradients_of(copy)(images, target))
            return recorded[-1]

        return watched

    ours = metrics.EfficientModelRandomization(bins=10)(scene.model, scene.images, factory, scene.target)
    intact, random = ([entropy(np.histogram(a.numpy(), 10)[0]) for a in maps] for maps in recorded)
    assert ours.tolist() == pytest.approx([(b - a) / a for a, b in zip(intact, random, strict=True)])
    with metrics.causes_collected() as causes:
        flat = metrics.EfficientModelRandomization()(
            scene.model, scene.images, lambda copy: lambda images, target: torch.ones(len(images), 4, 4), scene.target
        )
    assert flat.isnan().all()
    assert "constant" in causes[0]


def test_class_sensitivity(scene):
    with torch.no_grad():
        logits = scene.model(scene.images)
    ours = metrics.ClassSensitivity(share=0.25)(scene.model, scene.images, explain, scene.target)
    for n, x in enumerate(scene.images.numpy()):
        y = int(scene.target[n])
        other = max((c for c in range(4) if c != y), key=lambda c, n=n: float(logits[n, c]))
        tops = [set(np.argsort(-explain_numpy(x, c).ravel(), kind="stable")[:36]) for c in (y, other)]
        assert ours[n].item() == pytest.approx((len(tops[0] & tops[1]) / 36 - 0.25) / 0.75)
    same = metrics.ClassSensitivity()(scene.model, scene.images, lambda x, y: x.mean(1), scene.target)
    torch.testing.assert_close(same, torch.ones_like(same))
    flat = metrics.ClassSensitivity()(scene.model, scene.images, lambda x, y: torch.ones(len(x), 10, 10), scene.target)
    torch.testing.assert_close(flat, torch.zeros_like(flat), atol=1e-12, rtol=0)

    class Spot(torch.nn.Module):
        """All heat in one cell, for every class."""

        def __init__(self):
            super().__init__()
            self.cells, self.weight = torch.nn.AvgPool2d(4), torch.nn.Parameter(torch.tensor([2.0, 1.0, 0.0]))

        def forward(self, images):
            return self.cells(images).amax((2, 3)).sum(1, keepdim=True) * self.weight

    explainer, images = egcam.HiResCAM(Spot(), "cells"), torch.rand(2, 1, 32, 32)
    assert metrics.ClassSensitivity()(explainer.model, images, explainer, 0).tolist() == [1, 1]
    with pytest.warns(SameForNextClassWarning):
        egcam.truth.warn_same_for_next_class(explainer, images)
    left, right = torch.zeros(2, 1, 4, 5)
    left[..., 0, 0], right[..., 3, 4] = 1, 1  # one of twenty places each, and not the same: -1 / 19
    torch.testing.assert_close(top_overlap(left, right, 0.1), torch.tensor([-1 / 19]))
    both = left - right  # what speaks for one class speaks against the other
    torch.testing.assert_close(top_overlap(both, -both, 0.1), torch.tensor([-1 / 19]))


def test_road_both_orders(scene):
    options = {"shares": (0.2, 0.5), "seed": 3}
    both = metrics.RoadBothOrders(**options)(scene.model, scene.images, scene.maps, scene.target)
    most = metrics.Road(**options)(scene.model, scene.images, scene.maps, scene.target)
    least = metrics.Road(most_relevant_first=False, **options)(scene.model, scene.images, scene.maps, scene.target)
    torch.testing.assert_close(both, (least - most) / 2)
    turned = metrics.RoadBothOrders(**options)(scene.model, scene.images, -scene.maps, scene.target)
    torch.testing.assert_close(turned, -both)


@pytest.mark.parametrize("name", ["layer_insertion", "layer_deletion"])
def test_layer_insertion_and_layer_deletion(scene, name):
    """Cells of what layer "3" outputs, 6 x 6, swapped one by one in the order of the map's means over 2 x 2 pixels."""
    references = torch.randn(2, 3, 12, 12, generator=generator(8), dtype=torch.float64)
    options = {"layer": "3", "reference": references, "steps": 36}
    ours = measured(name, scene.model, scene.images, scene.maps, scene.target, **options)
    with torch.no_grad():
        front, tail = scene.model[:4], scene.model[4:]
        for n in range(3):
            coarse = scene.maps[n].reshape(6, 2, 6, 2).mean((1, 3)).numpy()
            order = np.argsort(-coarse.ravel(), kind="stable")
            here, curves = front(scene.images[n : n + 1]), []
            for reference in references:
                there = front(reference[None])
                first, last = (there, here) if name == "layer_insertion" else (here, there)
                mixed, curve = first.clone(), []
                for place in [None, *order]:
                    if place is not None:
                        mixed[:, :, place // 6, place % 6] = last[:, :, place // 6, place % 6]
                    curve.append(float(tail(mixed).softmax(1)[0, scene.target[n]]))
                curves.append(curve)
            assert ours[n].item() == pytest.approx(np.trapezoid(np.mean(curves, 0), dx=1 / 36), abs=1e-9)


def test_shapley_agreement(scene):
    """Cells of what layer "3" outputs, put back one by one in each of the drawn orders."""
    references = torch.randn(2, 3, 12, 12, generator=generator(8), dtype=torch.float64)
    options = {"layer": "3", "reference": references, "samples": 2, "permutations": 4, "seed": 3}
    ours = metrics.ShapleyAgreement(**options)(scene.model, scene.images, scene.maps, scene.target)
    with torch.no_grad():
        front, tail = scene.model[:4], scene.model[4:]
        for n in range(3):
            here, values = front(scene.images[n : n + 1]), np.zeros(36)
            for number, reference in enumerate(references):
                drawn = torch.randperm(36, generator=seeded(3, "cells", number, 0)).tolist()
                for order in (drawn, drawn[::-1]):
                    mixed = front(reference[None]).clone()
                    before = float(tail(mixed)[0, scene.target[n]])
                    for place in order:
                        mixed[:, :, place // 6, place % 6] = here[:, :, place // 6, place % 6]
                        after = float(tail(mixed)[0, scene.target[n]])
                        values[place] += (after - before) / 4
                        before = after
            coarse = scene.maps[n].reshape(6, 2, 6, 2).mean((1, 3)).numpy().ravel()
            assert ours[n].item() == pytest.approx(np.corrcoef(coarse, values)[0, 1], abs=1e-9)


def test_cell_mass_accuracy(scene):
    maps = scene.maps - 0.4
    ours = metrics.CellMassAccuracy()(maps, scene.masks)
    for one, heat, mask in zip(ours.tolist(), maps.numpy(), scene.masks.numpy(), strict=True):
        heat = np.maximum(heat, 0)
        assert one == pytest.approx(heat[mask].sum() / heat.sum(), abs=1e-12)


def test_every_registered_metric_is_tested_here():
    text = __import__("pathlib").Path(__file__).read_text()
    untested = [name for name in metrics.names() if name.replace("-", "_") not in text and name != "running-time"]
    assert untested == []
