"""A classifier explains a photograph: the same numbers as by hand, one pass for all, no option lost."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import egcam
from egcam.cli import app
from egcam.errors import InputError, MethodError, TargetError
from egcam.models.classifier import Classifier
from egcam.models.preprocessing import Preprocessing

SEEN = Preprocessing((16, 16), 16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def classifier(outputs: int = 3, classes: tuple[str, ...] = ("cat", "dog, hound", "bird")) -> Classifier:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 14 * 14, outputs)).eval()
    return Classifier(net, "small", classes, SEEN)


def photograph() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8))


def prepared() -> torch.Tensor:
    return SEEN(photograph())[None]


def test_a_photograph_is_prepared_and_its_class_found_by_name() -> None:
    small = classifier()
    found = small.explain(photograph(), "grad-cam", "hound", signed=True)
    by_hand = egcam.GradCAM(small.model, signed=True)(prepared(), 1)
    assert torch.equal(found.maps, by_hand.maps[0])
    assert found.targets is not None
    assert found.targets.tolist() == 1
    assert torch.equal(small.explain(prepared()[0], "grad-cam", 1, signed=True).maps, by_hand.maps[0])
    assert torch.equal(small.explain(prepared(), "grad-cam", 1, signed=True).maps, by_hand.maps)


def test_a_photograph_may_be_a_file_or_bytes_of_colours(tmp_path: Path) -> None:
    small, pixels = classifier(), np.array(photograph())
    photograph().save(tmp_path / "dog.png")
    by_hand = egcam.GradCAM(small.model, signed=True)(prepared()[0], 1)
    for photo in (tmp_path / "dog.png", str(tmp_path / "dog.png"), pixels, torch.from_numpy(pixels).permute(2, 0, 1)):
        found = small.explain(photo, "grad-cam", 1, signed=True)
        assert torch.equal(found.maps, by_hand.maps)
        assert found.overlay(photograph())[0].size == photograph().size, "drawn where the crop was"
    assert small.predict(tmp_path / "dog.png") == small.predict(photograph())
    for wrong in (pixels / 255, pixels[..., 0]):
        with pytest.raises(InputError, match="is no photograph: pass bytes of colours"):
            small.explain(wrong, "grad-cam", 1)


def test_black_and_white_are_those_of_the_network() -> None:
    small = classifier()
    # White pixels are (1 - 0.5) / 0.25 = 2 for this network, and black ones -2.
    for given, value in (("white", 2.0), ("black", -2.0), (None, -2.0)):
        found = small.explain(photograph(), "integrated-gradients", 0, samples=5, reference=given, signed=True)
        shade = torch.full((1, 3, 16, 16), value)
        by_hand = egcam.IntegratedGradients(small.model, samples=5, reference=shade, signed=True)(prepared(), 0)
        torch.testing.assert_close(found.maps, by_hand.maps[0])
        assert found.reference == (given or "black")


def test_images_as_reference_are_taken_as_they_are() -> None:
    small, other = classifier(), torch.rand(1, 3, 16, 16)
    found = small.explain(photograph(), "integrated-gradients", 0, samples=5, reference=other, signed=True)
    by_hand = egcam.IntegratedGradients(small.model, samples=5, reference=other, signed=True)(prepared(), 0)
    torch.testing.assert_close(found.maps, by_hand.maps[0])


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("grad-cam", {"samples": 3}, "'grad-cam' takes no option 'samples'"),
        ("integrated-gradients", {"steps": 5}, "takes no option 'steps'"),
        ("occlusion", {"baseline": "black"}, "takes no option 'baseline'"),
        ("grad-cam", {"layre": "0"}, "did you mean 'layer'"),
        ("grad-kam", {}, "there is no method 'grad-kam'; did you mean 'grad-cam'"),
    ],
)
def test_no_option_is_ignored(method: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(MethodError, match=said):
        classifier().explain(photograph(), method, 0, **options)


def test_a_class_that_is_not_there_is_refused() -> None:
    for target in (3, "horse"):
        with pytest.raises(TargetError):
            classifier().explain(photograph(), "grad-cam", target)


def test_none_is_the_methods_own_with_photographs_as_the_network_sees_them() -> None:
    small = classifier()
    found = small.explain(photograph(), "slope-cam", 0, samples=None, layer=None, reference=None, signed=True)
    photographs = egcam.references.photographs(SEEN.mean, SEEN.std)
    by_hand = egcam.SlopeCAM(small.model, reference=photographs, signed=True)(prepared(), 0)
    assert torch.equal(found.maps, by_hand.maps[0])


@pytest.mark.parametrize("method", ["grad-cam", "layer-cam", "ablation-cam", "score-cam", "smooth-grad"])
def test_an_explanation_carries_the_outputs_of_the_model(method: str) -> None:
    small = classifier()
    with torch.no_grad():
        outputs = small.model(prepared())
    found = small.explain(photograph(), method, 1, signed=True).outputs
    assert found is not None
    assert not found.requires_grad
    torch.testing.assert_close(found, outputs[0])
    told = small.predictions(found)
    chances = outputs.softmax(1)[0]
    assert [one.index for one in told] == chances.argsort(descending=True).tolist()
    assert [one.probability for one in told] == pytest.approx(chances.sort(descending=True).values.tolist(), rel=1e-5)
    assert {one.name for one in told} == {"cat", "dog", "bird"}
    assert [one.index for one in small.predict(photograph())] == [one.index for one in told]


def test_one_output_of_two_classes_has_the_probabilities_of_its_sigmoid() -> None:
    single = classifier(1, ("benign", "malignant"))
    found = single.explain(photograph(), "grad-cam", signed=True)
    assert found.outputs is not None
    z = float(single.model(prepared()).detach())
    expected = {"malignant": 1 / (1 + np.exp(-z)), "benign": 1 / (1 + np.exp(z))}
    assert {one.name: one.probability for one in single.predictions(found.outputs)} == pytest.approx(expected)


COUNTED = """
import torch
from torch import nn
from egcam.zoo import Classifier
from egcam.models.preprocessing import Preprocessing

BATCHES = []

def counted():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3))
    net[3].weight.data.abs_()
    net.register_forward_pre_hook(lambda _, given: BATCHES.append(len(given[0])))
    return Classifier(net, "counted", ["a", "b", "c"], Preprocessing((16, 16), 16))
"""


@pytest.mark.parametrize(("method", "passes"), [("grad-cam", 1), ("smooth-grad", 5)])
def test_the_command_runs_the_network_for_the_map_only(
    method: str, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("counted.py").write_text(COUNTED.replace("from egcam.zoo", "from egcam.models.zoo"))
    photograph().save("photo.png")
    options = ["--samples", "4"] if passes > 1 else []
    result = CliRunner().invoke(
        app, ["explain", "photo.png", "--model", "counted.py:counted", "--method", method, "--device", "cpu", *options]
    )
    assert result.exit_code == 0, result.output
    batches = sys.modules["_egcam_model_counted"].BATCHES
    a_dry_run, where_the_cells_lie = 1, 1 + 9 if method == "grad-cam" else 0
    assert sum(batches) == a_dry_run + where_the_cells_lie + passes
