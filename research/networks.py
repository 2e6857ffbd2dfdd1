"""Networks that torchvision does not have, for measurements.

`alexnet`, `vgg16`: their real features with a head of three layers, so that the head is not linear. It tells seven
kinds of things apart, and calls all else "other"; `alexnet_groups`, `vgg16_groups`: 16 groups of classes, none of them
a rest (`research/class_groups.py`); `alexnet_classes`, `vgg16_classes`: ImageNet's 1,000 classes, taught by
EfficientNet-Lite0.
`mobilenet_v2`, `squeezenet1_1`, `efficientnet_lite0`: the published networks, the same functions made quick for long
runs on a CPU: batch norms folded into the convolutions before them, channels last in memory.
`resnet20`, `resnet56`, `vit`, `mean_vit`: for CIFAR-10; the last two are trained by `research/vit.py` and kept in
research/weights.

The heads are trained by `research/heads.py`, which writes them into the folder EGCAM_HEADS. In a study file:

    [[models]]
    name = "../networks.py:alexnet"
    layer = "features.12"
"""

from __future__ import annotations

import csv
import os
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torchvision import models

from egcam.models import zoo
from egcam.models.class_scores import imagenet_classes
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

CLASSES = ["fish", "bird", "reptile", "arthropod", "dog", "carnivore", "mammal", "other"]
# ImageNet's classes by what they are: (first, last, class). What is not here is "other".
RANGES = [
    (0, 6, "fish"),
    (389, 397, "fish"),
    (7, 24, "bird"),
    (80, 100, "bird"),
    (127, 146, "bird"),
    (25, 68, "reptile"),
    (69, 79, "arthropod"),
    (118, 126, "arthropod"),
    (300, 326, "arthropod"),
    (151, 268, "dog"),
    (269, 299, "carnivore"),
    (356, 362, "carnivore"),
    (387, 388, "carnivore"),
    (101, 106, "mammal"),
    (147, 150, "mammal"),
    (330, 355, "mammal"),
    (363, 386, "mammal"),
]
CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WEIGHTS = Path(__file__).parent / "weights"
_HIDDEN = 512


def coarse_class(label: int) -> int:
    """One of eight classes for an ImageNet class."""
    found = [name for first, last, name in RANGES if first <= label <= last]
    return CLASSES.index(found[0] if found else "other")


def class_groups() -> list[int]:
    """The group of each ImageNet class."""
    with open(Path(__file__).parent / "class_groups.csv", newline="") as file:
        return [int(row["group"]) for row in csv.DictReader(file)]


def body(name: str, classes: int) -> nn.Module:
    """The network with its real features and a head that is yet to be trained."""
    model = models.get_model(name, weights=None, init_weights=False) if name == "vgg16" else models.get_model(name)
    state = torch.load(_weights(f"{name}_features_fp16.pth"), weights_only=True)
    model.load_state_dict({key: value.float() for key, value in state.items()}, strict=False)
    torch.manual_seed(0)
    inputs = next(layer for layer in model.classifier if isinstance(layer, nn.Linear)).in_features
    model.classifier = nn.Sequential(
        nn.Dropout(0.5),
        nn.Linear(inputs, _HIDDEN),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(_HIDDEN, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, classes),
    )
    return model.eval()


def _trained(features: str, kind: str = "") -> Classifier:
    heads = os.environ.get("EGCAM_HEADS")
    if heads is None:
        raise RuntimeError("EGCAM_HEADS must name the folder research/heads.py wrote the heads into")
    name = f"{features}{kind}"
    groups = [f"group {number}" for number in range(max(class_groups()) + 1)]
    classes = {"": CLASSES, "_groups": groups, "_classes": imagenet_classes()}[kind]
    model = body(features, len(classes))
    model.classifier.load_state_dict(torch.load(Path(heads) / f"{name}.pth", weights_only=True))
    return Classifier(model, name, classes, Preprocessing())


def alexnet() -> Classifier:
    """AlexNet's features with the trained head."""
    return _trained("alexnet")


def alexnet_groups() -> Classifier:
    """AlexNet's features with the head of 16 groups."""
    return _trained("alexnet", "_groups")


def alexnet_classes() -> Classifier:
    """AlexNet's features with the head of 1,000 classes."""
    return _trained("alexnet", "_classes")


class _InBfloat16(nn.Module):
    """Feature maps computed in bfloat16 and given in float32, so that heads and gradients are as precise as ever."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.to(torch.bfloat16, memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.to(torch.bfloat16)).float()


def vgg16() -> Classifier:
    """VGG-16's features with the trained head; the features in bfloat16, which takes half the time."""
    classifier = _trained("vgg16")
    in_bfloat16(classifier.model)
    return classifier


def vgg16_to_train() -> Classifier:
    """The same network with its last block, of three convolutions, in float32: `research/planted.py` trains that."""
    classifier = _trained("vgg16")
    features = classifier.model.features
    last_block = 24
    classifier.model.features = nn.Sequential(_InBfloat16(features[:last_block]), *features[last_block:])
    return classifier


def vgg16_groups() -> Classifier:
    """VGG-16's features, in bfloat16 too, with the head of 16 groups."""
    classifier = _trained("vgg16", "_groups")
    in_bfloat16(classifier.model)
    return classifier


