"""The time of SlopeCAM as a multiple of Grad-CAM's, on a stream of single images.

    python benchmarks/expected_speed.py --images 100

Both methods take turns image by image, so that a busy machine slows both; references have been seen before. Random
weights: only the shapes matter.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch
from torchvision import models

import egcam
from egcam.models.layers import feature_layers
from egcam.models.trace import dry_run

WHERE = {
    "alexnet": "features.12",
    "vgg16": "features.30",
    "mobilenet_v2": "features.18",
    "resnet50": "layer4",
    "mobilenet_v2 ": "features.13",
    "resnet50 ": "layer3",
}


def measured(name: str, layer: str, images: int, samples: int) -> str:
    torch.manual_seed(0)
    model = models.get_model(name.strip()).eval()
    some = torch.rand(images + 1, 1, 3, 224, 224)
    expected = egcam.SlopeCAM(model, layer, samples=samples)
    explainers = {"grad-cam": egcam.GradCAM(model, layer, signed=True), "expected": expected}
    times: dict[str, list[float]] = {kind: [] for kind in ("forward", *explainers)}
    for number, image in enumerate(some):
        start = perf_counter()
        with torch.inference_mode():
            model(image)
        times["forward"].append(perf_counter() - start)
        for kind, explainer in explainers.items():
            start = perf_counter()
            found = explainer(image)
            if number:
                times[kind].append(perf_counter() - start)
    tail = next(one.tail for one in feature_layers(model, dry_run(model, some[0])) if one.name == layer)
    forward, plain, ours = (median(times[kind]) for kind in times)
    bound = 1.1 + 1.1 * 2 * samples * tail
    return (
        f"| {name} | {layer} | {tail:.3f} | {found.tails} | {plain / forward:.2f} | {ours / plain:.2f} | "
        f"{ours / forward:.2f} | {bound:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--networks", default=",".join(WHERE))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | layer | tail / network | tails | Grad-CAM / forward", end=" | ")
    print("SlopeCAM / Grad-CAM | / forward | bound |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in given.networks.split(","):
        print(measured(name, WHERE[name], given.images, given.samples), flush=True)


if __name__ == "__main__":
    main()
