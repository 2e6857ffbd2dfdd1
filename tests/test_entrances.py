"""The same photograph, method and settings give the same map in Python, on the command line, in a study and on a page.

And the same words mean the same: black is the network's own black for methods and metrics alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from typer.testing import CliRunner

import egcam
from egcam import Explanation, metrics
from egcam.attribution import registry
from egcam.attribution.references import crops_of_photographs
from egcam.cli import app
from egcam.drawing.overlays import to_pil
from egcam.models.classifier import Classifier
from egcam.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from egcam.models.zoo import load
from egcam.photos.files import read_image
from egcam.studies.config import StudyError, read_study
from egcam.studies.records import Unit
from egcam.studies.worker import open_worker
from egcam.web.choices import checked
from egcam.web.limits import Limits
from egcam.web.session import explain as explain_on_page
from egcam.web.session import measure, open_photo
from egcam.web.shared_model import share

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

NAMES = ["cat", "dog", "bird"]

def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.Softplus(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    net[-1].weight.data.mul_(25)
    return net.eval()

def usual():
    return Classifier(network(), "usual", NAMES, Preprocessing((32, 32), 32))

def unusual():
    seen = Preprocessing((32, 32), 32, mean=(0.2, 0.3, 0.4), std=(0.5, 0.4, 0.3))
    return Classifier(network(), "unusual", NAMES, seen)

def transformer():
    import timm
    torch.manual_seed(0)
    small = {"img_size": 32, "depth": 2, "embed_dim": 12, "num_heads": 2, "num_classes": 3}
    net = timm.create_model("vit_tiny_patch16_224", **small).eval()
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.4)
    return Classifier(net, "transformer", NAMES, Preprocessing((32, 32), 32))
"""

STUDY = """
name = "one-photograph"
methods = ["{method}"]
metrics = ["pixel-flipping"]

[method."{method}"]
{options}

[data]
kind = "folder"
path = "photos"

[reference]
source = "{reference}"

[[models]]
name = "own.py:{model}"

[run]
maps = "all"
"""

