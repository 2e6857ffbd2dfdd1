"""Visitors' files: how long they stay, and who removes them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from egcam.web.folder import remove_left_behind, temporary_folder
from egcam.web.limits import Limits
from egcam.web.server import serve
from support.browser import until
from support.page_process import command
from support.page_visitor import Visitor
from support.tiny_page import encoded, picture, tiny_classifier

pytest.importorskip("gradio", reason="the extra app is not installed")
HOUR_AGO = -3600.0


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def aged(path: Path, seconds: float = HOUR_AGO) -> Path:
    os.utime(path, (time.time() + seconds,) * 2)
    return path


def test_uploads_go_by_themselves_while_nobody_uses_the_page(space: Path) -> None:
    with serve(tiny_classifier(), limits=Limits(keep_seconds=1.0)) as page:
        visitor = Visitor(page.url)
        file = Path(visitor.upload(encoded(picture(1)), "one.png").json()[0])
        visitor.close()
        assert file.is_relative_to(space)
        until(lambda: not file.exists(), "the upload to be removed")


def test_uploads_stay_while_they_are_young_and_downloads_are_copies_that_go_too(space: Path) -> None:
    with serve(tiny_classifier(), limits=Limits(keep_seconds=4.0)) as page:
        visitor = Visitor(page.url)
        visitor.open(encoded(picture(1)), "one.png")
        address = Visitor.outputs(visitor.queued("explained_npz", [None, None]))[1]["url"]
        assert visitor.http.get(address).status_code == 200
        files = {file.name: file for file in space.rglob("*") if file.suffix in (".png", ".npz")}
        assert sorted(file.suffix for file in files.values()) == [".npz", ".png"]
        assert all(file.is_relative_to(page.folder) for file in files.values())
        until(lambda: not any(file.exists() for file in files.values()), "both to be removed")
        visitor.close()
    assert list(space.iterdir()) == []


def test_the_next_start_removes_what_a_killed_page_left(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with command(tmp_path, tmp_path_factory.mktemp("home")) as page:
        visitor = Visitor(page.url)
        visitor.upload(encoded(picture(1)), "one.png")
        visitor.close()
        (left,) = page.space.glob("egcam-app-*")
        remove_left_behind(page.space)
        aged(left)
        remove_left_behind(page.space)
        # It is old, but its page lives.
        assert [file.name for file in left.rglob("*.png")] == ["one.png"]
        page.process.kill()
        page.process.wait(60)
    assert left.exists()
    remove_left_behind(page.space)
    assert not left.exists()


def test_a_start_looks_for_what_was_left(space: Path) -> None:
    left = space / "egcam-app-killed"
    left.mkdir()
    (left / "in-use.lock").touch()
    (left / "photo.png").write_bytes(b"")
    aged(left)
    with temporary_folder():
        assert not left.exists()


def test_what_no_page_left_stays(space: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "in-use.lock").touch()
    link = space / "egcam-app-link"
    link.symlink_to(elsewhere)
    foreign, young = space / "egcam-app-without-lock", space / "egcam-app-young"
    for folder in (foreign, young):
        folder.mkdir()
    (young / "in-use.lock").touch()
    aged(foreign)
    aged(elsewhere)
    remove_left_behind(space)
    assert sorted(space.iterdir()) == [link, foreign, young]
    assert elsewhere.exists()


def test_two_pages_of_one_process_leave_each_other_alone(space: Path) -> None:
    with temporary_folder() as one, temporary_folder() as other:
        for whole in space.iterdir():
            aged(whole)
        remove_left_behind(space)
        assert one.exists()
        assert other.exists()
