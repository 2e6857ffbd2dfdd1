"""The layer found lies on every way from the image to the score, or is one of several that do together."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import egcam
from egcam.models.layers import parallel_layers
from egcam.models.trace import dry_run


def _block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, 2, 1), nn.ReLU())


class _Member(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = _block(3, 4), _block(4, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.second(self.first(x)).mean((2, 3)))


class _Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([_Member(), _Member()])

    def forward(self, x):
        return sum(member(x) for member in self.members)


class _Skipping(_Member):
    """The skip connection goes around the last block, which depends on what it carries."""

    def forward(self, x):
        early = self.first(x)
        wide = functional.pad(early.mean((2, 3)), (0, 2))
        return self.head(self.second(early).mean((2, 3)) + wide)


class _WithAuxiliaryHead(_Member):
    def __init__(self) -> None:
        super().__init__()
        self.aside = _block(4, 7)
        self.other = nn.Linear(7, 5)

    def forward(self, x):
        early = self.first(x)
        scores = self.head(self.second(early).mean((2, 3)))
        return {"main": scores, "aux": self.other(self.aside(early).mean((2, 3)))}


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.conv, self.norm = _block(3, 4), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)

    def forward(self, x):
        return self.norm(self.conv(self.body(x))).mean((2, 3))


@pytest.fixture
def images():
    torch.manual_seed(3)
    return torch.rand(2, 3, 16, 16)


def _scaled_grad_cam(block, score, image):
    """Grad-CAM by hand at a block of one of the members, divided by its maximum."""
    kept = []
    handle = block.register_forward_hook(lambda module, args, output: kept.append(output))
    total = score(image[None])
    handle.remove()
    (gradient,) = torch.autograd.grad(total, kept[0])
    found = (gradient.mean((2, 3), keepdim=True) * kept[0]).sum(1).relu().detach()[0]
    return found / found.max().clamp(min=1e-30)


def test_an_ensemble_is_explained_at_the_last_layer_of_every_member(images):
    model = _Ensemble()
    found = egcam.explain(model, images, target=1, method="grad-cam")
    assert found.layer == "members.0.second + members.1.second"
    by_hand = sum(_scaled_grad_cam(m.second, lambda x: model(x)[0, 1], images[0]) for m in model.members) / 2
    assert torch.allclose(found.maps[0], by_hand, atol=1e-6)
    assert egcam.explain(model, images, target=1, samples=4).layer.count(" + ") == 1


def test_a_skip_connection_is_no_stream_of_its_own(images):
    assert parallel_layers(dry_run(_Skipping(), images)) == ["second"]


@pytest.mark.parametrize(("head", "layer"), [("main", "second"), ("aux", "aside")])
def test_the_layer_found_leads_to_the_head_that_is_read(head, layer, images):
    model = _WithAuxiliaryHead()
    found = egcam.explain(model, images, target=lambda out: out[head][:, 2], method="grad-cam", signed=True)
    assert found.layer == layer
    assert bool(found.maps.any())


def test_an_embedding_has_no_predicted_class(images):
    model = _Embedding().eval()
    with pytest.raises(egcam.EgcamError, match="has no classification head: its 6 outputs are an embedding"):
        egcam.explain(model, images, method="grad-cam")
    with pytest.raises(egcam.EgcamError, match="has no classification head"):
        egcam.explain(model, images, method="input-gradient")
    # Its last layer has as many channels as there are outputs, and is no map of class scores.
    assert egcam.explain(model, images, target=3, method="grad-cam", signed=True).layer == "norm"
    assert egcam.explain(model, images, target=lambda out: out.sum(1), method="grad-cam", signed=True).layer == "norm"


def test_maps_of_class_scores_that_are_only_pooled_are_a_head(images):
    model = nn.Sequential(_block(3, 4), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = egcam.explain(model.eval(), images, method="grad-cam", signed=True)
    assert torch.equal(found.targets, model(images).argmax(1))
    assert found.layer == "1"


def test_no_graph_is_kept_after_a_dry_run(images):
    ways = dry_run(_Member(), images).ways
    assert ways is not None
    assert not ways._numbers


class _Loop(nn.Module):
    """The scores of every step add up, each step working on what the one before made."""

    def __init__(self, needs_numbers: bool = False) -> None:
        super().__init__()
        self.stem, self.cell, self.head = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1), nn.Linear(6, 5)
        self.needs_numbers = needs_numbers

    def forward(self, x):
        found, scores = self.stem(x), 0
        steps = 3 + (self.needs_numbers and float(x.detach().mean()) > 10)
        for _ in range(steps):
            found = self.cell(found).tanh()
            scores = scores + self.head(found.mean((2, 3)))
        return scores


class _Neuron(nn.Module):
    """Keeps its charge from step to step."""

    def forward(self, x):
        self.charge = x if self.charge is None else self.charge / 2 + x
        spikes = torch.sigmoid(self.charge - 0.1)
        self.charge = self.charge * (1 - spikes)
        return spikes


class _Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.neuron, self.head = nn.Conv2d(3, 6, 3, 2, 1), _Neuron(), nn.Linear(6, 5)

    def forward(self, x):
        self.neuron.charge = None
        return sum(self.head(self.neuron(self.conv(x)).mean((2, 3))) for _ in range(3))


@pytest.mark.parametrize("needs_numbers", [False, True])
def test_of_a_loop_whose_scores_add_up_no_single_late_step_is_explained(needs_numbers, images):
    model, reference = _Loop(needs_numbers).eval(), torch.zeros(1, 3, 16, 16)
    found = egcam.explain(model, images, target=1, reference=reference, signed=True)
    assert found.layer == "cell:1"
    rises = (model(images) - model(reference))[:, 1].detach()
    torch.testing.assert_close(found.maps.sum((1, 2)), rises, rtol=1e-4, atol=1e-6)


def test_steps_that_keep_a_state_are_explained_together(images):
    assert parallel_layers(dry_run(_Spiking(), images)) == ["conv:1", "conv:2", "conv:3"]


class _Levels(nn.Module):
    """Hands on all its levels, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _block(3, 4), _block(4, 6)

    def forward(self, x):
        first = self.first(x)
        return [first, self.second(first)]


class _OfTheLastLevel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.neck, self.head = _Levels(), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(self.neck(x)[-1].mean((2, 3)))


def test_a_module_that_hands_on_older_maps_is_not_the_last_layer(images):
    model = _OfTheLastLevel().eval()
    assert egcam.explain(model, images, "grad-cam", target=1, signed=True).layer == "neck.second"


class _Opaque(dict):
    """An output of a class of its own."""


class _Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _OpaqueBody(), nn.Linear(6, 8)

    def forward(self, x):
        boxes = self.head(self.body(x)["maps"].flatten(2).transpose(1, 2))
        return {"boxes": boxes[..., :4], "chances": boxes[..., 4:]}


class _OpaqueBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _block(3, 4), _block(4, 6)

    def forward(self, x):
        return _Opaque(maps=self.second(self.first(x)))


def test_an_output_of_a_class_of_its_own_does_not_stop_the_default_method(images):
    model = _Detector().eval()
    with pytest.raises(egcam.EgcamError, match="which part of the model's output holds the class scores is unclear"):
        egcam.explain(model, images, layer="body")
    found = egcam.explain(
        model, images, layer="body", target=lambda out: out["chances"][..., 1].tanh().sum(1), samples=2, signed=True
    )
    assert float(found.completeness.gap.abs().max()) < 1e-4
    assert bool(found.maps.any())
