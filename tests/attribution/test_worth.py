"""What stands on a picture: the regions that add most, what they add, and heat that fades where it is unsure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from egcam.attribution.explanation import Completeness, Explanation
from egcam.attribution.worth import certainty, regions_of
from egcam.drawing.overlays import smoothed
from egcam.models.crops import Crop

GREY = Image.new("RGB", (80, 80), (128, 128, 128))


def explained(maps: list[list[float]], error: list[list[float]] | None = None) -> Explanation:
    """A complete explanation of 80 x 80 pixels whose map is what it adds up to."""
    signed = torch.tensor(maps)[None]
    whole = signed.sum((1, 2))
    complete = Completeness(whole, whole, torch.zeros(1), torch.ones(1, dtype=torch.bool), signed)
    spread = None if error is None else torch.tensor(error)[None]
    return Explanation(
        signed.relu(), (80, 80), torch.tensor([0]), torch.tensor([9.3]), None, "layer4", "slope-cam",
        error=spread, completeness=complete, classes=("tiger cat",),
    )  # fmt: skip


def spots() -> list[list[float]]:
    maps = torch.zeros(8, 8)
    maps[1, 1], maps[6, 5:7], maps[0, 7] = 4.0, 3.0, 0.1
    return maps.tolist()


def test_regions_are_the_hot_spots_and_their_numbers_the_sums_inside() -> None:
    explanation = explained(spots(), torch.full((8, 8), 0.1).tolist())
    first, second = regions_of(explanation)
    # Two cells of 3 add more than one of 4.
    assert first.mask[65, 60]
    assert second.mask[15, 15]
    assert not (first.mask & second.mask).any()
    for region in (first, second):
        cells = region.mask.reshape(8, 10, 8, 10).mean((1, 3))
        assert region.share == pytest.approx(float((cells * np.array(spots())).sum()), rel=1e-5)
        assert region.error == pytest.approx(0.1 * float(cells.sum()), rel=1e-5)
        assert region.label == f"+{region.share:.1f} ± {region.error:.1f} of 10.1"
    assert len(regions_of(explanation, most=1)) == 1


def test_a_region_has_no_holes_and_methods_that_do_not_add_up_have_no_regions() -> None:
    ring = torch.full((8, 8), 0.0)
    ring[1:7, 1:7], ring[3:5, 3:5] = 1.0, 0.0
    (region,) = regions_of(explained(ring.tolist()))
    assert region.mask[40, 40]
    assert region.label == f"+{region.share:.1f} of 32.0"
    plain = Explanation(ring[None], (80, 80), None, torch.zeros(1), None, "layer4", "grad-cam")
    assert regions_of(plain) == []
    assert np.array_equal(np.asarray(plain.overlay(GREY)[0]), np.asarray(plain.overlay(GREY, regions=True)[0]))


def test_what_is_less_than_two_errors_fades() -> None:
    error = torch.full((8, 8), 0.2)
    error[1, 1] = 8.0  # the spot of 4 is a quarter of two errors
    sure = certainty(explained(spots(), error.tolist()))
    assert sure is not None
    # These pixels lie a twentieth of a cell off the middle of theirs, towards cells that are zero.
    assert sure[15, 15] == pytest.approx(0.25 * 0.95**2)
    assert sure[65, 60] == pytest.approx(0.95)
    bold, faded = (
        np.asarray(explained(spots(), spread).overlay(GREY, regions=True)[0], int) for spread in (None, error.tolist())
    )
    assert np.abs(faded[15, 15] - 128).max() < np.abs(bold[15, 15] - 128).max() / 2
    assert certainty(explained(spots())) is None


def test_the_outline_is_drawn_around_the_region_where_the_photograph_was_cropped() -> None:
    explanation = explained(spots())
    wide = Image.new("RGB", (160, 80), (128, 128, 128))
    made = np.asarray(explanation.overlay(wide, regions=True, crop=Crop((80, 0, 160, 80), (160, 80)))[0], int)
    white = (made == 255).all(2)
    assert white[:, 80:].any()
    assert not white[:, :70].any()


def test_enlarged_maps_lose_their_creases_and_keep_their_height() -> None:
    coarse = torch.zeros(1, 8, 8)
    coarse[0, 3, 3] = 1.0
    heat = Explanation(coarse, (80, 80), None, torch.zeros(1), None, "", "grad-cam").heatmaps[0].numpy()
    soft = smoothed(heat, (8, 8))
    assert soft.max() == pytest.approx(heat.max())
    # Linear enlargement leaves a sharp ridge: its second differences jump.
    assert np.abs(np.diff(soft[35], 2)).max() < np.abs(np.diff(heat[35], 2)).max() / 2
    assert np.array_equal(smoothed(heat, (40, 40)), heat)


def test_the_repr_says_label_score_and_what_the_map_explains() -> None:
    text = repr(explained(spots()))
    assert text.startswith("Explanation('slope-cam', tiger cat 9.30, hottest tenth +")
    assert " of +10.1" in text
