"""Layers that output tokens, channels last, or other than one row for each image: the right numbers, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.errors import LayerError, ModelError
from support.small_models import AT_LAYER, explainer, seeded


def own_grad_cam(
    model: nn.Module,
    images: Tensor,
    module: nn.Module,
    maps: Callable[[Tensor], Tensor],
    target: int = 1,
    call: int = 1,
) -> Tensor:
    """Grad-CAM by autograd; `maps` makes (N, K, h, w) of what the module returned."""
    kept = []
    handle = module.register_forward_hook(lambda module, args, output: kept.append(output))
    score = model(images.clone().requires_grad_())
    handle.remove()
    (gradient,) = torch.autograd.grad(score[:, target].sum(), kept[call - 1])
    weights = maps(gradient).mean((2, 3), keepdim=True)
    return (weights * maps(kept[call - 1].detach())).sum(1)


def pictures(height: int, width: int, count: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(1))


def check(model: nn.Module, images: Tensor, name: str, maps: Callable[[Tensor], Tensor], **options: object) -> Tensor:
    """Explain at a layer by name, and compare with the formula."""
    module = dict(model.named_modules())[name]
    found = egcam.explain(model, images, "grad-cam", target=1, layer=name, signed=True, **options).maps
    expected = own_grad_cam(model, images, module, maps)
    assert found.shape == expected.shape
    assert expected.abs().max() > 1e-6
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    return found


def patches(grid: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """From (N, others + h * w, K) to (N, K, h, w), place by place."""

    def maps(tokens: Tensor) -> Tensor:
        height, width = grid
        others = tokens.shape[1] - height * width
        rows = [tokens[:, others + row * width : others + (row + 1) * width] for row in range(height)]
        return torch.stack(rows, 1).permute(0, 3, 1, 2)

    return maps


def from_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(3, 1)


def as_is(tensor: Tensor) -> Tensor:
    return tensor


class Patches(nn.Module):
    """The image cut into patches, as (N, patches, pixels)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        return functional.unfold(images, self.size, stride=self.size).transpose(1, 2)


class Transformer(nn.Module):
    """Patches, others before them, two layers that mix tokens, and the mean of all tokens."""

    def __init__(self, patch: int, others: int, embedding: str = "convolution", width: int = 8) -> None:
        super().__init__()
        self.patch, self.embedding = patch, embedding
        if embedding == "convolution":
            self.embed = nn.Conv2d(3, width, patch, patch)
        elif embedding == "linear":
            self.embed = nn.Linear(3 * patch * patch, width)
        else:
            self.kernel = nn.Parameter(torch.randn(width, 3, patch, patch) / patch)
        self.others = nn.Parameter(torch.randn(1, others, width))
        self.norm1 = nn.LayerNorm(width)
        self.mixer = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 4)

    def tokens(self, images: Tensor) -> Tensor:
        if self.embedding == "convolution":
            return self.embed(images).flatten(2).transpose(1, 2)
        if self.embedding == "linear":
            return self.embed(functional.unfold(images, self.patch, stride=self.patch).transpose(1, 2))
        return functional.conv2d(images, self.kernel, stride=self.patch).flatten(2).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.tokens(images)
        hidden = torch.cat([self.others.expand(len(images), -1, -1), hidden], 1)
        normed = self.norm1(hidden)
        hidden = hidden + self.mixer(normed, normed, normed)[0]
        hidden = hidden + self.mlp(self.norm2(hidden))
        return self.head(hidden.tanh().mean(1))


@pytest.mark.parametrize(
    ("size", "patch", "grid", "others", "embedding"),
    [
        ((64, 128), 16, (4, 8), 0, "convolution"),
        ((128, 64), 16, (8, 4), 1, "linear"),
        ((28, 28), 14, (2, 2), 5, "convolution"),
        ((28, 28), 14, (2, 2), 9, "linear"),
        ((48, 64), 16, (3, 4), 2, "linear"),
    ],
)
def test_the_grid_of_tokens_follows_the_image_whatever_comes_before_the_patches(size, patch, grid, others, embedding):
    model = seeded(lambda: Transformer(patch, others, embedding)).eval()
    check(model, pictures(*size), "norm2", patches(grid), reshape="tokens")


