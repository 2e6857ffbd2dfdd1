"""Maps of targets beyond classes: against autograd and formulas worked out here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.errors import TargetError, ZeroMapWarning
from egcam.imageops import scaled, upsampled
from egcam.models.capture import Probe
from egcam.models.inputs import ExtraInputs
from egcam.models.layers import resolve
from egcam.models.replay import Replay
from egcam.targets import Box, Class, Contrast, Head, Mask, Pixel, Similarity
from support.place_models import (
    BOXES,
    Embedder,
    ListDetector,
    PyramidDetector,
    Segmenter,
    TinyDetr,
    TinyYolo,
    TwoHeads,
    UNet,
    box_scores,
    made,
    photographs,
)
from support.small_models import small_net

pytestmark = pytest.mark.usefixtures("one_thread")

MASK = torch.zeros(16, 16, dtype=torch.bool)
MASK[3:9, 5:15] = True
FIRST, SECOND = Box(BOXES[0], 1), Box(BOXES[1], 2)


def activations_and_gradients(
    model: nn.Module, layer: str, images: Any, score: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """A and d(sum of scores)/dA at a layer, by plain autograd."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output))
    try:
        total = score(model(images)).sum()
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(total, kept[0])
    return kept[0].detach(), gradient


def own_grad_cam(model: nn.Module, layer: str, images: Any, score: Callable[[Any], Tensor]) -> Tensor:
    activations, gradient = activations_and_gradients(model, layer, images, score)
    return (gradient.mean((2, 3), keepdim=True) * activations).sum(1)


def _of_boxes(output: Any) -> Tensor:
    return torch.stack([output[0]["scores"][0], output[1]["scores"][1]])


def _of_detr(output: Any) -> Tensor:
    return output["pred_logits"].softmax(2)[torch.arange(2), torch.tensor([0, 1]), torch.tensor([1, 0])]


def _of_yolo(output: Any) -> Tensor:
    return torch.stack([output[0][0, 9, 4] * output[0][0, 9, 6], output[0][1, 54, 4] * output[0][1, 54, 5]])


def _of_masks(output: Any) -> Tensor:
    large = functional.interpolate(output["out"], size=(16, 16), mode="bilinear", align_corners=False)
    return torch.stack([large[0, 2][MASK].mean(), large[1].softmax(0)[0, 7, 11]])


def _boxes_of(model: nn.Module, kind: str) -> list[Box]:
    """Targets that are boxes the network itself finds in the two photographs."""
    with torch.no_grad():
        output = model(photographs())
    if kind == "detr":
        chosen = [(output["pred_boxes"][0, 0] * 16, 1), (output["pred_boxes"][1, 1] * 16, 0)]
    else:
        chosen = [(output[0][0, 9, :4], 1), (output[0][1, 54, :4], 0)]
    corners = [(torch.cat([box[:2] - box[2:] / 2, box[:2] + box[2:] / 2]), label) for box, label in chosen]
    return [Box(box, label, layout=None if kind == "detr" else "yolov5") for box, label in corners]


