"""Models by name: the right network, the right preprocessing, the right class names, or a clear error."""

from __future__ import annotations

import pickle
import urllib.request
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.errors import MissingExtraError, ModelError
from egcam.models import zoo
from egcam.models.preprocessing import Preprocessing

OWN = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def plain():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

def named():
    return Classifier(plain(), "mine", ["cat", "dog"], Preprocessing((32, 48), None))

def broken():
    raise RuntimeError("no disk")

def wrong():
    return 7

answer = 42
"""


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """A smooth random photograph."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize("size", [(640, 480), (301, 451), (97, 130), (224, 224), (1000, 231)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_preprocessing_equals_torchvision(size: tuple[int, int], interpolation: str) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    mode = transforms.InterpolationMode(interpolation)
    reference = transforms.Compose(
        [
            transforms.Resize(232, mode),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    ours = Preprocessing(resize=232, interpolation=interpolation)(noise(size))  # type: ignore[arg-type]
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, reference(noise(size)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b3", "vit_b_16"])
def test_torchvision_models_see_what_their_weights_say(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    classifier = zoo.load(name, weights="random")
    expected = models.get_model_weights(name).DEFAULT.transforms()(noise((500, 400)))
    torch.testing.assert_close(classifier.preprocess(noise((500, 400))), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["convnext_atto", "tf_efficientnet_b0"])
def test_timm_models_see_what_timm_says(name: str) -> None:
    timm = pytest.importorskip("timm")
    classifier = zoo.load(f"timm/{name}", weights="random")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(classifier.model))
    torch.testing.assert_close(
        classifier.preprocess(noise((500, 400))), transform(noise((500, 400))), atol=1e-5, rtol=0
    )


def test_squeezed_preprocessing_shows_the_whole_image() -> None:
    left_red = Image.new("RGB", (400, 100), "blue")
    left_red.paste((255, 0, 0), (0, 0, 200, 100))
    seen = Preprocessing((50, 60), None, mean=(0, 0, 0), std=(1, 1, 1))(left_red)
    assert seen.shape == (3, 50, 60)
    assert seen[0, :, :29].min() > 0.99
    assert seen[2, :, 31:].min() > 0.99


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (3000, 2000), (60, 50)])
def test_view_is_the_part_the_network_sees_in_full_sharpness(size: tuple[int, int]) -> None:
    preprocessing = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    view = preprocessing.view(noise(size))
    assert view.width == view.height
    assert view.width >= min(224, 1024)
    small = np.asarray(view.resize((224, 224), Image.Resampling.BILINEAR), np.float32) / 255
    seen = preprocessing(noise(size)).permute(1, 2, 0).numpy()
    assert np.abs(small - seen).mean() < 0.01


def test_view_keeps_the_photographs_pixels() -> None:
    assert Preprocessing().view(noise((640, 480))).size == (420, 420)
    assert max(Preprocessing().view(noise((5000, 4000))).size) == 1024


@pytest.mark.real
def test_embedded_model_knows_the_cat_and_the_coffee() -> None:
    data = pytest.importorskip("skimage.data")
    classifier = zoo.load()
    assert not classifier.model.training
    images = [Image.fromarray(getattr(data, name)()) for name in ("chelsea", "coffee")]
    batch = torch.stack([classifier.preprocess(image) for image in images])
    with torch.no_grad():
        chances = classifier.model(batch).softmax(1)
    names = [classifier.class_name(int(index)) for index in chances.argmax(1)]
    assert names[0] in ("tiger cat", "Egyptian cat", "tabby")
    assert names[1] == "espresso"
    assert chances[1].max() > 0.9


def test_random_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    pytest.importorskip("torchvision")
    state = torch.get_rng_state()
    first, second = (zoo.load("resnet18", weights="random").model.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "module", "lightning"])
def test_weights_files_of_every_wrapping(tmp_path: Path, wrap: str) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(3)
    saved = models.resnet18(num_classes=7)
    state: object = saved.state_dict()
    if wrap == "state_dict":
        state = {"epoch": 3, "state_dict": state}
    elif wrap == "module":
        state = nn.DataParallel(saved).state_dict()
    elif wrap == "lightning":
        state = {"state_dict": {f"model.{key}": value for key, value in saved.state_dict().items()}}
    torch.save(state, tmp_path / "w.pth")
    classifier = zoo.load("resnet18", weights=tmp_path / "w.pth", classes=list("abcdefg"))
    batch = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(classifier.model(batch), saved.eval()(batch))
    assert classifier.classes == list("abcdefg")