def test_patches_of_another_shape_than_the_image_are_seen_in_the_patch_embedding():
    model = seeded(lambda: Transformer(8, 1)).eval()
    model.embed = nn.Conv2d(3, 8, (16, 4), (16, 4))
    check(model, pictures(32, 32), "norm1", patches((2, 8)), reshape="tokens")


def test_where_nothing_shows_the_grid_and_several_fit_it_has_to_be_given():
    model = seeded(lambda: Transformer(14, 5, "hidden")).eval()
    images = pictures(28, 28)
    with pytest.raises(LayerError) as caught:
        egcam.explain(model, images, "grad-cam", layer="norm2", reshape="tokens")
    assert "9 tokens over an image of 28 x 28 may be 3 x 3 after 0 others or 2 x 2 after 5 others" in str(caught.value)
    assert "reshape=(height, width)" in str(caught.value)
    check(model, images, "norm2", patches((2, 2)), reshape=(2, 2))
    check(model, images, "norm2", patches((3, 3)), reshape=(3, 3))
    check(model, images, "norm2", patches((2, 2)), reshape=patches((2, 2)))


def test_where_nothing_shows_the_grid_and_one_fits_it_is_that():
    model = seeded(lambda: Transformer(16, 1, "hidden")).eval()
    check(model, pictures(64, 128), "norm2", patches((4, 8)), reshape="tokens")


def test_tokens_that_fill_no_grid_are_refused():
    model = seeded(lambda: Transformer(16, 30)).eval()
    with pytest.raises(LayerError, match=r"34 tokens fill no grid over an image of 32 x 32; pass the grid"):
        egcam.explain(model, pictures(32, 32), "grad-cam", layer="norm2", reshape="tokens")


@pytest.mark.parametrize("reshape", [(), (2, 0), (2.0, 3), 5, ("a", "b"), (1, 1, 2, 2)])
def test_a_grid_is_whole_numbers(reshape):
    with pytest.raises(ModelError, match="reshape"):
        egcam.GradCAM(Transformer(16, 1), "norm2", reshape=reshape)


@pytest.mark.parametrize("reshape", [(2,), (1, 2, 2)])
def test_a_grid_over_images_is_two_numbers(reshape):
    with pytest.raises(LayerError, match=r"no grid over an input of size \(32, 32\)"):
        egcam.explain(Transformer(16, 1).eval(), pictures(32, 32), "grad-cam", layer="norm2", reshape=reshape)


def test_a_grid_larger_than_the_tokens_is_refused():
    with pytest.raises(LayerError, match="5 tokens cannot fill a grid of 2 x 3"):
        egcam.explain(Transformer(16, 1).eval(), pictures(32, 32), "grad-cam", layer="norm2", reshape=(2, 3))


