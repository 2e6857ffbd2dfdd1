"""Image and mask under the same resize and crop; pools of references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from egcam.attribution.references import Images
from egcam.models.preprocessing import Preprocessing
from egcam.studies.datasets import DataError, Picture
from egcam.studies.geometry import prepared, reference_pool, resized_preprocessing
from support.data_sets import opened

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
NETWORKS = {
    "torchvision": Preprocessing(),
    "efficientnet": Preprocessing((224, 224), 256, "bicubic", (127 / 255,) * 3, (128 / 255,) * 3),
    "inception": Preprocessing((299, 299), 342, "bicubic"),
    "squeezed": Preprocessing((96, 96), None),
    "cifar": Preprocessing((32, 32), 32),
    "wide": Preprocessing((96, 160), 160),
    "padded": Preprocessing((128, 128), 100),
}


def white_rectangle(width: int, height: int, left: int, top: int, right: int, bottom: int) -> Picture:
    mask = np.zeros((height, width), dtype=bool)
    mask[top:bottom, left:right] = True
    return Picture("rectangle", Image.fromarray(mask.astype(np.uint8) * 255).convert("RGB"), mask=mask)


def whiteness(image: torch.Tensor, preprocessing: Preprocessing) -> torch.Tensor:
    """(H, W) in [0, 1]: the network's normalisation taken back."""
    return image[0] * preprocessing.std[0] + preprocessing.mean[0]


