"""Split the images to be explained into two halves: one to choose a default on, one to confirm the choice.

    EGCAM_DATA=… python research/halves.py halves.csv

writes the list of images anew, with part "choose" or "confirm" in place of "explain". Only images that
`research/heads.py` held out are among them, so both halves are new to the trained heads.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path


def main() -> None:
    data = Path(os.environ["EGCAM_DATA"])
    with open(data / "imagenet.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    held_out = [row for row in rows if row["part"] == "explain"][1::2]
    for place, row in enumerate(held_out):
        row["part"] = "confirm" if place % 2 else "choose"
    with open(sys.argv[1], "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*held_out, *(row for row in rows if row["part"] == "reference")])
    print(f"{sys.argv[1]}: {len(held_out) - len(held_out) // 2} images to choose on, {len(held_out) // 2} to confirm")


if __name__ == "__main__":
    main()
