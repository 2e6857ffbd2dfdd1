"""Split the images to be explained into two halves: one to choose a default on, one to confirm the choice.

    EGCAM_DATA=… python research/halves.py halves.csv

writes the list of images anew, with part "choose" or "confirm" in place of "explain". Only images that
`research/heads.py` held out are among them, so both halves are new to the trained heads. To go on with a study whose
folder is gone, leave out the images whose scores are kept: `--without research/scores/confirm-usual.parquet`.

With `--cifar cifar` the CIFAR-10 images at hand are split as well, into `cifar/choose.npz` and `cifar/confirm.npz`.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import numpy as np
import pandas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--without", type=Path)
    parser.add_argument("--cifar", type=Path, help="a folder for the halves of CIFAR-10")
    given = parser.parse_args()
    done = set() if given.without is None else set(pandas.read_parquet(given.without).image)
    data = Path(os.environ["EGCAM_DATA"])
    with open(data / "imagenet.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    held_out = [row for row in rows if row["part"] == "explain"][1::2]
    for place, row in enumerate(held_out):
        row["part"] = "confirm" if place % 2 else "choose"
    held_out = [row for row in held_out if row["file"] not in done]
    with open(given.out, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*held_out, *(row for row in rows if row["part"] == "reference")])
    if given.cifar is not None:
        _split_cifar(data / "cifar10_test_2000.npz", given.cifar)
    confirming = sum(row["part"] == "confirm" for row in held_out)
    print(f"{given.out}: {len(held_out) - confirming} images to choose on, {confirming} to confirm")


def _split_cifar(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(file) as images:
        for place, part in enumerate(("choose", "confirm")):
            np.savez(folder / f"{part}.npz", x=images["x"][place::2], y=images["y"][place::2])


if __name__ == "__main__":
    main()
