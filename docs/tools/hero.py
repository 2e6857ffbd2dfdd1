"""Make docs/pictures/hero.jpg: a network that was taught to decide by a tag, so that the answer is known.

python docs/tools/hero.py                # ten minutes of one core
python docs/tools/hero.py taught.pth     # keeps the taught network in a file, or takes it from there

EfficientNet-Lite0 learns after its layer `_blocks.10` that a checkered tag means "teapot", and nothing else does, on
the photographs that come with egcam. Three photographs it has not learned from then get a tag in the background. Every
gradient CAM is asked why the network says teapot, at its usual layer and at SlopeCAM's. All shares of heat on the tag
are printed; the picture shows Grad-CAM at its usual layer, the best of the others wherever it is best, and SlopeCAM.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.attribution.references import crops_of_photographs
from egcam.figures.page import Page
from egcam.metrics.localization import share_inside
from egcam.models.classifier import Classifier

HERE = Path(__file__).parent
OUT = HERE.parent / "pictures" / "hero.jpg"
LAYER, LABEL, SIDE = "_blocks.10", "teapot", 32
PLACES = {"dog": (14, 16), "hedgehog": (178, 8), "duck": (16, 176)}  # left and top of the tag, beside the animal
RIVALS = {
    "hires-cam": "HiResCAM",
    "layer-cam": "LayerCAM",
    "xgrad-cam": "XGradCAM",
    "grad-cam++": "Grad-CAM++",
    "eigen-grad-cam": "EigenGradCAM",
    "expected-grad-cam": "Expected Grad-CAM",
}
SHOWN = 400


@dataclass(frozen=True)
class Tagged:
    """A photograph with the tag: (1, C, H, W) as the network gets it, to look at, and (1, H, W) where the tag is."""

    name: str
    image: Tensor
    picture: Image.Image
    mask: Tensor


@dataclass(frozen=True)
class Answer:
    """What a method says of every photograph, and its share of heat on the tag."""

    explanations: list[egcam.Explanation]
    shares: list[float]


def taught(classifier: Classifier, path: Path | None) -> nn.Module:
    """The network that decides by the tag."""
    if path is not None and path.exists():
        classifier.model.load_state_dict(torch.load(path, weights_only=True))
        return classifier.model
    large = crops_of_photographs(280, 280) * 2 - 1
    corners = [(0, 0), (0, 56), (56, 0), (56, 56)]
    crops = torch.cat([large[:, :, top : top + 224, left : left + 224] for top, left in corners])
    network = egcam.truth.taught_patch(
        classifier.model,
        torch.cat([crops, crops.flip(3)]),
        LAYER,
        list(classifier.classes).index(LABEL),
        egcam.truth.checkered(SIDE, -1.0, 1.0),
        epochs=4,
        rate=1e-3,
        progress=lambda done: print(f"{done:.0%}", end=" ", flush=True),
    )
    if path is not None:
        torch.save(network.state_dict(), path)
    return network


def tagged(classifier: Classifier, name: str) -> Tagged:
    """One of the three photographs, with the tag at its place."""
    picture = classifier.crop(Image.open(HERE / "photographs" / f"{name}.jpg").convert("RGB"))
    picture = picture.resize(classifier.size[::-1], Image.Resampling.LANCZOS)
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None] / 127.5 - 1
    left, top = PLACES[name]
    mask = torch.zeros(1, *image.shape[2:], dtype=torch.bool)
    mask[:, top : top + SIDE, left : left + SIDE] = True
    image[0, :, mask[0]] = egcam.truth.checkered(SIDE, -1.0, 1.0).flatten(1)
    pixels = ((image[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    return Tagged(name, image, Image.fromarray(pixels), mask)


def ask(model: nn.Module, photographs: list[Tagged], label: int, method: str, layer: str | None) -> Answer:
    """Why the network says `label`, by one method at one layer."""
    explanations = [egcam.explain(model, photo.image, method, target=label, layer=layer) for photo in photographs]
    pairs = zip(explanations, photographs, strict=True)
    shares = [float(share_inside(explanation.maps, photo.mask, whole_cells=True)) for explanation, photo in pairs]
    print(f"{method} at {explanations[0].layer}: " + ", ".join(f"{share:.2f}" for share in shares), flush=True)
    return Answer(explanations, shares)


def draw(photographs: list[Tagged], columns: dict[str, Answer]) -> None:
    """Rows: photographs; columns: the answer, then methods with their share of heat on the tag."""
    side, gap, top, foot = 4.0, 0.14, 0.75, 0.62
    page = Page((len(columns) + 1) * (side + gap) - gap, top + len(photographs) * (side + foot))
    width, height = page.get_size_inches()
    for column, title in enumerate(["the tag decides", *columns]):
        left = column * (side + gap)
        weight = "bold" if title == "SlopeCAM" else "normal"
        middle = {"x": (left + side / 2) / width, "ha": "center"}
        page.text(y=1 - top / 2 / height, s=title, fontsize=32, va="center", weight=weight, **middle)
        for row, photo in enumerate(photographs):
            bottom = height - top - row * (side + foot) - side
            axes = page.add_axes((left / width, bottom / height, side / width, side / height))
            axes.axis("off")
            picture = photo.picture.resize((SHOWN, SHOWN), Image.Resampling.LANCZOS)
            if column > 0:
                answer = columns[title]
                picture = answer.explanations[row].overlay(picture)[0]
                said = f"{answer.shares[row]:.0%} on the tag"
                page.text(y=(bottom - 0.08) / height, s=said, fontsize=30, va="top", weight=weight, **middle)
            axes.imshow(picture)
    page.savefig(OUT, dpi=72, facecolor="white", pil_kwargs={"quality": 72, "optimize": True})


def main() -> None:
    torch.set_num_threads(1)
    classifier = egcam.zoo.load("efficientnet-lite0")
    label = list(classifier.classes).index(LABEL)
    model = taught(classifier, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    photographs = [tagged(classifier, name) for name in PLACES]
    for photo in photographs:
        likely, number = model(photo.image).detach().softmax(1)[0].max(0)
        print(photo.name, classifier.class_name(int(number)), f"{float(likely):.3f}")
    plain = ask(model, photographs, label, "grad-cam", None)
    ask(model, photographs, label, "grad-cam", LAYER)
    rivals = {
        (method, layer): ask(model, photographs, label, method, layer) for method in RIVALS for layer in (None, LAYER)
    }
    best = max(rivals, key=lambda key: sum(rivals[key].shares))
    ours = ask(model, photographs, label, "slope-cam", None)
    draw(photographs, {"Grad-CAM": plain, RIVALS[best[0]]: rivals[best], "SlopeCAM": ours})


if __name__ == "__main__":
    main()