SAMPLES = 32
# All methods; the controls are on no page and have no command.
METHODS = egcam.methods()
TAKE_A_REFERENCE = [name for name in METHODS if "reference" in registry.takes(name)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three networks and one photograph, to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(MODELS)
    (tmp_path / "photos").mkdir()
    photograph().save(tmp_path / "photos" / "one.png")
    return tmp_path


def photograph() -> Image.Image:
    return to_pil(crops_of_photographs(40, 48)[12, None])[0]


def network_for(method: str) -> str:
    return "transformer" if registry.method(method).group == "attention" else "usual"


def options_of(method: str) -> dict[str, Any]:
    return {"samples": SAMPLES} if "samples" in registry.takes(method) else {}


def by_command(model: str, method: str, reference: str | None) -> Tensor:
    given = ["explain", "photos/one.png", "--model", f"own.py:{model}", "--method", method, "--out", "made"]
    given += ["--samples", str(SAMPLES)] if options_of(method) else []
    given += ["--reference", reference] if reference else []
    found = CliRunner().invoke(app, given, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return Explanation.load(f"made/one-{method}").maps


def by_study(place: Path, model: str, method: str, reference: str | None) -> Tensor:
    options = "\n".join(f"{name} = {value}" for name, value in options_of(method).items())
    study = read_study(STUDY.format(method=method, model=model, options=options, reference=reference or "usual"), place)
    outcome = open_worker(study.model_dump())(Unit(study.models[0].label, method, 0))
    assert outcome.error is None
    return torch.from_numpy(outcome.coarse)[None]


def by_page(classifier: Classifier, method: str, reference: str | None) -> Tensor:
    shared = share(classifier)
    photo = open_photo(shared, read_image(Path("photos/one.png")), "one")
    target = photo.predictions[0].index
    chosen = checked(shared, Limits(), target, "usual", [method], SAMPLES, reference or "usual")
    return explain_on_page(shared, photo, chosen, method, lambda share: None).explanation.maps


def everywhere(place: Path, model: str, method: str, reference: str | None, **more: Any) -> dict[str, Tensor]:
    """The map of a method, by the entrance."""
    classifier = load(f"own.py:{model}")
    image = classifier.preprocess(read_image(Path("photos/one.png")))[None]
    given = {**options_of(method), **({"reference": reference} if reference else {}), **more}
    return {
        "Classifier.explain": classifier.explain(image, method, **given).maps,
        "egcam explain": by_command(model, method, reference),
        "study": by_study(place, model, method, reference),
        "page": by_page(classifier, method, reference),
    }


def same(found: dict[str, Tensor], expected: Tensor) -> None:
    assert expected.abs().max() > 0, "a map of zeros proves nothing"
    for entrance, maps in found.items():
        assert_close(
            maps.float(), expected.float(), rtol=1e-5, atol=1e-6, msg=lambda text, at=entrance: f"{at}: {text}"
        )


@pytest.mark.parametrize("method", METHODS)
def test_every_entrance_gives_the_same_map(place: Path, method: str) -> None:
    """Python is given a bare tensor here, of which the values tell that it is normalised as for ImageNet."""
    if not registry.method(method).is_available:
        pytest.skip(f"{registry.method(method).package} is not installed")
    model = network_for(method)
    if model == "transformer":
        pytest.importorskip("timm")
    classifier = load(f"own.py:{model}")
    image = classifier.preprocess(read_image(Path("photos/one.png")))[None]
    assert image.min() < -1 < 1 < image.max()
    bare = egcam.explain(classifier.model, image, method, **options_of(method))
    same(everywhere(place, model, method, None), bare.maps)


@pytest.mark.parametrize("reference", ["black", "white", None])
@pytest.mark.parametrize("method", TAKE_A_REFERENCE)
def test_black_is_the_networks_own_everywhere(place: Path, method: str, reference: str | None) -> None:
    """With a normalisation that no values tell: what is expected is made of the image of black pixels itself."""
    if not registry.method(method).is_available:
        pytest.skip(f"{registry.method(method).package} is not installed")
    classifier = load("own.py:unusual")
    seen = classifier.preprocessing
    image = classifier.preprocess(read_image(Path("photos/one.png")))[None]
    starts = registry.method(method).options()["reference"] or "photographs"
    shade = {"black": "black", "white": "white"}.get(reference or starts)
    if shade is not None:
        given: Any = egcam.references.constant(
            classifier.preprocess(Image.new("RGB", (40, 40), shade))[:, 0, 0].tolist()
        )
    else:
        given = egcam.references.photographs(seen.mean, seen.std)
    by_hand = egcam.explain(classifier.model, image, method, reference=given, **options_of(method))
    same(everywhere(place, "unusual", method, reference), by_hand.maps)


def test_a_folder_is_for_methods_that_average_over_references(place: Path) -> None:
    """Integrated gradients start from a single image: from black, whatever collection the other methods have."""
    for number in range(3):
        to_pil(crops_of_photographs(40, 48)[number, None])[0].save(place / "photos" / f"other{number}.png")
    black = everywhere(place, "unusual", "integrated-grad-cam", "black")
    assert_close(by_study(place, "unusual", "integrated-grad-cam", "data"), black["study"])
    assert_close(by_study(place, "unusual", "integrated-grad-cam", "photographs"), black["study"])
    assert_close(by_command("unusual", "integrated-grad-cam", "photos"), black["egcam explain"])
    assert_close(by_page(load("own.py:unusual"), "integrated-grad-cam", "photographs"), black["page"])
    table = egcam.evaluate(
        (classifier := load("own.py:unusual")).model,
        classifier.preprocess(read_image(Path("photos/one.png")))[None],
        ["integrated-grad-cam"],
        ["sparseness"],
        reference=torch.zeros(2, 3, 32, 32),
        method_options={"integrated-grad-cam": {"samples": SAMPLES}},
        normalisation=classifier.preprocessing.normalisation,
    )
    assert_close(table.maps["integrated-grad-cam"], black["study"])
    result = CliRunner().invoke(
        app,
        ["explain", "photos/one.png", "--model", "own.py:usual", "--method", "occlusion", "--reference", "photos"],
    )
    assert "occlusion ignores --reference" in result.stderr


@pytest.mark.parametrize("metric", ["pixel-flipping", "faithfulness-estimate", "infidelity", "sensitivity-n"])
def test_black_of_metrics_is_the_networks_own_where_it_is_known(metric: str) -> None:
    """As if the image of black pixels itself were given; where nothing is known, values in [-1, 1] have -1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    images, maps = 0.7 * torch.rand(2, 3, 8, 8) - 0.2, torch.rand(2, 8, 8)

    def measured(*given: Any, normalisation: Any = None, **options: Any) -> Tensor:
        return metrics.make(metric, **options)(*given, normalisation=normalisation)

    black = torch.tensor([-0.4, -0.75, -1.5]).reshape(3, 1, 1)
    found = measured(model, images, maps, 0, normalisation=((0.2, 0.3, 0.6), (0.5, 0.4, 0.4)))
    assert_close(found, measured(model, images, maps, 0, baseline=black))
    assumed = measured(model, images, maps, 0)
    assert_close(assumed, measured(model, images, maps, 0, baseline=-1.0))
    darkest = measured(model, images, maps, 0, baseline="darkest")
    assert_close(darkest, measured(model, images, maps, 0, baseline=lambda x: x.amin((1, 2, 3), keepdim=True)))
    assert not torch.allclose(found, assumed, rtol=1e-3)
    assert not torch.allclose(found, darkest, rtol=1e-3)


def test_a_study_and_the_page_measure_with_the_networks_own_black(place: Path) -> None:
    classifier = load("own.py:unusual")
    image = classifier.preprocess(read_image(Path("photos/one.png")))[None]
    study = read_study(STUDY.format(method="grad-cam", model="unusual", options="", reference="usual"), place)
    outcome = open_worker(study.model_dump())(Unit(study.models[0].label, "grad-cam", 0))
    explained = egcam.explain(classifier.model, image, "grad-cam")
    seen = classifier.preprocessing.normalisation
    by_hand = metrics.PixelFlipping()(classifier.model, image, explained, normalisation=seen)
    assert outcome.scores[0].value == pytest.approx(float(by_hand), rel=1e-5)
    assert abs(outcome.scores[0].value - float(metrics.PixelFlipping()(classifier.model, image, explained))) > 1e-4
    shared = share(classifier)
    photo = open_photo(shared, read_image(Path("photos/one.png")), "one")
    chosen = checked(shared, Limits(), photo.predictions[0].index, "usual", ["occlusion"], 0, "usual")
    table = {score.metric: score.value for score in measure(shared, photo, chosen, "occlusion", lambda share: None)}
    right = egcam.explain(classifier.model, image, "occlusion", reference=egcam.references.black(*seen))
    assert table["sparseness"] == pytest.approx(float(metrics.Sparseness()(right)), rel=1e-5)


def test_what_is_assumed_is_said() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    as_imagenet = "as images normalised with ImageNet's mean and std"
    for method in ("integrated-gradients", "integrated-grad-cam", "occlusion", "expected-gradients"):
        found = egcam.explain(model, images, method, reference="black", **options_of(method))
        assert found.reference == f"black ({as_imagenet})"
        known = egcam.references.black(IMAGENET_MEAN, IMAGENET_STD)
        told = egcam.explain(model, images, method, reference=known, **options_of(method))
        assert told.reference == "black"
        assert_close(found.maps, told.maps)
    several = torch.stack([images[0], images[1].sigmoid()])
    alone = [egcam.explain(model, one, "occlusion").maps for one in several]
    found = egcam.explain(model, several, "occlusion", batch_size=1)
    assert found.reference == f"black ({as_imagenet}) or black (as values from 0 to 1)"
    assert_close(found.maps, torch.stack(alone))
    table = egcam.evaluate(model, images, ["grad-cam"], ["pixel-flipping"])
    assert table.assumed == as_imagenet
    assert f"Black and white are those of images taken {as_imagenet}" in table.to_markdown()
    normalisation = (IMAGENET_MEAN, IMAGENET_STD)
    known_table = egcam.evaluate(model, images, ["grad-cam"], ["pixel-flipping"], normalisation=normalisation)
    assert known_table.assumed is None
    assert_close(
        torch.tensor(known_table.values("grad-cam", "pixel-flipping")),
        torch.tensor(table.values("grad-cam", "pixel-flipping")),
    )


@pytest.mark.parametrize("option", ["dimensions", "classes", "keywords", "inputs", "normalisation", "seed", "masks"])
def test_what_a_study_gives_to_metrics_is_no_option_of_one(place: Path, option: str) -> None:
    text = STUDY.format(method="grad-cam", model="usual", options="", reference="usual")
    with pytest.raises(
        StudyError, match=f"metric.pixel-flipping.{option} is not an option of pixel-flipping"
    ) as refused:
        read_study(f"{text}\n[metric.pixel-flipping]\n{option} = 2\n", place)
    assert "(4 in all)" in str(refused.value) or "did you mean" in str(refused.value)
