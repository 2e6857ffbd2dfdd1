"""Methods on the tokens of a transformer: Ablation-CAM, SlopeCAM, where a map lies, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.errors import LayerError, ZeroMapWarning
from support.small_models import seeded

timm = pytest.importorskip("timm", reason="the extra 'vision' is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")
LAYER = "blocks.1.norm1"


def transformer(**options: object) -> nn.Module:
    """Two blocks over 2 x 3 patches; the class token is read."""

    def build() -> nn.Module:
        small = {"img_size": (32, 48), "depth": 2, "embed_dim": 12, "num_heads": 2, "num_classes": 4, **options}
        model = timm.create_model("vit_tiny_patch16_224", **small)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.4)
        return model.double()

    return seeded(build).eval()


def pictures(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def with_tokens(model: nn.Module, images: Tensor, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The scores of class 1 when the layer's tokens are changed, and the changed tokens."""
    put: list[Tensor] = []

    def replace(module: nn.Module, args: object, output: Tensor) -> Tensor:
        put.append(change(output))
        return put[-1]

    handle = model.get_submodule(LAYER).register_forward_hook(replace)
    scores = model(images)[:, 1]
    handle.remove()
    return scores, put[0]


def test_ablation_cam():
    """w_k = (y - y_k) / |y|, y_k the score with channel k of all tokens set to zero."""
    model, images = transformer(), pictures()
    with torch.no_grad():
        score, tokens = with_tokens(model, images, lambda output: output)
        wanted = torch.zeros(2, 6, dtype=torch.float64)
        for channel in range(12):
            kept = torch.ones(12, dtype=torch.float64)
            kept[channel] = 0
            without, _ = with_tokens(model, images, lambda output, kept=kept: output * kept)
            wanted += ((score - without) / score.abs())[:, None] * tokens[:, 1:, channel]
    found = egcam.explain(model, images, "ablation-cam", target=1, signed=True)
    assert found.layer == LAYER
    torch.testing.assert_close(found.maps, wanted.reshape(2, 2, 3), rtol=1e-8, atol=1e-10)
    assert found.passes == 2, "the rest are tails"


