"""The one place where image files are opened: by kinds named here, and within a number of pixels.

Pillow reads some sixty kinds, some of them with old decoders or with other programs (Ghostscript for PostScript). The
kind is known by the content, whatever the file is called.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from egcam.errors import InputError

MAX_MEGAPIXELS = 100.0
USUAL = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
KINDS = "PNG, JPEG, WebP, BMP, GIF or TIFF"
PHOTOGRAPHS = (*USUAL, "AVIF", "JPEG2000", "PPM", "ICO", "TGA")
SUFFIXES = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".jp2"}
SUFFIXES |= {".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico"}


@contextmanager
def opened(
    source: Path | bytes,
    name: object = None,
    formats: Sequence[str] = PHOTOGRAPHS,
    max_megapixels: float = MAX_MEGAPIXELS,
) -> Iterator[Image.Image]:
    """The image in a file or in bytes, its header read and its pixels not yet.

    Args:
        source: the file, or its content.
        name: what errors call it; None is the file's path.
        formats: the kinds that may be in it, as Pillow calls them.
        max_megapixels: larger images are refused before their pixels are read.

    Raises:
        InputError: when it holds no image of these kinds within the limit, or its pixels, read within the block, are
            damaged.

    Example:
        >>> try:
        ...     with opened(b"%!PS-Adobe-3.0 EPSF-3.0", "drawing.png") as image:
        ...         image.load()
        ... except InputError as error:
        ...     print(error)
        drawing.png is text, not an image: pass an image file, PNG, JPEG, WebP, BMP, GIF or TIFF
    """
    name = source if name is None else name
    try:
        with warnings.catch_warnings():
            # The limit here is stricter; Pillow's warning would only add noise before it.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            stream: BinaryIO = BytesIO(source) if isinstance(source, bytes) else source.open("rb")
            with stream:
                _check_icon(stream, name, max_megapixels)
                with Image.open(stream, formats=_readable(formats)) as image:
                    _check_size(name, *image.size, max_megapixels)
                    yield image
    except InputError:
        raise
    except UnidentifiedImageError as error:
        head = source[:1024] if isinstance(source, bytes) else _head(source)
        kind = "is text, not an image" if _looks_like_text(head) else "is not an image of these kinds, or a damaged one"
        raise InputError(f"{name} {kind}: pass an image file, {KINDS}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} is too large to read safely ({_first_line(error)}): scale it down") from error
    except PermissionError as error:
        raise InputError(f"{name} cannot be read: change its permissions") from error
    # Pillow's decoders answer damage with OSError, SyntaxError, EOFError, struct.error, zlib.error, …
    except Exception as error:
        raise InputError(f"{name} is damaged or cut short ({_first_line(error)}): save it again") from error


def _check_size(name: object, width: int, height: int, max_megapixels: float) -> None:
    """Refuse an image with too many pixels."""
    megapixels = width * height / 1e6
    if megapixels > max_megapixels:
        raise InputError(
            f"{name} is too large: {width} x {height} pixels are {megapixels:.0f} megapixels, "
            f"and the limit is {max_megapixels:g}; scale it down (networks see a few hundred pixels)"
        )


def _readable(formats: Sequence[str]) -> list[str]:
    """Those of the kinds that this Pillow was built with."""
    Image.init()
    return [name for name in formats if name in Image.OPEN]


def _check_icon(stream: BinaryIO, name: object, max_megapixels: float) -> None:
    """Refuse an icon with a large picture in it: Pillow reads an icon's pixels as soon as it is opened."""
    head = stream.read(6)
    if head[:4] == b"\0\0\1\0":
        directory = stream.read(16 * int.from_bytes(head[4:6], "little"))
        for (place,) in struct.iter_unpack("<12xI", directory):
            stream.seek(place)
            inner = stream.read(24)
            if inner[:4] == b"\x89PNG":
                width, height = struct.unpack(">II", inner[16:24])
                _check_size(name, width, height, max_megapixels)
            else:
                # The heights of the picture and of its mask are added up.
                width, height = struct.unpack("<ii", inner[4:12])
                _check_size(name, abs(width), abs(height) // 2, max_megapixels)
    stream.seek(0)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1024)


def _looks_like_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character cut in two by the end of what was read is no sign of a binary file.
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character.isspace() for character in text)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
