"""Read image files as people have them: any common kind, upright, in plain 8-bit RGB."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from egcam.errors import InputError

MAX_MEGAPIXELS = 100.0
KINDS = "PNG, JPEG, WebP, BMP, GIF or TIFF"

_SUFFIXES = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".jp2"}
_SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico"}
_SIXTEEN_BITS = 65535


def read_image(path: str | Path, max_megapixels: float = MAX_MEGAPIXELS) -> Image.Image:
    """The image in a file, upright and in RGB.

    The camera's rotation (EXIF) is applied; grey, palette, 1-bit, 16-bit and CMYK images become RGB; what is
    transparent becomes white; of an animation or a multi-page file the first picture is taken.

    Args:
        path: the file.
        max_megapixels: larger images are refused before their pixels are read.

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
    with warnings.catch_warnings():
        # The size limit here is ours and stricter; Pillow's warning would only add noise before it.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with _opened(path) as image:
            _check_size(path, image, max_megapixels)
            try:
                image.load()
                return _as_rgb(ImageOps.exif_transpose(image))
            # Pillow's decoders answer damage with OSError, SyntaxError, EOFError, struct.error, zlib.error, …
            except Exception as error:
                raise InputError(f"{path} is damaged or cut short ({_first_line(error)}): save it again") from error


def find_images(paths: Iterable[str | Path], recursive: bool = False) -> list[Path]:
    """The image files meant by `paths`: a folder stands for the images in it, sorted by name; each file once.

    A path that does not exist, or a folder without images, is kept as it is: `read_image` says what is wrong.

    Example:
        >>> [file.name for file in find_images(["cat.png", "dog.jpg", "cat.png"])]
        ['cat.png', 'dog.jpg']
    """
    found: list[Path] = []
    for path in map(Path, paths):
        found += (images_in(path, recursive) or [path]) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def images_in(folder: Path, recursive: bool = False) -> list[Path]:
    """The image files in a folder, known by their suffix, sorted; hidden files and folders are left out."""
    files = folder.rglob("*") if recursive else folder.iterdir()
    return sorted(
        file
        for file in files
        if file.suffix.lower() in _SUFFIXES
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


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except UnidentifiedImageError as error:
        kind = "is text, not an image" if _looks_like_text(path) else "is not an image, or a damaged one"
        raise InputError(f"{path} {kind}: pass an image file, {KINDS}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{path} is too large to read safely ({_first_line(error)}): scale it down") from error
    except PermissionError as error:
        raise InputError(f"{path} cannot be read: change its permissions") from error
    except Exception as error:
        raise InputError(f"{path} is damaged or cut short ({_first_line(error)}): save it again") from error


def _check_size(path: Path, image: Image.Image, max_megapixels: float) -> None:
    megapixels = image.width * image.height / 1e6
    if megapixels > max_megapixels:
        raise InputError(
            f"{path} is too large: {image.width} x {image.height} pixels are {megapixels:.0f} megapixels, "
            f"and the limit is {max_megapixels:g}; scale it down (networks see a few hundred pixels)"
        )


def _looks_like_text(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(1024)
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut in two by the end of what was read is no sign of a binary file.
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character.isspace() for character in text)


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Deep grey values as bytes: the 16-bit range, floats in [0, 1], else the range the file uses."""
    numbers = np.nan_to_num(values.astype(np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    if low < 0 or high > _SIXTEEN_BITS:
        scaled = (numbers - low) / max(high - low, 1e-300)
    elif np.issubdtype(values.dtype, np.floating):
        scaled = numbers / (1 if high <= 1 else 255 if high <= 255 else _SIXTEEN_BITS)
    else:
        scaled = numbers / _SIXTEEN_BITS
    return np.rint(scaled * 255).astype(np.uint8)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