REFERENCES = torch.randn(3, 3, 32, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_slope_cam_adds_up_over_all_tokens():
    """Their total, that of the class token included, is the rise of the score when the layer goes from A' to A."""
    model, images = transformer(), pictures(1)
    found = egcam.SlopeCAM(model, LAYER, reference=REFERENCES, signed=True)(images, target=1)
    with torch.no_grad():
        score = model(images)[:, 1]
        _, tokens = with_tokens(model, REFERENCES, lambda output: output)
        lower = torch.stack([with_tokens(model, images, lambda _, one=one: one[None])[0] for one in tokens])
        references = model(REFERENCES)[:, 1].mean()
    sides, exact = found.completeness, {"rtol": 1e-8, "atol": 1e-10}
    assert bool(sides.exact.all())
    torch.testing.assert_close(sides.total, score - lower.mean(0), **exact)
    torch.testing.assert_close(sides.expected, score - references, **exact)
    torch.testing.assert_close(sides.around, lower.mean(0) - references, **exact)
    assert float((found.maps.sum() - sides.total).abs()) > 1e-3, "the class token has a share that no cell shows"


def test_slope_cam_of_tokens_is_the_derivative_for_a_small_step():
    """As references come near the image, slope times step becomes gradient times step, token by token."""
    model, images = transformer(), pictures(1)
    near = images + 1e-6 * REFERENCES[:1]
    _, here = with_tokens(model, images, lambda output: output)
    _, there = with_tokens(model, near, lambda output: output)
    middle = ((here + there) / 2).detach().requires_grad_()
    scores, _ = with_tokens(model, images, lambda output: middle)
    (gradient,) = torch.autograd.grad(scores.sum(), middle)
    wanted = (gradient * (here - there)).sum(2)[:, 1:].detach().reshape(1, 2, 3)
    found = egcam.SlopeCAM(model, LAYER, reference=near, signed=True)(images, target=1)
    torch.testing.assert_close(found.maps, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


class Bright(nn.Module):
    """Tokens of 2 x 4 patches after a class token; the score is how bright the image is at one of them."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.embed = nn.Conv2d(3, 4, 8, 8, bias=False)
        nn.init.constant_(self.embed.weight, 1 / 192)
        self.first = nn.Parameter(torch.zeros(1, 1, 4))
        self.norm = nn.LayerNorm(4, elementwise_affine=False)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        nn.init.eye_(self.mix.weight)
        nn.init.zeros_(self.mix.bias)
        nn.init.constant_(self.head.weight, 0.25)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2)
        self.norm(tokens)
        tokens = self.mix(torch.cat([self.first.expand(len(images), -1, -1), tokens], 1))
        return self.head(tokens[:, 1 + self.place])


@pytest.mark.parametrize("place", range(8))
def test_a_bright_patch_is_where_it_is(place):
    """One bright patch of 2 x 4, read off its own token: HiRes-CAM is its brightness there and zero elsewhere."""
    model = Bright(place).eval()
    images = torch.zeros(1, 3, 16, 32)
    row, column = divmod(place, 4)
    images[..., 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 2.0
    found = egcam.explain(model, images, "hires-cam", target=0)
    wanted = torch.zeros(1, 2, 4)
    wanted[0, row, column] = 2.0
    torch.testing.assert_close(found.maps, wanted)
    brightest = divmod(int(found.heatmaps[0].argmax()), 32)
    assert (brightest[0] // 8, brightest[1] // 8) == (row, column)


def test_a_named_layer_of_tokens_needs_no_reshape():
    model, images = transformer(), pictures()
    said = egcam.explain(model, images, "grad-cam", target=1, layer="blocks.0", reshape="tokens", signed=True)
    assert torch.equal(egcam.explain(model, images, "grad-cam", 1, layer="blocks.0", signed=True).maps, said.maps)


@pytest.mark.parametrize("layer", ["blocks.1", "norm"])
def test_a_layer_whose_patches_are_not_read_gives_a_zero_map_that_says_why(layer):
    with pytest.warns(ZeroMapWarning, match="read from other tokens, such as the class token"):
        egcam.explain(transformer(), pictures(), "grad-cam", layer=layer)


class Mixer(nn.Module):
    """Mixes 2 x 2 tokens of 6 channels on (N, channels, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, 6, 4, 4), nn.LayerNorm(6)
        self.across, self.head = nn.Linear(4, 4), nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.embed(images).flatten(2).transpose(1, 2))
        tokens = tokens + self.across(tokens.transpose(1, 2)).tanh().transpose(1, 2)
        return self.head(tokens.mean(1))


def test_channels_before_tokens_are_not_taken_for_tokens():
    model = seeded(Mixer).eval()
    with pytest.raises(LayerError, match=r"\(1, 6, 4\).*is unclear: pass reshape='tokens' if it is"):
        egcam.explain(model, torch.rand(1, 3, 8, 8), "grad-cam", layer="across")
    assert egcam.find_layer(model, torch.rand(1, 3, 8, 8)) == "norm"


def test_tokens_in_another_order_are_refused():
    small = {"img_size": 64, "embed_dim": 16, "num_heads": 1, "stages": (1, 1, 1, 1), "num_classes": 4}
    model = seeded(lambda: timm.create_model("hiera_tiny_224", **small)).eval()
    images = torch.rand(1, 3, 64, 64)
    assert egcam.find_layer(model, images) == "blocks.3"
    for reshape in (None, "tokens"):
        with pytest.raises(LayerError, match="are on no grid over the image"):
            egcam.explain(model, images, "grad-cam", layer="blocks.1", reshape=reshape)
    assert [layer.name for layer in egcam.candidate_layers(model, images)][-1] == "blocks.3"


def test_layers_between_the_blocks_are_listed_with_the_last_that_counts():
    found = egcam.candidate_layers(transformer(depth=3), pictures())
    assert [layer.name for layer in found][-3:] == ["blocks.0", "blocks.1", "blocks.2.norm1"]
    assert {layer.size for layer in found[-3:]} == {(2, 3)}
    assert [layer.channels for layer in found[-3:]] == [12, 12, 12]


def test_a_transformer_without_numbers_is_refused_with_a_proposal():
    model = transformer().to("meta")
    with pytest.raises(LayerError, match=r"has no weights yet\. Pass layer='blocks\.1\.norm1' with reshape='tokens'"):
        egcam.find_layer(model, pictures().to("meta"))


def test_the_page_lists_layers_of_tokens():
    from egcam.models.classifier import Classifier
    from egcam.models.preprocessing import Preprocessing
    from egcam.web.shared_model import share

    classifier = Classifier(transformer().float(), "small", preprocessing=Preprocessing((32, 48), 48))
    shared = share(classifier)
    assert [(choice.name, choice.shape) for choice in shared.layers][-2:] == [
        ("blocks.0", (12, 2, 3)),
        (LAYER, (12, 2, 3)),
    ]
    assert share(classifier, "blocks.0.norm1").layers[-1].shape == (12, 2, 3)


BUILD = """
import timm, torch
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def make():
    torch.manual_seed(0)
    small = {"img_size": 32, "depth": 2, "embed_dim": 12, "num_heads": 2, "num_classes": 4}
    model = timm.create_model("vit_tiny_patch16_224", **small)
    return Classifier(model, "vit", preprocessing=Preprocessing((32, 32), 32))
"""


def test_a_study_explains_a_transformer(tmp_path):
    pytest.importorskip("pydantic", reason="the extra 'study' is not installed")
    from egcam.studies import read_study
    from egcam.studies.datasets import open_dataset
    from egcam.studies.networks import describe_networks

    (tmp_path / "vit.py").write_text(BUILD)
    text = 'name = "a"\nmethods = ["grad-cam", "attention-rollout"]\nmetrics = ["sparseness"]\n'
    study = read_study(
        text + '[data]\nkind = "folder"\npath = "."\n[[models]]\nname = "vit.py:make"\nlabel = "vit"', tmp_path
    )
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    described = describe_networks(study, open_dataset(study.data))["vit"]
    assert described.record.layer == LAYER


def test_as_many_tokens_as_channels_are_told_apart_by_timms_normalisation():
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 4}
    model = seeded(lambda: timm.create_model("vit_tiny_patch16_224", class_token=False, global_pool="avg", **small))
    model, images = model.eval().double(), torch.rand(2, 3, 32, 32).double()
    found = egcam.explain(model, images, "hires-cam", target=1, signed=True, layer="blocks.0")
    kept = []
    handle = model.blocks[0].register_forward_hook(lambda module, args, output: kept.append(output))
    model(images)[:, 1].sum().backward(inputs=kept)
    handle.remove()
    (tokens,) = kept
    assert tokens.shape == (2, 16, 16)
    assert torch.allclose(found.maps, (tokens * tokens.grad).sum(2).reshape(2, 4, 4))
    assert egcam.SlopeCAM(model, reference="black", samples=2)(images).layer == "blocks.0"
