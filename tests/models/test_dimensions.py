"""Signals, images and volumes are told apart by the network; what cannot be told is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import InputError, LayerError
from egcam.models.dimensions import dimensions_of


class Excited(nn.Module):
    """A network of images with a one-dimensional convolution over its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.over_channels = nn.Conv1d(1, 1, 3, padding=1)
        self.body = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images).tanh()
        gates = self.over_channels(features.mean((2, 3))[:, None])[:, 0].sigmoid()
        logits: Tensor = self.head((features * gates[:, :, None, None]).mean((2, 3)))
        return logits


class Turned(nn.Module):
    """Takes video as (N, frames, channels, height, width), and turns it round."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv3d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, video: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(video.transpose(1, 2)).tanh().mean((2, 3, 4)))
        return logits


class Folded(nn.Module):
    """Takes (N, channels, frames, height, width) and looks at the frames one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, video: Tensor) -> Tensor:
        frames = self.body(video.transpose(1, 2).flatten(0, 1)).tanh()
        logits: Tensor = self.head(frames.mean((2, 3)).reshape(len(video), -1, 4).mean(1))
        return logits


class Pooled(nn.Module):
    """Runs with any number of axes: no convolution, nothing that tells."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        flat = (self.scale * images).flatten(1)
        return torch.stack([flat.mean(1), flat.amax(1)], 1)


@pytest.mark.parametrize(
    ("model", "shape", "dimensions"),
    [
        (nn.Conv1d(2, 3, 3), (4, 2, 20), 1),
        (nn.Conv1d(2, 3, 3), (2, 20), 1),
        (nn.Conv2d(3, 3, 3), (3, 20, 20), 2),
        (nn.Conv2d(3, 3, 3), (4, 3, 20, 20), 2),
        (nn.Conv3d(1, 3, 3), (4, 1, 8, 8, 8), 3),
        (nn.Conv3d(1, 3, 3), (1, 8, 8, 8), 3),
        (Excited(), (3, 20, 20), 2),
        (Excited(), (3, 3, 20, 20), 2),
        # Like some mixers of tokens: images cut into rows, which a one-dimensional convolution takes.
        (nn.Sequential(nn.Unflatten(2, (4, 5)), nn.Flatten(2, 4), nn.Conv1d(3, 2, 1)), (3, 20, 8), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 8, 2)), (3, 20, 8), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 8, 2)), (5, 3, 20, 8), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(512, 2)), (5, 1, 8, 8, 8), 3),
    ],
)
def test_the_network_tells(model: nn.Module, shape: tuple[int, ...], dimensions: int) -> None:
    assert dimensions_of(model, torch.zeros(shape)) == dimensions


def test_where_nothing_tells_it_is_asked() -> None:
    images = torch.rand(3, 6, 6)
    with pytest.raises(InputError, match=r"signals \(N, channels, length\) or one image \(channels, height, width\)"):
        egcam.explain(Pooled(), images, "input-gradient")
    maps = {count: egcam.explain(Pooled(), images, "input-gradient", dimensions=count).maps for count in (1, 2)}
    assert {count: tuple(found.shape) for count, found in maps.items()} == {1: (3, 6), 2: (6, 6)}
    with pytest.raises(InputError, match="dimensions=1 or dimensions=2"):
        egcam.metrics.Deletion()(Pooled(), images, torch.rand(3, 6))
    scores = egcam.metrics.Deletion()(Pooled(), images, torch.rand(3, 6), dimensions=1)
    assert scores.shape == (3,)
    explained = egcam.explain(Pooled(), images, "input-gradient", dimensions=1)
    assert egcam.metrics.Deletion()(Pooled(), images, explained).shape == (3,)
    table = egcam.evaluate(Pooled(), images, ["input-gradient"], ["deletion"], dimensions=1)
    assert len(table.frame) == 3


@pytest.mark.parametrize(
    ("said", "message"),
    [(4, "1 for signals, 2 for images"), (True, "1 for signals"), (3, r"has shape \(N, channels, depth or frames")],
)
def test_dimensions_that_cannot_be(said: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        egcam.explain(Pooled(), torch.rand(3, 6, 6), "input-gradient", dimensions=said)


def test_one_row_of_numbers_is_no_image() -> None:
    with pytest.raises(InputError, match=r"must have shape \(N, C, H, W\)"):
        egcam.explain(nn.Conv2d(3, 3, 3), torch.rand(4, 20))
    with pytest.raises(InputError, match="must have shape"):
        egcam.explain(nn.Linear(20, 3), torch.rand(4, 20))


def test_frames_before_channels_are_refused() -> None:
    video = torch.rand(2, 8, 3, 6, 6)
    with pytest.raises(InputError, match=r"first convolution gets \(1, 3, 8, 6, 6\)"):
        egcam.explain(Turned(), video)


def test_frames_in_the_batch_are_refused_or_read_as_told() -> None:
    video = torch.rand(2, 3, 4, 6, 6)
    model = Folded()
    with pytest.raises(InputError, match="folds frames into the batch"):
        egcam.explain(model, video, "grad-cam")
    with pytest.raises(LayerError, match="does not count the images"):
        egcam.explain(model, video, "grad-cam", layer="body", dimensions=3)

    def reshape(frames: Tensor) -> Tensor:
        return frames.unflatten(0, (-1, 4)).transpose(1, 2)

    found = egcam.explain(
        model, video, "hires-cam", layer="body", dimensions=3, reshape=reshape, target=1, signed=True
    ).maps
    for method in ("slope-cam", "ablation-cam"):
        with pytest.raises(LayerError, match="cannot be run for one of them alone"):
            egcam.explain(model, video, method, layer="body", dimensions=3, reshape=reshape)
    features = reshape(model.body(video.transpose(1, 2).flatten(0, 1))).detach()
    gradient = (1 - features.tanh() ** 2) * model.head.weight[1].reshape(1, -1, 1, 1, 1) / (4 * 6 * 6)
    torch.testing.assert_close(found, (gradient * features).sum(1).detach())


class Heard(nn.Module):
    """A convolution over signals, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2), nn.ReLU())
        self.memory = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, signal: Tensor) -> Tensor:
        logits: Tensor = self.head(self.memory(self.body(signal).transpose(1, 2))[0][:, -1])
        return logits


