"""The model, its images and torch's global state come back as they were; maps do not depend on how one asks."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

import egcam
from support.small_models import (
    AT_LAYER,
    HEAD_FREE,
    METHODS,
    Kept,
    SmallNet,
    covering,
    explainer,
    options,
    pictures,
    seeded,
    small_net,
)

pytestmark = pytest.mark.usefixtures("one_thread")
every_method = pytest.mark.parametrize("method", METHODS)


def maps(method: str, model: nn.Module, images: Tensor, target: Any = 1, **more: Any) -> Tensor:
    for_call = {name: more.pop(name) for name in ("inputs", "keywords") if name in more}
    return explainer(method, model, signed=True, **more)(images, target, **for_call).maps


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    assert found.shape == expected.shape
    assert float(expected.abs().max()) > 0
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def within_rounding(found: Tensor, expected: Tensor, scores: Tensor) -> bool:
    """Occlusion's small differences of two scores are known as far as bfloat16 knows the scores: to 8 bits."""
    return bool((found - expected).abs().max() <= 2**-7 * scores.abs().max())


def busy_net() -> SmallNet:
    """In training mode with one part in eval, some weights frozen, .grad filled, and hooks of every kind."""
    model = small_net(train=True)
    model.bn1.eval()
    model.conv1.weight.requires_grad_(False)
    for number, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, float(number))
    for module in (model, model.conv2, model.relu2):
        module.register_forward_hook(lambda module, args, output: None)
        module.register_forward_pre_hook(lambda module, args: None)
    model.fc.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    model.fc.register_full_backward_pre_hook(lambda module, grad_output: None)
    return model


# -- nothing changes -------------------------------------------------------------------------------


@every_method
def test_an_explanation_changes_nothing(method):
    model, images = busy_net(), pictures()
    images.requires_grad_()
    images.grad = torch.ones_like(images)
    kept = Kept(model, images)
    explainer(method, model)(images, target=1)
    kept.check()


class _Refusal(RuntimeError):
    pass


