"""The layer found for every torchvision classifier and for many timm families, and clear errors where there is none."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import LayerError

torchvision = pytest.importorskip("torchvision", reason="the extra 'vision' is not installed")
timm = pytest.importorskip("timm", reason="the extra 'vision' is not installed")


def by_name(names: dict[str, str]) -> dict[str, str]:
    return {name: layer for layer, listed in names.items() for name in listed.split()}


TORCHVISION = by_name(
    {
        "features.12": "alexnet mobilenet_v3_small squeezenet1_0 squeezenet1_1",
        "features.7": "convnext_base convnext_large convnext_small convnext_tiny efficientnet_v2_s",
        "features.norm5": "densenet121 densenet161 densenet169 densenet201",
        "features.8": "efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5"
        " efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m",
        "inception5b": "googlenet",
        "Mixed_7c": "inception_v3",
        "blocks.3": "maxvit_t",
        "layers.16": "mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3",
        "features.18": "mobilenet_v2",
        "features.16": "mobilenet_v3_large",
        "trunk_output": "regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf"
        " regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf"
        " regnet_y_400mf regnet_y_800mf regnet_y_8gf",
        "layer4": "resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d"
        " wide_resnet101_2 wide_resnet50_2",
        "conv5": "shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0",
        "permute": "swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t",
        "features.20": "vgg11",
        "features.28": "vgg11_bn",
        "features.24": "vgg13",
        "features.34": "vgg13_bn",
        "features.30": "vgg16",
        "features.43": "vgg16_bn",
        "features.36": "vgg19",
        "features.52": "vgg19_bn",
    }
)
TORCHVISION_TOKENS = ["vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32"]

TIMM = by_name(
    {
        "layer4": "resnet18 resnet50d resnext50_32x4d seresnet50 resnest14d res2net50_26w_4s skresnet18"
        " legacy_senet154",
        "bn2": "efficientnet_b0 efficientnetv2_rw_t mobilenetv2_100 fbnetc_100 mnasnet_100 tinynet_a",
        "blocks": "mobilenetv3_small_100 mobilenetv4_conv_small xception41 ghostnet_100 ghostnetv2_100"
        " hardcorenas_a lcnet_050 repghostnet_050",
        "stages": "convnext_atto convnextv2_atto repvgg_a0 cspdarknet53 cspresnet50 darknet53 ese_vovnet19b_dw"
        " edgenext_xx_small mobileone_s0 hgnet_tiny hgnetv2_b0 inception_next_atto fasternet_t0"
        " poolformer_s12 bat_resnext26ts eca_botnext26ts_256 resnet50_clip repvit_m0_9 davit_tiny"
        " mambaout_femto",
        "features.norm5": "densenet121",
        "s4": "regnety_002",
        "features.20": "vgg11",
        "features.conv5_bn_ac": "dpn48b",
        "Mixed_7c": "inception_v3",
        "features.21": "inception_v4",
        "conv2d_7b": "inception_resnet_v2",
        "act": "nasnetalarge pnasnet5large",
        "final_layer": "hrnet_w18_small",
        "level5": "dla34",
        "head": "selecsls42",
        "body.layer4": "tresnet_m",
        "final_act": "nfnet_l0 nf_regnet_b0",
        "features": "rexnet_100",
        "norm": "starnet_s1 resnetv2_50 coatnet_nano_rw_224 maxvit_nano_rw_256 focalnet_tiny_srf"
        " swin_tiny_patch4_window7_224",
        "final_conv": "gernet_s mobilevit_xxs fastvit_t8",
        "head.in_conv": "efficientvit_b0",
    }
)
# These models are without numbers, which it takes to see on which tokens the scores depend.
TIMM_TOKENS = {
    "vit_tiny_patch16_224": "layer='blocks.11.norm1' with reshape='tokens'",
    "deit_tiny_patch16_224": "layer='blocks.11.norm1' with reshape='tokens'",
    "mixer_s32_224": "reshape='tokens'",
}


def torchvision_model(name: str) -> nn.Module:
    """Without numbers: the layer follows from the structure alone."""
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        for counting in ("arange", "tensor"):  # RegNets compute their widths with them
            patch.setattr(torch, counting, partial(getattr(torch, counting), device="cpu"))
        return torchvision.models.get_model(name, weights=None, **options).eval().to("meta")


def timm_model(name: str) -> nn.Module:
    if name not in timm.list_models(name):
        pytest.skip(f"this timm has no {name}")
    with torch.device("meta"):
        return timm.create_model(name, pretrained=False).to("meta").eval()


def test_the_table_covers_all_of_torchvision():
    known = set(torchvision.models.list_models(module=torchvision.models))
    assert known <= set(TORCHVISION) | set(TORCHVISION_TOKENS)


@pytest.mark.parametrize("name", sorted(TORCHVISION))
def test_torchvision(name):
    size = 299 if name == "inception_v3" else 224
    assert egcam.find_layer(torchvision_model(name), torch.empty(1, 3, size, size, device="meta")) == TORCHVISION[name]


@pytest.mark.parametrize("name", TORCHVISION_TOKENS)
def test_torchvision_transformers_without_numbers_are_refused_with_a_proposal(name):
    with pytest.raises(LayerError, match=r"ln_1' with reshape='tokens'"):
        egcam.find_layer(torchvision_model(name), torch.empty(1, 3, 224, 224, device="meta"))


@pytest.mark.parametrize("name", sorted(TIMM))
def test_timm(name):
    model = timm_model(name)
    if name.startswith("efficientvit_b"):
        try:
            torch.autocast("meta", enabled=False)
        except RuntimeError:
            pytest.skip("this torch has no autocast without pixels, which the model switches off")
    assert egcam.find_layer(model, torch.empty(1, *model.default_cfg["input_size"], device="meta")) == TIMM[name]


@pytest.mark.parametrize("name", sorted(TIMM_TOKENS))
def test_timm_transformers_without_numbers_are_refused_with_a_proposal(name):
    model = timm_model(name)
    with pytest.raises(LayerError) as caught:
        egcam.find_layer(model, torch.empty(1, *model.default_cfg["input_size"], device="meta"))
    assert TIMM_TOKENS[name] in str(caught.value)


def test_a_transformer_is_explained_at_what_its_last_attention_takes():
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5).eval()
    nn.init.normal_(model.heads.head.weight)
    images = torch.rand(2, 3, 32, 32)
    found = egcam.GradCAM(model, signed=True)(images, target=1)
    assert found.layer == "encoder.layers.encoder_layer_1.ln_1"

    tokens, gradients = _tokens_and_gradients(model, images)
    weights = gradients[:, 1:].mean(1)
    expected = (tokens[:, 1:] * weights[:, None]).sum(2).reshape(2, 4, 4)
    assert torch.allclose(found.maps, expected, atol=1e-6)


def _tokens_and_gradients(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    kept = []

    def keep(module: nn.Module, args: object, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    handle = model.encoder.layers.encoder_layer_1.ln_1.register_forward_hook(keep)
    model(images)[:, 1].sum().backward()
    handle.remove()
    return kept[0].detach(), kept[0].grad


class Multilayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


def test_a_network_without_any_map_is_refused():
    with pytest.raises(LayerError, match="none of its modules outputs feature maps"):
        egcam.find_layer(Multilayer(), torch.rand(1, 3, 4, 4))


class DataDependent(nn.Module):
    """Cannot run on meta tensors: it looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.last = nn.Conv2d(4, 6, 3)
        self.fc = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.conv(images)
        if float(hidden.sum()) > 1e9:
            hidden = hidden * 2
        return self.fc(self.last(hidden).relu().mean((2, 3)))


def test_a_network_that_looks_at_values_is_run_for_real():
    assert egcam.find_layer(DataDependent(), torch.rand(1, 3, 12, 12)) == "last"


def test_an_inplace_relu_is_told_from_the_convolution_whose_output_it_changes():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    assert egcam.find_layer(net, torch.rand(1, 3, 8, 8)) == "1"


def test_as_many_channels_as_classes_is_still_a_feature_layer_when_weights_follow():
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 5))
    assert egcam.find_layer(net, torch.rand(1, 3, 8, 8)) == "1"


class SharedReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(4, 4, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.relu(self.second(self.relu(self.first(images)))).mean((2, 3)))


def test_a_module_that_runs_twice_is_named_with_its_call():
    assert egcam.find_layer(SharedReLU(), torch.rand(1, 3, 8, 8)) == "relu:2"


def test_finding_leaves_the_model_alone():
    net = SharedReLU().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    egcam.find_layer(net, torch.rand(1, 3, 8, 8))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
