"""Visitors' files: how long they stay, and who removes them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from egcam.web.folder import remove_left_behind, sweep, temporary_folder
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


def test_old_files_go_and_new_ones_stay(tmp_path: Path) -> None:
    old, new = tmp_path / "a" / "old.png", tmp_path / "b" / "new.png"
    for file in (old, new):
        file.parent.mkdir()
        file.write_bytes(b"")
    aged(old, 2 * HOUR_AGO)
    aged(old.parent, 2 * HOUR_AGO)
    sweep(tmp_path, 3600)
    assert not old.exists()
    assert new.exists()


def test_uploads_go_by_themselves_while_nobody_uses_the_page(space: Path) -> None:
    with serve(tiny_classifier(), limits=Limits(keep_seconds=1.0)) as page:
        visitor = Visitor(page.url)
        file = Path(visitor.upload(encoded(picture(1)), "one.png").json()[0])
        visitor.close()
        assert file.is_relative_to(space)
        until(lambda: not file.exists(), "the upload to be removed")


def test_uploads_stay_while_they_are_young(space: Path) -> None:
    with temporary_folder(keep_seconds=3600) as folder:
        young, old = folder / "young.png", folder / "old.png"
        young.write_bytes(b"")
        aged(young, -3500)
        old.write_bytes(b"")
        aged(old, -3700)
        sweep(folder, 3600)
        assert (young.exists(), old.exists()) == (True, False)
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
    with temporary_folder(3600):
        until(lambda: not left.exists(), "the folder to be removed")


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
    with temporary_folder(3600) as one, temporary_folder(3600) as other:
        for whole in space.iterdir():
            aged(whole)
        remove_left_behind(space)
        assert one.exists()
        assert other.exists()
