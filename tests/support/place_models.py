"""Tiny detectors, segmenters and embedding networks whose answers can be worked out by hand."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

BOXES = torch.tensor([[0.0, 0.0, 8.0, 8.0], [8.0, 8.0, 16.0, 16.0], [1.0, 0.0, 9.0, 8.0]])
LABELS = torch.tensor([1, 2, 1])


def features(channels: int = 4) -> nn.Sequential:
    """(N, 3, 16, 16) to (N, channels, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Softplus(), nn.Conv2d(4, channels, 3, stride=2, padding=1), nn.Softplus()
    )


def box_scores(maps: Tensor) -> Tensor:
    """(N, 3) the scores of the three boxes, from (N, 1, 8, 8): means of regions."""
    regions = (maps[:, 0, :4, :4], maps[:, 0, 4:, 4:], maps[:, 0, :4, 1:5] - 0.5)
    return torch.stack([region.mean((1, 2)) for region in regions], 1).sigmoid()


class ListDetector(nn.Module):
    """Takes a list of images and answers as torchvision's detectors do; boxes below `least` are left out."""

    def __init__(self, least: float = 0.0, by_image: bool = False) -> None:
        super().__init__()
        self.backbone = features()
        self.head = nn.Conv2d(4, 1, 1)
        self.least, self.by_image = least, by_image

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        assert isinstance(images, list)
        parts = [image[None] for image in images] if self.by_image else [torch.stack(images)]
        scores = torch.cat([box_scores(self.head(self.backbone(part))) for part in parts])
        return [
            {"boxes": BOXES[row >= self.least], "labels": LABELS[row >= self.least], "scores": row[row >= self.least]}
            for row in scores
        ]


class Pyramid(nn.Module):
    """A backbone that outputs two levels in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = features()
        self.coarse = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Softplus())

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        fine = self.fine(images)
        return OrderedDict(fine=fine, coarse=self.coarse(fine))


class PyramidDetector(nn.Module):
    """The first box is read off the fine level, the second off the coarse one."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Pyramid()
        self.head = nn.Conv2d(4, 1, 1)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        levels = [self.head(level) for level in self.backbone(torch.stack(list(images))).values()]
        scores = torch.stack([levels[0][:, 0, :4, :4].mean((1, 2)), levels[1][:, 0, 2:, 2:].mean((1, 2))], 1).sigmoid()
        return [{"boxes": BOXES[:2], "labels": LABELS[:2], "scores": row} for row in scores]


class TinyDetr(nn.Module):
    """Two queries, each with logits of two classes and "no object", and a box in shares of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = features()
        self.classes = ["cat", "dog"]
        self.class_head = nn.Linear(4, 6)
        self.box_head = nn.Linear(4, 8)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        pooled = self.backbone(images).mean((2, 3))
        return {
            "pred_logits": self.class_head(pooled).reshape(-1, 2, 3),
            "pred_boxes": self.box_head(pooled).reshape(-1, 2, 4).sigmoid(),
        }


class TinyYolo(nn.Module):
    """(N, 64, 5 + 2): one anchor at each place, with objectness and two classes; also returns its feature maps."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = features()
        self.head = nn.Conv2d(4, 7, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps = self.backbone(images)
        raw = self.head(maps).flatten(2).transpose(1, 2)
        places = torch.arange(64)
        centres = torch.stack([places % 8, places // 8], 1) * 2.0 + 1
        boxes = torch.cat([centres.expand(len(images), -1, -1), raw[..., 2:4].exp() * 6], 2)
        return torch.cat([boxes, raw[..., 4:].sigmoid()], 2), [maps]


class Segmenter(nn.Module):
    """{"out": (N, 3, 8, 8)} for images of 16 x 16, and a further head as in training."""

    def __init__(self, aux: bool = False) -> None:
        super().__init__()
        self.backbone = Pyramid() if aux else features()
        self.classifier = nn.Conv2d(4, 3, 1)
        self.aux_classifier = nn.Conv2d(4, 3, 1) if aux else None

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        found = self.backbone(images)
        if self.aux_classifier is None:
            return {"out": self.classifier(found)}
        return {"out": self.classifier(found["coarse"]), "aux": self.aux_classifier(found["fine"])}


class UNet(nn.Module):
    """(N, 2, 16, 16), with a skip connection around the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Softplus())
        self.middle = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Softplus())
        self.up = nn.Sequential(nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Softplus())
        self.answer = nn.Conv2d(8, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        down = self.down(images)
        return self.answer(torch.cat([down, self.up(self.middle(down))], 1))


class Embedder(nn.Module):
    """(N, 5) embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = features()
        self.projection = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(self.backbone(images).square().mean((2, 3)))


class TwoHeads(nn.Module):
    """A colour of three and a shape of four, in a dictionary or a tuple."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        self.backbone = features()
        self.colour, self.shape = nn.Linear(4, 3), nn.Linear(4, 4)
        self.as_tuple = as_tuple

    def forward(self, images: Tensor) -> Any:
        pooled = self.backbone(images).square().mean((2, 3))
        found = {"colour": self.colour(pooled), "shape": self.shape(pooled)}
        return tuple(found.values()) if self.as_tuple else found


def made(kind: Any, *arguments: Any, seed: int = 3) -> Any:
    """One of the networks in double precision, with weights of its own; the global generator is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(*arguments).double().eval()


def photographs(count: int = 2, seed: int = 0) -> Tensor:
    """(count, 3, 16, 16) in [0, 1]."""
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
