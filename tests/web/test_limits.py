"""What a browser may send, and what it is told when it sends something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from egcam.errors import InputError
from egcam.web.limits import Limits, read_upload, short_name, whole_name
from support.tiny_page import bomb, encoded, picture

PIXELS = picture(1)


def _refused(folder: Path, content: bytes, name: str, limits: Limits | None = None) -> str:
    file = folder / "3f2a"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_upload(file, name, limits or Limits())
    assert str(folder) not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP"])
def test_the_six_kinds_are_read_whatever_they_are_called(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "photo.txt"
    file.write_bytes(encoded(PIXELS, kind))
    found = np.asarray(read_upload(file, "photo.txt", Limits()), dtype=float)
    exact = kind in ("PNG", "BMP", "TIFF")
    assert found.shape == (40, 48, 3)
    assert np.abs(found - np.asarray(PIXELS, dtype=float)).mean() <= (0 if exact else 40)


def test_text_with_the_name_of_an_image_is_text(tmp_path: Path) -> None:
    told = _refused(tmp_path, b"a shopping list", "photo.png")
    assert told == "“photo.png” is text, not an image: pass an image file, PNG, JPEG, WebP, BMP, GIF or TIFF"


@pytest.mark.parametrize(
    "content",
    [
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        b"<!doctype html><script>alert(1)</script>",
    ],
)
def test_documents_with_scripts_are_no_images(tmp_path: Path, content: bytes) -> None:
    assert "is text, not an image" in _refused(tmp_path, content, "drawing.svg")


def test_a_kind_that_would_start_other_programs_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.EpsImagePlugin.EpsImageFile._open", lambda *_: pytest.fail("it was looked into"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    assert "is text, not an image: pass an image file, PNG" in _refused(tmp_path, script, "drawing.png")


def test_the_page_reads_fewer_kinds_than_the_command(tmp_path: Path) -> None:
    assert "is not an image of these kinds" in _refused(tmp_path, encoded(PIXELS, "TGA"), "photo.png")


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("its pixels were read"))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("its pixels were read"))
    content = bomb()
    assert len(content) < 2_000_000
    told = _refused(tmp_path, content, "bomb.png")
    assert told.startswith("“bomb.png” is too large")


def test_megapixels_are_counted_exactly(tmp_path: Path) -> None:
    limits = Limits(megapixels=40 * 48 / 1e6)
    file = tmp_path / "1"
    file.write_bytes(encoded(PIXELS))
    assert read_upload(file, "a.png", limits).size == (48, 40)
    told = _refused(tmp_path, encoded(picture(1, (49, 40))), "a.png", limits)
    assert "49 x 40 pixels" in told


def test_a_file_that_is_cut_short_is_damaged(tmp_path: Path) -> None:
    whole = encoded(PIXELS, "JPEG")
    assert "is damaged or cut short" in _refused(tmp_path, whole[: len(whole) // 2], "photo.jpg")


def test_a_file_that_is_too_large_or_empty(tmp_path: Path) -> None:
    told = _refused(tmp_path, encoded(PIXELS) + bytes(2 * 2**20), "photo.png", Limits(megabytes=1.5))
    assert told == "“photo.png” has 2.0 megabytes, and the limit is 1.5: save it smaller"
    assert "is empty" in _refused(tmp_path, b"", "photo.png")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("a\nb\x00.png", "ab.png"),
        ("", "image"),
        ("x" * 500 + ".png", "x" * 30 + "…" + "x" * 26 + ".png"),
    ],
)
def test_names_are_shown_without_folders_and_never_long(name: str, shown: str) -> None:
    assert short_name(name) == shown


def test_the_whole_name_is_kept_as_long_as_files_have_one() -> None:
    assert whole_name("a/b\n" + "x" * 100 + ".png") == "b" + "x" * 100 + ".png"
    assert whole_name("x" * 500 + ".png") == "x" * 251 + ".png"
    assert whole_name("") == "image"
