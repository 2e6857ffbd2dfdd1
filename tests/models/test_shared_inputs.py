"""Further inputs that all images have in common, though they have as many rows as there are images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import egcam
from support.small_models import HEAD_FREE, Kept, explainer, pictures, seeded

pytestmark = pytest.mark.usefixtures("one_thread")


class Prompted(nn.Module):
    """Compares images with prompts, as CLIP does; the prompts pass a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Linear(6, 8)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(4 * 25, 8)

    def forward(self, images: Tensor, prompts: Tensor) -> Tensor:
        words = self.text(prompts)
        return self.head(self.body(images).flatten(1)).tanh() @ words.T


class Stripped(nn.Module):
    """The same without further inputs: the prompts are its own."""

    def __init__(self, model: Prompted, prompts: Tensor) -> None:
        super().__init__()
        self.model, self.prompts = model, prompts

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images, self.prompts)


def _prompted() -> Prompted:
    model = seeded(Prompted).eval()
    assert isinstance(model, Prompted)
    return model


def _prompts(count: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("method", "prompts", "images", "score"),
    [(method, 3, 3, "probability") for method in HEAD_FREE]
    + [("grad-cam", 1, 3, "logit"), ("grad-cam", 4, 3, "logit"), ("grad-cam", 3, 1, "logit"), ("rise", 1, 1, "logit")],
)
def test_shared_inputs_are_those_of_every_image(method, prompts, images, score):
    model, pixels, words = _prompted(), pictures(images), _prompts(prompts)
    kept, before = Kept(model, pixels), words.clone()
    how = {"signed": True, "score": score}
    found = explainer(method, model, layer="body", **how)(pixels, 0, inputs=(egcam.shared(words),))
    kept.check()
    assert torch.equal(words, before)
    truth = explainer(method, Stripped(model, words), layer="model.body", **how)(pixels, 0)
    assert torch.allclose(found.maps, truth.maps, rtol=1e-4, atol=1e-6 * float(truth.maps.abs().max()))
    assert torch.allclose(found.scores, truth.scores)


@pytest.mark.parametrize("how", ["inputs", "keywords", "nested"])
def test_shared_inputs_by_position_by_keyword_and_nested(how):
    model, images, words = _prompted(), pictures(2), _prompts(2)

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor, text: dict[str, list[Tensor]]) -> Tensor:
            return self.model(images, text["words"][0])

    given: dict[str, Any] = {
        "inputs": {"inputs": (egcam.shared(words),)},
        "keywords": {"keywords": {"prompts": egcam.shared(words)}},
        "nested": {"inputs": (egcam.shared({"words": [words]}),)},
    }[how]
    network = Nested().eval() if how == "nested" else model
    layer = "model.body" if how == "nested" else "body"
    found = egcam.explain(network, images, "score-cam", target=1, layer=layer, signed=True, **given)
    truth = egcam.explain(Stripped(model, words), images, "score-cam", target=1, layer="model.body", signed=True)
    assert torch.allclose(found.maps, truth.maps, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("method", "count", "batch_size"),
    [(method, 2, None) for method in HEAD_FREE] + [("grad-cam", 1, None), ("grad-cam", 5, 1), ("grad-cam", 5, 2)],
)
def test_as_many_prompts_as_images_are_refused_unless_shared(method, count, batch_size):
    model, images = _prompted(), pictures(count)
    kept = Kept(model, images)
    with pytest.raises(egcam.errors.InputError, match=r"inputs\[0\] has as many rows.*egcam\.shared"):
        explainer(method, model, batch_size=batch_size)(images, 0, inputs=(_prompts(count),))
    kept.check()
    with pytest.raises(egcam.errors.InputError, match=r"keywords\['prompts'\] has as many rows.*egcam\.shared"):
        explainer(method, model)(images, lambda output: output[:, 0], keywords={"prompts": _prompts(count)})


def test_networks_that_cannot_run_without_data_are_seen_through_too():
    class Branching(Prompted):
        def forward(self, images: Tensor, prompts: Tensor) -> Tensor:
            return super().forward(images if float(images.sum()) > 1e9 else -images, prompts)

    model, words = seeded(Branching).eval(), _prompts(2)
    with pytest.raises(egcam.errors.InputError, match=r"egcam\.shared"):
        egcam.GradCAM(model, "body")(pictures(2), 0, inputs=(words,))
    assert egcam.GradCAM(model, "body")(pictures(2), 0, inputs=(egcam.shared(words),)).passes == 2


def test_as_many_classes_as_images_and_one_row_for_each_is_no_reason_to_refuse():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
            self.head = nn.Linear(4, 3)

        def forward(self, images: Tensor, scale: Tensor) -> Tensor:
            return self.head(self.body(images).mean((2, 3)) * scale)

    model, images, scale = seeded(Scaled).eval(), pictures(3), torch.rand(3, 4)
    found = egcam.GradCAM(model, signed=True)(images, 1, inputs=(scale,))
    for row in range(3):
        alone = egcam.GradCAM(model, signed=True)(images[row, None], 1, inputs=(scale[row, None],))
        assert torch.allclose(found.maps[row], alone.maps[0], rtol=1e-5, atol=1e-8)


def test_a_model_that_writes_into_what_is_shared_does_not_change_it():
    class Centring(Prompted):
        def forward(self, images: Tensor, prompts: Tensor) -> Tensor:
            return super().forward(images, prompts.sub_(0.5))

    model, images, words = seeded(Centring).eval(), pictures(2), _prompts(3)
    before = words.clone()
    truth = egcam.ScoreCAM(Stripped(_prompted(), words - 0.5), "model.body", signed=True)(images, 1).maps
    for given in (words, egcam.shared(words)):
        found = egcam.ScoreCAM(model, "body", signed=True)(images, 1, inputs=(given,)).maps
        assert torch.allclose(found, truth, rtol=1e-4, atol=1e-7)
        assert torch.equal(words, before)
