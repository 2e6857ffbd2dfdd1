"""A layer's own space: maps count cell by cell as they were made, however the layer is laid out."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam import metrics, truth
from egcam.errors import InputError, LayerError
from egcam.metrics import cell_shapley


class Additive(nn.Module):
    """Cells of 4 x 4 pixels, each with a weight of its own for each of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.AvgPool2d(4)
        self.weight = nn.Parameter(torch.randn(2, 16, generator=torch.Generator().manual_seed(0)))

    def forward(self, images: Tensor) -> Tensor:
        return self.cells(images.mean(1, keepdim=True)).flatten(1) @ self.weight.T


@pytest.mark.parametrize("form", ["explanation", "maps"])
def test_the_exact_answer_reaches_the_best_possible_area(form: str) -> None:
    net, images = Additive().eval(), torch.rand(1, 3, 16, 16)
    made = egcam.explain(net, images, "hires-cam", layer="cells", target=0, signed=True)
    parts = made.maps.flatten()
    given = {"explanation": made, "maps": made.maps}[form]
    options = {"layer": "cells", "reference": torch.zeros_like(images), "score": "logit", "steps": 16}
    for metric, order in ((metrics.LayerInsertion, True), (metrics.LayerDeletion, False)):
        added = parts.sort(descending=order).values.cumsum(0)
        best = torch.trapezoid(torch.cat([torch.zeros(1), added]), dx=1 / 16)
        if not order:  # the most important are taken away first: what is left is the sum of the others
            left = parts.sum() - torch.cat([torch.zeros(1), parts.sort(descending=True).values.cumsum(0)])
            best = torch.trapezoid(left, dx=1 / 16)
        torch.testing.assert_close(metric(**options)(net, images, given, target=0), best[None])


