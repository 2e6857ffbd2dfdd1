"""Pictures of heat maps: colours, overlays on photographs, labelled grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from egcam.drawing.palette import INK, OPACITY, Pixels, checked_opacity, heat_layer, is_signed
from egcam.drawing.text_layout import fitted, font, width_of
from egcam.errors import InputError
from egcam.imageops import gaussian_blur

# matplotlib is imported inside functions only: `import egcam` must stay quick.

# A map is scattered dots when a slight blur takes this much of its height.
_SPECKLED = 0.6
# Of a cell's width: the blur that takes linear enlargement's creases away.
_CREASE = 0.35
_HALF = 0.5


_AXES = {1: "one dimension (length)", 2: "two dimensions (height, width)", 3: "three (depth or frames, height, width)"}


def as_map(values: Tensor | npt.ArrayLike, axes: int = 2) -> Pixels:
    """(h, w) a finite map of any scale, with that many dimensions."""
    found = as_array(values)
    if found.ndim != axes or found.size == 0:
        raise InputError(f"a map to draw has {_AXES[axes]}, not shape {found.shape}")
    if not np.isfinite(found).all():
        raise InputError("the map holds NaN or infinite values and cannot be drawn")
    return found


def as_array(values: Tensor | npt.ArrayLike) -> Pixels:
    """A copy of numbers as an array, wherever they are."""
    plain = values.detach().float().cpu() if isinstance(values, Tensor) else values
    return np.asarray(plain, dtype=np.float32).copy()


def as_picture(colors: Pixels) -> Image.Image:
    """(H, W, 3) in [0, 1] as a picture."""
    return Image.fromarray(np.rint(np.clip(colors, 0, 1) * 255).astype(np.uint8))


def heatmap_image(
    heatmap: npt.ArrayLike, colormap: str | None = None, sharpness: float = 1.0, signed: bool | None = None
) -> Image.Image:
    """A heat map in colours, without a photograph.

    Args:
        heatmap: (H, W) values in [0, 1], or in [-1, 1] for a signed map.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        sharpness: an exponent of what is shown.
        signed: from -1 rather than from 0; None is where there are negative values.

    Example:
        >>> heatmap_image(np.eye(4)).size
        (4, 4)
    """
    values = as_map(heatmap)
    signed = is_signed(values) if signed is None else signed
    return as_picture(heat_layer(values, colormap, signed, sharpness=sharpness)[:, :, :3])


def overlay_image(
    image: Image.Image,
    heatmap: npt.ArrayLike,
    alpha: float = OPACITY,
    colormap: str | None = None,
    sharpness: float = 1.0,
    signed: bool | None = None,
    box: tuple[float, float, float, float] | None = None,
    certain: Pixels | None = None,
) -> Image.Image:
    """A heat map laid over its photograph: the more important a place, the less the photograph shows through.

    Args:
        image: the photograph.
        heatmap: (H, W) values in [0, 1], or in [-1, 1] for a signed map; resized to the photograph, and made
            `legible` where it is scattered dots.
        alpha: how opaque the most important place is; places of no importance show the bare photograph.
        colormap: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        sharpness: an exponent of what is shown.
        signed: from -1 rather than from 0; None is where there are negative values.
        box: (left, top, right, bottom) of the photograph that the map is of; the rest is shown bare. None is all of it.
        certain: (H, W) from 0 to 1, by which the map is the less opaque; None is 1 everywhere.

    Example:
        >>> overlay_image(Image.new("RGB", (8, 6), "white"), np.zeros((3, 4))).getpixel((0, 0))
        (255, 255, 255)
    """
    values = as_map(heatmap)
    signed = is_signed(values) if signed is None else signed
    values = placed(legible(values), box, image.size)
    certain = None if certain is None else placed(certain, box, image.size)
    return laid_over(image, values, colormap, signed, alpha, sharpness, certain)


def smoothed(values: Pixels, cells: tuple[int, ...]) -> Pixels:
    """A map that was enlarged from so many (rows, columns), without the creases at its cells' middles, for the eye.

    Linear enlargement draws stars and crosses around single hot cells. The height of the map stays.
    """
    enlarged = min(values.shape[0] / cells[0], values.shape[1] / cells[1])
    highest = float(np.abs(values).max())
    if enlarged < 3 or highest == 0:
        return values
    soft = gaussian_blur(torch.from_numpy(values)[None, None], sigma=_CREASE * enlarged)[0, 0].numpy()
    return np.clip(soft * (highest / max(float(np.abs(soft).max()), 1e-12)), -1, 1)


def placed(
    values: npt.NDArray[Any], box: tuple[float, float, float, float] | None, size: tuple[int, int]
) -> npt.NDArray[Any]:
    """A map inside a box of a picture of (width, height), and 0 around it; as it is where the box is all of it."""
    if box is None:
        return values
    if values.dtype == bool:
        return placed(values.astype(np.float32), box, size) > _HALF
    left, top, right, bottom = box
    across, down = values.shape[1] / (right - left), values.shape[0] / (bottom - top)
    back = (across, 0, -left * across, 0, down, -top * down)
    made = Image.fromarray(values).transform(size, Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)
    return np.asarray(made, dtype=np.float32)


def laid_over(
    image: Image.Image,
    values: Pixels,
    colormap: str | None,
    signed: bool,
    alpha: float,
    sharpness: float,
    certain: Pixels | None = None,
) -> Image.Image:
    """`overlay_image` for a map that is `legible` already, as one slice of many is."""
    photograph = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
    below, layer = _layers(photograph, values, colormap, signed, alpha, sharpness, certain)
    opacity = layer[:, :, 3:]
    return as_picture((1 - opacity) * below + opacity * layer[:, :, :3])


def overlay_layers(
    photograph: Pixels,
    heat: Pixels,
    colors: str | None = None,
    signed: bool = False,
    opacity: float = OPACITY,
) -> tuple[Pixels, Pixels]:
    """What every overlay is made of: the photograph, and over it the heat map's colours, as large as the photograph.

    The photograph loses its own colours where the map's come in: an orange cup must not look like heat. A map of
    scattered dots is made `legible`.

    Args:
        photograph: (H, W, 3) in [0, 1].
        heat: (h, w) in [0, 1], or in [-1, 1] where it is signed.
        colors: a matplotlib colour map; by default that of `egcam.drawing.palette`.
        signed: from -1 rather than from 0.
        opacity: of the most important place.

    Returns:
        (H, W, 3) and (H, W, 4).

    Example:
        >>> below, layer = overlay_layers(np.full((1, 2, 3), (1.0, 0.0, 0.0)), np.array([[0.0, 1.0]]))
        >>> below[0].round(3).tolist(), [round(float(alpha), 3) for alpha in layer[0, :, 3]]
        ([[1.0, 0.0, 0.0], [0.299, 0.299, 0.299]], [0.0, 0.8])
    """
    if heat.ndim != 2:
        raise InputError(f"a heat map to draw over a photograph has {_AXES[2]}, not shape {heat.shape}")
    return _layers(photograph, legible(heat.astype(np.float32)), colors, signed, opacity)


def _layers(
    photograph: Pixels,
    heat: Pixels,
    colors: str | None,
    signed: bool,
    opacity: float,
    sharpness: float = 1.0,
    certain: Pixels | None = None,
) -> tuple[Pixels, Pixels]:
    size = photograph.shape[1], photograph.shape[0]
    layer = heat_layer(_resized(heat, size), colors, signed, 1.0, sharpness)
    if certain is not None:
        layer[:, :, 3] *= _resized(certain, size)
    below = greyed(photograph, layer[:, :, 3:])
    layer[:, :, 3] *= checked_opacity(opacity)
    return below, layer


def greyed(pixels: Pixels, share: Pixels | float = 1.0) -> Pixels:
    """(H, W, 3) without its colours as far as `share` says, as light as before (Rec. 601)."""
    grey = (pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32))[:, :, None]
    return (1 - share) * pixels + share * grey


def legible(values: Pixels) -> Pixels:
    """A map that can be seen: one whose high values are scattered pixels is softened and stretched, others are left.

    Gradients at the pixels are such: hundreds of dots, the brightest of them alone. They are blurred by a hundredth of
    the width, and what reaches the brightest percent counts as full.

    Example:
        >>> smooth = np.linspace(0, 1, 10000, dtype=np.float32).reshape(100, 100)
        >>> bool((legible(smooth) == smooth).all())
        True
    """
    highest = float(np.abs(values).max())
    if highest == 0:
        return values
    soft = gaussian_blur(torch.from_numpy(values)[None, None], sigma=max(values.shape) / 100)[0, 0].numpy()
    if float(np.abs(soft).max()) > _SPECKLED * highest:
        return values
    return np.clip(soft / max(float(np.percentile(np.abs(soft), 99)), 1e-12), -1, 1)


def _resized(values: Pixels, size: tuple[int, int]) -> Pixels:
    if (values.shape[1], values.shape[0]) == size:
        return values
    return np.asarray(Image.fromarray(values).resize(size, Image.Resampling.BILINEAR), dtype=np.float32)


def to_pil(images: Tensor) -> list[Image.Image]:
    """Image tensors as pictures: values in [0, 1] as they are, others (normalised pixels) stretched.

    Args:
        images: (N, C, H, W) or (C, H, W); one channel is grey, of two the first is shown, of more than three
            the first three. Stretching is per image.

    Example:
        >>> to_pil(torch.zeros(2, 3, 4, 5))[0].size
        (5, 4)
    """
    batch = images.detach()
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or batch.shape[1] == 0:
        raise InputError(f"images to show have shape (N, C, H, W) or (C, H, W), not {tuple(images.shape)}")
    batch = batch[:, :1].expand(-1, 3, -1, -1) if batch.shape[1] < 3 else batch[:, :3]
    batch = batch.to("cpu", torch.float32).permute(0, 2, 3, 1)
    return [as_picture(_to_unit_range(image.numpy())) for image in batch]


def _to_unit_range(pixels: Pixels) -> Pixels:
    low, high = float(pixels.min()), float(pixels.max())
    # Resampling overshoots by a hair; that is no reason to stretch the contrast.
    if low >= -1e-3 and high <= 1 + 1e-3:
        return pixels
    return (pixels - low) / max(high - low, 1e-12)


@dataclass(frozen=True)
class Tile:
    """One labelled picture of a grid: a title above it and, smaller, a second line."""

    image: Image.Image
    title: str
    detail: str = ""


@dataclass(frozen=True)
class _Style:
    """Sizes in pixels for tiles of a given side, and the colours of the page."""

    side: int

    page = "#ffffff"
    ink = INK
    faint = "#646a73"
    bar = "#31688e"
    track = "#e8eaee"

    @property
    def gap(self) -> int:
        return max(4, self.side // 18)

    @property
    def title_size(self) -> int:
        return max(9, self.side // 15)

    @property
    def detail_size(self) -> int:
        return max(8, self.side // 18)

    @property
    def header(self) -> int:
        return round(1.45 * (self.title_size + self.detail_size))


def grid(
    tiles: Sequence[Tile], columns: int, side: int = 280, heading: str = "", height: int | None = None
) -> Image.Image:
    """Labelled pictures in rows, from left to right; every label fits its tile.

    Args:
        tiles: the pictures; each is scaled to fit a square of `side` pixels.
        columns: how many stand in a row.
        side: the width and height of one picture.
        heading: a line above everything.
        height: of one picture, where they are no squares.

    Example:
        >>> tile = Tile(Image.new("RGB", (9, 9)), "black")
        >>> grid([tile, tile], columns=2, side=90).size
        (195, 125)
    """
    if not tiles:
        raise InputError("a grid needs at least one picture")
    style = _Style(side)
    columns = max(1, min(columns, len(tiles)))
    rows = -(-len(tiles) // columns)
    height = side if height is None else height
    top = style.gap + (2 * style.title_size if heading else 0)
    width = columns * (side + style.gap) + style.gap
    page = Image.new("RGB", (width, top + rows * (height + style.header + style.gap)), style.page)
    draw = ImageDraw.Draw(page)
    if heading:
        _write(draw, heading, (style.gap, style.gap), style.title_size + 3, style.ink, width - 2 * style.gap)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        left = style.gap + column * (side + style.gap)
        above = top + row * (height + style.header + style.gap)
        _place(page, draw, tile, (left, above), style, height)
    return page


def _place(
    page: Image.Image, draw: ImageDraw.ImageDraw, tile: Tile, corner: tuple[int, int], style: _Style, height: int
) -> None:
    left, above = corner
    _write(draw, tile.title, (left, above), style.title_size, style.ink, style.side, bold=True)
    below_title = above + round(1.4 * style.title_size)
    _write(draw, tile.detail, (left, below_title), style.detail_size, style.faint, style.side)
    picture = _fitted(tile.image, style.side, height)
    spare = (style.side - picture.width) // 2, (height - picture.height) // 2
    page.paste(picture, (left + spare[0], above + style.header + spare[1]))


def _fitted(image: Image.Image, width: int, height: int) -> Image.Image:
    """The picture scaled so that it just fits."""
    scale = min(width / image.width, height / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def bars(names: Sequence[str], shares: Sequence[float], side: int = 280) -> Image.Image:
    """Class probabilities as a square bar chart, the name above each bar and the number at its end.

    Example:
        >>> bars(["tabby", "tiger cat"], [0.7, 0.2], side=100).size
        (100, 100)
    """
    style = _Style(side)
    chart = Image.new("RGB", (side, side), style.page)
    draw = ImageDraw.Draw(chart)
    step = side / max(len(names), 1)
    thick = max(3, round(step * 0.24))
    number_width = font(style.detail_size, bold=True).getlength("100.0%") + style.gap // 2
    for index, (name, share) in enumerate(zip(names, shares, strict=True)):
        above = round(index * step)
        _write(draw, name, (0, above), style.detail_size, style.ink, side)
        line = above + round(1.5 * style.detail_size)
        full = side - number_width
        draw.rounded_rectangle((0, line, full, line + thick), radius=thick // 2, fill=style.track)
        # A share too small for a bar still shows as a dot.
        length = max(float(thick), full * float(np.clip(share, 0, 1)))
        draw.rounded_rectangle((0, line, length, line + thick), radius=thick // 2, fill=style.bar)
        middle = line + thick / 2
        text = f"{share:.1%}"
        draw.text((side, middle), text, style.ink, font(style.detail_size, bold=True), anchor="rm")
    return chart


def _write(
    draw: ImageDraw.ImageDraw,
    text: str,
    corner: tuple[int, int],
    size: int,
    color: str,
    width: float,
    bold: bool = False,
) -> None:
    """One line of text that never runs over `width`: set smaller if need be, then cut with an ellipsis."""
    smallest = max(7, round(0.7 * size))
    while size > smallest and width_of(text, size, bold) > width / 72:
        size -= 1
    draw.text(corner, fitted(text, width / 72, size, 1, bold), color, font(size, bold))


def stack(pages: Sequence[Image.Image]) -> Image.Image:
    """Pictures one below the other, on white.

    Example:
        >>> stack([Image.new("RGB", (9, 9)), Image.new("RGB", (5, 2))]).size
        (9, 11)
    """
    if not pages:
        raise InputError("a stack needs at least one picture")
    whole = Image.new("RGB", (max(page.width for page in pages), sum(page.height for page in pages)), "white")
    above = 0
    for page in pages:
        whole.paste(page, (0, above))
        above += page.height
    return whole
