"""The photographs that come with the package, as references."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import egcam
from egcam.attribution.references import photographs, seeming_normalisation
from egcam.errors import SamplingError


def sheet() -> torch.Tensor:
    path = Path(egcam.__file__).parent / "data" / "photographs.jpg"
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).float() / 255
    return torch.stack([
        pixels[top : top + 160, left : left + 160].permute(2, 0, 1)
        for top in range(0, 1280, 160) for left in range(0, 1280, 160)
    ])  # fmt: skip


def drawn(images: torch.Tensor, **how) -> torch.Tensor:
    bound = photographs(**how).bind(images, range(len(images)), 0)
    return torch.stack([bound(range(len(images)), sample).images for sample in range(64)])


def test_each_photograph_is_drawn_once_in_64_samples() -> None:
    found = drawn(torch.rand(1, 3, 160, 160))[:, 0]
    crops = sheet()
    nearest = [int((crops - one).abs().amax((1, 2, 3)).argmin()) for one in found]
    assert sorted(nearest) == list(range(64))
    for one, number in zip(found, nearest, strict=True):
        torch.testing.assert_close(one, crops[number])


def test_they_are_normalised_as_the_image_seems_to_be() -> None:
    plain = drawn(torch.rand(1, 3, 32, 32))
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    images = torch.stack([
        torch.rand(3, 32, 32), 2 * torch.rand(3, 32, 32) - 1, 255 * torch.rand(3, 32, 32), torch.randn(3, 32, 32)
    ])  # fmt: skip
    found = drawn(images)
    torch.testing.assert_close(found[:, 0], plain[:, 0])
    torch.testing.assert_close(found[:, 1], 2 * plain[:, 0] - 1)
    torch.testing.assert_close(found[:, 2], 255 * plain[:, 0])
    torch.testing.assert_close(found[:, 3], (plain[:, 0] - mean) / std)
    told = drawn(images[:1], mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))[:, 0]
    wanted = (plain[:, 0] - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2, 4])[:, None, None]
    torch.testing.assert_close(told, wanted)
    grey = drawn(torch.rand(1, 1, 32, 32))
    torch.testing.assert_close(grey, plain.mean(2, keepdim=True))


def test_the_seeming_normalisation_of_values() -> None:
    assert seeming_normalisation(0.0, 1.0) == ((0.0,), (1.0,))
    assert seeming_normalisation(0.0, 200.0) == ((0.0,), (1 / 255,))
    assert seeming_normalisation(-1.0, 1.0) == ((0.5,), (0.5,))
    assert seeming_normalisation(-2.1, 2.6)[0] == (0.485, 0.456, 0.406)


def test_what_has_no_colours_is_refused() -> None:
    with pytest.raises(SamplingError, match="pass images of your data"):
        drawn(torch.rand(1, 4, 8, 8))
    with pytest.raises(SamplingError, match="together"):
        photographs(mean=0.5)


def test_they_pass_through_the_network_once() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(144, 8), torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )  # fmt: skip
    cam = egcam.SlopeCAM(model, "1", reference="photographs", samples=24)
    assert cam(torch.rand(2, 3, 8, 8)).passes >= 2 + 24
    assert cam(torch.rand(2, 3, 8, 8)).passes == 2
    assert cam(torch.randn(1, 3, 8, 8) * 3).passes >= 1 + 24  # another normalisation
    assert cam(torch.rand(1, 3, 8, 8)).passes == 1
    assert cam(torch.rand(1, 3, 8, 8)).reference == "24 of 64 photographs (as values from 0 to 1)"


def test_every_photograph_has_an_author_and_a_free_licence() -> None:
    folder = Path(egcam.__file__).parent / "data"
    with open(folder / "photographs.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["number"]) for row in rows] == list(range(len(sheet())))
    free = {"public domain", "CC0 1.0", "CC BY 2.0", "CC BY 3.0", "CC BY 4.0"}
    assert {row["licence"] for row in rows} <= free
    assert all(row[column] for row in rows for column in ("photograph", "by", "package", "path"))