class Merging(nn.Module):
    """Tokens that are merged two by two, twice, as in Hugging Face's Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 6, 4, 4)
        self.start = nn.LayerNorm(6)
        self.merge1, self.merge2 = nn.Linear(24, 6), nn.Linear(24, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)

    @staticmethod
    def pairs(tokens: Tensor, height: int, width: int) -> Tensor:
        cells = tokens.reshape(len(tokens), height // 2, 2, width // 2, 2, 6)
        return cells.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.embed(images)
        height, width = maps.shape[2:]
        tokens = self.merge1(self.pairs(self.start(maps.flatten(2).transpose(1, 2)), height, width))
        tokens = self.merge2(self.pairs(tokens.tanh(), height // 2, width // 2))
        return self.head(self.norm(tokens).tanh().mean(1))


@pytest.mark.parametrize(("size", "grid"), [((64, 128), (4, 8)), ((48, 48), (3, 3)), ((32, 96), (2, 6))])
def test_merged_tokens_keep_the_proportions_of_the_image(size, grid):
    check(seeded(Merging).eval(), pictures(*size), "norm", patches(grid), reshape="tokens")


class LastChannels(nn.Module):
    """Works on (N, h, w, channels) after a patch embedding, as Swin of timm and torchvision."""

    def __init__(self, channels: int, patch: int = 8, norms: bool = True) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, channels, patch, patch)
        self.turn = Turn()
        self.block = Residual(channels, norms)
        self.head = nn.Linear(channels, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.block(self.turn(self.embed(images))).tanh().mean((1, 2)))


class Turn(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps.permute(0, 2, 3, 1)


class Residual(nn.Module):
    def __init__(self, channels: int, norms: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels) if norms else nn.Identity()
        self.linear = nn.Linear(channels, channels)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.linear(self.norm(maps)).tanh()


@pytest.mark.parametrize(
    ("channels", "size", "norms"),
    [
        *(
            (3, (32, 32), True),
            (5, (32, 64), False),
            (16, (64, 32), True),
            (32, (64, 64), False),
            (16, (40, 64), False),
        ),
        *((5, (64, 64), True), (32, (32, 32), False)),
    ],
)
def test_channels_last_is_told_and_turned_at_named_layers(channels, size, norms):
    model = seeded(lambda: LastChannels(channels, norms=norms)).eval()
    images = pictures(*size)
    check(model, images, "block", from_last)
    check(model, images, "block.linear", from_last)
    check(model, images, "embed", as_is)


@pytest.mark.parametrize(("channels", "size"), [(6, (32, 64)), (16, (64, 64)), (32, (40, 64))])
def test_a_network_that_ends_channels_last_is_explained_there(channels, size):
    model = seeded(lambda: LastChannels(channels)).eval()
    images = pictures(*size)
    found = egcam.explain(model, images, "grad-cam", target=1, signed=True)
    assert found.layer == "block"
    assert torch.equal(found.maps, check(model, images, "block", from_last, reshape="channels-last"))


def test_a_cube_that_both_kinds_of_modules_put_out_is_refused_but_for_those_modules():
    model = seeded(lambda: LastChannels(8)).eval()
    images = pictures(64, 64)
    with pytest.raises(LayerError, match=r"\(1, 8, 8, 8\).*pass reshape='channels-first' or 'channels-last'"):
        egcam.explain(model, images, "grad-cam", layer="block")
    check(model, images, "block.linear", from_last)
    check(model, images, "embed", as_is)


def test_ablation_cam_does_not_mix_the_axes_of_a_channels_last_layer():
    """w_k = (y - y_k) / |y| with channel k, the last axis, set to zero."""
    model, images = seeded(lambda: LastChannels(12)).eval(), pictures(64, 64)
    outputs = []
    handle = model.block.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    with torch.no_grad():
        score = model(images)[:, 1]
    handle.remove()
    (activations,) = outputs
    weights = []
    for channel in range(activations.shape[3]):
        ablated = activations.clone()
        ablated[..., channel] = 0
        handle = model.block.register_forward_hook(lambda module, inputs, output, put=ablated: put)
        with torch.no_grad():
            weights.append((score - model(images)[:, 1]) / score.abs())
        handle.remove()
    wanted = torch.einsum("kn,nhwk->nhw", torch.stack(weights), activations)
    found = egcam.explain(model, images, "ablation-cam", target=1, layer="block", signed=True)
    torch.testing.assert_close(found.maps, wanted, rtol=1e-3, atol=1e-4)


class Cube(nn.Module):
    """Feature maps with as many channels as rows and columns, and no module that says which are which."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 3, 4, 4) / 7)
        self.act = nn.Tanh()
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.act(functional.conv2d(images, self.kernel, stride=4)).square().mean((2, 3)))


def test_where_it_cannot_be_told_which_axis_holds_the_channels_it_has_to_be_said():
    model = seeded(Cube).eval()
    images = pictures(32, 32)
    for layer in ("act", None):
        with pytest.raises(LayerError, match="pass reshape='channels-first' or 'channels-last'"):
            egcam.explain(model, images, "grad-cam", layer=layer)
    check(model, images, "act", as_is, reshape="channels-first")
    with pytest.raises(LayerError, match="'channels-last', does not lie over the image: what lies about"):
        egcam.explain(model, images, "grad-cam", layer="act", reshape="channels-last")
    assert egcam.explain(model, images, "ablation-cam", layer="act", reshape="channels-first").maps.shape == (2, 8, 8)


