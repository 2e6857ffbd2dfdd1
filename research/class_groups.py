"""Sort ImageNet's 1,000 classes into 16 groups of classes that look alike, for heads that know every image.

    python research/class_groups.py        # writes research/class_groups.csv: class_index, group

Two classes look alike where EfficientNet-Lite0 weighs its features alike: k-means on its last layer's rows, centred and
of length 1.
"""

from __future__ import annotations

import csv
from pathlib import Path

from sklearn.cluster import KMeans

import egcam

FILE = Path(__file__).parent / "class_groups.csv"
COUNT = 16


def main() -> None:
    weights = egcam.zoo.load("efficientnet-lite0").model._fc.weight.detach()
    rows = weights - weights.mean(0)
    groups = KMeans(COUNT, n_init=20, random_state=0).fit(rows / rows.norm(dim=1, keepdim=True)).labels_
    with open(FILE, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class_index", "group"])
        writer.writerows(enumerate(groups.tolist()))


if __name__ == "__main__":
    main()