CASES: dict[str, tuple[Any, Any, Any, bool]] = {
    "boxes": (ListDetector, lambda model: [FIRST, SECOND], _of_boxes, True),
    "detr": (TinyDetr, lambda model: _boxes_of(model, "detr"), _of_detr, False),
    "yolo": (TinyYolo, lambda model: _boxes_of(model, "yolo"), _of_yolo, False),
    "mask and pixel": (Segmenter, lambda model: [Mask(2, MASK), Pixel(0, 7, 11, "probability")], _of_masks, False),
    "similarity": (
        Embedder,
        lambda model: Similarity(torch.arange(5.0)),
        lambda output: functional.cosine_similarity(output, torch.arange(5.0, dtype=torch.float64)[None]),
        False,
    ),
    "head": (TwoHeads, lambda model: Head("shape", 3), lambda output: output["shape"][:, 3], False),
    "contrast": (
        lambda: nn.Sequential(Embedder()),
        lambda model: [Contrast(0, 3), Contrast(4, 1)],
        lambda output: torch.stack([output[0, 0] - output[0, 3], output[1, 4] - output[1, 1]]),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_grad_cam_equals_autograd(case: str) -> None:
    kind, targets, score, listed = CASES[case]
    model = made(kind)
    images = list(photographs()) if listed else photographs()
    found = egcam.explain(model, images, "grad-cam", targets(model), signed=True)
    layer = "0.backbone" if case == "contrast" else "backbone"
    assert found.layer in (layer, f"{layer}.3")
    torch.testing.assert_close(found.maps, own_grad_cam(model, layer, images, score), rtol=1e-10, atol=1e-14)
    with torch.no_grad():
        torch.testing.assert_close(found.scores, score(model(images)))
    assert found.maps.abs().amax((1, 2)).min() > 0
    assert found.targets is None


@pytest.mark.parametrize(
    ("method", "options"),
    [("slope-cam", {"samples": 6, "reference": "black"}), ("score-cam", {}), ("ablation-cam", {})],
)
def test_each_image_has_its_own_target_in_every_sample(method: str, options: dict[str, Any]) -> None:
    """A batch gives what the images give one by one; rows of samples are told whose they are."""
    model, images = made(ListDetector, 0.45), photographs(3)
    targets = [FIRST, SECOND, FIRST]
    together = egcam.explain(model, list(images), method, targets, signed=True, **options)
    for number, target in enumerate(targets):
        alone = egcam.explain(model, [images[number]], method, target, signed=True, **options)
        torch.testing.assert_close(together.maps[number], alone.maps[0], rtol=1e-9, atol=1e-12)


def test_score_cam_of_a_box() -> None:
    """w = softmax over channels of the box's score under each channel's mask, 0 where the box is not found."""
    model, image = made(ListDetector), photographs(1)
    with torch.no_grad():
        channels = model.backbone(image)[0]
        scores = []
        for channel in channels:
            mask = functional.interpolate(channel[None, None], (16, 16), mode="bilinear", align_corners=False)[0, 0]
            masked = image * (mask - mask.min()) / (mask.max() - mask.min())
            scores.append(box_scores(model.head(model.backbone(masked)))[0, 0])
        own = float(box_scores(model.head(model.backbone(image)))[0, 0])
    seen = torch.stack(scores)
    model.least = min(own, float(seen.mean()))  # some samples lose the box; the image has it
    found = egcam.explain(model, list(image), "score-cam", FIRST, layer="backbone", signed=True)
    weights = seen.masked_fill(seen < model.least, 0).softmax(0)
    assert weights.max() > 1.3 * weights.min()
    torch.testing.assert_close(found.maps[0], (weights[:, None, None] * channels).sum(0), rtol=1e-9, atol=1e-12)


def test_ablation_cam_of_a_box() -> None:
    model, image = made(ListDetector), photographs(1)
    found = egcam.explain(model, list(image), "ablation-cam", SECOND, signed=True)
    with torch.no_grad():
        channels = model.backbone(image)
        score = box_scores(model.head(channels))[0, 1]
        drops = []
        for number in range(4):
            without = channels.clone()
            without[:, number] = 0
            drops.append((score - box_scores(model.head(without))[0, 1]) / score.abs())
    torch.testing.assert_close(found.maps[0], (torch.stack(drops)[:, None, None] * channels[0]).sum(0))


def test_slopes_of_a_box_are_complete() -> None:
    """The attributions add up to y(x) - y(black), y being the box's score."""
    model, images = made(ListDetector), photographs(2)
    found = egcam.SlopeCAM(model, reference="black", signed=True)(list(images), [FIRST, SECOND])
    with torch.no_grad():
        black, here = model([torch.zeros_like(images[0])])[0]["scores"], model(list(images))
    expected = torch.stack([here[0]["scores"][0] - black[0], here[1]["scores"][1] - black[1]])
    assert found.completeness is not None
    torch.testing.assert_close(found.completeness.expected, expected, rtol=1e-8, atol=1e-10)
    assert bool(found.completeness.exact.all())
    torch.testing.assert_close(found.completeness.total, expected, rtol=1e-6, atol=1e-8)


def test_insertion_and_deletion_of_a_box() -> None:
    """Against curves computed here; the box is lost on the way, which counts as 0."""
    model, images = made(ListDetector), photographs(2)
    targets = [FIRST, SECOND]
    maps = egcam.explain(model, list(images), "grad-cam", targets, signed=True).heatmaps
    with torch.no_grad():
        ends = box_scores(model.head(model.backbone(torch.cat([images, torch.zeros_like(images)]))))
    model.least = float((ends[0, 0] + ends[2, 0]) / 2)
    found = egcam.metrics.Deletion(step=32)(model, list(images), maps, targets)
    for number, (place, target) in enumerate([(0, FIRST), (1, SECOND)]):
        order = maps[number].flatten().argsort(descending=True, stable=True)
        scores = []
        for gone in range(0, 257, 32):
            altered = images[number].clone().flatten(1)
            altered[:, order[:gone]] = 0
            with torch.no_grad():
                score = box_scores(model.head(model.backbone(altered.reshape(1, 3, 16, 16))))[0, place]
            scores.append(float(score) if score >= model.least else 0.0)
        assert number == 1 or min(scores) == 0 < max(scores), "the box is lost on the way"
        area = sum((one + other) / 2 for one, other in pairwise(scores)) / 8
        assert float(found[number]) == pytest.approx(area, abs=1e-9)
        with torch.no_grad():
            assert float(target.of_row(model(list(images)), 2, number)) == pytest.approx(scores[0])


def test_evaluate_measures_what_was_explained() -> None:
    model, images, targets = made(ListDetector), photographs(3), [FIRST, SECOND, FIRST]
    metrics = ["insertion-deletion", "max-sensitivity"]
    table = egcam.evaluate(
        model,
        list(images),
        ["grad-cam", "layer-cam"],
        metrics,
        targets,
        batch_size=2,
        metric_options={"max-sensitivity": {"samples": 2}},
    )
    maps = egcam.explain(model, list(images), "grad-cam", targets).heatmaps
    expected = egcam.metrics.InsertionDeletion()(model, list(images), maps, targets)
    torch.testing.assert_close(torch.tensor(table.values("grad-cam", "insertion-deletion")), expected)
    assert torch.isfinite(torch.tensor(table.values("layer-cam", "max-sensitivity"))).all()


# -- no match -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), [("grad-cam", {}), ("slope-cam", {"samples": 2}), ("ablation-cam", {})])
@pytest.mark.parametrize("least", [0.0, 2.0])  # 2: the detector finds nothing at all
def test_no_match_is_a_zero_map_and_said(method: str, options: dict[str, Any], least: float) -> None:
    model, images = made(ListDetector, least), photographs(2)
    with pytest.warns(ZeroMapWarning, match=r"no box that the model finds matches class 2 in \(0, 0, 8, 8\)"):
        found = egcam.explain(model, list(images), method, Box(BOXES[0], 2), layer="backbone", signed=True, **options)
    assert not found.maps.any()
    assert not found.scores.any()


@pytest.mark.parametrize(
    ("method", "options"),
    [("slope-cam", {"samples": 64}), ("score-cam", {}), ("occlusion", {}), ("rise", {"samples": 64})],
)
def test_no_match_is_known_after_the_first_pass(method: str, options: dict[str, Any]) -> None:
    model, image = made(ListDetector), photographs(1)
    with pytest.warns(ZeroMapWarning, match="no box that the model finds matches"):
        found = egcam.explain(model, list(image), method, Box(BOXES[0], 2), **options)
    assert found.passes + found.tails == 1
    assert not found.maps.any()


def test_what_is_sampled_stays_complete_beside_an_image_without_a_match() -> None:
    model, images = made(ListDetector), photographs(2)
    with pytest.warns(ZeroMapWarning, match="image 0 is zero"):
        found = egcam.explain(model, list(images), target=[Box(BOXES[0], 2), SECOND], samples=4, batch_size=1)
    alone = egcam.explain(model, [images[1]], target=SECOND, samples=4, batch_size=1)
    assert found.error is not None
    assert found.error.flatten(1).any(1).tolist() == [False, True]
    assert found.completeness is not None
    assert found.completeness.expected[0] == found.completeness.total[0] == 0
    assert found.completeness.expected[1] != 0
    assert found.reference == alone.reference


def test_one_image_without_a_match_leaves_the_others_alone() -> None:
    model, images = made(ListDetector), photographs(2)
    with pytest.warns(ZeroMapWarning, match="image 0 is zero"):
        found = egcam.explain(model, list(images), "grad-cam", [Box(BOXES[0], 2), SECOND], signed=True)
    alone = egcam.explain(model, [images[1]], "grad-cam", SECOND, signed=True)
    torch.testing.assert_close(found.maps[1], alone.maps[0])


def test_a_score_that_depends_on_nothing_is_still_refused() -> None:
    with pytest.raises(egcam.EgcamError, match="does not depend"):
        egcam.explain(small_net(), torch.rand(1, 3, 12, 12), "grad-cam", [lambda row: row[0].detach()])


# -- layers ---------------------------------------------------------------------------------------


def test_the_levels_of_a_detector_are_fused() -> None:
    model, images = made(PyramidDetector), photographs(2)
    found = egcam.explain(model, list(images), "grad-cam", [FIRST, SECOND], signed=True)
    assert found.layer in ("backbone.fine + backbone.coarse", "backbone.fine.3 + backbone.coarse.1")
    maps = [own_grad_cam(model, layer, list(images), _of_boxes) for layer in ("backbone.fine", "backbone.coarse")]
    expected = sum(scaled(upsampled(one, (8, 8))) for one in maps) / 2
    torch.testing.assert_close(found.maps, expected)


def test_a_detector_that_takes_image_after_image() -> None:
    """Its layers run once for each image of the list; the maps are those of the batched one."""
    batched, one_by_one = made(ListDetector), made(ListDetector, 0.0, True)
    one_by_one.load_state_dict(batched.state_dict())
    for method in ("grad-cam", "ablation-cam", "score-cam"):
        wanted = egcam.explain(batched, list(photographs()), method, [FIRST, SECOND], signed=True)
        found = egcam.explain(one_by_one, list(photographs()), method, [FIRST, SECOND], signed=True)
        torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-8, atol=1e-12)
    probe = Probe(one_by_one, resolve(one_by_one, "backbone", str), ExtraInputs(1, listed=True))
    first = torch.zeros(1, dtype=torch.long)
    replayed = Replay(probe, photographs(1), first, lambda passes: None)
    with pytest.raises(egcam.EgcamError, match="batch_size=1"):
        replayed.run(replayed.activations.expand(3, -1, -1, -1), first.expand(3))


@pytest.mark.parametrize(
    ("kind", "target", "layers"),
    [
        (lambda: Segmenter(aux=True), Mask(1), ("backbone.coarse", "backbone.coarse.1")),
        (UNet, Mask(1), ("middle", "middle.1")),
        (TinyYolo, Box((2, 2, 14, 14), iou=0.01, layout="yolov5"), ("backbone", "backbone.3")),
    ],
)
def test_the_layer_lies_before_the_answer(kind: Any, target: Any, layers: tuple[str, ...]) -> None:
    found = egcam.explain(made(kind), photographs(), "grad-cam", target, signed=True)
    assert found.layer in layers
    assert found.maps.abs().amax((1, 2)).min() > 0


def test_images_of_different_sizes_are_refused() -> None:
    with pytest.raises(egcam.EgcamError, match="one at a time"):
        egcam.explain(made(ListDetector), [torch.rand(3, 16, 16), torch.rand(3, 8, 8)], target=FIRST)


def test_torchvisions_faster_rcnn() -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=4, min_size=48, max_size=64, box_score_thresh=0.0
        ).eval()
    image = torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (seen,) = model([image])
    found = egcam.explain(model, [image], "grad-cam", Box(seen["boxes"][0], seen["labels"][0]), signed=True)
    layers = [f"backbone.fpn.layer_blocks.{number}" for number in (1, 0)]
    assert found.layer == " + ".join(layers)
    maps = [own_grad_cam(model, layer, [image], lambda output: output[0]["scores"][:1]) for layer in layers]
    size = max(tuple(one.shape[-2:]) for one in maps)
    expected = sum(scaled(upsampled(one, size)) for one in maps) / 2
    torch.testing.assert_close(found.maps, expected, rtol=1e-3, atol=1e-4)
    assert found.heatmaps.shape == (1, 48, 64)


