"""References: what each kind gives, that it is seeded, and that it is never the explained image itself.

References are recorded by a path callable that is handed them, so what is tested is what the estimator gets.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import egcam
from egcam import references
from egcam.errors import SamplingError
from support.forms import along_images
from support.networks import IMAGE, perceptron_head, pictures, signed_activations

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "features"


def drawn(
    reference: object, images: Tensor, samples: int = 6, seed: int = 0, network: torch.nn.Module | None = None
) -> Tensor:
    """(samples, N, C, H, W) all references the estimator uses for the images."""
    seen: list[Tensor] = []

    def record(given: Tensor, images: Tensor, share: float) -> Tensor:
        seen.append(given)
        return images

    cam = egcam.GradCAM(
        signed_activations() if network is None else network,
        LAYER,
        gradient=egcam.Expected(reference, samples, path=record, seed=seed),
        signed=True,
        batch_size=samples * len(images),
    )
    cam(images, target=0)
    # In the order of the samples, and within one in that of the images, whether asked for together or one by one.
    return torch.cat(seen).reshape(samples, *images.shape)


def indices_in(pool: Tensor, found: Tensor) -> list[int]:
    """Which image of the pool each reference is."""
    return [int((pool == one).flatten(1).all(1).nonzero()[0, 0]) for one in found]


# -- made from the image -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "values"),
    [
        ("black", [0.0, 0.0]),
        ("white", [1.0, 1.0]),
        (references.constant(0.25), [0.25, 0.25]),
        (references.constant([0.5, -2.0]), [0.5, -2.0]),
        (references.black(mean=[0.5, 0.4], std=[0.25, 0.2]), [-2.0, -2.0]),
        (references.white(mean=[0.5, 0.4], std=[0.25, 0.2]), [2.0, 3.0]),
        (references.white(mean=0.5, std=0.1), [5.0, 5.0]),
    ],
)
def test_constant_references_have_their_colour_everywhere(reference: object, values: list[float]) -> None:
    found = drawn(reference, pictures(2))
    truth = torch.tensor(values).double()[:, None, None].expand(6, 2, *IMAGE)
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-7)


def test_constant_without_a_value_is_the_mean_colour_of_each_image() -> None:
    images = pictures(2)
    found = drawn("constant", images)
    for number, image in enumerate(images):
        for colour in range(2):
            truth = torch.full((6, 5), image[colour].mean().item()).double()
            torch.testing.assert_close(found[0, number, colour], truth, rtol=1e-6, atol=0)


def reflected(place: int, size: int) -> int:
    """Where a mirror at the outermost pixels sends a place outside: -1 to 1, size to size - 2."""
    place = abs(place)
    return place if place < size else 2 * (size - 1) - place


def blurred_by_hand(plane: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian weights up to three sigma, the border mirrored, one axis after the other."""
    radius = int(3 * sigma + 0.5)
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in range(-radius, radius + 1)]
    for axis in (0, 1):
        size = plane.shape[axis]
        lines = np.moveaxis(plane, axis, 0)
        summed = [
            sum(
                weight * lines[reflected(place + offset, size)]
                for weight, offset in zip(weights, range(-radius, radius + 1), strict=True)
            )
            for place in range(size)
        ]
        plane = np.moveaxis(np.stack(summed) / sum(weights), 0, axis)
    return plane


@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.3])
def test_blurred_is_a_gaussian_blur(sigma: float) -> None:
    images = pictures(2)
    found = drawn(references.blurred(sigma), images)
    for number in range(2):
        for colour in range(2):
            truth = blurred_by_hand(images[number, colour].numpy(), sigma)
            np.testing.assert_allclose(found[0, number, colour].numpy(), truth, rtol=0, atol=1e-12)


