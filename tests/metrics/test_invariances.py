"""What a score must not depend on: batch, order, chunking, the map's scale, the global random state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egcam import metrics
from egcam.metrics.registry import metric
from metrics.conftest import Counting, make_scene, measured


def explain(images, target):
    classes = torch.as_tensor(target).expand(len(images)).to(images)
    return (images.mean(1) * (1 + classes.view(-1, 1, 1))).sin() + 1.5


def factory(model):
    def gradient(images, target):
        images = images.clone().requires_grad_()
        return torch.autograd.grad(model(images).gather(1, target[:, None]).sum(), images)[0].sum(1)

    return gradient


SEGMENTS = (torch.arange(144).view(12, 12) // 12) // 3
OPTIONS = {
    "irof": {"segments": SEGMENTS},
    "road": {"shares": (0.3, 0.7)},
    "road-both-orders": {"shares": (0.3, 0.7)},
    "arcc": {"shares": (0.3, 0.6)},  # where ROAD from both ends is not below 0, and so cut, for all
    "smooth-model-randomization": {"samples": 2},
    "sensitivity-n": {"shares": (0.2, 0.6), "subsets": 5},
}
PER_IMAGE = [name for name in metrics.names() if not metric(name).whole_set and name != "running-time"]
SEEDED = [name for name in PER_IMAGE if "seed" in metric(name).options()]
BATCHED = [name for name in PER_IMAGE if "model" in metric(name).needs]


def scores(name, scene, rows=None, scale=1.0, maps=None, **options):
    one = metric(name)
    rows = list(range(len(scene.images))) if rows is None else rows
    given_maps = scene.maps if maps is None else maps
    arguments = []
    for need in one.needs:
        if need == "model":
            arguments += [scene.model, scene.images[rows]]
        elif need == "heatmaps":
            arguments.append(given_maps[rows] * scale)
        elif need == "masks":
            arguments.append(scene.masks[rows])
        elif name.endswith("model-randomization"):
            arguments.append(factory)
        else:
            arguments.append(lambda x, y: explain(x, y) * scale)
    if "model" in one.needs:
        arguments.append(scene.target[rows])
    return measured(one, *arguments, **OPTIONS.get(name, {}), **options)


@pytest.mark.parametrize("name", PER_IMAGE)
def test_an_image_scores_the_same_alone_and_in_any_company(name, scene):
    together = scores(name, scene)
    for image in range(3):
        torch.testing.assert_close(scores(name, scene, [image])[0], together[image], atol=1e-10, rtol=1e-9)
    turned = scores(name, scene, [2, 0, 1])
    torch.testing.assert_close(turned, together[[2, 0, 1]], atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", BATCHED)
def test_chunking_changes_nothing(name, scene):
    whole = scores(name, scene, batch_size=1000)
    for batch_size in (1, 7):
        torch.testing.assert_close(scores(name, scene, batch_size=batch_size), whole, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("name", BATCHED)
def test_no_pass_is_larger_than_the_budget(name, scene):
    scene.model = Counting(scene.model)
    scores(name, scene, batch_size=5)
    assert scene.model.largest <= 5


def test_sufficiency_turns_with_the_order():
    scene = make_scene(count=8)
    scores_ = metrics.Sufficiency(threshold=0.97)(scene.model, scene.images, scene.maps)
    turned = metrics.Sufficiency(threshold=0.97)(scene.model, scene.images.flip(0), scene.maps.flip(0), batch_size=3)
    torch.testing.assert_close(turned.flip(0), scores_)
    assert 0 < scores_.mean() < 1


# Infidelity on raw maps and relative stability's floor aside, the size of a map says nothing.
SCALE_FREE = [name for name in metrics.names() if name not in ("running-time", "random-logit")]


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_scale_of_the_map(name, scale, scene):
    torch.testing.assert_close(scores(name, scene, scale=scale), scores(name, scene), atol=1e-8, rtol=1e-6)


def test_raw_infidelity_does_depend_on_scale(scene):
    raw = [metrics.Infidelity(scale="raw")(scene.model, scene.images, s * scene.maps) for s in (1.0, 2.0)]
    unit = [metrics.Infidelity(scale="unit-sum")(scene.model, scene.images, s * scene.maps) for s in (1.0, 2.0)]
    assert not torch.allclose(*raw)
    torch.testing.assert_close(*unit)


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_local(name, scene):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = scores(name, scene, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(scores(name, scene, seed=4), first)
    changed = [scores(name, scene, seed=seed) for seed in (5, 6, 7)]
    assert any(not torch.equal(one, first) for one in changed)


@pytest.mark.parametrize("name", [name for name in metrics.names() if "model" in metric(name).needs])
def test_the_model_comes_back_as_it_was(name, scene):
    scene.model.train()
    scene.model[0].weight.grad = torch.ones_like(scene.model[0].weight)
    before = {key: value.clone() for key, value in scene.model.state_dict().items()}
    found = scores(name, scene)
    assert not found.requires_grad
    assert all(module.training for module in scene.model.modules())
    assert all(torch.equal(value, before[key]) for key, value in scene.model.state_dict().items())
    assert torch.equal(scene.model[0].weight.grad, torch.ones_like(scene.model[0].weight))
    assert not scene.model[0]._forward_hooks


@pytest.mark.parametrize("name", [name for name in metrics.names() if "model" in metric(name).needs])
def test_inside_inference_mode_and_in_single_precision(name, scene):
    expected = scores(name, scene)
    with torch.inference_mode():
        inside = scores(name, scene)
    if name != "running-time":
        torch.testing.assert_close(inside.clone(), expected, atol=1e-10, rtol=1e-9)
    scene.model.float()
    scene.images, scene.maps = scene.images.float(), scene.maps.float()
    found = scores(name, scene)
    assert found.dtype == torch.float32
    # Ranks of nearly equal numbers may turn, steps of a curve may not.
    if name not in ("running-time", "monotonicity") and not name.endswith("model-randomization"):
        torch.testing.assert_close(found.double(), expected, atol=5e-4, rtol=5e-3)


# Passes the definition needs per image, unaltered pass included: 12 steps of a row each, and so on.
PASSES = {
    "faithfulness-estimate": 1 + 12,
    "pixel-flipping": 1 + 12,
    "insertion": 12 + 1,
    "deletion": 1 + 12,
    "insertion-deletion": 1 + 12 + 12,
    "irof": 1 + 4,
    "sufficiency": 1,
    "infidelity": 1 + 16,
    "relative-input-stability": 1 + 5,
    "relative-output-stability": 1 + 5,
    "average-drop": 2,
    "road": 1 + 2,
    "road-both-orders": 1 + 2 * 2,
    "sensitivity-n": 1 + 10,
    "monotonicity": 12 + 1,
}


@pytest.mark.parametrize("name", PASSES)
def test_passes_are_those_the_definition_needs(name, scene):
    scene.model = Counting(scene.model)
    scores(name, scene)
    assert scene.model.seen == 3 * PASSES[name]


def test_memory_is_bounded_by_the_batch_not_the_steps():
    """4,096 steps on 64-pixel images: all copies at once would be 805 MB; the growth stays far below."""
    import resource

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2))
    images, maps = torch.rand(4, 3, 64, 64), torch.rand(4, 64, 64)
    metrics.Deletion(step=64)(model, images, maps, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metrics.Deletion(step=1)(model, images, maps, 0)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 100e6


@given(st.integers(1, 50), st.integers(0, 10_000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_step_gives_an_area_between_the_extremes(step, seed, signed):
    scene = make_scene(count=1, seed=seed)
    maps = scene.maps - 0.5 * signed
    curve = metrics.Deletion(step=step).curve(metrics.Case(scene.model, scene.images, maps, scene.target))
    assert curve.fractions[0, 0] == 0
    assert curve.fractions[0, -1] == 1
    assert curve.scores.min() - 1e-12 <= curve.area().item() <= curve.scores.max() + 1e-12
    assert curve.scores.shape[1] == -(-144 // step) + 1


@given(st.integers(0, 10_000), st.integers(1, 144))
@settings(max_examples=25, deadline=None)
def test_localization_stays_in_its_range_and_ties_are_fair(seed, k):
    source = torch.Generator().manual_seed(seed)
    maps = torch.randint(0, 4, (2, 12, 12), generator=source).double()
    mask = torch.rand(2, 12, 12, generator=source) > 0.5
    found = metrics.TopKIntersection(k=k)(maps, mask)
    assert ((found >= 0) & (found <= 1)).all()
    # The mean over many random tie breaks is the expected value the metric gives.
    broken = torch.stack(
        [metrics.TopKIntersection(k=k)(maps + 1e-6 * torch.rand(2, 12, 12, generator=source), mask) for _ in range(60)]
    )
    assert torch.allclose(broken.mean(0), found, atol=6 * 0.5 / (60 * k) ** 0.5 + 1e-9)
