"""Makes src/egcam/data/photographs.jpg: 32 crops of eight free photographs, the references that come with the package.

Run with `python docs/tools/make_photographs.py`; needs scikit-image and scikit-learn, which bring the photographs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

SIDE = 160
COLUMNS = 8
CROPS = 4  # of each photograph
TARGET = Path(__file__).parents[2] / "src" / "egcam" / "data" / "photographs.jpg"


def photographs() -> list[np.ndarray]:
    """Eight pictures of unlike things, in colour."""
    own = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.retina(), data.hubble_deep_field()]
    return [*own, load_sample_image("china.jpg"), load_sample_image("flower.jpg")]


def crops(picture: np.ndarray, chance: np.random.Generator) -> list[Image.Image]:
    """Squares of between half and all of the shorter side, some mirrored, scaled to one size."""
    height, width = picture.shape[:2]
    found = []
    for _ in range(CROPS):
        side = int(min(height, width) * chance.uniform(0.5, 1.0))
        top, left = chance.integers(height - side + 1), chance.integers(width - side + 1)
        crop = picture[top : top + side, left : left + side]
        crop = crop[:, ::-1] if chance.random() < 0.5 else crop
        found.append(Image.fromarray(crop).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    return found


def main() -> None:
    chance = np.random.default_rng(0)
    found = [crop for picture in photographs() for crop in crops(picture, chance)]
    sheet = Image.new("RGB", (COLUMNS * SIDE, len(found) // COLUMNS * SIDE))
    for number, crop in enumerate(found):
        sheet.paste(crop, (number % COLUMNS * SIDE, number // COLUMNS * SIDE))
    TARGET.parent.mkdir(exist_ok=True)
    sheet.save(TARGET, quality=85)
    print(f"{TARGET.name}: {len(found)} crops, {TARGET.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
