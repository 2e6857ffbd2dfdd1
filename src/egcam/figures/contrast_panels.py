"""Why this and why that: the maps of two classes on one scale, and their difference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from egcam.attribution.explanation import Explanation
from egcam.drawing import text_layout
from egcam.drawing.overlays import greyed
from egcam.drawing.palette import OPACITY, Pixels, is_signed
from egcam.errors import InputError
from egcam.figures import style
from egcam.figures.pictures import Picture, as_map, as_rgb, draw_color_bar, draw_overlay, draw_picture
from egcam.figures.sheet import BAR, GAP, MARGIN, Sheet
from egcam.imageops import upsampled


@dataclass(frozen=True)
class Contrast:
    """Two classes' maps at the image's size, both divided by the largest absolute value of the two."""

    this: Pixels  # (H, W) for the first class
    that: Pixels  # (H, W) for the second

    @property
    def difference(self) -> Pixels:
        """(H, W) this - that: above 0 is evidence for the first class rather than the second."""
        return self.this - self.that


def contrast_of(this: Explanation, that: Explanation, index: int = 0) -> Contrast:
    """The maps of two classes of one image, on one scale.

    The raw maps are compared: dividing each by its own maximum would make a faint reason look as strong as a clear one.

    Example:
        >>> import torch, egcam
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(72, 2))
        >>> pixels = torch.rand(1, 1, 8, 8)
        >>> both = [egcam.explain(net, pixels, "hires-cam", target=target, signed=True) for target in (0, 1)]
        >>> found = contrast_of(*both)
        >>> bool((found.difference == found.this - found.that).all())
        True
    """
    if this.size != that.size:
        raise InputError(f"the explained images differ in size, {this.size} and {that.size}: explain one image twice")
    if this.layer != that.layer or this.method != that.method:
        raise InputError("the two classes are explained by different methods or at different layers")
    maps = []
    for one in (this, that):
        coarse = one.maps[None] if one.is_single else one.maps[index : index + 1]
        if not len(coarse):
            raise InputError(f"there is no image {index}: {len(one)} are explained")
        maps.append(as_map(upsampled(coarse.float(), one.size)))
    largest = max(float(np.abs(values).max()) for values in maps)
    scale = largest if largest > 0 else 1.0
    return Contrast(maps[0] / scale, maps[1] / scale)


@style.context()
def class_contrast(
    this: Explanation,
    that: Explanation,
    image: Picture | None = None,
    *,
    index: int = 0,
    labels: tuple[str, str] | None = None,
    caption: str = "image",
    width: style.Width | float = "page",
    colors: str | None = None,
    opacity: float = OPACITY,
) -> Figure:
    """The image, why this class, why that class, and the signed difference: why this rather than that.

    The two maps share one scale (the larger maximum is 1). Where the method is complete, a title says what the hottest
    tenth of the image adds to the class's score, of all that the image adds. In the difference red is for the first
    class rather than the second and blue the other way; the photograph below it is grey, for fur and wood are red.

    Args:
        this: an explanation of the first class.
        that: one of the second, by the same method.
        image: the picture; by default the explained tensor.
        index: which image of a batch.
        labels: the names of the classes; by default the explanations' own.
        caption: what stands above the image.
        width: "column" (two by two), "page" (in a row) or inches.
        colors: a matplotlib colour map for the two maps.
        opacity: of the most important place in the overlays.

    Example:
        >>> import torch, egcam
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(72, 2))
        >>> pixels = torch.rand(1, 3, 8, 8)
        >>> both = [egcam.explain(net, pixels, "hires-cam", target=target, signed=True) for target in (0, 1)]
        >>> len(class_contrast(*both, labels=("cat", "dog")).axes)
        6
    """
    contrast = contrast_of(this, that, index)
    if image is None:
        if this.images is None:
            raise InputError("this explanation was loaded without its image: pass image=…")
        image = this.images if this.is_single else this.images[index]
    picture = as_rgb(image)
    if labels is None:
        labels = (this.label(index).split(",")[0], that.label(index).split(",")[0])
    signed = is_signed(contrast.this, contrast.that)
    # The difference can be twice as large as either map: it has a scale of its own.
    reach = max(float(np.abs(contrast.difference).max()), 1e-12)
    inches = style.width_in_inches(width)
    across = 4 if inches >= 5 else 2
    tile = min(1.9, (inches - 2 * MARGIN - (across - 1) * GAP) / across)
    tall = tile * contrast.this.shape[0] / contrast.this.shape[1]
    worth = [f" {one.worth(index)}" if one.worth(index) else "" for one in (this, that)]
    titles = [caption, *(f"why {label}?{said}" for label, said in zip(labels, worth, strict=True))]
    titles.append(f"why {labels[0]} rather than {labels[1]}?")
    titles = [text_layout.fitted(title, tile, style.SMALL, lines=2) for title in titles]
    header = max(text_layout.height_of(title, style.SMALL) for title in titles) + 0.04
    rows = 4 // across
    foot = BAR + 0.33
    sheet = Sheet(inches, MARGIN + rows * (header + tall + GAP) + foot)
    for number, title in enumerate(titles):
        row, column = divmod(number, across)
        left, top = MARGIN + column * (tile + GAP), MARGIN + row * (header + tall + GAP) + header
        sheet.write(title, left + tile / 2, top - 0.03, down="bottom")
        axes = sheet.axes(left, top, tile, tall)
        if number == 0:
            draw_picture(axes, picture)
        elif number == 3:
            draw_overlay(axes, greyed(picture), contrast.difference / reach, None, True, opacity)
        else:
            heat = contrast.this if number == 1 else contrast.that
            draw_overlay(axes, picture, heat, colors, signed, opacity)
    top = MARGIN + rows * (header + tall + GAP)
    # Each bar stands below the pictures it is of.
    middles = (2.0, 3.5) if across == 4 else (0.5, 1.5)
    wide = min(1.4, 0.85 * tile)
    shared, own = (
        sheet.axes(MARGIN + middle * (tile + GAP) - GAP / 2 - wide / 2, top, wide, BAR) for middle in middles
    )
    draw_color_bar(shared, "importance", colors, signed, opacity, across=True)
    draw_color_bar(own, "difference", None, True, opacity, across=True)
    own.set_xticks([-1, 0, 1], [f"−{reach:.2g}", "0", f"{reach:.2g}"])
    return sheet.page
