"""Explanations in folders: batches of a stream side by side, nothing of the user's deleted, bad files refused."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

import egcam
from attribution.test_explanation import made, same
from egcam import Explanation
from egcam.errors import InputError
from support.small_models import pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# -- streams ---------------------------------------------------------------------------------------


def test_batches_of_a_stream_are_kept_side_by_side(tmp_path):
    images = pictures(7)
    cam = egcam.GradCAM(small_net(), signed=True, classes=list("abcde"), batch_size=3)
    starts = []
    for explanation in cam.stream(torch.split(images, 3), target=1):
        starts.append(explanation.start)
        explanation.save(tmp_path)
    assert starts == [0, 3, 6]
    whole = cam(images, 1)
    loaded = Explanation.load(tmp_path)
    same(loaded, whole)
    assert (len(loaded), loaded.start, loaded.passes) == (7, 0, 7)
    drawn = {f"{kind}_{number}.png" for kind in ("heatmap", "overlay") for number in range(7)}
    numbers = {f"explanation{part}.{kind}" for part in ("", "_3", "_6") for kind in ("npz", "json")}
    assert names(tmp_path) == drawn | numbers
    for number, picture in enumerate(whole.overlay()):
        with Image.open(tmp_path / f"overlay_{number}.png") as kept:
            assert np.array_equal(np.asarray(kept), np.asarray(picture))


def test_one_batch_of_a_stream_can_be_loaded(tmp_path):
    images = pictures(5)
    cam = egcam.GradCAM(small_net(), signed=True)
    for explanation in cam.stream(torch.split(images, 2), target=1):
        explanation.save(tmp_path)
    third = Explanation.load(tmp_path, start=4)
    same(third, cam(images[4:], 1))
    assert third.start == 4
    with pytest.raises(InputError, match=r"no batch that starts at 3; there are 0, 2, 4"):
        Explanation.load(tmp_path, start=3)


def test_single_images_of_a_stream_come_back_as_a_batch(tmp_path):
    images = pictures(3)
    cam = egcam.GradCAM(small_net(), signed=True)
    for explanation in cam.stream(list(images), target=2):
        explanation.save(tmp_path)
    assert torch.equal(Explanation.load(tmp_path).maps, torch.stack([cam(image, 2).maps for image in images]))


def test_what_starts_anew_replaces_the_whole_stream(tmp_path):
    cam = egcam.GradCAM(small_net(), signed=True)
    for explanation in cam.stream(torch.split(pictures(6), 2), target=1):
        explanation.save(tmp_path)
    (tmp_path / "explanation_of_mine.json").write_text("{}")
    shorter = list(egcam.LayerCAM(small_net(), signed=True).stream(torch.split(pictures(3), 2), target=1))
    for explanation in shorter:
        explanation.save(tmp_path)
    loaded = Explanation.load(tmp_path)
    assert (loaded.method, len(loaded)) == ("layer-cam", 3)
    assert not names(tmp_path) & {"heatmap_3.png", "overlay_5.png", "explanation_4.npz", "explanation_4.json"}
    assert "explanation_of_mine.json" in names(tmp_path)


def test_saving_one_batch_again_keeps_the_others(tmp_path):
    batches = list(egcam.GradCAM(small_net(), signed=True).stream(torch.split(pictures(4), 2), target=1))
    for explanation in (*batches, batches[1]):
        explanation.save(tmp_path)
    assert torch.equal(Explanation.load(tmp_path).maps, torch.cat([one.maps for one in batches]))


def test_a_stream_whose_first_batches_were_not_saved(tmp_path):
    batches = list(egcam.GradCAM(small_net(), signed=True).stream(torch.split(pictures(6), 2), target=1))
    batches[2].save(tmp_path)
    assert (Explanation.load(tmp_path).start, len(Explanation.load(tmp_path))) == (4, 2)


def test_batches_that_do_not_fit_together_are_not_joined(tmp_path):
    small = made(torch.rand(2, 3, 3), (6, 8))
    cases = {
        "size": replace(small, size=(9, 8), start=2),
        "method": replace(small, method="layer-cam", start=2),
        "options": replace(small, options={"signed": True}, start=2),
        "maps": replace(small, maps=torch.rand(2, 5, 5), start=2),
        "targets": replace(small, targets=None, start=2),
    }
    for word, other in cases.items():
        small.save(tmp_path)
        other.save(tmp_path)
        with pytest.raises(InputError, match=rf"differ in {word}.*load\(folder, start=…\)"):
            Explanation.load(tmp_path)
        same(Explanation.load(tmp_path, start=0), small)
        same(Explanation.load(tmp_path, start=2), other)


def test_batches_of_different_runs_are_not_joined(tmp_path):
    made(torch.rand(3, 2, 2)).save(tmp_path)
    replace(made(torch.rand(3, 2, 2)), start=2).save(tmp_path)
    with pytest.raises(InputError, match="batches that start at 0 and 2 overlap"):
        Explanation.load(tmp_path)


def test_a_broken_batch_is_named(tmp_path):
    for start in (0, 2):
        replace(made(torch.rand(2, 2, 2)), start=start).save(tmp_path)
    (tmp_path / "explanation_2.npz").unlink()
    with pytest.raises(InputError, match=r"cannot be read.*explanation_2\.npz"):
        Explanation.load(tmp_path)


# -- what belongs to the user ----------------------------------------------------------------------


def test_save_deletes_nothing_it_did_not_write(tmp_path):
    mine = ("overlay_7.png", "heatmap_2024.png", "overlay_1.png", "explanation_5.json", "explanation_6.json")
    for name in mine:
        (tmp_path / name).write_text('{"mine": true}' if name != "explanation_6.json" else "notes")
    made(torch.ones(1, 2, 2)).save(tmp_path)
    made(torch.ones(3, 2, 2)).save(tmp_path)
    made(torch.ones(1, 2, 2)).save(tmp_path)
    assert names(tmp_path) == {*mine, "explanation.json", "explanation.npz", "heatmap_0.png"}
    assert (tmp_path / "overlay_7.png").read_text() == '{"mine": true}'


def test_pictures_of_the_last_explanation_go(tmp_path):
    egcam.explain(small_net(), pictures(3), "grad-cam", 1, signed=True).save(tmp_path)
    made(torch.ones(1, 2, 2)).save(tmp_path)
    assert names(tmp_path) == {"explanation.json", "explanation.npz", "heatmap_0.png"}


def test_a_forged_record_deletes_nothing_outside_the_folder(tmp_path):
    folder = made(torch.ones(1, 2, 2)).save(tmp_path / "results")
    outside = tmp_path / "heatmap_0.png"
    for place in (outside, folder / "notes.txt"):
        place.write_text("mine")
    facts = json.loads((folder / "explanation.json").read_text())
    for listed in ([f"../{outside.name}", str(outside), "notes.txt", "heatmap_٣.png", 3, None], "heatmap_0.png", 5):
        facts["pictures"] = listed
        (folder / "explanation.json").write_text(json.dumps(facts))
        made(torch.ones(1, 2, 2)).save(folder)
        assert outside.read_text() == (folder / "notes.txt").read_text() == "mine"


def test_without_pictures(tmp_path):
    explanation = egcam.explain(small_net(), pictures(), "grad-cam", 1, signed=True)
    explanation.save(tmp_path, pictures=False)
    assert names(tmp_path) == {"explanation.json", "explanation.npz"}
    same(Explanation.load(tmp_path), explanation)


# -- options and files of any kind -----------------------------------------------------------------


def test_numpys_numbers_as_options_are_saved_as_numbers(tmp_path):
    cam = egcam.IntegratedGradCAM(small_net(), samples=np.int64(4), signed=True)
    loaded = Explanation.load(cam(pictures(), 1).save(tmp_path / "a"))
    assert "4" in json.dumps(loaded.options)
    same(loaded, egcam.IntegratedGradCAM(small_net(), samples=4, signed=True)(pictures(), 1))
    sampled = egcam.explain(small_net(), pictures(), target=1, samples=np.int64(4), signed=True)
    assert sampled.options == egcam.explain(small_net(), pictures(), target=1, samples=4, signed=True).options
    odd = made(torch.ones(1, 2, 2), options={"a": np.float32(0.5), "b": np.bool_(True), "c": [np.int8(3)]})
    assert Explanation.load(odd.save(tmp_path / "b")).options == {"a": 0.5, "b": True, "c": [3]}


def saved(folder: Path, arrays: dict | None = None, **facts: object) -> Path:
    """An explanation whose files say something else than `save` would."""
    made(torch.ones(2, 3, 3)).save(folder)
    if arrays is not None:
        with np.load(folder / "explanation.npz") as kept:
            everything = {**dict(kept), **arrays}
        np.savez(folder / "explanation.npz", **{name: value for name, value in everything.items() if value is not None})
    record = json.loads((folder / "explanation.json").read_text())
    (folder / "explanation.json").write_text(json.dumps({**record, **facts}))
    return folder


FORGED = {
    "no maps": {"arrays": {"maps": None}},
    "no scores": {"arrays": {"scores": None}},
    "flat maps": {"arrays": {"maps": np.ones(9, np.float32)}},
    "deep maps": {"arrays": {"maps": np.ones((1, 1, 1, 3, 3), np.float32)}},
    "no map": {"arrays": {"maps": np.ones((0, 3, 3), np.float32)}},
    "whole-number maps": {"arrays": {"maps": np.ones((2, 3, 3), np.int64)}, "dtypes": {"maps": "int64"}},
    "too few scores": {"arrays": {"scores": np.ones(1, np.float32)}},
    "too many targets": {"arrays": {"targets": np.ones(3, np.int64)}},
    "fractional targets": {"arrays": {"targets": np.ones(2, np.float32)}},
    "an error of another size": {
        "arrays": {"error": np.ones((2, 4, 3), np.float32)},
        "dtypes": dict.fromkeys(("maps", "scores", "error"), "float32")
        | dict.fromkeys(("targets", "predictions"), "int64"),
    },
    "something else": {"arrays": {"weights": np.ones(2)}},
    "objects": {"arrays": {"scores": np.array([{}, {}], dtype=object)}},
    "negative size": {"size": [-6, 8]},
    "size of words": {"size": ["6", "8"]},
    "one size": {"size": [6]},
    "unknown dtype": {"dtypes": {"maps": "nn"}},
    "quantised dtype": {"dtypes": dict.fromkeys(("maps", "scores", "targets", "predictions"), "quint8")},
    "no layer": {"layer": None},
    "options of text": {"options": "signed"},
    "classes of numbers": {"classes": [1, 2]},
    "classes of text": {"classes": "ab"},
    "passes of text": {"passes": "many"},
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_files_are_refused(case, tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        Explanation.load(saved(tmp_path, **FORGED[case]))


def test_deep_json_and_spoilt_archives_are_refused(tmp_path):
    def damaged_data(folder: Path) -> None:
        """Compressed bytes that zlib cannot read."""
        with ZipFile(folder / "explanation.npz", "w", ZIP_DEFLATED) as archive:
            archive.writestr("maps.npy", b"\x93NUMPY" + bytes(4000))
        data = bytearray((folder / "explanation.npz").read_bytes())
        place = data.index(zlib.compress(b"\x93NUMPY" + bytes(4000), 6)[2:-4])
        data[place : place + 8] = b"\xff" * 8
        (folder / "explanation.npz").write_bytes(data)

    def encrypted(folder: Path) -> None:
        data = bytearray((folder / "explanation.npz").read_bytes())
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
        (folder / "explanation.npz").write_bytes(data)

    def deep(folder: Path) -> None:
        (folder / "explanation.json").write_text("[" * 200_000)

    def huge(folder: Path) -> None:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999, 9999999, 99), }"
        header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
        with ZipFile(folder / "explanation.npz", "w") as archive:
            archive.writestr("maps.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)

    for spoil in (damaged_data, encrypted, deep, huge):
        folder = made(torch.ones(2, 3, 3)).save(tmp_path / spoil.__name__)
        spoil(folder)
        with pytest.raises(InputError, match=f"{spoil.__name__}.*cannot be read"):
            Explanation.load(folder)


# -- somebody else's files ---------------------------------------------------------------------------


def test_numbers_that_unpack_to_far_more_than_the_file_are_not_unpacked(tmp_path, monkeypatch):
    egcam.explain(small_net(), pictures(2)).save(tmp_path, pictures=False)
    with ZipFile(tmp_path / "explanation.npz", "w", ZIP_DEFLATED) as archive, archive.open("maps.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (75, 1000, 1000)})
        for _ in range(300):
            file.write(bytes(1_000_000))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    with pytest.raises(InputError, match=r"[\d,]+ bytes unpack to 300,000,\d+, which egcam did not write"):
        Explanation.load(tmp_path)


def test_a_size_that_no_image_has_is_refused(tmp_path):
    egcam.explain(small_net(), pictures(2)).save(tmp_path, pictures=False)
    facts = json.loads((tmp_path / "explanation.json").read_text())
    (tmp_path / "explanation.json").write_text(json.dumps({**facts, "size": [60_000, 60_000]}))
    with pytest.raises(InputError, match=r"its size cannot be \[60000, 60000\]"):
        Explanation.load(tmp_path)


def test_what_a_link_in_the_folder_leads_to_is_left_alone(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("explanation.npz", "explanation.json", "heatmap_0.png", "overlay_0.png"):
        (tmp_path / name).write_text("precious")
        (folder / name).symlink_to(tmp_path / name)
    explanation = egcam.explain(small_net(), pictures(1))
    explanation.save(folder)
    assert all((tmp_path / name).read_text() == "precious" for name in names(folder))
    same(Explanation.load(folder), explanation)