class ByColumns(nn.Module):
    """Tokens in the order of the columns, and a linear head: a map must be read through a callable."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.patches, self.tokens = nn.Conv2d(3, 6, 8, 8, bias=False), nn.Identity()
            self.head = nn.Linear(96, 3, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.tokens(self.patches(images).permute(0, 3, 2, 1).flatten(1, 2)).flatten(1))


def as_columns(tokens: Tensor) -> Tensor:
    return tokens.reshape(len(tokens), 4, 4, 6).permute(0, 3, 2, 1)


def test_maps_made_with_a_reshape_are_judged_with_it() -> None:
    net, images, nothing = ByColumns().eval(), torch.rand(3, 3, 32, 32), torch.zeros(1, 3, 32, 32)
    made = egcam.explain(net, images, "hires-cam", layer="tokens", reshape=as_columns, signed=True, target=0)
    options = {"reference": nothing, "samples": 1, "permutations": 1}
    one = torch.ones(3)
    torch.testing.assert_close(metrics.ShapleyAgreement(**options)(net, images, made, target=0), one)
    said = {"layer": "tokens", "reshape": as_columns}
    torch.testing.assert_close(metrics.ShapleyAgreement(**options, **said)(net, images, made.maps, target=0), one)
    table = egcam.evaluate(
        net,
        images,
        {"hires": egcam.HiResCAM(net, "tokens", reshape=as_columns, signed=True)},
        ["shapley-agreement", "layer-insertion"],
        target=0,
        metric_options={
            "shapley-agreement": options,
            "layer-insertion": {"reference": nothing, "steps": 16, "score": "logit"},
        },
    )
    assert table.values("hires", "shapley-agreement") == pytest.approx([1.0] * 3)
    best = [
        torch.trapezoid(torch.cat([torch.zeros(1), parts.sort(descending=True).values.cumsum(0)]), dx=1 / 16)
        for parts in made.maps.flatten(1)
    ]
    assert table.values("hires", "layer-insertion") == pytest.approx(torch.stack(best).numpy(), rel=1e-4)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_signals_and_volumes(dimensions: int) -> None:
    convolution = {1: nn.Conv1d, 3: nn.Conv3d}[dimensions](2, 4, 2, stride=2)
    cells = 4**dimensions
    net = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4 * cells, 3, bias=False)).eval()
    nn.init.zeros_(net[0].bias)
    images, nothing = torch.rand(2, 2, *[8] * dimensions), torch.zeros(1, 2, *[8] * dimensions)
    made = egcam.explain(net, images, "hires-cam", layer="0", signed=True, target=1, dimensions=dimensions)
    values = truth.cell_shapley(net, images, "0", nothing, 1, target=1, dimensions=dimensions)
    torch.testing.assert_close(values.float(), made.maps)  # a linear head: each cell adds what it adds
    options = {"reference": nothing, "samples": 1}
    found = metrics.ShapleyAgreement(permutations=1, **options)(net, images, made, target=1, dimensions=dimensions)
    torch.testing.assert_close(found, torch.ones(2))
    area = metrics.LayerInsertion(steps=cells, score="logit", layer="0", **options)(
        net, images, made, target=1, dimensions=dimensions
    )
    parts = made.maps.flatten(1).sort(descending=True).values.cumsum(1)
    best = torch.trapezoid(torch.cat([torch.zeros(2, 1), parts], 1), dx=1 / cells)
    torch.testing.assert_close(area, best)


def test_references_that_do_not_fit_are_refused() -> None:
    net, images = Additive().eval(), torch.rand(1, 3, 16, 16)
    with pytest.raises(InputError, match="pass references of the images' size"):
        truth.cell_shapley(net, images, "cells", torch.rand(2, 3, 8, 8), 4, target=0)
    with pytest.raises(InputError, match="references are images"):
        truth.cell_shapley(net, images, "cells", None, 4)


def test_a_saved_map_knows_its_reshape_or_asks_for_it(tmp_path: Path) -> None:
    net, images, nothing = ByColumns().eval(), torch.rand(2, 3, 32, 32), torch.zeros(1, 3, 32, 32)
    options = {"reference": nothing, "samples": 1, "permutations": 1}
    made = egcam.explain(net, images, "hires-cam", layer="tokens", reshape=as_columns, signed=True, target=0)
    made.save(tmp_path / "callable")
    lost = egcam.Explanation.load(tmp_path / "callable")
    with pytest.raises(LayerError, match="not saved with them: pass it again"):
        metrics.ShapleyAgreement(**options)(net, images, lost, target=0)
    again = metrics.ShapleyAgreement(reshape=as_columns, **options)(net, images, lost, target=0)
    torch.testing.assert_close(again, torch.ones(2))
    by_rows = egcam.explain(net, images, "hires-cam", layer="tokens", reshape=(4, 4), signed=True, target=0)
    by_rows.save(tmp_path / "grid")
    assert egcam.Explanation.load(tmp_path / "grid").reshape == (4, 4)
    nameless = egcam.explain(net, images, "hires-cam", layer="tokens", reshape=lambda one: as_columns(one), target=0)
    assert pickle.loads(pickle.dumps(made)).reshape is as_columns
    with pytest.raises(LayerError, match="pass it again"):
        pickle.loads(pickle.dumps(nameless)).reshape(torch.ones(1))


def test_values_are_shared_by_methods_whatever_the_reshape(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images, played = ByColumns().eval(), torch.rand(2, 3, 32, 32), []
    values = cell_shapley._shapley_values
    monkeypatch.setattr(
        cell_shapley, "_shapley_values", lambda swaps, *rest: played.append(swaps.row) or values(swaps, *rest)
    )
    for reshape in ((4, 4), as_columns):
        played.clear()
        options = {"shapley-agreement": {"samples": 2, "permutations": 2}}
        egcam.evaluate(
            net,
            images,
            ["hires-cam", "grad-cam"],
            ["shapley-agreement"],
            layer="tokens",
            reshape=reshape,
            metric_options=options,
        )
        assert sorted(played) == [0, 1]


def test_maps_of_several_layers_ask_for_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.more = ByColumns(), nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            tokens = self.net.tokens(self.net.patches(images).permute(0, 3, 2, 1).flatten(1, 2))
            return self.net.head(self.more(tokens).flatten(1))

    net, images = Two().eval(), torch.rand(1, 3, 32, 32)
    made = egcam.explain(net, images, "hires-cam", layer=["net.tokens", "more"], reshape=as_columns, target=0)
    with pytest.raises(InputError, match="set layer"):
        metrics.LayerInsertion(reference=images)(net, images, made, target=0)