def convolutional(channels: int, stride: tuple[int, int], colours: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(colours, channels, 3, stride, 1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 4),
    )


@pytest.mark.parametrize(
    ("size", "channels", "stride"),
    [
        ((64, 512), 16, (4, 4)),  # a spectrogram: 16 channels of 16 x 128
        ((64, 64), 16, (4, 4)),  # as many channels as rows and columns
        ((64, 64), 16, (4, 16)),  # 16 channels of 16 x 4
        ((32, 64), 4, (4, 4)),  # 4 channels of 8 x 16
    ],
)
def test_convolutions_are_read_channels_first_whatever_their_shape(size, channels, stride):
    model = seeded(lambda: convolutional(channels, stride)).eval()
    images = pictures(*size, channels=1)
    assert egcam.find_layer(model, images) == "1"
    found = egcam.explain(model, images, "grad-cam", target=1, signed=True).maps
    assert torch.equal(found, check(model, images, "1", as_is))


class Flipped(nn.Module):
    """Every image and its mirror image in one batch, as test-time augmentation has it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        both = torch.stack([images, images.flip(3)], 1).flatten(0, 1)
        return self.head(self.body(both).mean((2, 3))).unflatten(0, (-1, 2)).mean(1)


@pytest.mark.parametrize(("method", "count"), [*((method, 2) for method in AT_LAYER), ("grad-cam", 1), ("grad-cam", 3)])
def test_a_layer_that_does_not_have_one_row_for_each_image_is_refused(method, count):
    with pytest.raises(LayerError, match="first dimension does not count the images"):
        explainer(method, seeded(Flipped).eval(), layer="body")(pictures(16, 16, count), target=1)


def test_rows_for_each_image_can_be_made_by_a_callable():
    model = seeded(Flipped).eval()
    check(model, pictures(16, 16), "body", lambda t: t.unflatten(0, (-1, 2))[:, 0], reshape=lambda t: t[::2])


class LengthFirst(nn.Module):
    """Tokens as (length, N, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.embed(images).flatten(2).permute(2, 0, 1))
        return self.head(tokens.tanh().mean(0))


@pytest.mark.parametrize(("count", "reshape"), [(1, "tokens"), (2, (2, 2)), (4, "tokens"), (4, (2, 2))])
def test_tokens_before_images_are_refused_even_if_there_are_as_many(count, reshape):
    model = seeded(LengthFirst).eval()
    with pytest.raises(LayerError, match="first dimension does not count the images"):
        egcam.explain(model, pictures(16, 16, count), "grad-cam", layer="norm", reshape=reshape)
    images = pictures(16, 16, count)
    turned = patches((2, 2))
    check(model, images, "norm", lambda t: turned(t.transpose(0, 1)), reshape=lambda t: turned(t.transpose(0, 1)))


class Siamese(nn.Module):
    """Compares the image with another one; `order` is the order of the two calls."""

    def __init__(self, order: str, looks: bool = False, off: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh())
        self.order, self.looks, self.off = order, looks, off

    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        if self.looks and float(image.detach().sum()) > 1e9:
            image = image * 2
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.off):
            found = {name: self.body(image if name == "i" else other) for name in self.order}
        close = functional.cosine_similarity(*(found[name].square().mean((2, 3)) for name in "io"))
        return torch.stack([-close, close], 1)


@pytest.mark.parametrize(("order", "call", "looks"), [("io", 1, False), ("oi", 2, False), ("oi", 2, True)])
def test_the_layer_found_works_on_the_explained_image(order, call, looks):
    model = seeded(lambda: Siamese(order, looks)).eval()
    images, others = pictures(16, 16), pictures(16, 16).flip(0)
    found = egcam.explain(model, images, "grad-cam", target=1, inputs=(others,), signed=True)
    assert found.layer == f"body.1:{call}"
    pair = with_others(model, others)
    expected = own_grad_cam(pair, images, model.body[1], as_is, call=call)
    assert torch.allclose(found.maps, expected, atol=1e-8)


