"""timm networks of many families in tiny sizes, each with the layer that is to be found and how its output lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from torch import nn

from support.plain_grad_cam import Layout

timm: Any = pytest.importorskip("timm", reason="the extra 'vision' is not installed")


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    size: tuple[int, int]
    layer: str
    layout: Layout
    grid: tuple[int, int]


def named(name: str, size: tuple[int, int], layer: str, layout: Layout, grid: tuple[int, int], **options: Any) -> Case:
    return Case(name, partial(timm.create_model, name, num_classes=5, **options), size, layer, layout, grid)


def made(kind: type, size: tuple[int, int], layer: str, layout: Layout, grid: tuple[int, int], **options: Any) -> Case:
    return Case(kind.__name__, partial(kind, num_classes=5, **options), size, layer, layout, grid)


def vit(name: str, size: tuple[int, int], layer: str, others: Layout, grid: tuple[int, int], **options: Any) -> Case:
    options = {"img_size": size, "depth": 2, "embed_dim": 24, "num_heads": 2, **options}
    return named(name, size, layer, others, grid, **options)


def naflex(name: str, size: tuple[int, int], layer: str, others: int, grid: tuple[int, int], **options: Any) -> Case:
    return named(name, size, layer, others, grid, depth=2, embed_dim=24, num_heads=2, **options)


ATTENTION = "blocks.1.norm1"  # what the last attention takes: the class token alone is read

VIT = [
    vit("vit_tiny_patch16_224", (32, 64), ATTENTION, 1, (2, 4)),
    vit("vit_tiny_patch16_224", (96, 64), "blocks", 1, (6, 4), global_pool="avg"),
    vit("vit_tiny_patch16_224", (32, 64), "norm", 1, (2, 4), global_pool="map"),
    vit("vit_tiny_patch16_224", (32, 64), "blocks", 1, (2, 4), global_pool="avgmax"),
    vit("vit_tiny_patch16_224", (64, 64), "blocks", 0, (4, 4), global_pool="avg", class_token=False),
    vit("deit_tiny_distilled_patch16_224", (64, 32), ATTENTION, 2, (4, 2)),
    vit("vit_small_patch14_reg4_dinov2", (28, 28), ATTENTION, 5, (2, 2)),
    vit("vit_base_patch16_siglip_224", (32, 64), "norm", 0, (2, 4)),
    vit("vit_base_patch16_clip_224", (64, 48), ATTENTION, 1, (4, 3)),
    vit("vit_relpos_small_patch16_224", (32, 32), "blocks.1", 0, (2, 2)),
    vit("vit_relpos_base_patch16_clsgap_224", (32, 48), "blocks.1", 1, (2, 3)),
    vit("vit_medium_patch16_gap_240", (32, 64), "norm", 0, (2, 4)),
    vit("vit_little_patch16_reg4_gap_256", (32, 64), "blocks", 4, (2, 4)),
    vit("vit_wee_patch16_reg1_gap_256", (32, 64), "blocks", 1, (2, 4)),
    vit("vit_dlittle_patch16_reg1_gap_256", (32, 64), "blocks", 1, (2, 4)),
    vit("vit_base_patch16_xp_224", (32, 64), "blocks.1.in_norm", 1, (2, 4)),
    vit("vit_base_patch16_rpn_224", (32, 64), "blocks", 0, (2, 4)),
    vit("flexivit_small", (32, 64), ATTENTION, 1, (2, 4)),
    vit("vit_tiny_r_s16_p8_224", (64, 128), ATTENTION, 1, (2, 4)),
    vit("eva02_tiny_patch14_224", (28, 56), "blocks.1", 1, (2, 4)),
    vit("eva_large_patch14_196", (28, 42), "blocks", 1, (2, 3)),
    vit("beit_base_patch16_224", (32, 64), "blocks.1", 1, (2, 4)),
    vit("vit_small_patch16_dinov3", (32, 64), "norm", 5, (2, 4)),
    vit("vit_pe_core_tiny_patch16_384", (32, 64), "norm", 1, (2, 4)),
    vit("vit_pe_spatial_tiny_patch16_512", (32, 64), "blocks.1", 1, (2, 4)),
    vit("vit_small_patch16_rope_224", (32, 64), ATTENTION, 1, (2, 4)),
    vit("aimv2_large_patch14_224", (28, 42), "norm", 0, (2, 3)),
    vit("samvit_base_patch16_224", (32, 32), "neck", "chw", (2, 2), global_attn_indexes=(1,), window_size=2),
    vit("cait_xxs24_224", (32, 32), "blocks", 0, (2, 2)),
    vit("xcit_tiny_12_p8_224", (32, 64), "cls_attn_blocks.0", 1, (4, 8)),
    vit("convit_tiny", (48, 48), ATTENTION, 1, (3, 3), local_up_to_layer=1),
    naflex("naflexvit_base_patch16_gap", (32, 64), "blocks.1", 4, (2, 4)),
    naflex("naflexvit_base_patch16_map", (32, 64), "norm", 1, (2, 4)),
    naflex("naflexvit_base_patch16_par_gap", (48, 32), "blocks.1", 4, (3, 2)),
]

SWIN = {"embed_dim": 24, "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1)}
PIT = {"base_dims": (8, 8, 8), "depth": (1, 1, 1), "heads": (1, 2, 2)}
PYRAMID = {"embed_dims": (8, 16, 16, 24), "num_heads": (1, 2, 2, 2), "depths": (1, 1, 1, 1)}
LEVIT = {"img_size": 64, "embed_dim": (16, 24, 32), "key_dim": 4, "num_heads": (2, 2, 2), "depth": (1, 1, 1)}
SMALL = {"depths": (1, 1, 1, 1), "dims": (8, 12, 16, 24)}
FOUR = {"depths": (1, 1, 1, 1), "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 2, 2)}
COAT = {"img_size": 64, "serial_depths": (1, 1, 1, 1), "num_heads": 8}
HIERA = {"embed_dim": 16, "num_heads": 1, "stages": (1, 1, 1, 1)}
NEST = {"img_size": 64, "embed_dims": (8, 16, 24), "num_heads": (1, 2, 3), "depths": (1, 1, 1)}
VOLO = {"img_size": 64, "layers": (1, 1, 1, 1), "embed_dims": (16, 24, 24, 24), "num_heads": (2, 2, 2, 2)}
VOLO |= {"mlp_ratio": 2, "use_mix_token": False}
SEQUENCER = {"img_size": (28, 56), "embed_dims": (12, 24, 24, 24), "layers": (1,) * 4, "hidden_sizes": (6, 12, 12, 12)}
GLOBAL = {"depths": (1, 2, 1, 1), "embed_dim": 8, "num_heads": (1, 1, 2, 2)}
models = timm.models
RES = {"block_layer": models.mlp_mixer.ResBlock, "mlp_ratio": 4}
GATED = {"block_layer": models.mlp_mixer.SpatialGatingBlock, "mlp_layer": timm.layers.GatedMlp, "mlp_ratio": 4}

OTHERS = [
    named("swin_tiny_patch4_window7_224", (64, 128), "norm", "hwc", (2, 4), img_size=(64, 128), window_size=2, **SWIN),
    named("swin_s3_tiny_224", (64, 96), "norm", "hwc", (2, 3), img_size=(64, 96), window_size=(2, 2, 2, 2), **SWIN),
    named("swinv2_tiny_window8_256", (64, 128), "norm", "hwc", (2, 4), img_size=(64, 128), window_size=2, **SWIN),
    named("swinv2_cr_tiny_224", (64, 128), "stages", "chw", (2, 4), img_size=(64, 128), window_size=(2, 2), **SWIN),
    made(models.nest.Nest, (64, 64), "norm", "hwc", (4, 4), **NEST),
    made(models.volo.VOLO, (64, 64), "norm", 1, (4, 4), **VOLO),
    named("mambaout_femto", (64, 128), "stages", "hwc", (2, 4), **SMALL),
    named("sequencer2d_s", (28, 56), "norm", "hwc", (2, 4), **SEQUENCER),
    *(
        made(
            models.mvitv2.MultiScaleVit,
            size,
            layer,
            int(use_cls),
            grid,
            img_size=size,
            cfg=models.mvitv2.MultiScaleVitCfg(
                depths=(1, 1, 1, 1), embed_dim=(16, 32, 32, 32), num_heads=(1, 2, 2, 2), use_cls_token=use_cls
            ),
        )
        for size, layer, use_cls, grid in [
            ((64, 64), "norm", False, (2, 2)),
            ((96, 96), "stages.3.blocks.0.norm1", True, (6, 6)),
        ]
    ),
    named("pit_ti_224", (64, 64), "transformers.2.blocks.0.norm1", 1, (2, 2), img_size=64, **PIT),
    named("pit_ti_distilled_224", (64, 96), "transformers.2.blocks.0.norm1", 2, (2, 3), img_size=(64, 96), **PIT),
    *(
        made(models.gcvit.GlobalContextVit, size, "stages", "chw", grid, img_size=size, **GLOBAL)
        for size, grid in [((64, 64), (2, 2)), ((64, 128), (2, 4))]
    ),
    *(
        made(models.mlp_mixer.MlpMixer, size, "norm", 0, grid, img_size=size, num_blocks=2, embed_dim=24, **options)
        for size, grid, options in [
            ((32, 64), (2, 4), {}),
            ((64, 64), (4, 4), {}),
            ((48, 32), (3, 2), {**RES, "norm_layer": models.mlp_mixer.Affine}),
            ((32, 64), (2, 4), GATED),
        ]
    ),
    named("levit_128s", (64, 64), "stages.1", 0, (2, 2), **LEVIT),
    named("levit_conv_128s", (64, 64), "stages.1", "chw", (2, 2), **LEVIT),
    named("twins_pcpvt_small", (64, 128), "norm", 0, (2, 4), img_size=(64, 128), **PYRAMID),
    named("twins_svt_small", (64, 64), "norm", 0, (2, 2), img_size=64, wss=(2, 2, 2, 2), **PYRAMID),
    named("coat_lite_tiny", (64, 64), "serial_blocks4.0.norm1", 1, (2, 2), embed_dims=(8, 16, 16, 24), **COAT),
    named("hiera_tiny_224", (64, 64), "blocks.3", 0, (2, 2), img_size=64, **HIERA),
    named("hiera_tiny_224", (64, 128), "blocks.3", 0, (2, 4), img_size=(64, 128), **HIERA),
    named("visformer_tiny", (64, 64), "norm", "chw", (2, 2), img_size=64, embed_dim=24, depth=(1, 1, 1), num_heads=2),
    made(models.convmixer.ConvMixer, (28, 56), "blocks", "chw", (4, 8), dim=24, depth=2),
    named("mobilevit_xxs", (64, 64), "final_conv", "chw", (2, 2)),
    named("pvt_v2_b0", (64, 96), "stages", "chw", (2, 3), depths=(1, 1, 1, 1)),
    named("davit_tiny", (64, 64), "stages", "chw", (2, 2), **FOUR),
    made(models.focalnet.FocalNet, (64, 96), "norm", "chw", (2, 3), depths=(1, 1, 1, 1), embed_dim=8),
    named("tiny_vit_5m_224", (64, 64), "stages", "chw", (2, 2), window_sizes=(2, 2, 2, 2), **FOUR),
    named("swiftformer_xs", (64, 96), "norm", "chw", (2, 3), layers=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32)),
    named("repvit_m0_9", (64, 64), "stages", "chw", (2, 2), embed_dim=(8, 16, 24, 32), depth=(1, 1, 1, 1)),
    named("fastvit_t8", (64, 64), "final_conv", "chw", (2, 2), layers=(1, 1, 1, 1)),
    named("convnext_atto", (64, 96), "stages", "chw", (2, 3), **SMALL),
]
CASES = [*VIT, *OTHERS]
