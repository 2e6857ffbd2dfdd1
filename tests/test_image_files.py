"""Images are opened by kinds that are named, in one place, and with memory that is bounded before they are decoded."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from egcam.errors import InputError
from egcam.photos.files import read_image
from egcam.studies.datasets.masks import fitted, from_file
from egcam.studies.geometry import height_and_width, shown

SOURCE = Path(__file__).parents[1] / "src" / "egcam"
POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n0 0 moveto 9 9 lineto stroke\nshowpage\n%%EOF\n"
)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_there_is_one_place_that_opens_images() -> None:
    places = [path.name for path in SOURCE.rglob("*.py") if re.search(r"\bImage\.open\(", path.read_text())]
    assert places == ["imagefiles.py"]


@pytest.mark.parametrize("reader", [read_image, from_file, lambda file: shown(file.read_bytes(), "a picture")])
def test_postscript_called_png_is_handed_to_no_other_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: object
) -> None:
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    file = tmp_path / "drawing.png"
    file.write_bytes(POSTSCRIPT)
    with pytest.raises(InputError, match="is text, not an image: pass an image file, PNG"):
        reader(file)  # type: ignore[operator]


def test_a_kind_that_is_not_named_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "old.png"
    Image.fromarray(noise(8, 9, 3)).save(file, "PCX")
    with pytest.raises(InputError, match=r"old\.png is not an image of these kinds, or a damaged one.*PNG, JPEG"):
        read_image(file)


LOSSLESS = {"png": "PNG", "tga": "TGA", "ppm": "PPM", "bmp": "BMP", "tif": "TIFF", "jp2": "JPEG2000", "ico": "ICO"}


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_every_suffix_that_is_looked_for_can_be_read(tmp_path: Path, suffix: str) -> None:
    pixels = noise(32, 48, 3)
    if suffix == "jp2" and not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    options = {"sizes": [(48, 32)]} if suffix == "ico" else {}
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}", LOSSLESS[suffix], **options)
    assert np.array_equal(np.asarray(read_image(tmp_path / f"a.{suffix}")), pixels)


@pytest.mark.skipif("AVIF" not in Image.registered_extensions().values(), reason="this Pillow has no AVIF")
def test_avif_is_read(tmp_path: Path) -> None:
    smooth = np.stack([np.add.outer(np.arange(32), np.arange(48))] * 3, 2).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.avif", quality=95)
    assert np.abs(np.asarray(read_image(tmp_path / "a.avif"), int) - smooth).mean() < 2


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def empty_png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_large_picture_in_an_icon_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pillow decodes an icon as soon as it is opened, and its directory says 16 x 16 here.
    inner = empty_png(12_000, 10_000)
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
    (tmp_path / "a.ico").write_bytes(struct.pack("<HHH", 0, 1, 1) + entry + inner)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("its pixels were read"))
    with pytest.raises(InputError, match=r"a\.ico is too large: 12000 x 10000 pixels are 120 megapixels"):
        read_image(tmp_path / "a.ico")


def test_a_mask_has_the_limit_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "mask.png").write_bytes(empty_png(12_000, 10_000))
    with pytest.raises(InputError, match=r"mask\.png is too large: .* 120 megapixels, and the limit is 100"):
        from_file(tmp_path / "mask.png")


def test_a_mask_is_turned_as_its_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(4, 6, 3)).save(tmp_path / "a.jpg", exif=exif)
    mask = noise(4, 6) > 100
    turned = fitted(mask, read_image(tmp_path / "a.jpg"), tmp_path / "a.jpg", "a mask")
    assert np.array_equal(turned, np.rot90(mask, -1))


def test_pictures_in_results_are_small_pngs_and_jpegs() -> None:
    def bytes_of(image: Image.Image, kind: str) -> bytes:
        file = BytesIO()
        image.save(file, kind)
        return file.getvalue()

    small = Image.fromarray(noise(30, 40, 3))
    assert height_and_width(bytes_of(small, "PNG"), "a") == (30, 40)
    assert np.array_equal(np.asarray(shown(bytes_of(small, "PNG"), "a")), np.asarray(small))
    large = Image.fromarray(noise(1000, 2000, 3))
    assert shown(bytes_of(large, "JPEG"), "a").size == (1024, 512)
    assert height_and_width(bytes_of(large, "JPEG"), "a") == (1000, 2000)
    with pytest.raises(InputError, match="picture of image 3 is not an image"):
        shown(bytes_of(small, "GIF"), "picture of image 3")
    with pytest.raises(InputError, match=r"picture of image 3 is too large.*limit is 16"):
        height_and_width(empty_png(5000, 5000), "picture of image 3")


def rgb_at_once(image: Image.Image) -> np.ndarray:
    """What `read_image` makes of an image, written with whole arrays."""
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        values = np.asarray(image).astype(float)
        low, high = values.min(), values.max()
        if low < 0 or high > 65535:
            scaled = (values - low) / (high - low)
        else:
            scaled = (
                values / (1 if high <= 1 else 255 if high <= 255 else 65535) if image.mode == "F" else values / 65535
            )
        return np.stack([np.rint(scaled * 255)] * 3, 2).astype(np.uint8)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return np.asarray(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"))
    return np.asarray(image.convert("RGB"))


MODES = {
    "sixteen.png": lambda pixels: Image.fromarray(pixels[..., 0].astype(np.uint16) * 257),
    "thirty-two.tif": lambda pixels: Image.fromarray(pixels[..., 0].astype(np.int32) * 70_000 - 9),
    "float.tif": lambda pixels: Image.fromarray(pixels[..., 0].astype(np.float32) / 300),
    "alpha.png": lambda pixels: Image.fromarray(pixels, "RGBA"),
    "palette.png": lambda pixels: Image.fromarray(pixels[..., :3]).quantize(9),
    "grey.png": lambda pixels: Image.fromarray(pixels[..., 0]),
    "bits.png": lambda pixels: Image.fromarray(pixels[..., 0]).convert("1"),
    "ink.tif": lambda pixels: Image.fromarray(pixels, "CMYK"),
    "turned.jpg": lambda pixels: Image.fromarray(pixels[..., :3]),
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("strip", [1, 130, 2**20])
def test_strips_make_the_same_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, strip: int) -> None:
    monkeypatch.setattr("egcam.photos.files._STRIP", strip)
    exif = Image.Exif()
    exif[0x0112] = 8
    image = MODES[name](noise(23, 41, 4))
    image.save(tmp_path / name, **({"exif": exif} if name == "turned.jpg" else {}))
    with Image.open(tmp_path / name) as opened:
        assert np.array_equal(np.asarray(read_image(tmp_path / name)), rgb_at_once(opened))


MEASURE = """
import resource, sys
from pathlib import Path
from egcam.photos.files import read_image
from egcam.models.preprocessing import Preprocessing
import numpy as np
small, large = Path(sys.argv[1]), Path(sys.argv[2])
def seen(file):
    image = read_image(file)
    Preprocessing()(image), Preprocessing().view(image)
seen(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen(large)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("name", ["sixteen.png", "alpha.png", "float.tif", "turned.jpg"])
def test_an_image_takes_little_more_memory_than_its_pixels(tmp_path: Path, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6 if name == "turned.jpg" else 1
    options = {} if name == "float.tif" else {"exif": exif}
    for folder, side in (("small", 8), ("large", 4000)):
        (tmp_path / folder).mkdir()
        MODES[name](np.zeros((side, side, 4), np.uint8)).save(tmp_path / folder / name, **options)
    files = [str(tmp_path / folder / name) for folder in ("small", "large")]
    taken = subprocess.run([sys.executable, "-c", MEASURE, *files], capture_output=True, text=True, check=True).stdout
    # Four bytes a pixel as it was decoded, four as RGB, and a strip with its copies.
    assert int(taken) < 4000 * 4000 * 8 + 2**20 * 60
