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
