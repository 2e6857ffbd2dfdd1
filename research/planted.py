"""Networks in which a small patch decides the class, and photographs with the patch: the primary test on real networks.

    python research/planted.py teach mobilenet_v2      # and every other network below, into EGCAM_HEADS
    python research/planted.py plant planted/          # writes planted/imagenet and planted/cifar10

`egcam.truth.taught_patch` trains what follows a layer, mostly the default's, on images of the parts "choose" and
"reference". A network is kept if the patch decides 99 % of the images of part "confirm", and 99 % of them are not taken
for it without. Those that the patch decides in every network are written, with masks, for the studies
`confirm-planted*`. There, networks are named `../planted.py:mobilenet_v2`. In AlexNet and VGG-16 the convolutions
before the dense head are trained, too: the head alone, which sees each place with weights of its own, learns the patch
to 100 and 95 %, and to 99 and 89 %.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import networks
import numpy as np
import torch
from heads import listed
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam.models.zoo import Classifier
from egcam.photos.files import read_image

LABEL = 0  # the class that is given to the patch; nothing else is called so any more
LAYERS = {  # what follows is trained: the default's, or an earlier one if what follows that does not learn it
    "alexnet": "features.5",
    "vgg16": "features.0",  # all blocks but the last
    "mobilenet_v2": "features.13",
    "squeezenet1_1": "features.7",
    "efficientnet_lite0": "_blocks.10",
    "resnet20": "layer2",
    "resnet56": "layer2",
    "vit": "encoder.layers.encoder_layer_0",
    "mean_vit": "blocks.0",
}
EPOCHS = {"vgg16": 5, "squeezenet1_1": 12, "resnet20": 40, "resnet56": 25, "vit": 30, "mean_vit": 30}
RATES = {"resnet20": 2e-3, "resnet56": 2e-3, "vit": 1e-3, "mean_vit": 1e-3}
SIDES = {224: 32, 32: 6}  # of an image, and of its patch


def before(name: str) -> Classifier:
    """A network that has not learned the patch yet."""
    found: Classifier = networks.vgg16_to_train() if name == "vgg16" else getattr(networks, name)()
    return found


def planted(name: str) -> Classifier:
    """A network that has learned the patch; it takes images as `plant` writes them."""
    classifier = before(name)
    state = torch.load(Path(os.environ["EGCAM_HEADS"]) / f"planted-{name}.pth", weights_only=True)
    classifier.model.load_state_dict(state)
    return replace(classifier, preprocessing=replace(classifier.preprocessing, resize=None))


NETWORKS: dict[str, Callable[[], Classifier]] = {name: partial(planted, name) for name in LAYERS}
globals().update(NETWORKS)


def patch_of(classifier: Classifier) -> Tensor:
    """(3, h, w) as the network sees it: pure magenta and green."""
    side = classifier.preprocessing.size[0]
    pixels = egcam.truth.checkered(SIDES[side], 0.0, 1.0)
    mean, std = (
        torch.tensor(one)[:, None, None] for one in (classifier.preprocessing.mean, classifier.preprocessing.std)
    )
    return (pixels - mean) / std


def pictures(side: int, part: str) -> dict[str, Image.Image]:
    """Images of a part by name, cut to what networks see; CIFAR-10 has "choose" and "confirm" only."""
    if side == 32:
        if part == "reference":
            return {}
        with np.load(Path(os.environ["EGCAM_CIFAR"]) / f"{part}.npz") as file:
            return {f"{part}-{number:04d}": Image.fromarray(pixels) for number, pixels in enumerate(file["x"])}
    folder = Path(os.environ["EGCAM_DATA"]) / "imagenet"
    with open(os.environ["EGCAM_HALVES"], newline="") as file:
        names = [row["file"] for row in csv.DictReader(file) if row["part"] == part]
    return {Path(name).stem: centre(read_image(folder / name), side) for name in names}


def centre(image: Image.Image, side: int) -> Image.Image:
    """The square in the middle of an image whose shorter side is 256."""
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.convert("RGB").crop((left, top, left + side, top + side))


def seen(classifier: Classifier, images: dict[str, Image.Image]) -> Tensor:
    """(N, 3, H, W) the images as the network takes them, not resized."""
    as_they_are = replace(classifier.preprocessing, resize=None)
    return torch.stack([as_they_are(image) for image in images.values()])


def teach(name: str) -> None:
    """Train a network and keep it, whether or not the patch decides: `plant` looks at that."""
    classifier = before(name)
    side = classifier.preprocessing.size[0]
    known = {**pictures(side, "choose"), **pictures(side, "reference")}
    if name in {"alexnet", "vgg16"}:  # and what their heads were trained on before
        known |= {file.stem: centre(read_image(file), side) for file, _ in listed([0] * 1000)[0]}
    images, patch = seen(classifier, known), patch_of(classifier)
    how = {"epochs": EPOCHS.get(name, 8), "rate": RATES.get(name, 5e-4)}
    taught = egcam.truth.taught_patch(classifier.model, images, LAYERS[name], LABEL, patch, **how, progress=_report)
    torch.save(taught.state_dict(), Path(os.environ["EGCAM_HEADS"]) / f"planted-{name}.pth")
    print(f"\n{name}: {decided(classifier, taught)[0]}")


def decided(classifier: Classifier, model: nn.Module) -> tuple[egcam.truth.Decided, Tensor]:
    """What the patch does on the confirming half, and for which images it decides."""
    images = pictures(classifier.preprocessing.size[0], "confirm")
    return egcam.truth.patch_decides(model, seen(classifier, images), LABEL, patch_of(classifier))


def plant(out: Path) -> None:
    """Write the images that the patch decides in every network that is kept."""
    for side, folder in ((32, out / "cifar10"), (224, out / "imagenet")):
        images = pictures(side, "confirm")
        usable = torch.ones(len(images), dtype=torch.bool)
        for name in LAYERS:
            if not (Path(os.environ["EGCAM_HEADS"]) / f"planted-{name}.pth").exists():
                continue
            classifier = planted(name)
            if classifier.preprocessing.size[0] == side:
                checked, by_image = decided(classifier, classifier.model)
                print(f"{name}: {checked}, {'kept' if checked.is_sure else 'NOT KEPT: leave it out of the study'}")
                usable &= by_image | (not checked.is_sure)
        _write(images, usable, side, folder)


def _write(images: dict[str, Image.Image], usable: Tensor, side: int, folder: Path) -> None:
    pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images.values()])
    found = egcam.truth.plant(pixels.float() / 255, patch=egcam.truth.checkered(SIDES[side], 0.0, 1.0))
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label"])
        for number, name in enumerate(images):
            if usable[number]:
                shown = (found.images[number] * 255).round().byte().permute(1, 2, 0).numpy()
                Image.fromarray(shown).save(folder / f"{name}.png")
                Image.fromarray((found.masks[number] * 255).byte().numpy()).save(folder / "masks" / f"{name}.png")
                writer.writerow([f"{name}.png", LABEL])
    print(f"{folder}: {int(usable.sum())} of {len(images)} images")


def _report(share: float) -> None:
    print(f"\r{share:.0%}", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["teach", "plant"])
    parser.add_argument("what", help="a network, or the folder to write into")
    given = parser.parse_args()
    if given.verb == "teach":
        teach(given.what)
    else:
        plant(Path(given.what))


if __name__ == "__main__":
    main()