class _FailsAt(SmallNet):
    """Raises after the second convolution of the given forward pass."""

    def __init__(self, failing: int) -> None:
        super().__init__()
        self.failing = failing
        self.__dict__["passes"] = 0
        self.conv2.register_forward_hook(self._count)

    def _count(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if output.is_meta:
            return
        self.__dict__["passes"] += 1
        if self.__dict__["passes"] >= self.failing:
            raise _Refusal("half-way")


@pytest.mark.parametrize("failing", [1, 2])
@every_method
def test_a_forward_that_raises_half_way_changes_nothing(method, failing):
    model, images = seeded(lambda: _FailsAt(failing)).train(), pictures()
    # One image in each pass, so that there is a second pass for every method.
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    kept = Kept(model, images)
    with pytest.raises(_Refusal, match="half-way"):
        explainer(method, model, batch_size=1)(images, target=1)
    kept.check()
    assert model.passes >= failing


@pytest.mark.parametrize(("method", "target"), covering(METHODS, [99, [0, 77], "tabby", lambda output: output]))
def test_a_wrong_target_changes_nothing(method, target):
    model, images = busy_net(), pictures()
    kept = Kept(model, images)
    with pytest.raises(egcam.EgcamError):
        explainer(method, model)(images, target=target)
    kept.check()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interruption_changes_nothing(kind):
    model, images = busy_net(), pictures()
    kept = Kept(model, images)

    def interrupt(done: int, expected: int) -> None:
        if done > len(images):
            raise kind

    with pytest.raises(kind):
        explainer("slope-cam", model, batch_size=1)(images, progress=interrupt)
    kept.check()


class _Counting(SmallNet):
    """Counts its passes in buffers: one written in place, one replaced, one made on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))
        self.register_buffer("made", None)

    def forward(self, images: Tensor) -> Tensor:
        self.written += 1
        self.replaced = self.replaced + 1
        if self.made is None:
            self.made = torch.ones(1, device=images.device)
        return super().forward(images)


@every_method
def test_buffers_the_forward_changes_are_put_back(method):
    model, images = seeded(_Counting).train(), pictures()
    kept = Kept(model, images)
    explainer(method, model)(images, target=1)
    kept.check()
    assert model.made is None


class _Chancy(SmallNet):
    """Adds noise from torch's global generator, in eval mode too."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images + 0.01 * torch.randn_like(images))


@every_method
def test_a_model_that_draws_leaves_the_global_generator(method):
    model, images = seeded(_Chancy), pictures()
    kept = Kept(model, images)
    explainer(method, model)(images, target=1)
    kept.check()


@pytest.mark.parametrize(
    "reference", [lambda images: torch.rand_like(images), lambda images, source: images.roll(1, -1), "noise", "uniform"]
)
def test_references_that_draw_leave_the_global_generator(reference):
    model, images = small_net(), pictures()
    kept = Kept(model, images)
    explainer("slope-cam", model, reference=reference)(images, target=1)
    kept.check()


class _WritesIntoInput(SmallNet):
    """Normalises its images in place."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.sub_(0.3).mul_(2.0))


class _Normalises(SmallNet):
    """The same without writing."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward((images - 0.3) * 2.0)


@every_method
def test_a_model_that_writes_into_its_input_does_not_reach_the_images(method):
    images = pictures()
    model = seeded(_WritesIntoInput)
    kept = Kept(model, images)
    found = maps(method, model, images)
    kept.check()
    assert close(found, maps(method, seeded(_Normalises), images))


@every_method
def test_the_model_is_explained_in_eval_mode(method):
    images = pictures()
    assert torch.equal(maps(method, small_net(train=True), images), maps(method, small_net(), images))


# -- gradients switched off, frozen weights, precision ---------------------------------------------


@every_method
def test_frozen_models_give_the_same_map(method):
    model, images = small_net(), pictures()
    expected = maps(method, model, images)
    kept = Kept(model.requires_grad_(False), images)
    assert torch.equal(maps(method, model, images), expected)
    kept.check()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@every_method
def test_inside_no_grad_and_inference_mode(method, mode):
    model, images = small_net(), pictures()
    expected = maps(method, model, images)
    with mode():
        made_inside = images.clone()
        kept = Kept(model, made_inside)
        assert torch.equal(maps(method, model, images), expected)
        assert torch.equal(maps(method, model, made_inside), expected)
        kept.check()


@pytest.mark.parametrize("reference", ["blurred", "noise", "constant", pictures(6, seed=5)], ids=str)
def test_references_inside_inference_mode(reference):
    model, images = small_net(), pictures()
    expected = maps("expected-gradients", model, images, reference=reference)
    with torch.inference_mode():
        made_inside = reference.clone() if isinstance(reference, Tensor) else reference
        assert torch.equal(maps("expected-gradients", model, images.clone(), reference=made_inside), expected)


class _BranchesOff(nn.Module):
    """The image joins again after the layer, so the backward pass meets it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallNet()

    def forward(self, images: Tensor) -> Tensor:
        features = self.net.features(images) * functional.avg_pool2d(images, 2).mean(1, keepdim=True)
        return self.net.fc(features.mean((2, 3)))


@pytest.mark.parametrize("method", HEAD_FREE)
def test_images_from_inference_mode_that_the_backward_pass_meets(method):
    model, images = seeded(_BranchesOff).eval(), pictures()
    expected = maps(method, model, images, layer="net.relu2")
    with torch.inference_mode():
        assert torch.equal(maps(method, model, images.clone(), layer="net.relu2"), expected)


@every_method
def test_under_autocast(method):
    model, images = small_net(), pictures()
    # Enough samples that a ReLU which switches in bfloat16 at one of them does not decide.
    options = {"reference": "black", "samples": 32}
    expected = maps(method, model, images, **options)
    with torch.autocast("cpu", torch.bfloat16):
        kept = Kept(model, images)
        found = maps(method, model, images, **options)
        kept.check()
    assert found.isfinite().all()
    if method == "occlusion":
        assert within_rounding(found, expected, model(images))
        return
    assert close(found, expected, tolerance=0.15)


@every_method
def test_the_users_autocast_still_trains_afterwards(method):
    def gradients(explain: bool) -> list[Tensor]:
        model = small_net()
        with torch.autocast("cpu", torch.bfloat16):
            if explain:
                explainer(method, model, signed=True)(pictures(), target=1)
            model(pictures()).float().square().mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        return [parameter.grad for parameter in model.parameters()]

    for found, expected in zip(gradients(explain=True), gradients(explain=False), strict=True):
        assert torch.equal(found, expected)


@every_method
def test_the_users_autocast_is_used_without_its_cache(method):
    """Weights cast without gradients must not be kept for the user's next training step (older torch does)."""
    model, seen = small_net(), set()
    model.conv2.register_forward_hook(
        lambda module, args, output: seen.add((output.dtype, torch.is_autocast_cache_enabled()))
    )
    with torch.autocast("cpu", torch.bfloat16):
        explainer(method, model, signed=True)(pictures(), target=1)
        assert torch.is_autocast_cache_enabled()
    assert seen == {(torch.bfloat16, False)}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.2), (torch.float64, 1e-4)])
