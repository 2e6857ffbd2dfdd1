"""Attention rollout and attention relevance against their formulas, on tiny transformers of every library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import ModelError
from support.small_models import Kept, seeded, small_net

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = ("attention-rollout", "attention-relevance")
timm = pytest.importorskip("timm", reason="the extra 'vision' is not installed")
torchvision = pytest.importorskip("torchvision", reason="the extra 'vision' is not installed")


class ByHand(nn.Module):
    """A transformer of two blocks and two heads, written out; `matrices` are its attention, with gradients."""

    def __init__(self, pooling: str, width: int = 8) -> None:
        super().__init__()
        self.pooling = pooling
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 4)
        self.matrices: list[Tensor] = []

    def attend(self, tokens: Tensor, qkv: nn.Module) -> Tensor:
        parts = qkv(tokens).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        matrix = (3 * parts[0] @ parts[1].transpose(2, 3)).softmax(-1)
        if matrix.requires_grad:
            matrix.retain_grad()
        self.matrices.append(matrix)
        return (matrix @ parts[2]).transpose(1, 2).flatten(2)

    def forward(self, images: Tensor) -> Tensor:
        self.matrices.clear()
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(images), -1, -1), tokens], 1)
        for norm, qkv, mlp in zip(self.norms, self.qkv, self.mlps, strict=False):
            tokens = tokens + self.attend(norm(tokens), qkv)
            tokens = tokens + mlp(tokens)
        tokens = self.norms[2](tokens)
        return self.head(tokens[:, 0] if self.pooling == "class token" else tokens[:, 1:].tanh().mean(1))


def expected(matrices: list[Tensor], gradients: list[Tensor], method: str, read: slice) -> Tensor:
    """(n, patches) for one token before the patches."""
    found = []
    for image in range(len(matrices[0])):
        rolled = torch.eye(matrices[0].shape[-1])
        for matrix, gradient in zip(matrices, gradients, strict=True):
            if method == "attention-rollout":
                rolled = (0.5 * matrix[image].mean(0) + 0.5 * torch.eye(len(rolled))) @ rolled
            else:
                raising = (gradient[image] * matrix[image]).clamp(min=0).mean(0)
                rolled = rolled + raising @ rolled
        found.append(rolled[read].mean(0)[1:])
    return torch.stack(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pooling", ["class token", "mean"])
@pytest.mark.parametrize(("size", "grid"), [((8, 16), (2, 4)), ((12, 12), (3, 3))])
def test_the_formula(method, pooling, size, grid):
    model = seeded(lambda: ByHand(pooling)).eval()
    images = torch.rand(2, 3, *size)
    found = egcam.explain(model, images, method, target=1)
    model(images)[:, 1].sum().backward()
    read = slice(0, 1) if pooling == "class token" else slice(1, None)
    wanted = expected([m.detach() for m in model.matrices], [m.grad for m in model.matrices], method, read)
    assert wanted.std() > 1e-3
    torch.testing.assert_close(found.maps, wanted.unflatten(1, grid), rtol=1e-4, atol=1e-6)
    assert found.layer == "attention"


def test_rollout_rows_are_shares_of_all_tokens():
    """What is not at the patches is at the class token, so a map's total is below 1."""
    found = egcam.explain(seeded(lambda: ByHand("mean")).eval(), torch.rand(1, 3, 8, 8), "attention-rollout")
    assert 0.5 < float(found.maps.sum()) < 1