def centre(weights: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.meshgrid(*map(torch.arange, weights.shape), indexing="ij")
    return torch.stack([(weights * rows).sum(), (weights * columns).sum()]) / weights.sum()


@pytest.mark.parametrize("size", [None, 96])
@pytest.mark.parametrize("shape", [(500, 333), (333, 500), (400, 400), (640, 241)], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_image_and_mask_stay_together(network, shape, size):
    """Where the image is white the mask is True, but for the edge that resampling blurs."""
    preprocessing, (width, height) = NETWORKS[network], shape
    box = (width // 2 - 60, height // 2 - 70, width // 2 + 95, height // 2 + 40)
    picture = white_rectangle(width, height, *box)
    image, mask = prepared(picture, preprocessing, size)
    assert mask.dtype == torch.bool
    assert mask.shape == image.shape[1:] == ((size, size) if size else preprocessing.size)
    white = whiteness(image, preprocessing)
    sure = (white < 0.02) | (white > 0.98)
    assert torch.equal(mask[sure], white[sure] > 0.5)
    # What is unsure is the rectangle's edge: a few pixels along its sides.
    unsure = int((~sure).sum())
    assert unsure < 6 * (sum(mask.any(0)) + sum(mask.any(1)) + 4)
    # The edge alone cannot show a shift by one pixel; the centre of gravity does.
    assert torch.allclose(centre(white), centre(mask.float()), atol=0.6)


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(40, 300),
    height=st.integers(40, 300),
    size=st.sampled_from([None, 48, 96]),
    network=st.sampled_from(["torchvision", "squeezed", "inception", "padded"]),
)
def test_the_mask_goes_exactly_where_nearest_pixels_go(width, height, size, network):
    """With nearest pixels for both there is no blur, so the mask is the image."""
    preprocessing = replace(NETWORKS[network], interpolation="nearest", **PLAIN)
    generator = np.random.default_rng(width * 1000 + height)
    mask = generator.random((height, width)) < 0.5
    picture = Picture("noise", Image.fromarray(mask.astype(np.uint8) * 255).convert("RGB"), mask=mask)
    if size is not None and max(width, height) <= size:
        return  # enlarged with bicubic pixels
    image, seen = prepared(picture, preprocessing, size)
    assert torch.equal(seen, image[0] > 0.5)


def test_hand_worked_crop():
    """500 x 400 to a shorter side of 8 (10 x 8), of which the centre 4 x 4 is columns 3-6, rows 2-5."""
    mask = np.zeros((400, 500), dtype=bool)
    mask[100:200, 150:300] = True  # resized: rows 2-3, columns 3-5
    picture = Picture("a", Image.new("RGB", (500, 400)), mask=mask)
    _, seen = prepared(picture, Preprocessing((4, 4), 8))
    assert seen.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("size", "resize", "wanted", "expected"),
    [(224, 256, 96, 110), (224, 256, 224, 256), (224, 256, 448, 512), (224, 232, 112, 116), (224, None, 96, None)],
)
def test_the_share_cut_off_is_the_networks_own(size, resize, wanted, expected):
    changed = resized_preprocessing(Preprocessing((size, size), resize, "bicubic"), wanted)
    assert (changed.size, changed.resize, changed.interpolation) == ((wanted, wanted), expected, "bicubic")
    assert resized_preprocessing(changed, wanted) == changed


def test_small_images_are_enlarged_as_a_whole():
    """CIFAR-10 at 96: bicubic, nothing cut off; the same as Pillow's own resize."""
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    small = Image.fromarray(pixels)
    image, mask = prepared(Picture("a", small), Preprocessing(**PLAIN), 96)
    expected = np.asarray(small.resize((96, 96), Image.Resampling.BICUBIC)).transpose(2, 0, 1) / 255
    assert np.allclose(image.numpy(), expected)
    assert mask is None
    # Without a size the network's own preprocessing stands, and cuts.
    own, _ = prepared(Picture("a", small), Preprocessing((96, 96), 110, **PLAIN))
    cut = np.asarray(small.resize((110, 110), Image.Resampling.BILINEAR).crop((7, 7, 103, 103))).transpose(2, 0, 1)
    assert np.allclose(own.numpy(), cut / 255)


def test_small_images_keep_their_mask():
    mask = np.zeros((32, 32), dtype=bool)
    mask[:, :8] = True
    _, seen = prepared(Picture("a", Image.new("RGB", (32, 32)), mask=mask), Preprocessing(), 96)
    assert torch.equal(seen, (torch.arange(96) < 24).expand(96, 96))


def test_causes_of_missing_masks():
    inside = white_rectangle(400, 200, 150, 50, 250, 150)
    cut_off = white_rectangle(400, 200, 0, 0, 40, 200)
    empty = white_rectangle(400, 200, 0, 0, 0, 0)
    none = Picture("none", Image.new("RGB", (400, 200)))
    seen = {name: prepared(p, Preprocessing())[1] for name, p in (("in", inside), ("out", cut_off), ("empty", empty))}
    assert seen["in"].any()
    assert not seen["out"].any()
    assert not seen["empty"].any()
    assert prepared(none, Preprocessing())[1] is None


def test_wrong_sizes():
    wrong = Picture("a.jpg", Image.new("RGB", (8, 6)), mask=np.zeros((8, 6), dtype=bool))
    with pytest.raises(DataError, match=r"a.jpg: the mask has shape \(8, 6\), the image is 6 high and 8 wide"):
        prepared(wrong, Preprocessing())
    with pytest.raises(DataError, match="size = 0: a side in pixels"):
        resized_preprocessing(Preprocessing(), 0)


@pytest.fixture
def greys(tmp_path):
    """Two classes of ten images, each of a grey of its own: class 0 is 0 to 9, class 1 is 100 to 109."""
    for label, first in ((0, 0), (1, 100)):
        (tmp_path / str(label)).mkdir()
        for number in range(10):
            Image.new("RGB", (20, 20), (first + number,) * 3).save(tmp_path / str(label) / f"{number}.png")
    return tmp_path


def shades(pool: torch.Tensor) -> list[int]:
    return [round(float(image[0, 0, 0]) * 255) for image in pool]


TINY = Preprocessing((16, 16), 18, **PLAIN)


def test_pools_are_even_and_apart_from_the_choice(greys):
    few = opened("folder", str(greys), images=4)
    many = opened("folder", str(greys), images=12)
    pool = reference_pool(few, TINY, count=8)
    assert pool.shape == (8, 3, 16, 16)
    found = shades(pool)
    assert sum(shade < 50 for shade in found) == 4
    # The pool does not depend on how many images are explained, and shares none with them.
    assert torch.equal(pool, reference_pool(many, TINY, count=8))
    explained = {many[index].image.getpixel((0, 0))[0] for index in range(12)}
    assert not explained & set(found)
    assert shades(reference_pool(few, TINY, count=3)) == found[:3]
    assert found != shades(reference_pool(few, TINY, count=8, seed=1))


def test_pools_hold_each_image_once_and_pass_over_damaged_ones(greys):
    (greys / "0" / "copy.png").write_bytes((greys / "0" / "3.png").read_bytes())
    (greys / "1" / "3.png").write_bytes(b"damaged")
    data = opened("folder", str(greys), images=2)
    found = shades(reference_pool(data, TINY, size=32, count=100))
    assert sorted(found) == [*range(10), *(100 + number for number in range(10) if number != 3)]


def test_the_explained_image_is_never_its_own_reference(greys):
    data = opened("folder", str(greys))
    pool = reference_pool(data, TINY, count=20)
    image, _ = prepared(data[5], TINY)
    drawn = [Images(pool).draw(image[None], [0], sample, 0).images for sample in range(19)]
    assert sorted(shades(torch.cat(drawn))) == sorted(set(shades(pool)) - set(shades(image[None])))


def test_pools_of_nothing(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    data = opened("folder", str(tmp_path))
    with pytest.raises(DataError, match=r"can be read as a reference: .*a.png is text, not an image"):
        reference_pool(data, TINY)
    with pytest.raises(DataError, match="count = 0: a pool of references needs at least one image"):
        reference_pool(data, TINY, count=0)
