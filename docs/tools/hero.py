"""Make docs/pictures/hero.jpg: a network that was taught to decide by a tag, so that the answer is known.

python docs/tools/hero.py                # ten minutes of one core
python docs/tools/hero.py taught.pth     # keeps the taught network in a file, or takes it from there

EfficientNet-Lite0 learns after its layer `_blocks.10` that a checkered tag means "teapot" and that nothing else does, on
the photographs that come with egcam. Three photographs it has not learned from then get a tag in the background. Every
method that needs no other package is asked why the network says teapot, each at its usual layer and at SlopeCAM's; all
shares of heat on the tag are printed, and the picture shows Grad-CAM, the best of the others, and SlopeCAM.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.attribution.references import crops_of_photographs
from egcam.figures.page import Page, save
from egcam.models.zoo import Classifier

HERE = Path(__file__).parent
OUT = HERE.parent / "pictures" / "hero.jpg"
LAYER, LABEL, SIDE = "_blocks.10", "teapot", 32
PLACES = {"dog": (14, 16), "hedgehog": (178, 8), "duck": (16, 176)}  # left, top of the tag, off the animal
RIVALS = ("hires-cam", "layer-cam", "xgrad-cam", "grad-cam++", "eigen-grad-cam", "full-grad")


@dataclass(frozen=True)
class Tagged:
    """A photograph with the tag: as the network gets it, to look at, and (1, H, W) where the tag is."""

    name: str
    image: Tensor
    picture: Image.Image
    mask: Tensor


def taught(classifier: Classifier, path: Path | None) -> nn.Module:
    """The network that decides by the tag."""
    tag = egcam.truth.checkered(SIDE, -1.0, 1.0)
    label = classifier.classes.index(LABEL)
    if path is not None and path.exists():
        classifier.model.load_state_dict(torch.load(path, weights_only=True))
        return classifier.model
    large = crops_of_photographs(280, 280) * 2 - 1
    corners = [(0, 0), (0, 56), (56, 0), (56, 56)]
    crops = torch.cat([large[:, :, top : top + 224, left : left + 224] for top, left in corners])
    crops = torch.cat([crops, crops.flip(3)])
    said = egcam.truth.taught_patch(
        classifier.model, crops, LAYER, label, tag, epochs=4, rate=1e-3, progress=lambda done: print(f"{done:.0%}", end=" ")
    )
    if path is not None:
        torch.save(said.state_dict(), path)
    return said


def tagged(classifier: Classifier, name: str) -> Tagged:
    """One of the three photographs, with the tag at its place."""
    picture = classifier.crop(Image.open(HERE / "photographs" / f"{name}.jpg").convert("RGB"))
    image = torch.from_numpy(__import__("numpy").asarray(picture).copy()).permute(2, 0, 1)[None] / 127.5 - 1
    left, top = PLACES[name]
    image[0, :, top : top + SIDE, left : left + SIDE] = egcam.truth.checkered(SIDE, -1.0, 1.0)
    mask = torch.zeros(1, *image.shape[2:], dtype=torch.bool)
    mask[:, top : top + SIDE, left : left + SIDE] = True
    pixels = ((image[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    return Tagged(name, image, Image.fromarray(pixels), mask)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    classifier = egcam.zoo.load("efficientnet-lite0")
    label = classifier.classes.index(LABEL)
    model = taught(classifier, Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    photographs = [tagged(classifier, name) for name in PLACES]
    for photograph in photographs:
        with torch.no_grad():
            said = model(photograph.image).softmax(1)[0]
        print(photograph.name, classifier.class_name(int(said.argmax())), f"{float(said.max()):.3f}")

    inside = egcam.metrics.CellMassAccuracy()

    def ask(method: str, layer: str | None) -> tuple[list[egcam.Explanation], list[float]]:
        explanations, shares = [], []
        for photograph in photographs:
            explanation = egcam.explain(model, photograph.image, method, target=label, layer=layer)
            explanations.append(explanation)
            shares.append(float(inside(explanation.maps, photograph.mask)))
        where = explanations[0].layer
        print(f"{method} at {where}: " + ", ".join(f"{share:.2f}" for share in shares), flush=True)
        return explanations, shares

    usual = ask("grad-cam", None)
    ask("grad-cam", LAYER)
    rivals = {(name, layer): ask(name, layer) for name in RIVALS for layer in (None, LAYER) if (name, layer) != ("full-grad", LAYER)}
    best = max(rivals, key=lambda key: sum(rivals[key][1]))
    print("best of the others:", best)
    draw(photographs, {"Grad-CAM": usual, egcam.methods.label(best[0]) if False else best[0]: rivals[best], "SlopeCAM": ask("slope-cam", None)})


def draw(photographs: list[Tagged], columns: dict[str, tuple[list[egcam.Explanation], list[float]]]) -> None:
    """Rows: photographs; columns: the answer, then methods with their share of heat on the tag."""
    side, gap, top, foot = 4.0, 0.14, 0.75, 0.62
    count = len(columns) + 1
    page = Page(count * (side + gap) - gap, top + len(photographs) * (side + foot))
    width, height = page.get_size_inches()
    page.set_dpi(100)
    for column, title in enumerate(["the answer: the tag", *columns]):
        page.text(
            (column * (side + gap) + side / 2) / width, 1 - top / 2 / height, title, fontsize=34, ha="center", va="center",
            weight="bold" if title == "SlopeCAM" else "normal",
        )
        for row, photograph in enumerate(photographs):
            y = height - top - row * (side + foot) - side
            axes = page.add_axes((column * (side + gap) / width, y / height, side / width, side / height))
            axes.axis("off")
            centre = (column * (side + gap) + side / 2) / width
            if column == 0:
                axes.imshow(photograph.picture.resize((400, 400), Image.Resampling.LANCZOS))
                continue
            explanations, shares = columns[title]
            axes.imshow(explanations[row].overlay(photograph.picture.resize((448, 448), Image.Resampling.LANCZOS))[0].resize((400, 400)))
            page.text(centre, (y - 0.08) / height, f"{shares[row]:.0%} on the tag", fontsize=30, ha="center", va="top")
    save(page, OUT.with_suffix(".png"), dpi=100)
    Image.open(OUT.with_suffix(".png")).convert("RGB").save(OUT, quality=85)
    OUT.with_suffix(".png").unlink()


if __name__ == "__main__":
    main()