@every_method
def test_models_of_other_precision(method, dtype, tolerance):
    expected = maps(method, small_net(), pictures(), reference="black")
    model, images = small_net().to(dtype), pictures(dtype=dtype)
    kept = Kept(model, images)
    explanation = explainer(method, model, signed=True, reference="black")(images, target=1)
    kept.check()
    assert explanation.maps.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert explanation.scores.dtype == dtype
    assert explanation.heatmaps.isfinite().all()
    if (method, dtype) == ("occlusion", torch.bfloat16):
        assert within_rounding(explanation.maps, expected, explanation.scores.float())
        return
    assert close(explanation.maps.float(), expected, tolerance)


@every_method
def test_another_default_device_does_not_matter(method):
    model, images = small_net(), pictures()
    expected = maps(method, model, images)
    with torch.device("meta"):
        found = maps(method, model, images)
    assert torch.equal(found, expected)


@every_method
def test_another_default_dtype_does_not_matter(method):
    model, images = small_net().double(), pictures(dtype=torch.float64)
    expected = maps(method, model, images, reference="black")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = maps(method, model, images, reference="black")
    finally:
        torch.set_default_dtype(before)
    assert close(found, expected, tolerance=1e-12)


# -- how the network is built and wrapped ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "layer"),
    [
        (method, layer)
        for method in AT_LAYER
        for layer in (["relu2"] if method == "cam" else ["conv1", "bn1", "conv2", "bn2", "relu2"])
    ],
)
def test_an_in_place_relu_after_the_layer_changes_nothing(method, layer):
    images = pictures()
    found = maps(method, small_net(inplace=True), images, layer=layer)
    assert torch.equal(found, maps(method, small_net(inplace=False), images, layer=layer))


@every_method
def test_channels_last(method):
    model, images = small_net(), pictures()
    expected = maps(method, model, images)
    model = model.to(memory_format=torch.channels_last)
    turned = images.to(memory_format=torch.channels_last)
    kept = Kept(model, turned)
    assert close(maps(method, model, turned), expected)
    kept.check()
    assert turned.is_contiguous(memory_format=torch.channels_last)


def _compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


WRAPS = [nn.DataParallel, _compiled, lambda model: nn.DataParallel(_compiled(model))]


@pytest.mark.parametrize(("method", "wrap"), covering(METHODS, WRAPS))
def test_wrapped_models_are_seen_through(method, wrap):
    model, images = small_net(train=True), pictures()
    expected = maps(method, model, images)
    wrapped = wrap(model)
    kept = Kept(wrapped, images)
    assert torch.equal(maps(method, wrapped, images), expected)
    kept.check()


