"""Every line in the table of docs/models.md is run on a small network of its kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from support import place_models
from support.small_models import seeded
from support.two_towers import two_towers

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
ROWS = [
    (kind.strip(), line.replace(r"\|", "|"))
    for kind, line in re.findall(r"^\| ([^|]+) \| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
]

Names = dict[str, Any]
small: dict[str, Callable[[Path], Names]] = {}
"""By how a row begins: makes the names its line uses. The path is a folder for files."""


def row(start: str) -> Callable[[Callable[[Path], Names]], Callable[[Path], Names]]:
    def add(make: Callable[[Path], Names]) -> Callable[[Path], Names]:
        small[start] = make
        return make

    return add


class _ImageByImage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh()), nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.head(self.body(one).square().mean((2, 3))) for one in images.split(1)])


@row("networks that process a batch image by image")
def image_by_image(_: Path) -> Names:
    return {"model": seeded(_ImageByImage), "images": torch.rand(2, 3, 16, 16)}


@row("regression")
def regression(_: Path) -> Names:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1))
    return {"model": model.eval(), "images": torch.rand(2, 3, 12, 12), "others": torch.rand(3, 3, 12, 12)}


@row("any function")
def any_function(_: Path) -> Names:
    return {"function": lambda pixels: pixels[:, :, 4:8].mean((2, 3)), "images": torch.rand(2, 3, 16, 16)}


@row("convolutional networks")
def convolutional(_: Path) -> Names:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    return {"model": model.eval(), "images": torch.rand(2, 3, 12, 12)}


@row("volumes, slides, scenes")
def scene(path: Path) -> Names:
    return {**convolutional(path), "scene": torch.rand(3, 30, 42).numpy()}


def timm_network(name: str, size: tuple[int, int], **options: Any) -> Names:
    timm = pytest.importorskip("timm", reason="the extra 'vision' is not installed")
    model = timm.create_model(name, img_size=size, num_classes=4, **options)
    return {"model": model.eval(), "images": torch.rand(1, 3, *size)}


@row("vision transformers")
@row("the same, by their attention")
def vision_transformer(_: Path) -> Names:
    return timm_network("vit_tiny_patch16_224", (32, 48), depth=2, embed_dim=12, num_heads=2)


@row("networks that keep channels last")
def channels_last(_: Path) -> Names:
    small = {"depths": (1, 1), "embed_dim": 8, "num_heads": (1, 2), "window_size": 2}
    return timm_network("swin_tiny_patch4_window7_224", (32, 64), **small)


@row("networks that merge or mix tokens")
def merging(_: Path) -> Names:
    torch.manual_seed(4)  # something speaks for the predicted class
    return timm_network("pit_ti_224", (64, 64), base_dims=(8, 8, 8), depth=(1, 1, 1), heads=(1, 2, 2))


class PatchesInBlocks(nn.Module):
    """Tokens of 16 patches of 4 x 4, cut without a module that would show their grid."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(48, 6), nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        patches = nn.functional.unfold(images, 4, stride=4).transpose(1, 2)
        return self.head(self.norm(self.embed(patches)).tanh().mean(1))


@row("a layer of tokens whose grid egcam cannot infer")
def blocks(_: Path) -> Names:
    return {"model": PatchesInBlocks().eval(), "images": torch.rand(1, 3, 8, 32)}


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
PHOTO = Image.effect_noise((40, 30), 80).convert("RGB")


@row("image classifiers from the Hugging Face hub")
def in_a_folder(folder: Path) -> Names:
    hf: Any = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    there = folder / "google" / "vit-base-patch16-224"
    hf.ViTForImageClassification(hf.ViTConfig(image_size=32, patch_size=8, **SMALL)).save_pretrained(there)
    hf.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(there)
    return {"photo": PHOTO}