def test_blurred_is_the_default_with_a_twentieth_of_the_shorter_side() -> None:
    images = torch.randn(1, 2, 48, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = references.as_reference(None).draw(images, [0], 0, 0).images
    np.testing.assert_allclose(given[0, 0].numpy(), blurred_by_hand(images[0, 0].numpy(), 2.0), rtol=0, atol=1e-12)


def test_blur_keeps_the_mean_of_a_flat_image_and_all_its_values() -> None:
    flat = torch.full((1, *IMAGE), 0.7, dtype=torch.float64)
    torch.testing.assert_close(drawn(references.blurred(1.5), flat)[0], flat, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reference", ["blurred", "black", "white", "constant"])
def test_references_without_chance_are_the_same_for_every_sample_and_seed(reference: str) -> None:
    first, second = drawn(reference, pictures(2), seed=0), drawn(reference, pictures(2), seed=1)
    assert torch.equal(first, first[:1].expand_as(first))
    assert torch.equal(first, second)


# -- with chance ---------------------------------------------------------------------------------


def test_noise_is_the_image_plus_gaussian_noise_of_half_its_range() -> None:
    images = pictures(2) * torch.tensor([1.0, 10.0])[:, None, None, None] + 5
    found = drawn("noise", images, samples=300)
    extent = images.amax((1, 2, 3), True) - images.amin((1, 2, 3), True)
    unit = (found - images) / (0.5 * extent)
    assert abs(float(unit[:, 0].mean())) < 4 / unit[:, 0].numel() ** 0.5
    assert float(unit.std()) == pytest.approx(1, abs=0.03)
    torch.testing.assert_close(unit[:, 0], unit[:, 1], rtol=0, atol=1e-6)
    narrow = drawn(references.noise(0.1), images, samples=300)
    torch.testing.assert_close((narrow - images) * 5, found - images, rtol=0, atol=1e-6)


def test_uniform_fills_each_images_own_range_evenly() -> None:
    images = pictures(2) * torch.tensor([1.0, 10.0])[:, None, None, None] + 5
    found = drawn("uniform", images, samples=300)
    low, high = images.amin((1, 2, 3), True), images.amax((1, 2, 3), True)
    share = (found - low) / (high - low)
    assert 0 <= float(share.min()) < 0.01
    assert 0.99 < float(share.max()) <= 1
    assert float(share.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(share.var()) == pytest.approx(1 / 12, rel=0.05)


@pytest.mark.parametrize("reference", ["noise", "uniform", pictures(40, seed=3)], ids=["noise", "uniform", "images"])
def test_draws_differ_between_samples_and_seeds_and_repeat_with_the_seed(reference: object) -> None:
    images = pictures(2)
    first, again, other = (drawn(reference, images, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert float(torch.pdist(first[:, 0].flatten(1)).min()) > 0.1
    assert float((first - other).flatten(1).norm(dim=1).min()) > 0.1


@pytest.mark.parametrize("reference", ["noise", "uniform", "blurred", "constant", pictures(6, seed=3)], ids=str)
def test_each_image_gets_what_it_would_get_alone(reference: object) -> None:
    images = pictures(3)
    together = drawn(reference, images)
    for number, image in enumerate(images):
        torch.testing.assert_close(together[:, number], drawn(reference, image[None])[:, 0], rtol=0, atol=1e-12)


# -- images --------------------------------------------------------------------------------------


def test_every_image_of_the_pool_comes_once_before_any_comes_again() -> None:
    pool = pictures(7, seed=3)
    found = indices_in(pool, drawn(pool, pictures(1), samples=21)[:, 0])
    rounds = [found[:7], found[7:14], found[14:]]
    assert [sorted(one) for one in rounds] == [list(range(7))] * 3
    assert rounds[0] == rounds[1] == rounds[2], "a sampling scheme must know which visit of an image a sample is"
    assert rounds[0] != sorted(rounds[0])


def test_the_explained_image_is_never_its_own_reference() -> None:
    images = pictures(4)
    pool = torch.cat([pictures(2, seed=9), images, images[:1]])
    found = drawn(pool, images, samples=15)
    for number, image in enumerate(images):
        assert not bool((found[:, number] == image).flatten(1).all(1).any())
    # image 1 is in the pool of seven once: the other six come in equal shares
    counts = np.bincount(indices_in(pool, drawn(pool, images[1:2], samples=12)[:, 0]), minlength=7)
    assert counts[3] == 0
    # images 0 and 6 of the pool's own are equal, so they are counted together
    assert counts[0] == counts[1] == counts[4] == counts[5] == 2
    assert counts[2] + counts[6] == 4


def test_batch_mates_are_no_references() -> None:
    images, pool = pictures(3), pictures(4, seed=9)
    found = drawn(pool, images, samples=8)
    for number in range(3):
        assert sorted(indices_in(pool, found[:, number])) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_pool_of_nothing_but_the_image_is_refused() -> None:
    image = pictures(1)
    with pytest.raises(SamplingError, match="nothing but the explained image"):
        drawn(image.repeat(3, 1, 1, 1), image)


def test_one_image_without_batch_dimension_is_a_pool_of_one() -> None:
    other = pictures(1, seed=5)[0]
    assert torch.equal(drawn(other, pictures(1)), other.expand(6, 1, *IMAGE))


class Pairs(Dataset):
    """(image, label) pairs that count how often they are read."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.reads = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        return self.images[index], index


class Stream(IterableDataset):
    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.images)


POOL = pictures(8, seed=3)
SOURCES = {
    "tensor": lambda: POOL,
    "list": lambda: list(POOL),
    "data set of pairs": lambda: Pairs(POOL),
    "tensor data set": lambda: TensorDataset(POOL, torch.arange(8)),
    "loader of pairs": lambda: DataLoader(Pairs(POOL), batch_size=3),
    "loader of images": lambda: DataLoader(list(POOL), batch_size=5),
    "iterable data set": lambda: Stream(POOL),
    "generator": lambda: (image for image in POOL),
    "data set of dictionaries": lambda: [{"image": image, "label": 0} for image in POOL],
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_of_images_gives_its_images(source: str) -> None:
    found = drawn(SOURCES[source](), pictures(1), samples=8)
    assert sorted(indices_in(POOL, found[:, 0])) == list(range(8))


def test_source_is_read_once_for_many_calls() -> None:
    source = Pairs(POOL)
    cam = along_images(perceptron_head(), LAYER, reference=source, samples=8, signed=True)
    first = cam(pictures(2)).maps
    assert source.reads == 8
    assert torch.equal(cam(pictures(2)).maps, first)
    assert source.reads == 8


def test_limit_keeps_a_random_choice_of_a_data_set_and_the_first_of_a_loader() -> None:
    many = pictures(300, seed=3)
    for source in (Pairs(many), DataLoader(Pairs(many), batch_size=50)):
        found = indices_in(many, drawn(source, pictures(1), samples=64)[:, 0])
        assert len(set(found)) == 64
        if isinstance(source, DataLoader):
            assert sorted(found) == list(range(64))
        else:
            assert source.reads == 64
            assert max(found) > 150, "not just the first ones"
    wide = indices_in(many, drawn(Pairs(many), pictures(1), samples=100)[:, 0])
    assert len(set(wide)) == 100, "as many as there are samples"
    few = references.Images(Pairs(many), limit=5)
    assert len(set(indices_in(many, drawn(few, pictures(1), samples=20)[:, 0]))) == 5


def test_other_seeds_choose_other_images_of_a_data_set() -> None:
    many = pictures(300, seed=3)
    chosen = [set(indices_in(many, drawn(Pairs(many), pictures(1), samples=64, seed=seed)[:, 0])) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1]
    assert len(chosen[0] & chosen[2]) < 32


# -- callables -----------------------------------------------------------------------------------


def test_callable_of_the_images() -> None:
    images = pictures(2)
    found = drawn(lambda given: -2 * given, images)
    torch.testing.assert_close(found, (-2 * images).expand(6, *images.shape), rtol=0, atol=0)


def test_callable_with_a_generator_is_seeded_through_it() -> None:
    def draw(images: Tensor, generator: torch.Generator) -> Tensor:
        return torch.rand(images.shape, generator=generator, dtype=images.dtype)

    images = pictures(2)
    first, again, other = (drawn(draw, images, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[:, 0], first[:, 1]), "what an image gets does not depend on its place"
    assert float(torch.pdist(first[:, 0].flatten(1)).min()) > 0.1


def test_callable_that_uses_the_global_generator_is_seeded_and_leaves_it_alone() -> None:
    images = pictures(2)
    before = torch.get_rng_state()
    first, again, other = (drawn(lambda given: torch.rand_like(given), images, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert float(torch.pdist(first[:, 0].flatten(1)).min()) > 0.1
    assert torch.equal(torch.get_rng_state(), before)


# -- kind, place and words -----------------------------------------------------------------------

KINDS = ["blurred", "noise", "uniform", "constant", "black", "white", POOL, lambda images: images.double() + 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reference", KINDS, ids=lambda kind: kind if isinstance(kind, str) else type(kind).__name__)
def test_references_have_the_images_dtype_and_device(reference: object, dtype: torch.dtype) -> None:
    images = pictures(2).to(dtype)
    found = drawn(reference, images, network=signed_activations().to(dtype))
    assert found.dtype == dtype
    assert found.device == images.device
    if isinstance(reference, Tensor):
        assert indices_in(reference.to(dtype), found[:, 0])


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (None, "blurred and colours"),
        ("black", "black (as values from 0 to 1)"),
        (references.black(0, 1), "black"),
        (references.blurred(3), "blurred (sigma 3)"),
        (references.noise(0.2), "noise (scale 0.2)"),
        (POOL, "2 of 8 images"),
        (Pairs(POOL), "2 of 8 images"),
        (POOL[:2], "2 images"),
        (torch.zeros_like, "zeros_like"),
    ],
)
def test_result_says_what_was_used(reference: object, words: str) -> None:
    cam = along_images(perceptron_head(), LAYER, reference=reference, samples=2, signed=True)
    assert cam(pictures(1)).reference == words


def test_methods_without_reference_say_none_and_integrated_says_what_it_starts_from() -> None:
    assert egcam.GradCAM(perceptron_head(), LAYER, signed=True)(pictures(1)).reference is None
    integrated = egcam.IntegratedGradCAM(perceptron_head(), LAYER, reference="white", samples=2, signed=True)
    assert integrated(pictures(1)).reference == "white (as values from 0 to 1)"


@pytest.mark.parametrize(
    ("values", "black", "white", "words"),
    [
        ((0.1, 0.9), 0.0, 1.0, "as values from 0 to 1"),
        ((3.0, 250.0), 0.0, 255.0, "as values from 0 to 255"),
        ((-0.9, 0.8), -1.0, 1.0, "as values from -1 to 1"),
        ((-1.5, 0.8), (-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64), "as images normalised with ImageNet's"),
    ],
)
def test_where_nobody_says_it_the_values_tell_black_and_white(
    values: tuple[float, float], black: float, white: float, words: str
) -> None:
    """Each image's own, whatever else is in the batch; the photographs are normalised by the same guess."""
    images = torch.full((2, 3, 4, 4), 0.5)
    images[0, 0, 0] = torch.tensor([*values, *values])
    for reference, shade in ((references.black(), black), (references.white(), white)):
        drawn = reference.draw(images, [0, 1], 0, 0).images
        expected = torch.as_tensor(shade).reshape(-1, 1, 1).expand(3, 4, 4)
        torch.testing.assert_close(drawn[0], expected, rtol=0, atol=1e-4)
        assert torch.equal(drawn[1], torch.full((3, 4, 4), reference.value))
        assert words in reference.for_images(images[:1]).description
    grey = images[:1].mean(1, keepdim=True) * 0 + images[:1, :1]
    drawn = references.black().draw(grey, [0], 0, 0).images
    torch.testing.assert_close(drawn.mean(), torch.as_tensor(black).mean(), rtol=0, atol=0.01)


def test_what_is_no_photograph_has_0_as_black() -> None:
    signals = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(references.black().draw(signals, [0, 1], 0, 0).images, torch.zeros(2, 3, 50))
    assert torch.equal(references.white().draw(signals, [0, 1], 0, 0).images, torch.ones(2, 3, 50))
    five_channels = torch.randn(1, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(references.black().draw(five_channels, [0], 0, 0).images, torch.zeros(1, 5, 4, 4))


def test_a_normalisation_reaches_every_part_and_what_has_one_keeps_it() -> None:
    known = ((0.5,), (0.25,))
    mixed = references.mixture("black", references.white(0.0, 1.0), "blurred").normalised(known)
    images = pictures(1)
    assert [float(mixed.draw(images, [0], sample, 0).images.mean()) for sample in (0, 1)] == [-2.0, 1.0]
    assert mixed.for_images(images).description.startswith("black and white and blurred")
    with pytest.raises(SamplingError, match="black takes mean and std together"):
        references.black(mean=[0.1, 0.2])


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("blured", "did you mean 'blurred'"),
        (pictures(3, shape=(2, 5, 5)), r"shape \(2, 5, 5\).*\(2, 6, 5\)"),
        (pictures(3, shape=(1, 6, 5)), r"shape \(1, 6, 5\)"),
        (torch.zeros(3, 2, 6, 5, dtype=torch.uint8), "uint8"),
        (torch.full((1, *IMAGE), math.nan).double(), "NaN"),
        (torch.zeros(0, *IMAGE).double(), "empty"),
        (torch.zeros(2, 5).double(), r"\(M, C, H, W\)"),
        ([], "empty"),
        (["a.png", "b.png"], "str"),
        ([pictures(1)[0], torch.zeros(2, 3, 3).double()], "different sizes"),
        (3, "int"),
        (lambda images: images[:, :1], "lambda"),
        (lambda images: None, "NoneType"),
        (references.constant([1.0, 2.0, 3.0]), "3 channel values for images with 2 channels"),
        (references.blurred(-1.0), "sigma"),
    ],
)
def test_unusable_references_are_refused_with_the_reason(reference: object, words: str) -> None:
    with pytest.raises(SamplingError, match=words):
        drawn(reference, pictures(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "at least 1"),
        ({"path": "linaer"}, "did you mean 'linear'"),
        ({"path": 3}, "int"),
        ({"path": lambda references, images, share: images[:, :1]}, "path callable gave"),
        ({"kernel": "gausian"}, "did you mean 'gaussian'"),
        ({"difference": "lateral"}, "did you mean 'latent'"),
        ({"tolerance": 0.0}, "positive"),
        ({"tolerance": -1.0}, "positive"),
    ],
)
def test_unusable_sampling_options_are_refused_with_the_reason(options: dict[str, object], words: str) -> None:
    with pytest.raises(SamplingError, match=words):
        along_images(perceptron_head(), LAYER, **options)(pictures(1))


@pytest.mark.parametrize("options", [{"scale": -0.1}, {"draws": 0}, {"distribution": "cauchy"}])
def test_unusable_kernels_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SamplingError):
        egcam.Kernel(**options)


def test_explainers_with_image_references_can_be_copied() -> None:
    network, images = perceptron_head(), pictures(2)
    cam = along_images(network, LAYER, reference=pictures(4, seed=3), samples=4, signed=True)
    copied = copy.deepcopy(cam)
    torch.testing.assert_close(copied(images, target=1).maps, cam(images, target=1).maps, rtol=0, atol=0)
    assert copied.model is not network


def test_colours_are_one_colour_from_each_channels_own_range() -> None:
    images = pictures(3)
    source = egcam.attribution.references.colours()
    drawn = torch.stack([source.draw(images, [0, 1, 2], sample, 0).images for sample in range(400)])
    assert torch.equal(drawn, drawn[..., :1, :1].expand_as(drawn)), "one colour everywhere"
    low, high = images.amin((2, 3)), images.amax((2, 3))
    shares = (drawn[..., 0, 0] - low) / (high - low)
    assert float(shares.min()) >= 0
    assert float(shares.max()) <= 1
    # A uniform share has mean 1/2 and variance 1/12; 400 draws are within 0.07 and 0.02 of them.
    torch.testing.assert_close(shares.mean(0), torch.full_like(shares[0], 0.5), atol=0.07, rtol=0)
    torch.testing.assert_close(shares.var(0), torch.full_like(shares[0], 1 / 12), atol=0.02, rtol=0)


def test_a_mixture_takes_its_parts_in_turn() -> None:
    images, others = pictures(2), pictures(3, seed=5)
    parts = (egcam.attribution.references.black(), egcam.attribution.references.as_reference(others))
    mixed = egcam.attribution.references.mixture(*parts)
    for sample in range(8):
        part = parts[sample % 2]
        wanted = part.draw(images, [0, 1], sample // 2, 7)
        found = mixed.draw(images, [0, 1], sample, 7)
        assert torch.equal(found.images, wanted.images)
        assert found.keys == [(*key, sample % 2) for key in wanted.keys]
        of_pool = [((sample // 2) % 3, (sample // 2) // 3)] * 2
        assert [tuple(visit) for visit in found.visits or []] == (
            [(0, sample // 2)] * 2 if sample % 2 == 0 else of_pool
        )
    with pytest.raises(egcam.errors.SamplingError, match="at least one"):
        egcam.attribution.references.mixture()


@pytest.mark.parametrize(
    "method",
    [egcam.SlopeCAM, egcam.ExpectedGradCAM, egcam.ExpectedGradients, along_images],
    ids=lambda one: one.__name__,
)
def test_the_default_is_photographs(method: Callable[..., egcam.Explainer]) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5), nn.Tanh(), nn.Linear(5, 3))
    images = torch.rand(2, 3, 8, 8)
    layer = {} if method is egcam.ExpectedGradients else {"layer": "1"}
    found = method(network, **layer, samples=6)(images, target=1)
    assert found.reference == "6 of 64 photographs (as values from 0 to 1)"
    same = method(network, **layer, samples=6, reference="photographs")(images, target=1)
    assert torch.equal(found.maps, same.maps)


def test_images_that_photographs_do_not_fit_are_compared_with_blurred_copies_and_colours() -> None:
    found = egcam.SlopeCAM(perceptron_head(), LAYER, samples=4)(pictures(2), target=1)
    assert found.reference == "blurred and colours"
    same = egcam.SlopeCAM(perceptron_head(), LAYER, samples=4, reference="mixed")(pictures(2), target=1)
    assert torch.equal(found.maps, same.maps)


def test_on_a_path_of_images_the_default_for_them_is_the_same() -> None:
    found = along_images(perceptron_head(), LAYER, samples=4)(pictures(2), target=1)
    assert found.reference == "blurred and colours"
    same = along_images(
        perceptron_head(), LAYER, samples=4, reference=egcam.attribution.references.mixture("blurred", "colours")
    )
    assert torch.equal(found.maps, same(pictures(2), target=1).maps)


def test_colours_may_be_spelled_colors() -> None:
    assert egcam.attribution.references.as_reference("colors").description == "colours"
