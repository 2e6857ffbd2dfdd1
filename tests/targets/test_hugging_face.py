"""Boxes of Hugging Face's DETR and masks of its SegFormer, by the names the models carry, against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import egcam
from egcam.targets import Box, Mask
from support.place_models import photographs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = {0: "cat", 1: "dog", 2: "bird"}


def built(kind: str, settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, kind)(settings).double().eval()


def detr() -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    sizes = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_model"), 16)
    counts = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    settings = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, num_queries=4, id2label=NAMES, **sizes, **counts, **heads
    )
    return built("DetrForObjectDetection", settings)


def segformer() -> Any:
    ones = [1, 1, 1, 1]
    settings = transformers.SegformerConfig(
        hidden_sizes=[8, 8, 8, 8], num_attention_heads=ones, depths=ones, decoder_hidden_size=8, id2label=NAMES
    )
    return built("SegformerForSemanticSegmentation", settings)


def own_grad_cam(model: Any, layer: str, images: Tensor, score: Any) -> Tensor:
    kept: list[Tensor] = []
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(
        lambda module, args, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    total = score(model(images.clone().requires_grad_())).sum()  # its backbone may be frozen
    handle.remove()
    (gradient,) = torch.autograd.grad(total, kept[0])
    return (gradient.mean((2, 3), keepdim=True) * kept[0]).sum(1).detach()


def test_a_box_of_detr() -> None:
    model = detr()
    images = functional.interpolate(photographs(2), (48, 64))
    with torch.no_grad():
        centre = model(images).pred_boxes[:, 1] * torch.tensor([64.0, 48, 64, 48])
    boxes = torch.cat([centre[:, :2] - centre[:, 2:] / 2, centre[:, :2] + centre[:, 2:] / 2], 1)
    found = egcam.explain(model, images, "grad-cam", [Box(box, "bird") for box in boxes], signed=True)
    expected = own_grad_cam(model, found.layer, images, lambda output: output.logits.softmax(2)[:, 1, 2])
    torch.testing.assert_close(found.maps, expected, rtol=1e-8, atol=1e-14)
    assert found.maps.abs().amax((1, 2)).min() > 0


def test_a_box_of_rt_detr_without_names_is_a_sigmoid() -> None:
    """Its configuration counts the classes, though it names none: as many as logits, so none is "no object"."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 8, 8],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    sizes = dict.fromkeys(("d_model", "encoder_hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    settings = transformers.RTDetrConfig(
        backbone_config=backbone,
        num_queries=4,
        num_labels=3,
        encoder_in_channels=[8, 8, 8],
        decoder_in_channels=[16, 16, 16],
        decoder_layers=1,
        num_denoising=0,
        **sizes,
        **heads,
    )
    model = built("RTDetrForObjectDetection", settings)
    images = functional.interpolate(photographs(1), (64, 64))
    with torch.no_grad():
        output = model(images)
    x, y, width, height = (64 * output.pred_boxes[0, 1]).tolist()
    box = Box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), label=2, iou=0.99)
    found = egcam.explain(model, images, "grad-cam", box, signed=True)
    torch.testing.assert_close(found.scores, output.logits[:, 1, 2].sigmoid(), rtol=1e-8, atol=0)


def test_a_mask_of_segformer() -> None:
    model = segformer()
    images = functional.interpolate(photographs(2), (64, 96))
    mask = torch.zeros(64, 96, dtype=torch.bool)
    mask[10:40, 20:70] = True

    def score(output: Any) -> Tensor:
        large = functional.interpolate(output.logits, size=(64, 96), mode="bilinear", align_corners=False)
        return large[:, 1][:, mask].mean(1)

    found = egcam.explain(model, images, "grad-cam", Mask("dog", mask), signed=True)
    torch.testing.assert_close(found.maps, own_grad_cam(model, found.layer, images, score), rtol=1e-8, atol=1e-14)
    assert found.maps.abs().amax((1, 2)).min() > 0


BLOCKS = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}


def dpt() -> Any:
    neck = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "backbone_out_indices": [0, 1, 2, 3]}
    settings = transformers.DPTConfig(**BLOCKS, **neck, image_size=32, patch_size=8, id2label=NAMES, is_hybrid=False)
    return built("DPTForSemanticSegmentation", settings)


def yolos() -> Any:
    settings = transformers.YolosConfig(
        **BLOCKS, image_size=[32, 32], patch_size=8, num_detection_tokens=3, id2label=NAMES
    )
    return built("YolosForObjectDetection", settings)


def test_the_default_adds_up_at_the_layer_that_is_found_in_dpt() -> None:
    found = egcam.explain(dpt(), photographs(1).repeat(1, 1, 2, 2), target=Mask("dog"), reference="black", signed=True)
    assert found.maps.abs().max() > 0
    assert float(found.completeness.gap.abs().max()) < 1e-6 * float(found.completeness.total.abs().max())


def test_a_box_of_yolos_is_explained_at_the_layer_that_is_found() -> None:
    """Tokens of detections stand behind those of the patches."""
    model, images = yolos(), photographs(1).repeat(1, 1, 2, 2)
    with torch.no_grad():
        output = model(images)
    x, y, width, height = (32 * output.pred_boxes[0, 1]).tolist()
    box = Box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), "bird", iou=0.99)
    found = egcam.explain(model, images, target=box, signed=True, reference="black")
    torch.testing.assert_close(found.scores, output.logits.softmax(2)[:, 1, 2], rtol=1e-8, atol=0)
    assert found.maps.shape == (1, 4, 4)
    hires = egcam.explain(model, images, "hires-cam", target=box, signed=True, layer=found.layer, reshape="tokens")
    kept: list[Tensor] = []
    handle = model.get_submodule(found.layer).register_forward_hook(
        lambda module, args, output: kept.append(output if isinstance(output, Tensor) else output[0])
    )
    score = model(images.clone().requires_grad_()).logits.softmax(2)[0, 1, 2]
    handle.remove()
    product = torch.autograd.grad(score, kept[0])[0] * kept[0].detach()
    torch.testing.assert_close(hires.maps[0], product[0, 1:17].sum(1).reshape(4, 4), rtol=1e-6, atol=1e-14)