@row("CLIP and SigLIP modules")
def with_token_ids(folder: Path) -> Names:
    model, _ = two_towers("CLIP", folder)
    return {"model": model, "images": torch.rand(2, 3, 32, 32), "ids": torch.tensor([[2, 3, 6, 11], [2, 3, 7, 11]])}


@row("CLIP and SigLIP by name")
def against_texts(folder: Path) -> Names:
    two_towers("CLIP", folder / "openai" / "clip-vit-base-patch32")
    return {"photo": PHOTO}


class WithAngles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh()), nn.Linear(7, 4)

    def forward(self, images: Tensor, angles: Tensor) -> Tensor:
        return self.head(torch.cat([self.body(images).square().mean((2, 3)), angles[:, None]], 1))


@row("networks with additional inputs")
def further_inputs(_: Path) -> Names:
    return {"model": WithAngles().eval(), "images": torch.rand(2, 3, 12, 12), "angles": torch.rand(2)}


class AgainstPrompts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh())

    def forward(self, images: Tensor, prompts: Tensor) -> Tensor:
        return self.body(images).square().mean((2, 3)) @ prompts.T


@row("networks with an input shared by all images")
def shared_inputs(_: Path) -> Names:
    return {"model": AgainstPrompts().eval(), "images": torch.rand(2, 3, 12, 12), "prompts": torch.rand(2, 6)}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh())
        self.colour, self.kind = nn.Linear(6, 3), nn.Linear(6, 4)

    def forward(self, images: Tensor) -> dict[str, list[Tensor]]:
        seen = self.body(images).square().mean((2, 3))
        return {"heads": [self.colour(seen), self.kind(seen)]}


@row("models that output a dictionary")
def two_heads(_: Path) -> Names:
    return {"model": TwoHeads().eval(), "images": torch.rand(2, 3, 12, 12)}


# -- detectors, segmenters, embeddings ---------------------------------------------------------------


def _double(kind: Any, seed: int = 10, **more: Any) -> Names:
    """With seeds whose networks have something that speaks for the target."""
    pictures = place_models.photographs(2)
    return {"model": place_models.made(kind, seed=seed), "images": pictures, "image": pictures[0], **more}


@row("detectors that return boxes")
def detectors(_: Path) -> Names:
    return _double(place_models.PyramidDetector)


@row("one box per image")
def boxes(_: Path) -> Names:
    return _double(place_models.PyramidDetector)


@row("DETR")
def detr(_: Path) -> Names:
    return _double(place_models.TinyDetr)


@row("YOLO-like")
def yolo(_: Path) -> Names:
    return _double(place_models.TinyYolo, seed=1)


@row("segmenters, a class in a mask")
def masks(_: Path) -> Names:
    return _double(place_models.Segmenter, mask=torch.ones(16, 16))


@row("segmenters, a class at a pixel")
def pixels(_: Path) -> Names:
    return _double(place_models.UNet, seed=0)


@row("embeddings")
def embeddings(_: Path) -> Names:
    embedding = torch.arange(5.0)
    return _double(
        place_models.Embedder,
        embedding=embedding,
        other_image=place_models.photographs(3)[2],
        encode=lambda _: embedding,
    )


@row("several heads")
def heads(_: Path) -> Names:
    return _double(place_models.TwoHeads)


@row("one class against another")
def classes(_: Path) -> Names:
    return _double(place_models.Embedder)


@pytest.mark.parametrize(("kind", "line"), ROWS, ids=[kind for kind, _ in ROWS])
def test_the_line_of_a_kind_of_model_explains_it(
    kind: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = [make for start, make in small.items() if kind.startswith(start)]
    assert len(makers) == 1, f"docs/models.md has a row {kind!r}, which needs one small network in this file"
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        names = {"egcam": egcam, "torch": torch, **makers[0](tmp_path)}
    found = eval(line, names)
    assert bool(found.maps.isfinite().all())
    assert float(found.maps.max()) > 0


def test_every_small_network_has_its_row() -> None:
    assert all(any(kind.startswith(start) for kind, _ in ROWS) for start in small)