def test_the_last_convolution_before_a_recurrent_layer_is_found() -> None:
    assert egcam.find_layer(Heard(), torch.rand(1, 2, 30)) == "body.1"
    assert egcam.explain(Heard(), torch.rand(2, 2, 30), "hires-cam", signed=True).maps.shape == (2, 14)


class Attending(nn.Module):
    """Cuts a video into tokens, (N, length, channels) from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv3d(3, 8, 2, 2)
        self.norm1 = nn.LayerNorm(8)
        self.mixed = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, video: Tensor) -> Tensor:
        tokens = self.norm1(self.patches(video).flatten(2).transpose(1, 2))
        logits: Tensor = self.head(self.mixed(tokens).tanh().mean(1))
        return logits


def test_tokens_of_a_video_are_laid_on_the_grid_of_its_patches() -> None:
    model, video = Attending(), torch.rand(2, 3, 4, 8, 6)
    with pytest.raises(LayerError, match="no grid over an input"):
        egcam.explain(model, video, "grad-cam", layer="norm1", reshape=(4, 6))
    found, told = (
        egcam.explain(model, video, "hires-cam", layer="norm1", reshape=reshape, target=0, signed=True)
        for reshape in ("tokens", (2, 4, 3))
    )
    torch.testing.assert_close(found.maps, told.maps)
    tokens = model.norm1(model.patches(video).flatten(2).transpose(1, 2)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(model.mixed(tokens).tanh().mean(1))[:, 0].sum(), tokens)
    torch.testing.assert_close(found.maps, (gradient * tokens).sum(2).reshape(2, 2, 4, 3).detach())


def rows_of_the_page() -> list[str]:
    """The code of each row in the page's section."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page.partition("## Signals, volumes, video\n")[2].partition("\n## ")[0]
    return re.findall(r"^\|.*\| `(.*)` \|$", section, re.MULTILINE)


@pytest.mark.filterwarnings("ignore::egcam.errors.ZeroMapWarning")
def test_every_line_of_the_page_runs() -> None:
    over_signals = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Flatten(), nn.Linear(120, 2))
    over_volumes = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 5 * 6 * 7, 2))
    over_video = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 4 * 8 * 6, 2))
    models = [over_signals, over_signals, Heard(), Pooled(), over_volumes, over_volumes, over_video]
    models += [Attending(), Attending(), Folded()]
    given = {"signals": torch.rand(2, 2, 30), "volumes": torch.rand(2, 1, 5, 6, 7), "video": torch.rand(2, 3, 4, 8, 6)}
    found = [
        eval(row, {"egcam": egcam, "model": model, **given})
        for row, model in zip(rows_of_the_page(), models, strict=True)
    ]
    kinds = ["signals"] * 4 + ["volumes"] * 2 + ["video"] * 4
    assert [one.size for one in found] == [tuple(given[kind].shape[2:]) for kind in kinds]


def test_channels_last_of_a_signal() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv1d(2, 6, 4, 4)
            self.norm = nn.LayerNorm(6)
            self.head = nn.Linear(6, 3)

        def forward(self, signal: Tensor) -> Tensor:
            logits: Tensor = self.head(self.norm(self.stem(signal).transpose(1, 2)).tanh().mean(1))
            return logits

    model, signal = Late(), torch.rand(2, 2, 32)
    assert egcam.find_layer(model, signal) == "norm"
    found = egcam.explain(model, signal, "hires-cam", layer="norm", target=0, signed=True)
    features = model.norm(model.stem(signal).transpose(1, 2)).detach()
    gradient = (1 - features.tanh() ** 2) * model.head.weight[0] / 8
    torch.testing.assert_close(found.maps, (gradient * features).sum(2).detach())