def unfused(build: Callable[[], nn.Module]) -> tuple[nn.Module, list[Tensor]]:
    """A timm network with explicit attention, whose matrices are noted as they pass the dropout behind the softmax."""
    model = seeded(build).eval()
    matrices: list[Tensor] = []

    def note(module: nn.Module, args: object, output: Tensor) -> None:
        output.retain_grad()
        matrices.append(output)

    for module in model.modules():
        if hasattr(module, "fused_attn") and hasattr(module, "attn_drop"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(note)
    return model, matrices


def vit(name: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = timm.create_model(name, img_size=(32, 48), depth=2, embed_dim=24, num_heads=2, num_classes=5, **options)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.3)
        return model

    return build


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "options", "read"),
    [
        ("vit_tiny_patch16_224", {}, slice(0, 1)),
        ("vit_tiny_patch16_224", {"global_pool": "avg"}, slice(1, None)),
        ("beit_base_patch16_224", {}, slice(1, None)),
        ("vit_small_patch16_224", {}, slice(0, 1)),
    ],
)
def test_fused_attention_of_timm_is_seen_and_stays_fused(method, name, options, read):
    images = torch.rand(2, 3, 32, 48)
    fused = seeded(vit(name, **options)).eval()
    kept = Kept(fused, images)
    found = egcam.explain(fused, images, method, target=2)
    kept.check()
    assert any(getattr(module, "fused_attn", False) for module in fused.modules())

    model, matrices = unfused(vit(name, **options))
    model(images)[:, 2].sum().backward()
    wanted = expected([m.detach() for m in matrices], [m.grad for m in matrices], method, read)
    assert wanted.std() > 1e-4
    torch.testing.assert_close(found.maps, wanted.unflatten(1, (2, 3)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_torchvision(method):
    model = seeded(lambda: torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)).eval()
    nn.init.normal_(model.heads.head.weight)
    images = torch.rand(2, 3, 32, 32)
    found = egcam.explain(model, images, method, target=1)

    matrices, gradients = [], []
    tokens = model.encoder.dropout(
        torch.cat([model.class_token.expand(2, -1, -1), model._process_input(images)], 1) + model.encoder.pos_embedding
    )
    for block in model.encoder.layers:
        normed, own = block.ln_1(tokens), block.self_attention
        q, k, v = functional_qkv(normed, own)
        matrix = (q @ k.transpose(2, 3) / 8**0.5).softmax(-1)
        matrix.retain_grad()
        matrices.append(matrix)
        tokens = tokens + own.out_proj((matrix @ v).transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.ln_2(tokens))
    scores = model.heads(model.encoder.ln(tokens)[:, 0])
    torch.testing.assert_close(scores, model(images), rtol=1e-4, atol=1e-5)
    scores[:, 1].sum().backward()
    gradients = [matrix.grad for matrix in matrices]
    wanted = expected([m.detach() for m in matrices], gradients, method, slice(0, 1)).unflatten(1, (4, 4))
    torch.testing.assert_close(found.maps, wanted, rtol=1e-3, atol=1e-6)


def functional_qkv(tokens: Tensor, attention: nn.MultiheadAttention) -> Tensor:
    both = nn.functional.linear(tokens, attention.in_proj_weight, attention.in_proj_bias)
    return both.unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("method", METHODS)
def test_hugging_face(method, implementation):
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=5, initializer_range=0.3, **small)

    def build(kind: str) -> nn.Module:
        config._attn_implementation = kind
        return seeded(lambda: transformers.ViTForImageClassification(config)).eval()

    images = torch.rand(2, 3, 32, 32)
    model = build(implementation)
    found = egcam.explain(model, images, method, target=1)
    assert model.config._attn_implementation == implementation
    again = build("eager")
    seen = again(images, output_attentions=True)
    for matrix in seen.attentions:
        matrix.retain_grad()
    seen.logits[:, 1].sum().backward()
    wanted = expected([m.detach() for m in seen.attentions], [m.grad for m in seen.attentions], method, slice(0, 1))
    assert wanted.std() > 1e-5
    torch.testing.assert_close(found.maps, wanted.unflatten(1, (4, 4)), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_attention_that_pools_the_tokens_is_the_last_step(method):
    model = seeded(vit("vit_base_patch16_siglip_224", global_pool="map", class_token=False)).eval()
    images = torch.rand(2, 3, 32, 48)
    found = egcam.explain(model, images, method, target=2)
    model, matrices = unfused(vit("vit_base_patch16_siglip_224", global_pool="map", class_token=False))
    pool, parts = model.attn_pool, []
    pool.fused_attn = True
    for layer in (pool.q, pool.kv):
        layer.register_forward_hook(lambda module, args, output: parts.append(output))
    scores = model(images)
    query = parts[0].reshape(2, 1, pool.num_heads, -1).transpose(1, 2)
    key, value = parts[1].reshape(2, 6, 2, pool.num_heads, -1).permute(2, 0, 3, 1, 4)
    matrix = (query @ key.transpose(2, 3) * pool.scale).softmax(-1)
    matrix.retain_grad()
    out = pool.proj((matrix @ value).transpose(1, 2).reshape(2, 1, -1))
    again = model.head(model.fc_norm((out + pool.mlp(pool.norm(out)))[:, 0]))
    torch.testing.assert_close(again, scores)
    again[:, 2].sum().backward()
    for image in range(2):
        rolled = torch.eye(6)
        for own in matrices:
            if method == "attention-rollout":
                rolled = (own[image].detach().mean(0) @ rolled + rolled) / 2
            else:
                rolled = rolled + (own.grad[image] * own[image].detach()).relu().mean(0) @ rolled
        last = matrix[image].detach()
        last = last.mean(0) if method == "attention-rollout" else (matrix.grad[image] * last).relu().mean(0)
        torch.testing.assert_close(found.maps[image].flatten(), (last @ rolled)[0], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_without_attention_is_refused(method):
    with pytest.raises(ModelError, match="has no attention to show"):
        egcam.explain(small_net(), torch.rand(1, 3, 12, 12), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (
            "swin_tiny_patch4_window7_224",
            {"img_size": 64, "embed_dim": 24, "num_heads": (1, 2, 3, 4), "window_size": 2, "depths": (1, 1, 1, 1)},
        ),
        ("cait_xxs24_224", {"img_size": 64, "embed_dim": 24, "num_heads": 2, "depth": 1}),
        ("xcit_tiny_12_p16_224", {"img_size": 64, "embed_dim": 24, "num_heads": 2, "depth": 1}),
        ("convit_tiny", {"img_size": 64, "embed_dim": 24, "num_heads": 2, "depth": 2, "local_up_to_layer": 1}),
        ("vit_dlittle_patch16_reg1_gap_256", {"img_size": 64, "embed_dim": 24, "num_heads": 2, "depth": 1}),
    ],
)
def test_attention_of_other_kinds_is_refused(method, name, options):
    model = seeded(lambda: timm.create_model(name, num_classes=5, **options)).eval()
    with pytest.raises(ModelError, match=r"between all tokens|not between patches|mixes or subtracts"):
        egcam.explain(model, torch.rand(1, 3, 64, 64), method)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_changes_and_batches_do_not_matter(method):
    model = seeded(vit("vit_tiny_patch16_224")).train()
    images = torch.rand(3, 3, 32, 48)
    kept = Kept(model, images)
    whole = egcam.explain(model, images, method, target=[1, 2, 3])
    kept.check()
    one_by_one = egcam.explain(model, images, method, target=[1, 2, 3], batch_size=1)
    torch.testing.assert_close(one_by_one.maps, whole.maps, rtol=1e-4, atol=1e-7)


def test_attention_that_is_computed_anew_on_the_way_back_is_refused():
    model = seeded(vit("vit_tiny_patch16_224")).eval()
    model.set_grad_checkpointing()
    images = torch.rand(1, 3, 32, 48)
    plain = egcam.explain(seeded(vit("vit_tiny_patch16_224")).eval(), images, "attention-rollout").maps
    torch.testing.assert_close(egcam.explain(model, images, "attention-rollout").maps, plain)
    with pytest.raises(ModelError, match="switch gradient checkpointing off"):
        egcam.explain(model, images, "attention-relevance")


def test_half_precision():
    """The matrices of a bfloat16 network are those of the float32 one but for rounding."""
    images = torch.rand(1, 3, 32, 48)
    wanted = egcam.explain(seeded(vit("vit_tiny_patch16_224")).eval(), images, "attention-rollout").maps
    model = seeded(vit("vit_tiny_patch16_224")).eval().bfloat16()
    found = egcam.explain(model, images.bfloat16(), "attention-rollout").maps
    torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.02)
