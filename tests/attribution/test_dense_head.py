"""The first linear layer of a dense head is not run for the points of a path, and nobody can tell by the maps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.attribution import latent_points
from egcam.models.dense_head import DenseHead

SIZE = (6, 5)


def network(*before: nn.Module, rest: nn.Module | None = None) -> nn.Module:
    """A convolution, what is put between it and the linear layer, and a head that is not linear."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        head = rest or nn.Sequential(nn.ReLU(inplace=True), nn.Linear(70, 9), nn.Tanh(), nn.Linear(9, 3))
        body = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), *before]
        return nn.Sequential(*body, nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 30, 70), head).double().eval()


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DenseHead]]:
    """The dense heads that were taken apart."""
    made: list[DenseHead] = []

    class Noted(DenseHead):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(latent_points, "DenseHead", Noted)
    return made


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent_points, "can_be_skipped", lambda *_: False)


def test_contributions_and_hidden_numbers() -> None:
    """By hand: two channels, two places, one hidden number."""
    linear = nn.Linear(4, 1)
    linear.weight.data, linear.bias.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([10.0])
    head = DenseHead.__new__(DenseHead)
    head._linear = linear
    found = head.contributions_of(torch.tensor([[[[5.0, 6.0]], [[7.0, 8.0]]]]))
    assert found.tolist() == [[[5 + 21, 12 + 32]]]
    assert head.hidden_of(found).tolist() == [[10 + 26 + 44]]


@pytest.mark.parametrize("target", [None, 1, [0, 2, 1], lambda output: output[:, 0] * output[:, 1]])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("path", ["stepwise", "latent"])
def test_same_maps_errors_and_completeness(heads, monkeypatch, target, signed, path) -> None:
    model, images = network(), pictures(3)
    options = {"reference": pictures(5, 1), "samples": 12, "signed": signed, "path": path}
    found = egcam.SlopeCAM(model, "1", **options)(images, target)
    assert [head.is_proven for head in heads] == [True] * len(heads)
    assert heads
    plain(monkeypatch)
    wanted = egcam.SlopeCAM(model, "1", **options)(images, target)
    torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.error, wanted.error, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(found.completeness.total, wanted.completeness.total)
    torch.testing.assert_close(found.completeness.expected, wanted.completeness.expected)
    assert found.tails <= wanted.tails


def test_the_linear_layer_is_not_run_for_samples(monkeypatch) -> None:
    model, image = network(), pictures(1)
    cam = egcam.SlopeCAM(model, "1", reference=pictures(5, 1), samples=40)
    cam(image)
    rows = []
    forward = nn.Linear.forward
    monkeypatch.setattr(
        nn.Linear, "forward", lambda self, x: rows.append((self.in_features, len(x))) or forward(self, x)
    )
    cam(image)
    assert sum(count for size, count in rows if size == 120) <= 3  # the image itself, and to see whether the tail runs
    assert sum(count for size, count in rows if size == 70) >= 40


def test_batches_and_earlier_images_change_nothing(heads) -> None:
    model, images, others = network(), pictures(3), pictures(5, 1)
    cam = egcam.SlopeCAM(model, "1", reference=others, samples=12)
    together = cam(images, [0, 1, 2]).maps
    for number, target in enumerate([0, 1, 2]):
        alone = egcam.SlopeCAM(model, "1", reference=others, samples=12)(images[number], target).maps
        torch.testing.assert_close(alone.reshape(together[number].shape), together[number])
        assert torch.equal(cam(images[number], target).maps, alone)
    assert heads


def test_changed_weights_are_noticed(heads) -> None:
    model, images, others = network(), pictures(2), pictures(5, 1)
    cam = egcam.SlopeCAM(model, "1", reference=others, samples=12)
    before = cam(images, 0).maps
    with torch.no_grad():
        model[4].weight.mul_(-0.7)
    found = cam(images, 0).maps
    wanted = egcam.SlopeCAM(model, "1", reference=others, samples=12)(images, 0).maps
    assert torch.equal(found, wanted)
    assert not torch.allclose(found, before)


class Twice(nn.Module):
    """Uses what comes in a second time, beside the head."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.body, self.linear, self.rest = inner[:2], inner[4], inner[5]

    def forward(self, images: Tensor) -> Tensor:
        flat = self.body(images).flatten(1)
        return self.rest(self.linear(flat)) + self.rest(self.linear(flat.tanh()))


class Around(Twice):
    """Something goes from the layer around the linear layer."""

    def forward(self, images: Tensor) -> Tensor:
        flat = self.body(images).flatten(1)
        return self.rest(self.linear(flat)) + flat[:, :3].square()


HOOKED = network()
HOOKED[4].register_forward_hook(lambda module, inputs, output: output * 1.5)
NOT_DENSE = {
    "pooled": (network(nn.AvgPool2d(3, 1, 1)), "1"),
    "bent on the way": (network(nn.Tanh()), "1"),
    "turned": (network(nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (5, 6)), nn.Softshrink(0.01))), "1"),
    "run twice": (Twice(network()), "body"),
    "around the linear layer": (Around(network()), "body"),
    "with a hook of the user's": (HOOKED, "1"),
}


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", NOT_DENSE)
def test_what_is_no_dense_head_is_run_as_it_is(heads, monkeypatch, name, images) -> None:
    model, layer = NOT_DENSE[name]
    found = egcam.SlopeCAM(model, layer, reference=pictures(5, 1), samples=12)(pictures(images), 1)
    assert not any(head.is_proven for head in heads)
    plain(monkeypatch)
    wanted = egcam.SlopeCAM(model, layer, reference=pictures(5, 1), samples=12)(pictures(images), 1)
    assert torch.equal(found.maps, wanted.maps)


def test_references_of_each_image_are_run_as_they_are(heads, monkeypatch) -> None:
    """Taking the linear layer apart for a reference costs more than the samples it saves."""
    cam = egcam.SlopeCAM(network(), "1", reference="blurred", samples=12)
    found = cam(pictures(2), 1).maps
    plain(monkeypatch)
    torch.testing.assert_close(cam(pictures(2), 1).maps, found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "linear", *NOT_DENSE])
def test_the_bits_do_not_depend_on_earlier_calls(name) -> None:
    """What is found out about a network in the first call leaves no trace in its maps."""
    model, layer = {"dense": (network(), "1"), "linear": (network(rest=nn.Linear(70, 3)), "1"), **NOT_DENSE}[name]
    cam = egcam.SlopeCAM(model, layer, reference=pictures(5, 1), samples=12)
    first, _, again = cam(pictures(2), 1), cam(pictures(3, 2), 0), cam(pictures(2), 1)
    assert torch.equal(first.maps, again.maps)
