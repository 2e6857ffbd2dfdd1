"""Plain forward passes with images as they come and channels-last, in one run.

python benchmarks/layout.py
"""

from __future__ import annotations

import statistics
import time

import torch
import torchvision


def main() -> None:
    torch.set_num_threads(2)
    print("| network | as they come, s | channels-last, s | ratio |\n|---|---|---|---|")
    for name in ("resnet50", "vgg16", "mobilenet_v2", "densenet121"):
        model = torchvision.models.get_model(name, weights=None).eval()
        images = torch.rand(8, 3, 224, 224)
        layouts = [images, images.contiguous(memory_format=torch.channels_last)]
        times: list[list[float]] = [[], []]
        with torch.no_grad():
            for round_number in range(6):
                for seconds, batch in zip(times, layouts, strict=True):
                    start = time.perf_counter()
                    model(batch)
                    if round_number:
                        seconds.append(time.perf_counter() - start)
        usual, fast = (statistics.median(seconds) for seconds in times)
        print(f"| {name} | {usual:.3f} | {fast:.3f} | {usual / fast:.2f} |", flush=True)


if __name__ == "__main__":
    main()
