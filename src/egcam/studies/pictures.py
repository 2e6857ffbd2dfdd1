"""What a model saw, as a small picture that is kept with the results and shown in reports."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from egcam.imagefiles import opened
from egcam.models.preprocessing import Preprocessing

_QUALITY = 90
_FORMATS = ("JPEG", "PNG")
# Far more than any network sees: results may be somebody else's.
_MEGAPIXELS = 16.0
_LONGEST_SHOWN = 1024


def encoded(preprocessing: Preprocessing, image: Image.Image) -> bytes:
    """What the network sees of an image, as a JPEG."""
    view = preprocessing.view(image)
    view.thumbnail((max(preprocessing.size), max(preprocessing.size)))
    file = BytesIO()
    view.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def shown(picture: bytes, name: str) -> Image.Image:
    """The picture for a page, in RGB and with sides of 1024 pixels at most; `name` is for errors."""
    with opened(picture, name, _FORMATS, _MEGAPIXELS) as image:
        image.thumbnail((_LONGEST_SHOWN, _LONGEST_SHOWN))
        return image.convert("RGB")


def height_and_width(picture: bytes, name: str) -> tuple[int, int]:
    """(height, width) of the picture as it was kept."""
    with opened(picture, name, _FORMATS, _MEGAPIXELS) as image:
        return image.height, image.width
