"""Detectors whose head takes the maps of several resolutions in a list, as YOLO's does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import egcam
from egcam.targets import Box


class Head(nn.Module):
    """Boxes and two classes at every place of every map; it writes into the list that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = nn.ModuleList([nn.Conv2d(6, 4, 1) for _ in range(2)])
        self.classes = nn.ModuleList([nn.Conv2d(6, 2, 1) for _ in range(2)])

    def forward(self, maps: list[Tensor]) -> Tensor:
        for place, one in enumerate(maps):
            maps[place] = torch.cat([self.boxes[place](one), self.classes[place](one).sigmoid()], 1)
        return torch.cat([one.flatten(2) for one in maps], 2)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Tanh())
        self.fine = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.Tanh())
        self.coarse = nn.Sequential(nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.Tanh())
        self.head = Head()
        self.names = {0: "cat", 1: "dog"}

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(self.stem(images))
        return self.head([fine, self.coarse(fine)])


def test_the_maps_that_the_head_takes_are_explained() -> None:
    torch.manual_seed(1)
    model, images = Detector().double().eval(), torch.rand(2, 3, 32, 48, dtype=torch.float64)
    anchor, label = 5, 1  # of the finer map, 8 x 12

    def score(output: Tensor) -> Tensor:
        return output[:, 4 + label, anchor]

    found = egcam.explain(model, images, "hires-cam", target=score, signed=True)
    assert found.layer == "fine + coarse"
    kept: list[Tensor] = []
    handle = model.fine.register_forward_hook(lambda module, args, output: kept.append(output))
    total = score(model(images)).sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(total, kept[0])
    # The coarser map has no part in it. Each map is divided by its largest value, and both are averaged.
    expected = (gradient * kept[0]).sum(1).detach()
    expected = expected / expected.abs().amax((1, 2), keepdim=True) / 2
    torch.testing.assert_close(found.maps, expected, rtol=1e-9, atol=1e-14)


def test_a_box_of_such_a_detector_is_explained_there_too() -> None:
    torch.manual_seed(1)
    model, images = Detector().double().eval(), torch.rand(1, 3, 32, 48, dtype=torch.float64)
    with torch.no_grad():
        model.head.boxes[0].bias += torch.tensor([10.0, 10, 8, 8])
        x, y, width, height = model(images)[0, :4, 5].tolist()
        score = model(images)[0, 5, 5]
    box = Box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), "dog", iou=0.999, layout="yolov8")
    found = egcam.explain(model, images, "grad-cam", target=box, signed=True)
    assert found.layer == "fine + coarse"
    torch.testing.assert_close(found.scores, score[None])