@pytest.mark.parametrize(("wrap", "prefix"), [(nn.DataParallel, "module."), (_compiled, "_orig_mod.")])
def test_layers_of_wrapped_models_by_either_name_or_module(wrap, prefix):
    model, images = small_net(), pictures()
    expected = maps("grad-cam", model, images, layer="relu1")
    wrapped = wrap(model)
    for layer in ("relu1", f"{prefix}relu1", model.relu1):
        assert torch.equal(maps("grad-cam", wrapped, images, layer=layer), expected)


@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
@every_method
def test_parametrised_weights(method, norm):
    model, images = small_net(train=True), pictures()
    for layer in (model.conv1, model.conv2):
        with torch.random.fork_rng(devices=[]):
            norm(layer)
    kept = Kept(model, images)
    found = maps(method, model, images)
    kept.check()
    plain = deepcopy(model).eval()
    for layer in (plain.conv1, plain.conv2):
        parametrize.remove_parametrizations(layer, "weight")
    assert close(found, maps(method, plain, images))


@every_method
def test_a_training_step_afterwards_is_as_without_the_explanation(method):
    def trained(explain: bool) -> SmallNet:
        model = small_net(train=True)
        model.dropout.p = model.dropout2d.p = 0.0
        loss = model(pictures(4)).square().mean()
        if explain:
            # Between forward and backward, where a write to any saved tensor would show.
            explainer(method, model)(pictures(), target=1)
        loss.backward()
        return model

    with_it, without = trained(explain=True), trained(explain=False)
    for one, other in zip(with_it.parameters(), without.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(with_it.buffers(), without.buffers(), strict=True):
        assert torch.equal(one, other)


class _WithoutGradients(SmallNet):
    """Runs its features without gradients, as networks with a frozen backbone do."""

    def features(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return super().features(images)


class _NothingDifferentiable(SmallNet):
    """Runs everything without gradients."""

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)


@pytest.mark.parametrize("build", [_WithoutGradients, _NothingDifferentiable])
@pytest.mark.parametrize("layer", ["relu1", "conv2", "relu2"])
# Guided Grad-CAM needs the gradient at the image, too, which such a network keeps back.
@pytest.mark.parametrize("method", [name for name in AT_LAYER if name not in ("cam", "guided-grad-cam")])
def test_layers_inside_the_models_own_no_grad_block(method, layer, build):
    images = pictures()
    found = maps(method, seeded(build).eval(), images, layer=layer)
    assert close(found, maps(method, small_net(), images, layer=layer))


@every_method
def test_the_users_hooks_still_fire_and_may_change_the_output(method):
    model, images = small_net(), pictures()
    plain = maps(method, model, images, layer="relu2")
    seen: list[torch.Size] = []

    def double(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(output.shape)
        return output * 2

    handle = model.relu2.register_forward_hook(double)
    hooked = maps(method, model, images, layer="relu2")
    assert seen
    assert all(shape[1:] == (6, 6, 6) for shape in seen)
    handle.remove()

    class Doubled(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return functional.relu(images) * 2

    model.relu2 = Doubled()
    assert close(hooked, maps(method, model, images, layer="relu2"))
    assert not torch.equal(hooked, plain)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@every_method
def test_a_full_backward_hook_of_the_user_does_not_disturb(method):
    model, images = small_net(inplace=False), pictures()
    expected = maps(method, model, images)
    for module in model.modules():
        module.register_full_backward_hook(lambda module, grad_input, grad_output: None)
    assert close(maps(method, model, images), expected)


# -- further inputs --------------------------------------------------------------------------------


class _Conditioned(SmallNet):
    """Takes a scale for each image, a mask for each image, and a common offset."""

    def forward(self, images: Tensor, scale: Tensor, *, mask: Tensor, offset: float = 0.0) -> Tensor:
        assert len(scale) == len(mask) == len(images)
        return super().forward(images * scale[:, None, None, None] * mask + offset)


@every_method
def test_further_inputs_stay_in_step_with_their_images(method):
    model, images = seeded(_Conditioned).eval(), pictures(3)
    scale = torch.tensor([0.5, 1.0, 2.0])
    mask = (pictures(3, seed=3)[:, :1] > -1).float()
    kept = Kept(model, images)
    keywords = {"mask": mask, "offset": 0.1}
    found = maps(method, model, images, [0, 1, 2], inputs=(scale,), keywords=keywords)
    small_batches = maps(method, model, images, [0, 1, 2], inputs=(scale,), keywords=keywords, batch_size=2)
    kept.check()
    assert close(small_batches, found)
    for number in range(3):
        part = slice(number, number + 1)
        own = {"mask": mask[part], "offset": 0.1}
        alone = maps(method, model, images[part], number, inputs=(scale[part],), keywords=own)
        assert close(found[part], alone)


@pytest.mark.parametrize("method", ["slope-cam", "expected-grad-cam"])
def test_what_references_give_is_not_shared_between_images_with_different_inputs(method):
    model, images = seeded(_Conditioned).eval(), pictures(2)
    scale, mask = torch.tensor([0.5, 2.0]), torch.ones(2, 1, 12, 12)
    how = {"reference": pictures(1, seed=9), "difference": "latent"}
    found = maps(method, model, images, inputs=(scale,), keywords={"mask": mask}, **how)
    for number in range(2):
        part = slice(number, number + 1)
        more = {"inputs": (scale[part],), "keywords": {"mask": mask[part]}}
        assert close(found[part], maps(method, model, images[part], **more, **how))


class _Nested(SmallNet):
    def forward(self, images: Tensor, extra: dict[str, Any], flags: list[Any]) -> Tensor:
        assert flags[1] == "name"
        return super().forward(images * extra["scale"][:, None, None, None] + flags[0])


@every_method
def test_further_inputs_may_be_nested(method):
    model, images = seeded(_Nested).eval(), pictures(2)
    scale, flags = torch.tensor([0.5, 2.0]), [torch.tensor(0.25), "name"]
    found = maps(method, model, images, inputs=({"scale": scale}, flags))
    alone = maps(method, model, images[1:], inputs=({"scale": scale[1:]}, flags))
    assert close(found[1:], alone)


def test_explain_passes_further_inputs_on():
    model, images = seeded(_Conditioned).eval(), pictures(2)
    keywords = {"mask": torch.ones(2, 1, 12, 12)}
    found = egcam.explain(model, images, "grad-cam", 1, inputs=(torch.ones(2),), keywords=keywords)
    assert torch.equal(found.maps, egcam.GradCAM(small_net())(images, 1).maps)


# -- batches ---------------------------------------------------------------------------------------


@every_method
def test_a_batch_equals_its_images_one_by_one(method):
    model, images = small_net(), pictures(5)
    cam = explainer(method, model, signed=True, reference="noise")
    together = cam(images, [0, 1, 2, 3, 4])
    # Guided Grad-CAM divides by the largest value of Grad-CAM's map; that of one image is nearly zero.
    tolerance = 1e-4 if method == "guided-grad-cam" else 1e-5
    for number in range(5):
        alone = cam(images[number], number)
        assert close(together.maps[number], alone.maps, tolerance)
        assert close(together.heatmaps[number], alone.heatmaps, tolerance)
        assert torch.allclose(together.scores[number], alone.scores)
        assert together.predictions[number] == alone.predictions
        if together.error is not None:
            assert torch.allclose(together.error[number], alone.error, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("limits", [{"batch_size": 1}, {"batch_size": 3}, {"memory": 1}, {"memory": 40_000}])
@every_method
def test_limits_do_not_change_the_map(method, limits):
    model, images = small_net(), pictures(4)
    expected = maps(method, model, images, [0, 1, None, 3], reference="noise")
    assert close(maps(method, model, images, [0, 1, None, 3], reference="noise", **limits), expected)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
@every_method
def test_no_pass_is_larger_than_the_batch_size(method, batch_size):
    model, images = small_net(), pictures(4)
    seen: list[int] = []
    model.conv1.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    explainer(method, model, batch_size=batch_size)(images, target=1)
    assert max(seen) <= batch_size


@every_method
def test_the_same_call_gives_the_same_map(method):
    model, images = small_net(), pictures()
    layer = "relu2" if method == "cam" else "relu1"
    how = {"signed": True, "reference": "noise", "layer": layer}
    first = explainer(method, model, seed=7, **how)(images, target=1)
    torch.rand(3)
    again = explainer(method, model, seed=7, **how)(images, target=1)
    assert torch.equal(first.maps, again.maps)
    if first.error is not None:
        assert torch.equal(first.error, again.error)
    if "seed" in options(method, seed=8) and first.error is not None:
        assert not torch.equal(explainer(method, model, seed=8, **how)(images, target=1).maps, first.maps)


# -- threads ---------------------------------------------------------------------------------------


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run all calls at the same time, each in its own thread, with threads taking turns as often as can be."""
    barrier = Barrier(len(calls))

    def wait_and_call(call: Callable[[], Any]) -> Any:
        torch.set_num_threads(1)
        barrier.wait()
        return call()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(wait_and_call, calls))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("train", [False, True])
@every_method
def test_eight_threads_on_one_model(method, train):
    model = small_net(train=train)
    batches = [pictures(2, seed=seed) for seed in range(8)]
    cam = explainer(method, model, signed=True)
    expected = [cam(images, 1).maps for images in batches]
    kept = Kept(model)
    for _ in range(3):
        found = in_threads([lambda images=images: cam(images, 1).maps for images in batches])
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    kept.check()


@pytest.mark.parametrize("train", [False, True])
def test_different_methods_and_layers_at_once(train):
    model, images = small_net(train=train), pictures()
    layers = ["conv1", "relu1", "bn2", "relu2"]
    cams = [
        explainer(method, model, signed=True, layer=layers[number % 4] if method != "cam" else "relu2")
        for number, method in enumerate(METHODS)
    ]
    expected = [cam(images, 1).maps for cam in cams]
    kept = Kept(model, images)
    for _ in range(3):
        found = in_threads([lambda cam=cam: cam(images, 1).maps for cam in cams])
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    kept.check()


def test_a_model_and_its_part_at_once():
    whole = nn.Sequential(small_net(train=True), nn.Linear(5, 4)).train()
    images = pictures()
    cams = [explainer("grad-cam", whole if number % 2 else whole[0], signed=True) for number in range(8)]
    expected = [cam(images, 1).maps for cam in cams]
    kept = Kept(whole)
    for _ in range(20):
        found = in_threads([lambda cam=cam: cam(images, 1).maps for cam in cams])
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    kept.check()


def test_random_models_in_threads_leave_the_global_generator():
    model, images = seeded(_Chancy), pictures()
    kept = Kept(model)
    for _ in range(5):
        in_threads([lambda: maps("slope-cam", model, images)] * 8)
    kept.check()


def test_a_thread_that_fails_leaves_the_others_alone():
    model, images = small_net(train=True), pictures()
    cam = explainer("slope-cam", model, signed=True)
    expected = cam(images, 1).maps
    kept = Kept(model)

    def fail() -> None:
        with pytest.raises(egcam.EgcamError):
            cam(images, 99)

    for _ in range(5):
        found = in_threads([fail, lambda: cam(images, 1).maps] * 4)
        assert all(torch.equal(one, expected) for one in found if one is not None)
    kept.check()


# -- memory ----------------------------------------------------------------------------------------


def live_tensors() -> int:
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_a_thousand_explanations_do_not_grow_memory():
    model, images = small_net(), pictures(1, side=64)
    cam = explainer("grad-cam", model)

    def explain(times: int) -> None:
        for number in range(times):
            cam(images, 1) if number % 10 else egcam.explain(model, images, target=1, samples=2)

    explain(50)
    gc.collect()
    tensors, resident = live_tensors(), psutil.Process().memory_info().rss
    explain(1000)
    gc.collect()
    assert live_tensors() <= tensors
    # The activations of one layer, kept a thousand times, would be 24 MiB.
    assert psutil.Process().memory_info().rss - resident < 16 * 2**20


@every_method
def test_nothing_waits_for_the_garbage_collector(method):
    model, images = small_net(), pictures()
    explainer(method, model)(images, target=1)
    gc.collect()
    gc.disable()
    try:
        before = live_tensors()
        for _ in range(3):
            explainer(method, model)(images, target=1)
        assert live_tensors() == before
    finally:
        gc.enable()


@every_method
def test_the_explanation_holds_no_graph(method):
    model, images = small_net(), pictures().requires_grad_()
    explanation = explainer(method, model)(images, target=1)
    for tensor in (explanation.maps, explanation.heatmaps, explanation.scores, explanation.error):
        assert tensor is None or not tensor.requires_grad


# -- context managers and streams ------------------------------------------------------------------


@every_method
def test_explainers_are_context_managers_that_hide_no_error(method):
    model, images = small_net(), pictures()
    with explainer(method, model, signed=True) as cam:
        inside = cam(images, 1).maps
    assert torch.equal(inside, cam(images, 1).maps)
    with pytest.raises(IndexError), explainer(method, model):
        raise IndexError


@pytest.mark.parametrize("labels", [True, False])
def test_streams_of_pairs_explain_the_labels_unless_told_otherwise(labels):
    model = small_net()
    data = torch.utils.data.TensorDataset(pictures(5), torch.tensor([0, 1, 2, 3, 4]))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    cam = egcam.GradCAM(model, signed=True)
    found = list(cam.stream(loader, labels=labels))
    assert [len(explanation) for explanation in found] == [2, 2, 1]
    expected = cam(pictures(5), [0, 1, 2, 3, 4] if labels else None)
    assert torch.equal(torch.cat([explanation.targets for explanation in found]), expected.targets)
    assert close(torch.cat([explanation.maps for explanation in found]), expected.maps)


def test_streams_of_images_explain_the_predictions_or_the_target():
    model, batches = small_net(), [pictures(2), pictures(3, seed=1)]
    cam = egcam.GradCAM(model, signed=True)
    for explanation, images in zip(cam.stream(batches), batches, strict=True):
        assert torch.equal(explanation.targets, explanation.predictions)
        assert torch.equal(explanation.maps, cam(images).maps)
    for explanation in cam.stream([(images, None) for images in batches], target=3):
        assert explanation.targets.tolist() == [3] * len(explanation)


def test_streams_are_lazy():
    model, read = small_net(), []

    def batches() -> Any:
        for seed in range(3):
            read.append(seed)
            yield pictures(1, seed=seed)

    stream = egcam.GradCAM(model, signed=True).stream(batches())
    assert read == []
    next(stream)
    assert read == [0]


@pytest.mark.parametrize(("method", "passes"), [("slope-cam", 3 + 5 + 5), ("smooth-grad-cam++", 3 * (1 + 5))])
def test_progress_counts_the_passes_made(method, passes):
    """Five samples: references are passed once for all images, and five times one row to see what the layer is like."""
    model, images, reports = small_net(), pictures(3), []
    explanation = explainer(method, model, batch_size=4)(images, 1, progress=lambda *at: reports.append(at))
    assert len(reports) >= 3
    assert reports[-1] == (passes, passes) == (explanation.passes, explanation.passes)


@every_method
def test_progress_never_goes_back_and_reaches_the_end(method):
    reports: list[tuple[int, int]] = []
    found = explainer(method, small_net(), batch_size=2)(pictures(3), 1, progress=lambda *at: reports.append(at))
    shares = [done / expected for done, expected in reports]
    assert all(later > earlier - 0.05 for earlier, later in itertools.pairwise(shares)), "rounded to whole runs"
    assert reports[-1] == (found.passes + found.tails, found.passes + found.tails)
    assert len(reports) > 1