# -- similarity to an image or a text -------------------------------------------------------------


def test_similarity_to_an_image_is_to_its_embedding() -> None:
    model, images = made(Embedder), photographs(3)
    with torch.no_grad():
        embedding = model(images[2:])[0]
    wanted = egcam.explain(model, images[:2], "grad-cam", Similarity(embedding), signed=True)
    for other in (images[2], images[2:]):
        found = egcam.explain(model, images[:2], "grad-cam", Similarity(other), signed=True)
        torch.testing.assert_close(found.maps, wanted.maps)
    texts = egcam.explain(
        model, images[:2], "grad-cam", Similarity("a text", encode=lambda text: embedding), signed=True
    )
    torch.testing.assert_close(texts.maps, wanted.maps)
    assert texts.label(0) == "similarity to an embedding"
    scores = egcam.metrics.Deletion(step=128)(model, images[:2], wanted.heatmaps, Similarity(images[2]))
    assert torch.equal(
        scores, egcam.metrics.Deletion(step=128)(model, images[:2], wanted.heatmaps, Similarity(embedding))
    )


def test_the_layer_of_an_embedding_network_is_the_last_one() -> None:
    """As many channels as numbers in the embedding make it no map of class scores."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.Conv2d(4, 6, 3), nn.Softplus(), nn.AdaptiveAvgPool2d(1))
    images = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    assert egcam.explain(model, images, "grad-cam", Similarity(torch.arange(6.0)), signed=True).layer == "3"
    assert egcam.explain(model, images, "grad-cam", 2, signed=True).layer == "1"


# -- targets as objects ---------------------------------------------------------------------------


def test_a_class_object_is_the_class() -> None:
    model, images = small_net(), torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    names = list("abcde")
    found = egcam.explain(model, images, "grad-cam", [Class(1), Class("d"), 2], classes=names, signed=True)
    wanted = egcam.explain(model, images, "grad-cam", [1, 3, 2], signed=True)
    assert found.targets is not None
    assert found.targets.tolist() == [1, 3, 2]
    assert torch.equal(found.maps, wanted.maps)
    chance = egcam.explain(model, images, "grad-cam", Class(1, "probability"), signed=True)
    torch.testing.assert_close(
        chance.maps, egcam.explain(model, images, "grad-cam", 1, score="probability", signed=True).maps
    )
    mixed = egcam.explain(model, images, "grad-cam", [Class(1), Contrast(3, 0), 2], score="probability", signed=True)
    torch.testing.assert_close(mixed.maps[0], chance.maps[0])
    assert [mixed.label(number) for number in range(3)] == ["class 1", "class 3 against class 0", "class 2"]
    with pytest.raises(TargetError, match="None is the predicted class"):
        egcam.explain(model, images, "grad-cam", [Contrast(0, 1), None, 2])


def test_what_was_explained_is_kept_in_words(tmp_path: Any) -> None:
    found = egcam.explain(made(Segmenter), photographs(), "grad-cam", [Mask(1, MASK), Pixel(2, 3, 4)], signed=True)
    found.save(tmp_path, pictures=False)
    again = egcam.Explanation.load(tmp_path)
    assert [again.label(number) for number in range(2)] == ["class 1 in 60 pixels", "class 2 at row 3, column 4"]
    assert "class 1 in 60 pixels" in repr(again)


def test_callables_in_a_list_get_their_images_part() -> None:
    model, images = small_net(), torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    wanted = egcam.explain(model, images, "slope-cam", [1, 4], samples=4, signed=True)
    found = egcam.explain(
        model, images, "slope-cam", [lambda row: row[1], lambda row: row[4:5]], samples=4, signed=True
    )
    torch.testing.assert_close(found.maps, wanted.maps, rtol=1e-4, atol=1e-6)
    with pytest.raises(TargetError, match=r"returned \(5,\) for one image"):
        egcam.explain(model, images, "grad-cam", [lambda row: row] * 2)
    with pytest.raises(TargetError, match=r"goes into a list: target=\[function\]"):
        egcam.explain(model, images, "grad-cam", lambda output: output[0])


def test_the_model_and_the_images_are_left_as_they_were() -> None:
    model, images = made(ListDetector).train(), photographs(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = images.clone()
    egcam.explain(model, list(images), "grad-cam", FIRST, signed=True)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(images, kept)
