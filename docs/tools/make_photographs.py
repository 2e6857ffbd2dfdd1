"""Makes src/egcam/data/photographs.jpg: 64 free photographs, the references that come with the package.

    python docs/tools/make_photographs.py FOLDER

FOLDER holds the files that src/egcam/data/photographs.csv names, taken from the packages it names.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from PIL import Image, ImageOps

SIDE = 160
COLUMNS = 8
DATA = Path(__file__).parents[2] / "src" / "egcam" / "data"


def main() -> None:
    folder = Path(sys.argv[1])
    with open(DATA / "photographs.csv", newline="", encoding="utf-8") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    sheet = Image.new("RGB", (COLUMNS * SIDE, -(-len(names) // COLUMNS) * SIDE))
    for number, name in enumerate(names):
        with Image.open(folder / name) as photograph:
            square = ImageOps.fit(photograph.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
        sheet.paste(square, (number % COLUMNS * SIDE, number // COLUMNS * SIDE))
    target = DATA / "photographs.jpg"
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {len(names)} photographs, {target.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