def vgg16_classes() -> Classifier:
    """VGG-16's features, in bfloat16 too, with the head of 1,000 classes."""
    classifier = _trained("vgg16", "_classes")
    in_bfloat16(classifier.model)
    return classifier


def in_bfloat16(model: nn.Module) -> None:
    """Compute its feature maps in bfloat16."""
    model.features = _InBfloat16(model.features)


_FOLDED = {  # a convolution and the batch norm after it, where they are attributes of a block
    "_conv_stem": "_bn0",
    "_expand_conv": "_bn0",
    "_depthwise_conv": "_bn1",
    "_project_conv": "_bn2",
    "_conv_head": "_bn1",
}


def _quick(classifier: Classifier) -> Classifier:
    for module in list(classifier.model.modules()):
        children = dict(module.named_children())
        pairs = [(name, _FOLDED[name]) for name in children if name in _FOLDED]
        if isinstance(module, nn.Sequential):
            names = list(children)
            pairs += [
                (first, second)
                for first, second in pairwise(names)
                if isinstance(children[first], nn.Conv2d) and isinstance(children[second], nn.BatchNorm2d)
            ]
        for convolution, norm in pairs:
            setattr(module, convolution, fuse_conv_bn_eval(children[convolution], children[norm]))
            setattr(module, norm, nn.Identity())
    classifier.model.to(memory_format=torch.channels_last)
    return classifier


def mobilenet_v2() -> Classifier:
    """MobileNetV2."""
    return _quick(zoo.load("mobilenet_v2", weights=_weights("mobilenet_v2-b0353104.pth")))


def squeezenet1_1() -> Classifier:
    """SqueezeNet 1.1."""
    return _quick(
        zoo.load("squeezenet1_1", _weights("squeezenet1_1-deepscale-d97e37ae.pth"), classes=imagenet_classes())
    )


def efficientnet_lite0() -> Classifier:
    """EfficientNet-Lite0."""
    return _quick(zoo.load("efficientnet-lite0"))


def _weights(name: str) -> Path:
    data = os.environ.get("EGCAM_DATA")
    if data is None:
        raise RuntimeError("EGCAM_DATA must name the folder with the weights")
    return Path(data) / "weights" / name


class _Block(nn.Module):
    """Two convolutions; the shortcut takes every second pixel and fills new channels with zeros (option A)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, images: Tensor) -> Tensor:
        found = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(images)))))
        new = found.shape[1] - images.shape[1]
        shortcut = images if new == 0 else functional.pad(images[:, :, ::2, ::2], (0, 0, 0, 0, new // 2, new // 2))
        return functional.relu(found + shortcut)


class CifarResNet(nn.Module):
    """Three stages of `blocks` blocks with 16, 32 and 64 channels, pooling and one linear layer."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[_Block(16, 16) for _ in range(blocks)])
        self.layer2 = nn.Sequential(_Block(16, 32), *[_Block(32, 32) for _ in range(blocks - 1)])
        self.layer3 = nn.Sequential(_Block(32, 64), *[_Block(64, 64) for _ in range(blocks - 1)])
        self.linear = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 10) logits."""
        found = self.layer3(self.layer2(self.layer1(functional.relu(self.bn1(self.conv1(images))))))
        return self.linear(found.mean((2, 3)))


def resnet56() -> Classifier:
    """The CIFAR-10 network of 56 layers with its real weights."""
    return _cifar(9, "resnet56", "resnet56-4bfd9763.th")


def resnet20() -> Classifier:
    """The CIFAR-10 network of 20 layers with its real weights."""
    return _cifar(3, "resnet20", "resnet20-12fca82f.th")


def small_vit() -> nn.Module:
    """A vision transformer for images of 32 pixels: 8 x 8 patches and a class token, four blocks; not yet trained."""
    return models.VisionTransformer(
        image_size=32, patch_size=4, num_layers=4, num_heads=4, hidden_dim=96, mlp_dim=192, num_classes=10
    )


def small_mean_vit() -> nn.Module:
    """A deeper and narrower one without a class token: its head takes the mean of all patches; not yet trained."""
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depth": 6, "num_heads": 4, "mlp_ratio": 2}
    return VisionTransformer(**sizes, num_classes=10, class_token=False, global_pool="avg")


TRANSFORMERS = {"vit": small_vit, "mean_vit": small_mean_vit}


def vit() -> Classifier:
    """The small vision transformer."""
    return _transformer("vit")


def mean_vit() -> Classifier:
    """The one without a class token."""
    return _transformer("mean_vit")


def _transformer(name: str) -> Classifier:
    model = TRANSFORMERS[name]()
    model.load_state_dict(torch.load(WEIGHTS / f"{name}.pth", weights_only=True))
    return Classifier(model.eval(), name, CIFAR_CLASSES, Preprocessing(size=(32, 32), resize=32))


def _cifar(blocks: int, name: str, file: str) -> Classifier:
    state = torch.load(_weights(file), weights_only=True, map_location="cpu")["state_dict"]
    model = CifarResNet(blocks)
    model.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
    return Classifier(model.eval(), name, CIFAR_CLASSES, Preprocessing(size=(32, 32), resize=32))
