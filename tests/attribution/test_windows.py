"""Windows: the map of the whole is the sum of its windows' maps, and adds up to the whole's blended score."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import InputError, TargetError
from egcam.targets import Mask

pytestmark = pytest.mark.usefixtures("one_thread")


class Segmenter(nn.Module):
    """Convolutions with padding, so that what a window sees at its border is not what the whole would show it."""

    def __init__(self, axes: int, classes: int = 3) -> None:
        super().__init__()
        kind = nn.Conv2d if axes == 2 else nn.Conv3d
        self.body = nn.Sequential(kind(1, 4, 3, padding=1, stride=2), nn.Tanh())
        self.head = nn.Sequential(kind(4, 4, 3, padding=1), nn.Sigmoid(), kind(4, classes, 1))
        self.axes = axes

    def forward(self, images: Tensor) -> Tensor:
        found = self.head(self.body(images))
        return nn.functional.interpolate(found, scale_factor=2, mode="nearest")


def segmenter(axes: int) -> nn.Module:
    torch.manual_seed(3)
    return Segmenter(axes).double().eval()


def whole_output(model: nn.Module, source: Tensor, windows: egcam.Windows) -> Tensor:
    """(classes, *size) sliding-window inference, the plain way."""
    weights = windows.weights()
    size = tuple(source.shape[1:])
    total, weight = torch.zeros(3, *size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for start in windows.starts(size):
        place = tuple(slice(begin, begin + side) for begin, side in zip(start, windows.size, strict=True))
        with torch.no_grad():
            total[(slice(None), *place)] += model(source[(slice(None), *place)][None])[0] * weights
        weight[place] += weights
    return total / weight


CASES = [
    ((16, 16), (40, 56), 0.5, "gaussian", False),
    ((16, 12), (37, 41), 0.25, "constant", True),
    ((8, 8, 8), (16, 20, 12), 0.5, "gaussian", False),
]


@pytest.mark.parametrize(("window", "size", "overlap", "blend", "even"), CASES)
def test_the_whole_map_adds_up_to_the_blended_score(window, size, overlap, blend, even) -> None:
    torch.manual_seed(0)
    model, source = segmenter(len(size)), torch.rand(1, *size, dtype=torch.float64)
    mask = torch.zeros(size, dtype=torch.bool)
    mask[(slice(3, 14),) * len(size)] = True
    windows = egcam.Windows(model, window, overlap, blend=blend, even=even)
    options = {"layer": "body", "reference": "black", "signed": True, "prepare": lambda piece: piece}
    found = windows.explain(source, target=Mask(1, mask), **options)
    score = whole_output(model, source, windows)[1][mask].mean()
    black = whole_output(model, torch.zeros_like(source), windows)[1][mask].mean()
    assert float(found.scores) == pytest.approx(float(score), rel=1e-6)
    sides = found.completeness
    assert sides is not None
    assert float(sides.expected) == pytest.approx(float(score - black), rel=1e-5)
    assert float(sides.around) == pytest.approx(0, abs=1e-6)
    assert float(sides.gap) == pytest.approx(0, abs=1e-6)
    assert float(found.maps.sum()) == pytest.approx(float(sides.total), rel=1e-5)
    assert found.size == size
    assert found.heatmaps.shape == size
    assert found.maps.shape == tuple(-(-side // 2) for side in size)


def test_one_window_is_the_plain_call() -> None:
    torch.manual_seed(0)
    model, image = segmenter(2), torch.rand(1, 16, 16, dtype=torch.float64)
    target = Mask(2, torch.ones(16, 16))
    plain = egcam.explain(model, image, target=target, layer="body", reference="black", signed=True)
    found = egcam.Windows(model, (16, 16)).explain(
        image, target=target, layer="body", reference="black", signed=True, prepare=lambda piece: piece
    )
    torch.testing.assert_close(found.maps, plain.maps.float())
    torch.testing.assert_close(found.scores, plain.scores.float())
    assert (found.method, found.layer, found.reference) == (plain.method, plain.layer, plain.reference)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.7])
def test_what_sees_each_place_by_itself_has_the_map_of_the_whole(overlap: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1)).eval()
    image, mask = torch.rand(1, 30, 41), torch.rand(30, 41) > 0.4
    plain = egcam.explain(model, image, target=Mask(1, mask), layer="1", reference="black", signed=True)
    found = egcam.Windows(model, (10, 12), overlap).explain(
        image, target=Mask(1, mask), layer="1", reference="black", signed=True
    )
    torch.testing.assert_close(found.maps, plain.maps, atol=1e-7, rtol=1e-4)
    region = torch.zeros(30, 41, dtype=torch.bool)
    region[5:20, 7:30] = True
    torch.testing.assert_close(found.share(region), plain.share(region), atol=1e-6, rtol=1e-4)


def test_a_class_is_the_mean_over_windows() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 4, 4), nn.Tanh())
    model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3), nn.Sigmoid()).eval()
    source = np.random.default_rng(0).random((1, 24, 40)).astype(np.float32)
    windows = egcam.Windows(model, (16, 16), 0.5)
    found = windows.explain(source, target=2, layer="0", reference="black", samples=1, signed=True)
    starts = windows.starts((24, 40))
    assert starts == list(product((0, 8), (0, 8, 16, 24)))
    maps = torch.zeros(6, 10)
    scores = []
    for row, column in starts:
        piece = torch.from_numpy(source[:, row : row + 16, column : column + 16])
        part = egcam.explain(model, piece, target=2, layer="0", reference="black", samples=1, signed=True)
        maps[row // 4 : row // 4 + 4, column // 4 : column // 4 + 4] += part.maps / len(starts)
        scores.append(part.scores)
    torch.testing.assert_close(found.maps, maps)
    torch.testing.assert_close(found.scores, torch.stack(scores).mean())
    assert int(found.targets) == 2


def test_a_stopped_run_goes_on_to_the_same_map(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, source = segmenter(2).float(), torch.rand(1, 40, 56)
    windows = egcam.Windows(model, (16, 16))
    others = torch.rand(6, 1, 16, 16)
    options = {"target": Mask(1), "layer": "body", "reference": others, "signed": True}
    undisturbed = windows.explain(source, **options)
    asked, stops = list[int](), [5, 11]

    def stop(done: int, total: int) -> None:
        asked.append(done)
        if stops and done == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            windows.explain(source, folder=tmp_path, every=2, progress=stop, **options)
    found = windows.explain(source, folder=tmp_path, every=2, **options)
    assert asked == [*range(6), *range(4, 12)], "at most two windows are run again"
    assert torch.equal(found.maps, undisturbed.maps)
    assert torch.equal(found.error, undisturbed.error)
    assert torch.equal(found.completeness.total, undisturbed.completeness.total)
    loaded = egcam.Explanation.load(found.save(tmp_path / "kept", pictures=False))
    assert torch.equal(loaded.maps, found.maps)
    assert loaded.options["windows"] == [16, 16]
    again: list[int] = []
    windows.explain(source, folder=tmp_path, progress=lambda done, _: again.append(done), **options)
    assert again == [len(windows.starts((40, 56)))], "nothing is left to do"
    with pytest.raises(InputError, match="sums of another model, input or method"):
        windows.explain(source, folder=tmp_path, target=Mask(2), layer="body", reference=others)
    changed = source.clone()
    changed[:, -1, -1] += 1
    with pytest.raises(InputError, match="sums of another model, input or method"):
        windows.explain(changed, folder=tmp_path, **options)


def test_windows_that_a_mask_does_not_touch_are_not_run() -> None:
    model, source = segmenter(2).float(), torch.rand(1, 64, 64)
    mask = torch.zeros(64, 64, dtype=torch.bool)
    mask[2:6, 2:6] = True
    ran: list[int] = []
    egcam.Windows(model, (16, 16), 0.5).explain(
        source, "grad-cam", Mask(1, mask), layer="body", progress=lambda done, total: ran.append(total)
    )
    assert ran == [1, 1]


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    model = segmenter(2).float()
    with pytest.raises(InputError, match=r"the input is \(8, 30\) and a window \(16, 16\): pass a smaller window"):
        egcam.Windows(model, (16, 16)).explain(torch.rand(1, 8, 30), target=Mask(1))
    with pytest.raises(InputError, match="overlap is a share"):
        egcam.Windows(model, (16, 16), 1.0)
    with pytest.raises(InputError, match="it must be that of a window"):
        egcam.Windows(model, (16, 16), blend=torch.ones(8, 8))
    with pytest.raises(InputError, match="a str has no shape: pass an array"):
        egcam.Windows(model, (16, 16)).explain("scene.tif", target=1)
    with pytest.raises(InputError, match=r"has the axes \(1, 32, 32\) besides its channels"):
        egcam.Windows(model, (16, 16)).explain(torch.rand(1, 1, 32, 32), target=1)
    with pytest.raises(InputError, match="every must be a whole number"):
        egcam.Windows(model, (16, 16)).explain(torch.rand(1, 32, 32), target=1, every=0)
    with pytest.raises(TargetError, match="say which one is explained"):
        egcam.Windows(model, (16, 16)).explain(torch.rand(1, 32, 32))
    with pytest.raises(TargetError, match="pass a mask of the whole"):
        egcam.Windows(model, (16, 16)).explain(torch.rand(1, 32, 32), target=Mask(1, torch.ones(16, 16)))
