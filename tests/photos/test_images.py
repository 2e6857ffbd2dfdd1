"""Image files of every kind come out upright, in RGB and with the right numbers; bad files are named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from egcam.errors import InputError
from egcam.photos.files import find_images, read_image


def quadrants() -> Image.Image:
    """Red and green on top, blue and white below, 16 x 8."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:4, :8], pixels[:4, 8:], pixels[4:, :8], pixels[4:, 8:] = (
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        255,
    )
    return Image.fromarray(pixels)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "gif", "ppm", "jpg"])
def test_common_kinds_keep_their_colours(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"picture.{suffix}"
    options = {"webp": {"lossless": True}, "jpg": {"quality": 95, "subsampling": 0}}.get(suffix, {})
    quadrants().save(file, **options)
    image = read_image(file)
    assert (image.mode, image.size) == ("RGB", (16, 8))
    assert np.abs(np.asarray(image, int) - np.asarray(quadrants(), int)).max() <= (12 if suffix == "jpg" else 0)


@pytest.mark.parametrize(
    ("orientation", "size", "corner"),
    [
        (1, (16, 8), (255, 0, 0)),
        (2, (16, 8), (0, 255, 0)),
        (3, (16, 8), (255, 255, 255)),
        (4, (16, 8), (0, 0, 255)),
        (5, (8, 16), (255, 0, 0)),
        (6, (8, 16), (0, 0, 255)),
        (7, (8, 16), (255, 255, 255)),
        (8, (8, 16), (0, 255, 0)),
    ],
)
def test_camera_rotation_is_applied(
    tmp_path: Path, orientation: int, size: tuple[int, int], corner: tuple[int, int, int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quadrants().save(tmp_path / "turned.png", exif=exif)
    image = read_image(tmp_path / "turned.png")
    assert image.size == size
    assert image.getpixel((1, 1)) == corner


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"deep.{suffix}"
    Image.fromarray(np.array([[0, 257, 32896, 65535]], np.uint16)).save(file)
    assert np.asarray(read_image(file))[0].tolist() == [[0] * 3, [1] * 3, [128] * 3, [255] * 3]


def test_float_and_32_bit_images_are_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)).save(tmp_path / "float.tiff")
    Image.fromarray(np.array([[0, 100000, 200000]], np.int32)).save(tmp_path / "wide.tiff")
    assert np.asarray(read_image(tmp_path / "float.tiff"))[0, :, 0].tolist() == [0, 128, 255]
    assert np.asarray(read_image(tmp_path / "wide.tiff"))[0, :, 0].tolist() == [0, 128, 255]


def test_transparent_parts_become_white(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 0, 128]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "alpha.png")
    assert np.asarray(read_image(tmp_path / "alpha.png"))[0].tolist() == [[255, 0, 0], [255] * 3, [127] * 3]


def test_palette_grey_one_bit_and_cmyk(tmp_path: Path) -> None:
    palette = quadrants().quantize(4)
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "clear.png", transparency=palette.getpixel((0, 0)))
    Image.new("1", (2, 2), 1).save(tmp_path / "bit.png")
    Image.new("L", (2, 2), 77).save(tmp_path / "grey.png")
    Image.new("LA", (2, 2), (0, 0)).save(tmp_path / "grey-alpha.png")
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "ink.tiff")
    assert np.array_equal(np.asarray(read_image(tmp_path / "palette.png")), np.asarray(quadrants()))
    assert read_image(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)
    assert read_image(tmp_path / "bit.png").getpixel((0, 0)) == (255, 255, 255)
    assert read_image(tmp_path / "grey.png").getpixel((0, 0)) == (77, 77, 77)
    assert read_image(tmp_path / "grey-alpha.png").getpixel((0, 0)) == (255, 255, 255)
    assert read_image(tmp_path / "ink.tiff").getpixel((0, 0)) == (255, 0, 0)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "moving.gif").getpixel((0, 0)) == (255, 0, 0)


def test_huge_images_are_refused_before_decoding(tmp_path: Path) -> None:
    file = tmp_path / "huge.png"
    Image.new("1", (11000, 10000)).save(file)
    with pytest.raises(InputError, match=r"huge\.png is too large: 11000 x 10000 .* 110 megapixels.* limit is 100"):
        read_image(file)
    quadrants().save(tmp_path / "small.png")
    with pytest.raises(InputError, match=r"limit is 0\.0001"):
        read_image(tmp_path / "small.png", max_megapixels=0.0001)


def test_decompression_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quadrants().save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InputError, match=r"bomb\.png is too large"):
        read_image(tmp_path / "bomb.png")


def damaged_files(folder: Path) -> dict[str, str]:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 80).save(stream, "PNG")
    data = stream.getvalue()
    (folder / "cut.png").write_bytes(data[: len(data) // 2])
    (folder / "head.png").write_bytes(data[:20])
    (folder / "noise.jpg").write_bytes(bytes(range(256)) * 4)
    (folder / "notes.png").write_text("Grüße: this is a shopping list\n" * 100)
    (folder / "nothing.png").write_bytes(b"")
    (folder / "folder.png").mkdir()
    return {
        "cut.png": "damaged or cut short",
        "head.png": "damaged",
        "noise.jpg": "is not an image",
        "notes.png": "is text, not an image",
        "nothing.png": "is empty",
        "folder.png": "is a folder without images",
        "missing.png": "does not exist",
    }


def test_bad_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    for name, reason in damaged_files(tmp_path).items():
        with pytest.raises(InputError) as caught:
            read_image(tmp_path / name)
        message = str(caught.value)
        assert str(tmp_path / name) in message
        assert reason in message
        assert "\n" not in message


def test_a_misspelt_name_is_guessed(tmp_path: Path) -> None:
    quadrants().save(tmp_path / "kitten.png")
    with pytest.raises(InputError, match=r"did you mean .*kitten\.png"):
        read_image(tmp_path / "kiten.png")
    with pytest.raises(InputError, match="there is no folder"):
        read_image(tmp_path / "nowhere" / "kitten.png")


def test_find_images_expands_folders_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("b.png", "a.JPG", ".hidden.png", "notes.txt", "inner/c.png"):
        (tmp_path / name).write_bytes(b"x")
    assert find_images([tmp_path]) == [tmp_path / "a.JPG", tmp_path / "b.png"]
    assert find_images([tmp_path], recursive=True)[-1] == tmp_path / "inner" / "c.png"
    assert find_images([tmp_path / "b.png", tmp_path]) == [tmp_path / "b.png", tmp_path / "a.JPG"]
    assert find_images([tmp_path / "missing.png"]) == [tmp_path / "missing.png"]
