"""Makes src/egcam/data/photographs.jpg: crops of 64 free photographs, the references that come with the package.

    python docs/tools/make_photographs.py FOLDER

FOLDER holds the files that src/egcam/data/photographs.csv names: what the packages hold at `path`, as JPEG with a
shorter side of at most 512 pixels (of the `.exr` panoramas, perspective views). Of each a square is cut at random:
photographers put things in the middle, and what references show there is held against the middle of every map.
Whole photographs (192 px) bring AlexNet's maps nearer to those with images of the data, at a correlation of .92 instead
of .84 (24 images of the choosing half). They lose insertion-deletion that starts from blur: on the confirming half .140
instead of .150 on AlexNet, and .396 instead of .402 on SqueezeNet (127 images), which would then be behind Grad-CAM.
Where what is removed becomes another photograph they do not: .120 and .116 on AlexNet (80 images of the choosing half).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

SIDE = 160
COLUMNS = 8
SHARES = (0.4, 0.8)  # of the shorter side
DATA = Path(__file__).parents[2] / "src" / "egcam" / "data"


def square(photograph: Image.Image, chance: np.random.Generator) -> Image.Image:
    """A part of the photograph."""
    width, height = photograph.size
    side = int(min(width, height) * chance.uniform(*SHARES))
    left, top = int(chance.integers(width - side + 1)), int(chance.integers(height - side + 1))
    part = photograph.convert("RGB").crop((left, top, left + side, top + side))
    part = ImageOps.mirror(part) if chance.random() < 0.5 else part
    return part.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def main() -> None:
    chance = np.random.default_rng(0)
    folder = Path(sys.argv[1])
    with open(DATA / "photographs.csv", newline="", encoding="utf-8") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    sheet = Image.new("RGB", (COLUMNS * SIDE, -(-len(names) // COLUMNS) * SIDE))
    for number, name in enumerate(names):
        with Image.open(folder / name) as photograph:
            sheet.paste(square(photograph, chance), (number % COLUMNS * SIDE, number // COLUMNS * SIDE))
    target = DATA / "photographs.jpg"
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {len(names)} photographs, {target.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