def test_names_are_unknown_for_another_number_of_classes(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.save(models.resnet18(num_classes=7).state_dict(), tmp_path / "w.pth")
    classifier = zoo.load("resnet18", weights=str(tmp_path / "w.pth"))
    assert classifier.classes is None
    assert classifier.class_name(3) == "class 3"


def test_a_thousand_classes_of_a_file_are_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless torchvision publishes the file, whose address ends in its checksum."""
    models = pytest.importorskip("torchvision.models")
    file = tmp_path / "w.pth"
    torch.save(models.resnet18().state_dict(), file)
    faces = zoo.load("resnet18", weights=file)
    assert faces.classes is None
    with pytest.raises(egcam.EgcamError, match="class names are unknown"):
        egcam.explain(faces.model, torch.rand(1, 3, 64, 64), "grad-cam", target="tabby")
    checksum = sha256(file.read_bytes()).hexdigest()
    usual = models.get_model_weights("resnet18").DEFAULT

    class Published(Enum):
        V1 = replace(usual.value, url=f"https://example.org/resnet18-{checksum[:8]}.pth")

        url = property(lambda self: self.value.url)

    Published.DEFAULT = usual  # type: ignore[attr-defined]
    monkeypatch.setattr(models, "get_model_weights", lambda name: Published)
    known = zoo.load("resnet18", weights=file)
    found = egcam.explain(known.model, torch.rand(1, 3, 64, 64), "grad-cam", target="tabby", signed=True)
    assert (int(found.targets), found.label()) == (281, "tabby")


def test_untrained_and_published_networks_carry_imagenets_names() -> None:
    pytest.importorskip("torchvision")
    model = zoo.load("resnet18", weights="random").model
    found = egcam.explain(model, torch.rand(1, 3, 64, 64), "grad-cam", target="tench", signed=True)
    assert (int(found.targets), found.label()) == (0, "tench")


def test_weights_of_another_network_are_refused_with_some_keys(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.save(models.resnet18().state_dict(), tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"does not fit resnet50: .* missing \(layer1.*of another shape"):
        zoo.load("resnet50", weights=tmp_path / "w.pth")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("code from the file ran",))


def test_no_code_from_a_weights_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil()))
    torch.save({"a": Evil()}, tmp_path / "evil2.pth")
    (tmp_path / "text.pth").write_text("hello")
    torch.save({"epoch": 3}, tmp_path / "nothing.pth")
    for name in ("evil.pth", "evil2.pth", "text.pth", "nothing.pth", "missing.pth"):
        with pytest.raises(ModelError, match=name):
            zoo.load("efficientnet-lite0", weights=tmp_path / name)
    assert "ran" not in capsys.readouterr().out


def test_own_model_plain_and_with_preprocessing(own: Path) -> None:
    plain = zoo.load(f"{own}:plain")
    assert isinstance(plain.model, nn.Sequential)
    assert not plain.model.training
    assert plain.size == (224, 224)
    named = zoo.load(f"{own}:named")
    assert (named.name, named.classes, named.size) == ("mine", ["cat", "dog"], (32, 48))
    assert named.preprocess(noise((80, 80))).shape == (3, 32, 48)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (":broken", "raised RuntimeError: no disk"),
        (":wrong", "returned a int"),
        (":plane", "did you mean 'plain'"),
        (":answer", "has no function 'answer'"),
        ("", "names no function"),
        (":", r"names no function: write [^:]*\.py:function"),
    ],
)
def test_own_model_mistakes(own: Path, function: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        zoo.load(f"{own}{function}")


def test_own_model_file_mistakes(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import does_not_exist")
    with pytest.raises(ModelError, match="could not be imported: ModuleNotFoundError"):
        zoo.load(f"{tmp_path / 'bad.py'}:f")
    with pytest.raises(ModelError, match="there is no file"):
        zoo.load(f"{tmp_path / 'none.py'}:f")


def test_unknown_names_and_devices_are_answered_with_near_misses() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(ModelError, match=r"unknown model 'resnet5'; did you mean .*'resnet50'"):
        zoo.load("resnet5")
    with pytest.raises(ModelError, match=r"no device 'toaster' here; available: cpu"):
        zoo.load("efficientnet-lite0", weights="random", device="toaster")


def test_no_network_is_said_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")

    def no_network(*_: object, **__: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr(torch.hub, "urlopen", no_network)
    with pytest.raises(
        ModelError, match=r"resnet18 could not be downloaded .*unreachable.*--weights on the command line"
    ):
        zoo.load("resnet18")


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'egcam\[demo\]'"):
        zoo.load("efficientnet-lite0")
    with pytest.raises(MissingExtraError, match=r"pip install 'egcam\[vision\]'"):
        zoo.load("resnet50")


def test_listing_is_grouped() -> None:
    pytest.importorskip("timm")
    groups = zoo.models()
    assert groups["embedded"] == ["efficientnet-lite0"]
    assert "vgg16" in groups["torchvision"]
    assert len(groups["timm"]) > 500


def test_published_densenet_names_are_understood(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    saved = models.densenet121(num_classes=3)

    def old(key: str) -> str:
        for part in ("norm1", "norm2", "conv1", "conv2"):
            key = key.replace(f".{part}.", f".{part[:-1]}.{part[-1]}.") if "denselayer" in key else key
        return key

    state: dict[str, Tensor] = {old(key): value for key, value in saved.state_dict().items()}
    torch.save(state, tmp_path / "d.pth")
    loaded = zoo.load("densenet121", weights=tmp_path / "d.pth").model
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in saved.state_dict().items())
