"""What a browser may send: how large, how many pixels, which kinds of image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from egcam.errors import InputError
from egcam.imagefiles import USUAL
from egcam.photos.files import read_image

# As browsers and Gradio count, whose message about a file that is too large stands beside ours.
_MEGABYTE = 2**20
_LONGEST_NAME = 60
_LONGEST_OF_ALL = 255


@dataclass(frozen=True)
class Limits:
    """What the page accepts."""

    megabytes: float = 20.0  # of one uploaded file
    megapixels: float = 50.0  # of one image; larger ones are refused before their pixels are read
    samples: int = 64  # of an averaging method
    waiting: int = 100  # requests that may wait; others are asked to come back later
    sessions: int = 100  # whose results are kept in memory
    folder_megabytes: float = 2000.0  # of everything in the temporary folder
    folder_files: int = 20_000  # files and folders in it
    keep_seconds: float = 3600.0  # how long a file stays in it

    @property
    def bytes(self) -> int:
        """The largest upload, in bytes."""
        return round(self.megabytes * _MEGABYTE)


def read_upload(file: Path, name: str, limits: Limits) -> Image.Image:
    """The image in an uploaded file, known by its content and not by its name; an `InputError` says what is wrong.

    Args:
        file: where the upload was put.
        name: what its owner calls it; errors use this name, and never tell where the file is.
        limits: how large it may be.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "1234"
        >>> _ = file.write_text("a shopping list")
        >>> try:
        ...     read_upload(file, "list.png", Limits())
        ... except InputError as error:
        ...     print(error)
        “list.png” is text, not an image: pass an image file, PNG, JPEG, WebP, BMP, GIF or TIFF
    """
    shown = f"“{short_name(name)}”"
    try:
        _check_file_size(file, limits)
        image = read_image(file, limits.megapixels, USUAL)
    except InputError as error:
        raise InputError(str(error).replace(str(file), shown)) from None
    return image


def short_name(name: str) -> str:
    """A file's name without folders and control characters, cut to a readable length.

    Example:
        >>> short_name("C:\\\\photos\\\\cat.png"), short_name("")
        ('cat.png', 'image')
    """
    clean = whole_name(name)
    if len(clean) > _LONGEST_NAME:
        clean = clean[: _LONGEST_NAME // 2] + "…" + clean[-_LONGEST_NAME // 2 :]
    return clean


def whole_name(name: str) -> str:
    """A file's name without folders and control characters; no file system takes a longer one."""
    bare = name.replace("\\", "/").rsplit("/", 1)[-1]
    clean = "".join(character for character in bare if character.isprintable()).strip()
    return clean[-_LONGEST_OF_ALL:] or "image"


def _check_file_size(file: Path, limits: Limits) -> None:
    size = file.stat().st_size if file.is_file() else 0
    if size > limits.bytes:
        raise InputError(
            f"{file} has {size / _MEGABYTE:.1f} megabytes, and the limit is {limits.megabytes:g}: save it smaller"
        )
