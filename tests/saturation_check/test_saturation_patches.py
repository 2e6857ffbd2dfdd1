"""The patches a map points to, their insertion score, and the figures and tables of the saturation study."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from egcam import metrics
from egcam.drawing.overlays import overlay_image
from egcam.errors import InputError
from egcam.figures.page import save
from egcam.metrics.cells import cell_box, cells_of, hottest_cells
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier
from egcam.saturation_check import figures
from egcam.saturation_check.files import study_dict, write_study
from egcam.saturation_check.measure import normalised_black, saturation
from egcam.saturation_check.patches import top_patches
from egcam.saturation_check.study import ModelStudy, Photograph, study_model
from support.small_models import Kept, pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")


# -- patches -------------------------------------------------------------------------------------


def test_cells_cover_images_that_do_not_divide_evenly() -> None:
    cells = cells_of(5, 7, 3)
    assert cells[:, 0].tolist() == [0, 0, 3, 3, 6]
    assert cells[0].tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert cells.unique().tolist() == list(range(9))


def test_a_box_holds_the_pixels_of_its_cell() -> None:
    height, width, grid = 5, 7, 3
    cells = cells_of(height, width, grid)
    for cell in range(grid * grid):
        left, top, right, bottom = cell_box(cell, height, width, grid)
        inside = torch.zeros(height, width, dtype=torch.bool)
        inside[round(top * height) : round(bottom * height), round(left * width) : round(right * width)] = True
        assert torch.equal(inside, cells == cell)


def test_the_hottest_cells_have_the_highest_mean_not_the_highest_sum() -> None:
    heat = torch.zeros(1, 1, 5)
    heat[0, 0] = torch.tensor([0.4, 0.4, 0.4, 0.5, 0.5])
    tall = heat.expand(1, 2, 5)
    # Two cells across: three columns with a sum of 1.2, two with 1.0 but the higher mean.
    assert hottest_cells(tall, grid=2, count=4).tolist() == [[1, 3, 0, 2]]


def test_ties_go_in_reading_order_and_maps_do_not_mix() -> None:
    heat = torch.zeros(2, 8, 8)
    heat[1, 6:, 6:] = 1
    assert hottest_cells(heat, grid=4, count=3).tolist() == [[0, 1, 2], [15, 0, 1]]


def test_the_insertion_score_is_the_insertion_curve_stopped_at_the_patches() -> None:
    model = small_net()
    images = pictures(3)
    heat = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(5))
    maps = heat.repeat_interleave(3, 1).repeat_interleave(3, 2)
    found = top_patches(model, images, maps, grid=4, count=4)
    curve = metrics.Insertion(step=4 * 9).curve(metrics.Case(model, images, maps))
    torch.testing.assert_close(found.scores, curve.scores[:, 1])
    torch.testing.assert_close(found.background, curve.scores[:, 0])
    torch.testing.assert_close(found.full, curve.scores[:, -1])
    order = heat.flatten(1).argsort(1, descending=True)[:, :4]
    assert found.cells.tolist() == order.tolist()


def test_only_the_patches_are_shown() -> None:
    images = pictures(1, side=8)
    maps = torch.zeros(1, 8, 8)
    maps[0, :4, 4:] = 1
    found = top_patches(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), images, maps, grid=2, count=1, background=0.0)
    expected = torch.zeros_like(images)
    expected[:, :, :4, 4:] = images[:, :, :4, 4:]
    assert torch.equal(found.shown, expected)
    assert found.boxes(0) == [(0.5, 0, 1, 0.5)]


def test_patches_leave_the_model_alone_and_refuse_what_does_not_fit() -> None:
    model, images = small_net(train=True), pictures()
    maps = pictures(seed=1)[:, 0].abs()
    kept = Kept(model, images)
    top_patches(model, images, maps)
    kept.check()
    with pytest.raises(InputError, match="does not fit"):
        top_patches(model, images, maps, grid=13)
    with pytest.raises(InputError, match="5 patches of a grid with 4: pass 4 or less"):
        top_patches(model, images, maps, grid=2, count=5)


# -- the study of a network, its tables and figures ----------------------------------------------

SEEN = Preprocessing((24, 24), 24, mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))


def classifier(seed: int = 0) -> Classifier:
    network = small_net(seed=seed)
    network.fc.weight.data.abs_()
    return Classifier(network, f"small{seed}", ["ant", "bee, wasp", "cat", "dog", "elk"], SEEN, layer="bn2")


def photographs(count: int = 3) -> list[Photograph]:
    made = []
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((40, 30), Image.Resampling.BICUBIC)
        made.append(Photograph(f"photo {number}.png", image))
    return made


@pytest.fixture(scope="module")
def studies() -> list[ModelStudy]:
    return [study_model(classifier(seed), photographs(), steps=5, options={"samples": 4}) for seed in (0, 1)]


def test_the_study_measures_with_the_networks_own_black(studies: list[ModelStudy]) -> None:
    own = classifier()
    images = torch.stack([own.preprocess(one.image) for one in photographs()])
    black = normalised_black(SEEN.mean, SEEN.std)
    np.testing.assert_allclose(black, (-1, -1.6, -1.5))
    expected = saturation(own.model, images, "bn2", 5, black=black)
    torch.testing.assert_close(studies[0].measured.logit, expected.logit)
    torch.testing.assert_close(studies[0].measured.agreement, expected.agreement)
    assert studies[0].classes == tuple(own.class_name(index) for index in expected.targets.tolist())
    assert studies[0].full == pytest.approx(float(expected.probability[:, -1].mean()))


def test_the_study_explains_the_measured_labels_at_the_measured_layer(studies: list[ModelStudy]) -> None:
    for study in studies:
        for name, pointed in study.methods.items():
            assert pointed.explanation.method == name
            assert pointed.explanation.layer == study.measured.layer == "bn2"
            assert pointed.explanation.targets is not None
            assert torch.equal(pointed.explanation.targets, study.measured.targets)
            torch.testing.assert_close(pointed.patches.full, study.measured.probability[:, -1])
    # Pictures of what was shown have the photograph's own colours where a patch is.
    pointed = studies[0].methods["grad-cam"]
    cell = int(pointed.patches.cells[0, 0])
    top, left = 6 * (cell // 4), 6 * (cell % 4)
    seen = SEEN(photographs()[0].image)[:, top, left] * torch.tensor(SEEN.std) + torch.tensor(SEEN.mean)
    assert pointed.pictures[0].getpixel((left, top)) == pytest.approx((seen * 255).round().tolist(), abs=1)


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def written(studies: list[ModelStudy], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    files = write_study(studies, folder)
    assert sorted(files) == sorted(folder.iterdir())
    return folder


def test_the_tables_hold_what_was_measured(studies: list[ModelStudy], written: Path) -> None:
    points = read_csv(written / "saturation.csv")
    assert len(points) == 2 * 3 * 5
    row = next(one for one in points if (one["model"], one["image"], one["a"]) == ("small1", "photo 2.png", "0.75"))
    measured = studies[1].measured
    for name in ("cosine", "logit", "probability", "gradient"):
        assert float(row[name]) == pytest.approx(float(measured.curve(name)[2, 3]), rel=1e-6)
    assert row["layer"] == "bn2"
    assert row["label"] == studies[1].classes[2]
    means = read_csv(written / "saturation-mean.csv")
    assert len(means) == 2 * 5
    assert float(means[4]["logit_mean"]) == pytest.approx(float(studies[0].measured.logit[:, -1].mean()), rel=1e-6)
    assert float(means[4]["logit_2sd"]) == pytest.approx(2 * float(studies[0].measured.logit[:, -1].std()), rel=1e-6)
    patches = read_csv(written / "patches.csv")
    assert len(patches) == 2 * 2 * 3
    assert [int(cell) for cell in patches[0]["patches"].split()] == (
        studies[0].methods["grad-cam"].patches.cells[0].tolist()
    )
    document = json.loads(json.dumps(study_dict(studies[0]), allow_nan=False))
    assert document["verdict"]["trust"] == studies[0].measured.verdict.trust
    assert document["images"][1]["reach"] == pytest.approx(float(studies[0].measured.reach()[1]), abs=1e-5)


def test_the_curves_drawn_are_the_means(studies: list[ModelStudy]) -> None:
    page = figures.curves({study.label: study.measured for study in studies})
    for axes, name in zip(page.axes, ("cosine", "logit", "probability"), strict=False):
        for study in studies:
            expected = study.measured.mean(name).numpy()
            assert any(
                len(line.get_ydata()) == 5 and np.allclose(line.get_ydata(), expected, atol=1e-6) for line in axes.lines
            )
    marks = [float(line.get_xdata()[0]) for line in page.axes[1].lines if line.get_marker() == "^"]
    assert marks == pytest.approx([study.measured.verdict.reach for study in studies], abs=1e-6)
    gradient = studies[0].measured.gradient
    relative = gradient / torch.trapezoid(gradient, studies[0].measured.alphas, dim=1)[:, None]
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in page.axes[3].lines if len(line.get_ydata()) == 5]
    assert any(np.allclose(line, relative.mean(0).numpy(), atol=1e-5) for line in drawn)
    with pytest.raises(InputError, match="nothing to draw"):
        figures.curves({})


def test_the_strip_shows_the_image_scaled(studies: list[ModelStudy]) -> None:
    page = figures.strip(studies)
    shown = [np.asarray(axes.images[0].get_array()) for axes in page.axes]
    assert len(shown) == 5
    assert shown[0].max() == 0
    np.testing.assert_allclose(shown[2], 0.5 * shown[4], atol=1e-6)
    words = {text.get_text() for text in page.texts}
    assert "a = 0.25" in words
    assert f"{float(studies[1].measured.probability[0, 1]):.3f}" in words


def test_the_same_study_gives_the_same_files(studies: list[ModelStudy], written: Path, tmp_path: Path) -> None:
    again = write_study(studies, tmp_path)
    drawn = ("curves", "samples", "strip", "patches-small0", "patches-small1")
    assert {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")} < {file.name for file in again}
    for file in again:
        assert file.read_bytes() == (written / file.name).read_bytes(), file.name


def test_one_image_and_one_network_can_be_drawn(tmp_path: Path) -> None:
    study = study_model(classifier(), photographs(1), steps=2, spacing="uniform", options={"samples": 2})
    drawn = (
        figures.curves({"small": study.measured}),
        figures.samples(study),
        figures.strip([study]),
        figures.patches(study),
    )
    heat = study.methods["grad-cam"].explanation.heatmaps[0].numpy()
    for sharpness in (1.0, 3.0):
        shown = [
            np.asarray(image.get_array())
            for axes in figures.patches(study, sharpness=sharpness).axes
            for image in axes.get_images()
        ]
        wanted = np.asarray(overlay_image(study.pictures[0], heat, sharpness=sharpness)) / 255
        assert any(one.shape == wanted.shape and np.allclose(one, wanted, atol=1e-6) for one in shown)
    for number, page in enumerate(drawn):
        (file,) = save(page, tmp_path / f"{number}.png", dpi=60)
        with Image.open(file) as picture:
            assert np.asarray(picture.convert("L")).std() > 1
