"""SlopeCAM: its formula worked out apart, sums as found, kept references, and what stands in for slopes."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import IncompleteMapWarning, MethodError, ZeroMapWarning
from egcam.models.session import session_of
from egcam.targets import Mask
from support.networks import perceptron_head, signed_activations
from support.networks import pictures as small_pictures
from support.steps_by_hand import attribution

pytestmark = pytest.mark.usefixtures("one_thread")

DOUBLE = torch.float64


class Bent(nn.Module):
    """Two convolutions with a smooth, decidedly non-linear head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Tanh())
        self.second = nn.Sequential(nn.Conv2d(6, 5, 3, stride=2), nn.Tanh())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(5 * 3 * 3, 16), nn.Tanh(), nn.Linear(16, classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images)))


def bent() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Bent().to(DOUBLE).eval()
        for weight in model.parameters():
            weight.data.mul_(2.5)  # so that no layer is nearly linear
        return model


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


OTHERS = pictures(6, seed=1)


def slope_cam(model: nn.Module, layer: str, reference: object = OTHERS, **options: object) -> egcam.SlopeCAM:
    return egcam.SlopeCAM(model, layer, reference=reference, signed=True, **options)


class Runs(nn.Module):
    """A convolution, something between, and a head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)
        self.between = between

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.between(self.layer(images)).mean((2, 3)))


def runs(between: Callable[[Tensor], Tensor]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Runs(between).double().eval()


# -- the formula -----------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [signed_activations, perceptron_head])
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_one_step_by_hand(network: Callable[[], nn.Module], score: str) -> None:
    """Slope times step worked out module by module, averaged over the references; its scatter is the error."""
    net, image, others = network(), small_pictures(1), small_pictures(4, seed=3)
    with torch.no_grad():
        here, there = net.features(image)[0].numpy(), net.features(others).numpy()
    maps = np.stack([attribution(net.head, lower, here, 1, score).sum(0) for lower in there])
    found = egcam.SlopeCAM(net, "features", reference=others, samples=4, score=score, signed=True)(image, target=1)
    torch.testing.assert_close(found.maps[0], torch.from_numpy(maps.mean(0)), rtol=0, atol=1e-10)
    torch.testing.assert_close(found.error[0], torch.from_numpy(maps.std(0, ddof=1) / 2), rtol=0, atol=1e-10)
    assert found.reference == "4 images"


@pytest.mark.peers
def test_captums_layer_deep_lift_shap() -> None:
    """Where the head is a chain of functions of single numbers, the two are one."""
    from captum.attr import LayerDeepLiftShap

    net = bent()
    images = pictures(2)
    truth = LayerDeepLiftShap(net, net.second).attribute(images, OTHERS, target=1)
    found = slope_cam(net, "second", samples=6)(images, target=1)
    torch.testing.assert_close(found.maps, truth.sum(1), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("layer", ["first", "second"])
@pytest.mark.parametrize("samples", [1, 2, 5, 6, 32])
def test_adds_up_to_what_separates_the_image_from_its_references(layer: str, samples: int) -> None:
    model = bent()
    found = slope_cam(model, layer, samples=samples)(pictures(2), target=1)
    sides = found.completeness
    assert bool(sides.exact.all())
    assert not sides.around.abs().max() > 1e-12
    torch.testing.assert_close(sides.total, sides.expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.maps.sum((1, 2)), sides.total, rtol=1e-10, atol=1e-12)
    if samples >= 6:  # all of them, each once
        with torch.no_grad():
            rise = model(pictures(2))[:, 1] - model(OTHERS)[:, 1].mean()
        torch.testing.assert_close(sides.expected, rise)
        assert found.reference == "6 images"


def test_probabilities_and_callables_are_explained_as_they_are() -> None:
    model, images = bent(), pictures(2)
    with torch.no_grad():
        here, there = model(images), model(OTHERS)
    probable = slope_cam(model, "first", score="probability")(images, target=1)
    rise = here.softmax(1)[:, 1] - there.softmax(1)[:, 1].mean()
    torch.testing.assert_close(probable.completeness.total, rise, rtol=1e-9, atol=1e-12)
    square = slope_cam(model, "first")(images, target=lambda output: output[:, 1] ** 2)
    torch.testing.assert_close(
        square.completeness.total, here[:, 1] ** 2 - (there[:, 1] ** 2).mean(), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("target", [Mask(1, score="probability"), [lambda output: output[1].tanh().mean()]])
def test_a_target_that_goes_by_image_has_slopes_whatever_it_computes(target: object) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1)]
    segmenter = nn.Sequential(*layers).double().eval()
    image, others = torch.rand(1, 1, 8, 8, dtype=torch.float64), torch.rand(5, 1, 8, 8, dtype=torch.float64)
    cam = egcam.SlopeCAM(segmenter, "1", reference=others, signed=True)
    sides = cam(image, target).completeness
    one = Mask(1, score="probability") if isinstance(target, Mask) else target[0]
    scores = torch.stack([one(segmenter(some[None])[0].detach()) for some in torch.cat([image, others])])
    assert bool(sides.exact.all())
    torch.testing.assert_close(sides.total, (scores[0] - scores[1:].mean())[None])


def test_an_image_among_its_references_is_not_compared_with_itself() -> None:
    model = bent()
    both = torch.cat([pictures(1), OTHERS[:1]])
    found = slope_cam(model, "first", samples=6)(both, target=1)
    with torch.no_grad():
        rise = model(OTHERS[:1])[0, 1] - model(OTHERS[1:])[:, 1].mean()
    torch.testing.assert_close(found.completeness.expected[1], rise)


# -- what goes around the layer --------------------------------------------------------------------


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 64, 3)

    def forward(self, images: Tensor) -> Tensor:
        early = self.stem(images).tanh()
        return self.head((early + self.layer(early)).tanh().flatten(1))


@pytest.mark.parametrize("reference", [OTHERS, egcam.references.constant(0.0), "blurred"])
def test_what_goes_around_the_layer_is_measured_and_said(reference: object) -> None:
    """The map explains y(x) - y(A', skip of x); the rest of the rise goes around."""
    torch.manual_seed(0)
    model, images = Around().to(DOUBLE).eval(), pictures(2)
    found = slope_cam(model, "layer", reference)(images, target=1)
    sides = found.completeness
    torch.testing.assert_close(sides.total, sides.expected - sides.around, rtol=1e-9, atol=1e-12)
    assert bool(sides.exact.all())
    assert float(sides.around.abs().min()) > 1e-3
    if isinstance(reference, egcam.references.Made):
        with torch.no_grad():
            early, black = model.stem(images).tanh(), torch.zeros_like(images)
            replaced = model.layer(model.stem(black).tanh())
            through = model(images)[:, 1] - model.head((early + replaced).tanh().flatten(1))[:, 1]
            whole = model(images)[:, 1] - model(black)[:, 1]
        torch.testing.assert_close(sides.total, through, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(sides.expected, whole, rtol=1e-9, atol=1e-12)


class Repeated(nn.Module):
    """A layer that runs three times, as in networks that spike, its scores added up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return sum(self.head(self.layer(images * step).tanh().mean((2, 3))) for step in (1, 2, 3))


def test_other_runs_of_the_layer_go_around_it() -> None:
    """A sum of three runs, of which one is explained, is not said to add up to all of the rise."""
    torch.manual_seed(0)
    model = Repeated().double().eval()
    sides = slope_cam(model, "layer:3")(pictures(1), target=1).completeness
    with torch.no_grad():
        rise = model(pictures(1))[0, 1] - model(OTHERS)[:, 1].mean()
    torch.testing.assert_close(sides.expected[0], rise)
    torch.testing.assert_close(sides.total, sides.expected - sides.around, rtol=1e-9, atol=1e-12)
    assert float(sides.around.abs()[0]) > 0.1 * float(rise.abs())


# -- what stands in for slopes ---------------------------------------------------------------------


class Chooses(nn.Module):
    """Bright images go another way: control flow that depends on values."""

    def forward(self, z: Tensor) -> Tensor:
        return z.tanh().square() if float(z.detach().mean()) > 1.0 else z.tanh()


def test_an_image_that_goes_another_way_than_its_references_gets_derivatives_and_changes_no_other() -> None:
    model = runs(Chooses())
    plain = pictures(2)
    shift = model.layer.weight.sum((0, 2, 3))[None, :, None, None]
    bright = plain[:1] + 20 * shift.detach() / shift.detach().norm()
    wanted = slope_cam(model, "layer")(plain, target=1)
    with pytest.warns(IncompleteMapWarning, match=r"image 1 is made of derivatives .*other things at one end"):
        mixed = slope_cam(model, "layer")(torch.cat([plain[:1], bright, plain[1:]]), target=1)
    assert mixed.completeness.exact.tolist() == [True, False, True]
    assert torch.equal(mixed.maps[[0, 2]], wanted.maps)
    with warnings.catch_warnings():
        warnings.simplefilter("error", IncompleteMapWarning)
        assert torch.equal(slope_cam(model, "layer")(plain, target=1).maps, wanted.maps)  # after it, too


def test_the_gap_is_what_was_found() -> None:
    """Choices by value, which no slope can follow: what the sum is off by is said, and nothing is corrected."""
    model = runs(lambda z: torch.where(z > 0.3, z * 2, z - 1))
    with pytest.warns(IncompleteMapWarning, match="gap says what its sum is off by"):
        found = slope_cam(model, "layer")(pictures(1), target=1)
    assert float(found.completeness.gap.abs()[0]) > 1e-3
    torch.testing.assert_close(found.maps.sum((1, 2)), found.completeness.total)


class Doubled(torch.autograd.Function):
    """A function of the user's own, which torch does not show to a function mode."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, gradient):
        (z,) = ctx.saved_tensors
        return 2 * z * gradient


class Own(nn.Module):
    def forward(self, z: Tensor, scale: float = 1.0) -> Tensor:
        return Doubled.apply(z.tanh() * scale)


def test_a_module_with_a_backward_pass_of_its_own_is_taken_whole() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", IncompleteMapWarning)
        found = slope_cam(runs(Own()), "layer")(pictures(2), target=1)
    sides = found.completeness
    assert bool(sides.exact.all())
    torch.testing.assert_close(sides.total, sides.expected, rtol=1e-9, atol=1e-12)


def test_functions_that_torch_does_not_show_are_noticed() -> None:
    with pytest.warns(IncompleteMapWarning):
        found = slope_cam(runs(Doubled.apply), "layer")(pictures(1), target=1)
    # Of a square, derivatives at nodes add up exactly.
    torch.testing.assert_close(found.completeness.total, found.completeness.expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["relu_", "hardtanh", "mul_", "add_ to what was kept"])
def test_operations_in_place(name: str) -> None:
    def in_place(z: Tensor) -> Tensor:
        z = z * 1.0
        if name == "relu_":
            z.relu_()
        elif name == "hardtanh":
            nn.functional.hardtanh(z, -0.5, 0.5, inplace=True)
        elif name == "mul_":
            z.mul_((2 * z).tanh())
        else:
            z += z.tanh()
        return z.square()

    def out_of_place(z: Tensor) -> Tensor:
        plain = {"relu_": torch.relu, "hardtanh": lambda z: z.clamp(-0.5, 0.5), "mul_": lambda z: z * (2 * z).tanh()}
        return plain.get(name, lambda z: z + z.tanh())(z).square()

    found, wanted = (slope_cam(runs(way), "layer")(0.05 * pictures(2), target=1) for way in (in_place, out_of_place))
    assert bool(found.completeness.exact.all())
    torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-9, atol=1e-12)


def test_what_is_not_finite_leaves_a_finite_map() -> None:
    """Slope times an infinite derivative is no number, where the derivative of a ReLU is 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IncompleteMapWarning)
        found = slope_cam(runs(lambda z: z.relu().sqrt()), "layer")(pictures(2), target=1)
    assert bool(found.maps.isfinite().all())


def test_a_layer_around_which_the_network_switches_gradients_off() -> None:
    class Off(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

        def forward(self, images: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.layer(self.stem(images).relu())
            return self.head(features.tanh().mean((2, 3)))

    torch.manual_seed(0)
    found = slope_cam(Off().double().eval(), "layer")(pictures(2), target=1)
    assert bool(found.completeness.exact.all())
    torch.testing.assert_close(found.completeness.total, found.completeness.expected, rtol=1e-9, atol=1e-12)


def test_rows_that_are_folded_into_others() -> None:
    """Windows, as of Swin: what an operation got has several rows for each image, in the middle or in front."""
    norm = nn.LayerNorm(4).double()

    def folded(z: Tensor) -> Tensor:
        count, channels, height, width = z.shape
        windows = z.reshape(count, channels, 2, height // 2, 2, width // 2).permute(2, 4, 0, 3, 5, 1)
        mixed = norm(windows.reshape(4 * count, -1, channels)).tanh().reshape(2, 2, count, 4, 4, channels)
        return mixed.permute(2, 5, 0, 3, 1, 4).reshape(z.shape)

    found = slope_cam(runs(folded), "layer")(pictures(2), target=1)
    assert bool(found.completeness.exact.all())
    torch.testing.assert_close(found.completeness.total, found.completeness.expected, rtol=1e-9, atol=1e-12)


def test_an_image_that_equals_its_reference_is_told_so() -> None:
    with pytest.warns(ZeroMapWarning, match="the same for it as for its references"):
        slope_cam(bent(), "first", "black")(torch.zeros_like(pictures(1)), target=1)


# -- what is kept ----------------------------------------------------------------------------------


def test_references_are_run_once_for_a_model() -> None:
    """Also by another explainer, and by `egcam.explain`."""
    model, images = bent(), pictures(4)
    cam = slope_cam(model, "first")
    first = cam(images[:2], target=1)
    assert first.passes > 6
    assert cam(images[2:], target=1).passes == 2
    again = slope_cam(model, "first")(images[:2], target=1)
    assert again.passes == 2
    assert torch.equal(again.maps, first.maps)
    whole = egcam.explain(model, images[:2], target=1, layer="first", reference=OTHERS, signed=True)
    assert whole.passes == 2
    assert torch.equal(whole.maps, first.maps)


def multiply_through_data(model: nn.Module) -> None:
    model.first[0].weight.data.mul_(1.5)


def step_of_an_optimiser(model: nn.Module) -> None:
    with torch.no_grad():
        model.first[0].weight.add_(0.1)


def new_tensor(model: nn.Module) -> None:
    model.first[0].weight = nn.Parameter(model.first[0].weight.detach() * 0.5)


def a_hook(model: nn.Module) -> None:
    model.first.register_forward_hook(lambda module, args, output: output * 2)


def another_module(model: nn.Module) -> None:
    model.first[1] = nn.Sigmoid()


def behind_the_layer(model: nn.Module) -> None:
    model.head[3].weight.data.mul_(1.5)


def a_plain_attribute(model: nn.Module) -> None:
    model.second[0].stride = (1, 1)
    model.second[0].padding = (0, 0)
    model.second.append(nn.AdaptiveAvgPool2d(3))


CHANGES = [
    multiply_through_data,
    step_of_an_optimiser,
    new_tensor,
    a_hook,
    another_module,
    behind_the_layer,
    a_plain_attribute,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_network_sees_its_references_anew(change: Callable[[nn.Module], None]) -> None:
    model, images = bent(), pictures(2)
    cam = slope_cam(model, "first")
    before = cam(images, target=1).maps
    change(model)
    after = cam(images, target=1)
    assert after.passes > 6
    assert not torch.allclose(after.maps, before)
    fresh = slope_cam(copy.deepcopy(model), "first")(images, target=1)
    torch.testing.assert_close(after.maps, fresh.maps)
    torch.testing.assert_close(after.completeness.total, after.completeness.expected, rtol=1e-9, atol=1e-12)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.scale, self._of = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), 1.0, {"head": 1.0}

    def forward(self, images: Tensor) -> Tensor:
        return self.head((self.layer(images) * self.scale).tanh().mean((2, 3)) * self._of["head"])


@pytest.mark.parametrize("where", ["an attribute", "a dictionary"])
def test_a_changed_number_of_the_network_is_noticed(where: str) -> None:
    torch.manual_seed(0)
    model = Scaled().double().eval()
    cam = slope_cam(model, "layer")
    cam(pictures(1), target=1)
    if where == "an attribute":
        model.scale = 3.0
    else:
        model._of["head"] = 3.0
    found = cam(pictures(1), target=1)
    torch.testing.assert_close(found.completeness.total, found.completeness.expected, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(
            found.completeness.expected[0], model(pictures(1))[0, 1] - model(OTHERS)[:, 1].mean()
        )


def test_references_changed_in_place_are_seen_anew() -> None:
    model, images, others = bent(), pictures(2), pictures(6, seed=1)
    cam = slope_cam(model, "first", others)
    cam(images, target=1)
    others.mul_(0.5)
    fresh = slope_cam(copy.deepcopy(model), "first", others.clone())(images, target=1)
    torch.testing.assert_close(cam(images, target=1).maps, fresh.maps)


def test_dropout_is_as_in_eval() -> None:
    model, images = bent(), pictures(2)
    model.head.insert(3, nn.Dropout(0.5))
    cam = slope_cam(model, "first")
    before = cam(images, target=1).maps
    model.train()
    torch.testing.assert_close(cam(images, target=1).maps, before)
    assert model.training


@pytest.mark.parametrize("memory", [1, 30_000, None])
@pytest.mark.parametrize("batch_size", [1, 2, 5, None])
def test_batches_memory_and_history_change_nothing(batch_size: int | None, memory: int | None) -> None:
    """A graph that is kept and one that is made for each image, in whatever chunks."""
    wanted = slope_cam(bent(), "first")(pictures(3), target=[0, 1, 0])
    cam = slope_cam(bent(), "first", batch_size=batch_size, memory=memory)
    cam(10 * pictures(2, seed=5), target=2)
    found = cam(pictures(3), target=[0, 1, 0])
    torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.error, wanted.error, rtol=1e-7, atol=1e-12)
    alone = cam(pictures(3)[1], target=1)
    torch.testing.assert_close(alone.maps, wanted.maps[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(alone.completeness.total, wanted.completeness.total[1], rtol=1e-9, atol=1e-12)


def test_one_image_is_the_same_to_the_last_bit_in_any_batch() -> None:
    model, images = bent().float(), pictures(4).float()
    cam = slope_cam(model, "first", OTHERS.float())
    batch = cam(images, target=1).maps
    for row in (3, 1, 0, 2):
        assert torch.equal(cam(images[row], target=1).maps, batch[row])


def test_threads_share_a_graph() -> None:
    model, images = bent(), pictures(8)
    cam = slope_cam(model, "first")
    wanted = cam(images, target=1).maps
    found: dict[int, Tensor] = {}

    def work(row: int) -> None:
        found[row] = cam(images[row], target=1).maps

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row in range(8):
        assert torch.equal(found[row], wanted[row])


def test_a_session_lives_as_long_as_its_model() -> None:
    model = bent()
    slope_cam(model, None)(pictures(1), target=1)
    session, gone = weakref.ref(session_of(model)), weakref.ref(model)
    assert session_of(model) is session()
    del model
    gc.collect()
    assert gone() is None
    assert session() is None


def test_parameters_come_back_unmarked() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))

        def forward(self, z: Tensor) -> Tensor:
            return nn.functional.layer_norm(z, (8,), self.weight.to(z), self.bias.type_as(z)).tanh()

    model = runs(Normed())
    assert bool(slope_cam(model, "layer")(pictures(1), target=1).completeness.exact.all())
    assert not [name for name, weight in model.named_parameters() if vars(weight)]


def test_bfloat16_autocast_with_wide_scores() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = runs(nn.GELU()).float()

        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images).float()

    with torch.autocast("cpu", torch.bfloat16):
        found = egcam.SlopeCAM(Wide().eval(), "inner.layer", reference=OTHERS.float())(pictures(2).float(), target=1)
    assert bool(found.completeness.exact.all())


def test_signals_and_volumes() -> None:
    torch.manual_seed(0)
    signal = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Conv1d(3, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    volume = nn.Sequential(nn.Conv3d(1, 2, 3), nn.GELU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(54, 2))
    for model, layer, shape in ((signal, "1", (2, 16)), (volume, "1", (1, 8, 8, 8))):
        found = egcam.SlopeCAM(model, layer, reference=torch.randn(4, *shape), signed=True)(
            torch.randn(2, *shape), target=1
        )
        assert bool(found.completeness.exact.all())
        torch.testing.assert_close(
            found.maps.flatten(1).sum(1).double(), found.completeness.expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet18", "densenet121", "efficientnet_b0", "convnext_tiny", "swin_t", "swin_v2_t", "maxvit_t",
     "shufflenet_v2_x0_5", "squeezenet1_1"],
)  # fmt: skip
def test_networks_in_use_add_up(name: str) -> None:
    from torchvision import models

    torch.manual_seed(0)
    model = models.get_model(name, weights=None).eval()
    size = 224 if name == "maxvit_t" else 64
    found = egcam.SlopeCAM(model, reference=torch.randn(2, 3, size, size), signed=True)(torch.randn(1, 3, size, size))
    sides = found.completeness
    assert bool(sides.exact.all())
    assert float(sides.gap.abs()[0]) <= 1e-4 * max(float(sides.expected.abs()[0]), float(found.scores.abs()[0]))


# -- regions ---------------------------------------------------------------------------------------


def test_regions_add_up_to_the_whole() -> None:
    model, images = bent(), pictures(2)
    found = slope_cam(model, "second")(images, target=1)
    left = torch.zeros(8, 8)
    left[:, :3] = 1
    whole = found.share(torch.ones(8, 8))
    torch.testing.assert_close(whole, found.completeness.total)
    torch.testing.assert_close(found.share(left) + found.share(1 - left), whole)
    # The three cells of a row cover pixels 0-2.67, 2.67-5.33, 5.33-8: of the second, an eighth is left of 3.
    by_hand = found.maps[:, :, 0].sum(1) + found.maps[:, :, 1].sum(1) / 8
    torch.testing.assert_close(found.share(left), by_hand)
    rectified = egcam.SlopeCAM(model, "second", reference=OTHERS)(images, target=1)
    torch.testing.assert_close(rectified.share(left), by_hand)
    torch.testing.assert_close(slope_cam(model, "second")(images[0], target=1).share(left), by_hand[0])
    with pytest.raises(MethodError, match="only a complete attribution"):
        egcam.GradCAM(model, "second", signed=True)(images, target=1).share(left)


def test_a_box_is_a_region_whose_cut_pixels_count_by_their_part() -> None:
    found = slope_cam(bent(), "second")(pictures(2), target=1)
    mask = torch.zeros(8, 8)
    mask[1:5, 2:6] = 1
    torch.testing.assert_close(found.share((2, 1, 6, 5)), found.share(mask))
    mask[1:5, 6] = 0.25
    mask[0, 2:7] = 0.5 * torch.tensor([1, 1, 1, 1, 0.25])
    torch.testing.assert_close(found.share((2, 0.5, 6.25, 5)), found.share(mask))
    for wrong in ((2, 1, 6), (6, 1, 2, 5), (0, 0, 9, 8)):
        with pytest.raises(egcam.errors.InputError, match=r"left, top, right, bottom.*8 wide and 8 high"):
            found.share(wrong)


def test_the_worth_of_the_hottest_tenth_is_its_share_of_what_the_image_adds() -> None:
    cam = egcam.SlopeCAM(bent(), "second", reference="black")
    found = cam(pictures(2), target=1)
    for index in range(2):
        heat = found.heatmaps[index].double().numpy()
        mask = torch.from_numpy((heat >= np.quantile(heat.astype(np.float32), 0.9)) & (heat > 0)).float()
        assert torch.equal(found.hottest()[index].float(), mask)
        hottest = found.share(torch.stack([mask, mask]))[index]
        whole = float(found.completeness.expected[index])
        assert found.worth(index) == f"{float(hottest):+.1f} of {whole:+.1f}"
        assert cam(pictures(2)[index], target=1).worth() == found.worth(index)
    assert egcam.GradCAM(bent(), "second")(pictures(2), target=1).worth() == ""
    whole = float(found.completeness.expected[0])
    short = replace(found.completeness, total=found.completeness.expected * 1.5)
    assert replace(found, completeness=short).worth(0).endswith(f" of {whole:+.1f} (gap {whole / 2:+.1f})")
    aside = replace(found.completeness, around=found.completeness.expected / 2, total=found.completeness.total / 2)
    said = replace(found, completeness=aside).worth(0)
    assert said.endswith(f" of {whole:+.1f} ({whole / 2:+.1f} go around the layer)")


def test_completeness_is_kept_in_files(tmp_path) -> None:
    cam, images = slope_cam(bent(), "first"), pictures(4)
    for batch in cam.stream([images[:2], images[2:]], target=1):
        batch.save(tmp_path, pictures=False)
    loaded, whole = egcam.Explanation.load(tmp_path), cam(images, target=1)
    for side in ("total", "expected", "around", "exact", "attributions", "gap"):
        torch.testing.assert_close(getattr(loaded.completeness, side), getattr(whole.completeness, side))
