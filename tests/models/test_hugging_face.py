"""Models of Hugging Face: explained as they are, and by name from a folder, with their processor and class names."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.errors import ModelError, TargetError
from egcam.models.preprocessing import FlippedPreprocessing
from support.plain_grad_cam import Layout, check, with_scores
from support.small_models import seeded
from support.two_towers import two_towers

hf: Any = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VIT = {**BLOCKS, "intermediate_size": 24, "patch_size": 16, "num_labels": 5, "initializer_range": 0.3}
TOWER = {**BLOCKS, "intermediate_size": 24, "image_size": 32, "patch_size": 8}
DINO = {**BLOCKS, "image_size": 28, "patch_size": 14, "num_labels": 5}
SWIN = {"embed_dim": 8, "depths": [1, 1, 1], "num_heads": [1, 2, 2], "window_size": 2}
SWIN = {**SWIN, "image_size": 64, "num_labels": 5}
STAGES = {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1], "num_labels": 5}
HEADS = {"num_attention_heads": [1, 2, 2, 2]}
MOBILE = {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]}
LARGER = {"interpolate_pos_encoding": True}

CASES = [
    ("ViT", {**VIT, "image_size": (32, 64)}, (32, 64), "vit.layers.1.layernorm_before", 1, (2, 4), {}),
    ("ViT", {**VIT, "image_size": 32}, (64, 32), "vit.layers.1.layernorm_before", 1, (4, 2), LARGER),
    ("DeiT", {**VIT, "image_size": (32, 48)}, (32, 48), "deit.layers.1.layernorm_before", 2, (2, 3), {}),
    ("Dinov2", DINO, (28, 42), "dinov2.layernorm", 1, (2, 3), {}),
    ("Dinov2WithRegisters", DINO, (42, 28), "dinov2_with_registers.layernorm", 5, (3, 2), {}),
    ("Beit", {**VIT, "image_size": (32, 64)}, (32, 64), "beit.layers.1", 1, (2, 4), {}),
    ("Data2VecVision", {**VIT, "image_size": (32, 64)}, (32, 64), "data2vec_vision.encoder", 1, (2, 4), {}),
    ("ViTMSN", {**VIT, "image_size": (64, 32)}, (64, 32), "vit.layers.1.layernorm_before", 1, (4, 2), {}),
    ("Siglip", {"vision_config": TOWER, "num_labels": 5}, (32, 32), "vision_model.post_layernorm", 0, (4, 4), {}),
    ("CLIP", {"vision_config": TOWER, "num_labels": 5}, (32, 32), "vision_model.encoder", 1, (4, 4), {}),
    ("Swin", SWIN, (64, 128), "swin.layernorm", 0, (4, 8), {}),
    ("Swinv2", SWIN, (64, 64), "swinv2.layernorm", 0, (4, 4), {}),
    ("ConvNext", STAGES, (64, 96), "convnext.encoder", "chw", (2, 3), {}),
    ("ResNet", {**STAGES, "embedding_size": 8}, (64, 96), "resnet.encoder", "chw", (2, 3), {}),
    ("Segformer", {**STAGES, **HEADS}, (64, 96), "segformer.stages.3", "chw", (2, 3), {}),
    ("PvtV2", {**STAGES, **HEADS, "image_size": 64}, (64, 96), "pvt_v2.encoder", "chw", (2, 3), {}),
]


def made(kind: str, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = getattr(hf, f"{kind}ForImageClassification")(getattr(hf, f"{kind}Config")(**options))
    return model


@pytest.mark.parametrize(
    ("kind", "options", "size", "layer", "layout", "grid", "keywords"),
    CASES,
    ids=[f"{kind}-{size[0]}x{size[1]}" for kind, _, size, *_ in CASES],
)
def test_classifiers_without_arguments(
    kind: str,
    options: dict[str, Any],
    size: tuple[int, int],
    layer: str,
    layout: Layout,
    grid: tuple[int, int],
    keywords: dict[str, Any],
) -> None:
    plain = seeded(lambda: made(kind, options))
    is_old = tuple(map(int, hf.__version__.split(".")[:2])) < (5, 10)
    if is_old and layer.partition(":")[0] not in dict(plain.named_modules()):
        pytest.skip("its layers have other names in this transformers")
    model = with_scores(plain)
    images = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(1))
    check(model, images, layer, layout, grid, **keywords)


# -- from a folder ----------------------------------------------------------------------------------

PHOTO = Image.effect_noise((90, 60), 80).convert("RGB")
PROCESSORS: dict[str, Callable[[], Any]] = {
    "squeezed": lambda: hf.ViTImageProcessor(size={"height": 32, "width": 64}),
    "cut out": lambda: hf.CLIPImageProcessor(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}),
    "a share": lambda: hf.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875),
    "blue first": lambda: hf.MobileViTImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}, do_flip_channel_order=True
    ),
    "scaled": lambda: hf.ViTImageProcessor(size={"height": 32, "width": 32}, rescale_factor=1 / 127.5),
}


def saved(folder: Path, processor: Any, **options: Any) -> Path:
    names = {0: "tench", 1: "cat", 2: "dog", 3: "bee", 4: "ox"}
    model = seeded(lambda: made("ResNet", {**STAGES, "embedding_size": 8, "id2label": names, **options}))
    with torch.no_grad():
        model.classifier[1].weight.mul_(2)  # so that it differs from untrained ones
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", PROCESSORS)
def test_the_preprocessing_is_that_of_the_image_processor(kind: str, tmp_path: Path) -> None:
    processor = PROCESSORS[kind]()
    classifier = egcam.zoo.load(str(saved(tmp_path, processor)), device="cpu")
    wanted = torch.as_tensor(processor(images=PHOTO, return_tensors="pt")["pixel_values"][0])
    found = classifier.preprocess(PHOTO)
    assert found.shape == wanted.shape
    # Another resampling rounds otherwise, and the centre of an odd margin may lie one pixel off.
    smooth = torch.nn.AvgPool2d(8)
    assert float((smooth(found) - smooth(wanted)).abs().max()) < 0.15 * float(wanted.std())
    assert isinstance(classifier.preprocessing, FlippedPreprocessing) == (kind == "blue first")


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json"])
def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    saved(tmp_path, PROCESSORS["squeezed"]())
    (tmp_path / "own.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from transformers import ResNetConfig as C, ResNetForImageClassification as M, ViTImageProcessor as P\n"
        "class Own(C):\n    model_type = 'own'\n"
        "class Model(M):\n    config_class = Own\n"
        "class Processor(P):\n    pass\n"
    )
    facts = json.loads((tmp_path / file).read_text())
    if file == "config.json":
        facts |= {
            "model_type": "own",
            "auto_map": {"AutoConfig": "own.Own", "AutoModelForImageClassification": "own.Model"},
        }
    else:
        facts |= {"image_processor_type": "Processor", "auto_map": {"AutoImageProcessor": "own.Processor"}}
    (tmp_path / file).write_text(json.dumps(facts))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ModelError, match="comes with code of its own, which egcam does not run"):
        egcam.zoo.load(str(tmp_path), device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_folder_is_a_classifier(tmp_path: Path) -> None:
    saved(tmp_path, PROCESSORS["squeezed"]())
    for name in (str(tmp_path), f"hf:{tmp_path}"):
        classifier = egcam.zoo.load(name, device="cpu")
        assert list(classifier.classes or ()) == ["tench", "cat", "dog", "bee", "ox"]
        assert not classifier.model.training
    found = classifier.explain(PHOTO, "grad-cam", "dog", signed=True)
    assert int(found.targets) == 2
    images = classifier.preprocess(PHOTO)[None]
    with torch.no_grad():
        torch.testing.assert_close(found.scores, classifier.model(images).logits[0, 2])
    wanted = egcam.explain(classifier.model, images, "grad-cam", target=2, signed=True)
    torch.testing.assert_close(found.maps, wanted.maps[0])
    untrained = egcam.zoo.load(str(tmp_path), weights="random", device="cpu")
    assert not torch.equal(untrained.model.classifier[1].weight, classifier.model.classifier[1].weight)


def test_names_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    saved(tmp_path, PROCESSORS["squeezed"](), id2label={number: f"LABEL_{number}" for number in range(5)})
    assert egcam.zoo.load(str(tmp_path), device="cpu").classes is None


def test_what_cannot_be_loaded_right_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", PROCESSORS["squeezed"]())
    with pytest.raises(ModelError, match="compares no images with texts"):
        egcam.zoo.load(str(folder), texts=["a dog"])
    with pytest.raises(ModelError, match="compares no images with texts"):
        egcam.zoo.load("resnet18", weights="random", texts=["a dog"])
    headless = seeded(lambda: hf.ResNetModel(hf.ResNetConfig(**STAGES, embedding_size=8)))
    headless.save_pretrained(folder)
    with pytest.raises(ModelError, match="saved without a classifier"):
        egcam.zoo.load(str(folder))
    unusual = saved(tmp_path / "b", hf.DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 128}))
    with pytest.raises(ModelError, match="does more than resize, cut out the centre and normalise"):
        egcam.zoo.load(str(unusual))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="could not be loaded"):
        egcam.zoo.load(str(folder))


# -- images against texts ---------------------------------------------------------------------------

TEXTS = ["a photo of a dog", "a cat", "red bus"]


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_texts_are_the_classes(kind: str, tmp_path: Path) -> None:
    model, processor = two_towers(kind, tmp_path)
    classifier = egcam.zoo.load(f"hf:{tmp_path}", texts=TEXTS, device="cpu")
    assert list(classifier.classes or ()) == TEXTS
    fill_up = True if kind == "CLIP" else "max_length"
    given = processor(text=TEXTS, padding=fill_up, truncation=True, return_tensors="pt")
    images = torch.stack([classifier.preprocess(PHOTO), classifier.preprocess(PHOTO.rotate(90))])
    with torch.no_grad():
        wanted = model(pixel_values=images, **given).logits_per_image
        reader, runs = classifier.model.model.text_model, []
        handle = reader.register_forward_hook(lambda *_: runs.append(1))
        found = classifier.model(images)
        handle.remove()
    assert not runs, "the texts were read once"
    assert wanted.std(1).min() > 1e-3, "the texts differ"
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    explanation = classifier.explain(PHOTO, "grad-cam", "a cat", signed=True)
    expected = own_map(model, images[:1], given, explanation.layer.removeprefix("model."), 1 if kind == "CLIP" else 0)
    assert expected.abs().max() > 0
    torch.testing.assert_close(explanation.maps, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def own_map(model: nn.Module, images: Tensor, given: Any, layer: str, others: int) -> Tensor:
    """Grad-CAM of the second text, through the whole model with both towers."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda module, args, output: kept.append(output))
    score = model(pixel_values=images, **given).logits_per_image[0, 1]
    handle.remove()
    gradient = torch.autograd.grad(score, kept[0])[0][0, others:]
    return ((kept[0][0, others:] * gradient.mean(0)).sum(1).reshape(4, 4)).detach()


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_model_itself_takes_texts_as_a_further_input(kind: str, tmp_path: Path) -> None:
    model, processor = two_towers(kind, tmp_path)
    texts = dict(processor(text=TEXTS, padding="max_length", truncation=True, return_tensors="pt"))
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    found = egcam.explain(model, images, "grad-cam", target=1, keywords=egcam_shared(texts), signed=True)
    expected = own_map(model, images[2:], texts, found.layer, 1 if kind == "CLIP" else 0)
    torch.testing.assert_close(found.maps[2], expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def egcam_shared(texts: dict[str, Tensor]) -> dict[str, Any]:
    return {name: egcam.shared(tensor) for name, tensor in texts.items()}


class ByName(nn.Module):
    """Takes its image by name alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), nn.Linear(4, 3)

    def forward(self, *, pixel_values: Tensor) -> Tensor:
        return self.head(self.body(pixel_values).square().mean((2, 3)))


def test_an_image_that_is_taken_by_name_alone() -> None:
    model = seeded(ByName).train()
    images = torch.rand(2, 3, 8, 8)
    found = egcam.explain(model, images, "grad-cam", target=1, layer="body", signed=True)
    kept: list[Tensor] = []
    handle = model.body.register_forward_hook(lambda module, args, output: kept.append(output))
    gradient = torch.autograd.grad(model(pixel_values=images)[:, 1].sum(), kept[0])[0]
    handle.remove()
    wanted = (kept[0] * gradient.mean((2, 3), keepdim=True)).sum(1).detach()
    torch.testing.assert_close(found.maps, wanted)
    assert model.training
    assert type(model) is ByName


def test_texts_have_to_be_said(tmp_path: Path) -> None:
    two_towers("CLIP", tmp_path)
    with pytest.raises(ModelError, match=r"say which, texts=\[…\] \(the command: --text …\)"):
        egcam.zoo.load(str(tmp_path))
    torch.save({"weight": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(ModelError, match="read with the weights in the model's folder"):
        egcam.zoo.load(str(tmp_path), tmp_path / "weights.pt", texts=TEXTS)
    classifier = egcam.zoo.load(str(tmp_path), texts=TEXTS, device="cpu")
    with pytest.raises(TargetError, match="no class is called 'a horse'"):
        classifier.explain(PHOTO, "grad-cam", "a horse")


def test_the_command_takes_texts(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from egcam.cli import app

    two_towers("CLIP", tmp_path / "clip")
    PHOTO.save(tmp_path / "photo.png")
    texts = [word for text in TEXTS for word in ("--text", text)]
    said = ["explain", str(tmp_path / "photo.png"), "--model", f"hf:{tmp_path / 'clip'}", *texts]
    result = CliRunner().invoke(
        app, [*said, "--method", "attention-relevance", "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]
    )
    assert result.exit_code == 0, result.output
    (image,) = json.loads(result.stdout)["images"]
    assert {one["name"] for one in image["predictions"]} == set(TEXTS)