def with_others(model: nn.Module, others: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda images: model(images, others)


def test_where_it_cannot_be_told_which_call_saw_the_image_it_has_to_be_said():
    model = seeded(lambda: Siamese("io", off=True)).eval()
    with pytest.raises(LayerError, match="switches gradients off: name the layer"):
        egcam.explain(model, pictures(16, 16), "grad-cam", target=1, inputs=(pictures(16, 16).flip(0),))


@pytest.mark.parametrize(("name", "wrapped"), [("AttentionNet", False), ("GlobalLocalNet", True), ("AttnPooler", True)])
def test_the_name_of_a_whole_network_does_not_matter(name, wrapped):
    kind = type(name, (nn.Sequential,), {})
    model = kind(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 4))
    whole = nn.Sequential(model, nn.Identity()) if wrapped else model
    assert egcam.find_layer(whole, pictures(8, 8)) == ("0.1" if wrapped else "1")


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm", reason="the extra 'vision' is not installed")


def made(timm, name: str, **options: object) -> nn.Module:
    def build() -> nn.Module:
        model = timm.create_model(name, num_classes=5, **options)
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.out_features == 5:
                nn.init.normal_(module.weight)
        return model

    return seeded(build).eval()


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("vit_tiny_patch16_224", (64, 128), (4, 8)),
        ("vit_tiny_patch16_224", (32, 32), (2, 2)),
        ("deit_tiny_distilled_patch16_224", (96, 32), (6, 2)),
        ("vit_small_patch14_reg4_dinov2", (28, 28), (2, 2)),
        ("vit_small_patch14_reg4_dinov2", (28, 42), (2, 3)),
    ],
)
def test_vision_transformers_of_timm(timm, name, size, grid):
    model = made(timm, name, img_size=size, depth=2, embed_dim=48, num_heads=3)
    check(model, pictures(*size), "blocks.1.norm1", patches(grid), reshape="tokens")


@pytest.mark.parametrize("size", [(64, 128), (64, 64), (128, 64)])
def test_swin_of_timm(timm, size):
    small = {"depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 3, 4), "window_size": 2}
    model = made(timm, "swin_tiny_patch4_window7_224", img_size=size, **small)
    images = pictures(*size, count=1)
    check(model, images, "layers.3", from_last)
    check(model, images, "layers.2", from_last)
    check(model, images, "norm", from_last, reshape="channels-last")
    assert egcam.find_layer(model, images) == "norm"


@pytest.mark.parametrize("size", [(64, 128), (96, 96)])
def test_mambaout_of_timm(timm, size):
    model = made(timm, "mambaout_femto", depths=(1, 1, 1, 1), dims=(8, 12, 16, 24))
    images = pictures(*size)
    check(model, images, "stages.3", from_last)
    assert egcam.find_layer(model, images) == "stages"


@pytest.mark.parametrize("size", [(64, 128), (96, 96)])
def test_swin_of_torchvision(size):
    torchvision = pytest.importorskip("torchvision", reason="the extra 'vision' is not installed")
    model = seeded(lambda: torchvision.models.SwinTransformer([4, 4], 8, [1, 1, 1], [1, 2, 4], [3, 3], num_classes=5))
    images = pictures(*size)
    check(model.eval(), images, "features.5", from_last)
    check(model, images, "permute", as_is)
    assert egcam.find_layer(model, images) == "permute"


class Passing(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize("size", [(1, 4), (4, 1), (1, 2)])
def test_a_layer_as_narrow_as_the_image_is_read_as_the_image_is(size):
    model = seeded(lambda: nn.Sequential(Passing(), nn.Flatten(), nn.Tanh(), nn.Linear(size[0] * size[1], 2))).eval()
    check(model, pictures(*size, channels=1), "0", as_is)
