"""Read image files as people have them: any common kind, upright, in plain 8-bit RGB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from egcam.errors import InputError
from egcam.imagefiles import KINDS, MAX_MEGAPIXELS, PHOTOGRAPHS, SUFFIXES, opened

_SIXTEEN_BITS = 65535
# Images are turned into RGB by strips of so many pixels: beside image and result there are copies of a strip only.
_STRIP = 2**20


def read_image(
    path: str | Path, max_megapixels: float = MAX_MEGAPIXELS, formats: Sequence[str] = PHOTOGRAPHS
) -> Image.Image:
    """The image in a file, upright and in RGB.

    The camera's rotation (EXIF) is applied; grey, palette, 1-bit, 16-bit and CMYK images become RGB; what is
    transparent becomes white; of an animation or a multi-page file the first picture is taken.

    Args:
        path: the file.
        max_megapixels: larger images are refused before their pixels are read.
        formats: the kinds that are read, as Pillow calls them.

    Raises:
        InputError: when there is no such file, or it does not hold a complete image within the size limit.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "grey.png"
        >>> Image.new("L", (3, 2), 128).save(file)
        >>> read_image(file).getpixel((0, 0))
        (128, 128, 128)
    """
    path = Path(path)
    _check_file(path)
    with opened(path, formats=formats, max_megapixels=max_megapixels) as image:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _as_rgb(image)


def find_images(paths: Iterable[str | Path], recursive: bool = False) -> list[Path]:
    """The image files meant by `paths`: a folder stands for the images in it, sorted by name; each file once.

    A path that does not exist, or a folder without images, is kept as it is: `read_image` says what is wrong.

    Example:
        >>> [file.name for file in find_images(["cat.png", "dog.jpg", "cat.png"])]
        ['cat.png', 'dog.jpg']
    """
    files: list[Path] = []
    for path in map(Path, paths):
        files += (images_in(path, recursive) or [path]) if path.is_dir() else [path]
    return list(dict.fromkeys(files))


def images_in(folder: Path, recursive: bool = False) -> list[Path]:
    """The image files in a folder, known by their suffix, sorted; hidden files and folders are left out."""
    files = folder.rglob("*") if recursive else folder.iterdir()
    return sorted(
        file
        for file in files
        if file.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and file.is_file()
    )


def _check_file(path: Path) -> None:
    if path.is_dir():
        holds = "" if images_in(path) else " without images"
        raise InputError(f"{path} is a folder{holds}: pass an image file, {KINDS}")
    if not path.exists():
        raise InputError(f"{path} does not exist{_similar(path)}")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file: pass an image file, {KINDS}")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty: pass an image file, {KINDS}")


def _similar(path: Path) -> str:
    from difflib import get_close_matches

    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    close = get_close_matches(path.name, [file.name for file in images_in(path.parent)], n=1)
    return f": did you mean {path.parent / close[0]}?" if close else ""


def _as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, on white."""
    deep = _depth(image) if image.mode.startswith("I") or image.mode == "F" else None
    result = Image.new("RGB", image.size)
    for strip, top in _strips(image):
        result.paste(_plain(strip, deep), (0, top))
    return result


def _strips(image: Image.Image) -> Iterator[tuple[Image.Image, int]]:
    """Some rows after others, and where they begin."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(top + rows, image.height))), top


def _plain(strip: Image.Image, deep: tuple[float, float] | None) -> Image.Image:
    if deep is not None:
        low, span = deep
        numbers = (_numbers(strip) - low) / span
        return Image.fromarray(np.rint(numbers * 255).astype(np.uint8)).convert("RGB")
    if strip.has_transparency_data:
        rgba = strip.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return strip.convert("RGB")


def _depth(image: Image.Image) -> tuple[float, float]:
    """What becomes black, and how much above it white: the 16-bit range, floats in [0, 1], else the range in use."""
    ends = [
        (float(numbers.min()), float(numbers.max()))
        for numbers in map(_numbers, (strip for strip, _ in _strips(image)))
    ]
    low, high = min(least for least, _ in ends), max(most for _, most in ends)
    if low < 0 or high > _SIXTEEN_BITS:
        return low, max(high - low, 1e-300)
    if image.mode == "F":
        return 0.0, 1.0 if high <= 1 else 255.0 if high <= 255 else float(_SIXTEEN_BITS)
    return 0.0, float(_SIXTEEN_BITS)


def _numbers(strip: Image.Image) -> npt.NDArray[np.float64]:
    return np.nan_to_num(np.asarray(strip).astype(np.float64))
