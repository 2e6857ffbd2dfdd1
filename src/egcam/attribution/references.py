"""The distribution the reference x' is drawn from.

A reference stands for "nothing to see here": the images an explained image is compared with. Sample s of image x is
drawn with a generator keyed by the seed and s alone, so a batch gives the same draws as its images one by one.

Black and white are 0 and 1 before the network's normalisation: (0 - mean) / std and (1 - mean) / std. Tensors do not
say how they were normalised. Where nobody says it either, each image's values decide (`seeming_normalisation`), for
black, white and the photographs alike, and the result says what was assumed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import SamplingError, check_known
from egcam.imageops import gaussian_blur, places, size_of
from egcam.models.session import bytes_of
from egcam.rng import OwnDraws, generator, like

__all__ = ["Drawn", "Images", "Reference", "as_reference", "black", "blurred", "by_name", "colours", "constant"]
__all__ += ["mixed", "mixture", "noise", "photographs", "uniform", "usual", "white"]

Normalisation: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""The mean and the standard deviation, channel by channel or for all, in the scale where black is 0 and white 1."""

ReferenceLike: TypeAlias = "Reference | Tensor | str | Callable[..., Tensor] | Iterable[Any] | None"


_COUNT = 64  # photographs
_SIDE = 160


class Visit(NamedTuple):
    """Reference number `reference` of an image's references, and how often it came before."""

    reference: int
    number: int


@dataclass(frozen=True)
class Drawn:
    """References for a batch: one per image, and keys that are equal exactly where the references are equal.

    A key of None means that this reference will not be used again, so nothing computed from it is worth keeping. A key
    that begins with "pool" or "always" means the same reference in other calls, too. Visits are given if an image has a
    fixed number of references that recur. The images are made on first use, which cached results often make
    unnecessary.
    """

    make: Callable[[], Tensor]
    keys: list[Hashable]
    visits: list[Visit] | None = None

    @cached_property
    def images(self) -> Tensor:
        """(n, C, H, W)."""
        return self.make()


Bound: TypeAlias = Callable[[Sequence[int], int], Drawn]


class Reference(ABC):
    """A distribution of reference images.

    Attributes:
        varies: whether two samples of one image can differ.
        count: how many images there are to draw from, if that is a number.
        is_collection: whether it is many images to average over, of which a single one says little.
    """

    varies: bool = True

    @property
    def count(self) -> int | None:
        """Unknown, unless a class says otherwise."""
        return None

    @property
    def is_collection(self) -> bool:
        """No, unless a class says otherwise."""
        return False

    @property
    @abstractmethod
    def description(self) -> str:
        """A few words for the result, e.g. "64 images" or "blurred (sigma 11.2)"."""

    def described(self, drawn: int | None) -> str:
        """The description; where it is known that fewer are drawn than there are, "32 of 64 images"."""
        if drawn is None or self.count is None or drawn >= self.count:
            return self.description
        return f"{drawn} of {self.description}"

    @abstractmethod
    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """References for `images` (n, C, H, W), which are the images numbered `rows` of the current call."""

    def normalised(self, normalisation: Normalisation | None) -> Reference:
        """The same for images that are known to be normalised like this; what it was made with stays."""
        return self

    def for_images(self, images: Tensor) -> Reference:
        """The same, with a description that says what has to be assumed of these images."""
        return self

    def bind(self, images: Tensor, rows: Sequence[int], seed: int) -> Bound:
        """`draw` for images known beforehand: a function of which of them, and of the sample."""
        return lambda own, sample: self.draw(images[list(own)], [rows[i] for i in own], sample, seed)


@dataclass(frozen=True)
class Made(Reference):
    """A reference computed from each image without chance: blurred, constant, black, white.

    `always` says that it is the same for every image, whatever the image shows.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    always: bool = False
    varies = False

    @property
    def description(self) -> str:
        """The name."""
        return self.name

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """The same reference for every sample."""
        keys: list[Hashable] = [("always", self.name) if self.always else ("made", row) for row in rows]
        return Drawn(lambda: _checked(self.function(images), images, self.name), keys)


@dataclass(frozen=True)
class Random(Reference):
    """A reference computed from each image and a generator: noise, uniform, or a user's callable."""

    name: str
    function: Callable[[Tensor, torch.Generator], Tensor]

    @property
    def description(self) -> str:
        """The name."""
        return self.name

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """One draw per sample, the same noise for every image."""
        drawn = self.function(images, generator(seed, "reference", sample))
        checked = _checked(drawn, images, self.name)
        return Drawn(lambda: checked, [None] * len(rows))


@dataclass(frozen=True)
class Mixture(Reference):
    """Several references in turn: sample s is sample s // k of reference number s modulo k, k being how many there are.

    Example:
        >>> Mixture((blurred(), black())).description
        'blurred and black'
    """

    parts: tuple[Reference, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise SamplingError("a mixture needs at least one reference")

    @property
    def description(self) -> str:
        """The descriptions of its parts."""
        return " and ".join(part.description for part in self.parts)

    @property
    def is_collection(self) -> bool:
        """Where one of its parts is."""
        return any(part.is_collection for part in self.parts)

    def normalised(self, normalisation: Normalisation | None) -> Reference:
        """Each part, normalised."""
        return Mixture(tuple(part.normalised(normalisation) for part in self.parts))

    def for_images(self, images: Tensor) -> Reference:
        """Each part, for these images."""
        return Mixture(tuple(part.for_images(images) for part in self.parts))

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """The draw of the part whose turn it is."""
        return self.bind(images, rows, seed)(range(len(rows)), sample)

    def bind(self, images: Tensor, rows: Sequence[int], seed: int) -> Bound:
        """The parts, bound, in turn."""
        bound = [part.bind(images, rows, seed) for part in self.parts]

        def draw(own: Sequence[int], sample: int) -> Drawn:
            round_, turn = divmod(sample, len(self.parts))
            drawn = bound[turn](own, round_)
            again = Visit(round_, 0) if self.parts[turn].varies else Visit(0, round_)
            visits = drawn.visits if drawn.visits is not None else [again] * len(own)
            return Drawn(lambda: drawn.images, [_turned(key, turn) for key in drawn.keys], visits)

        return draw


def _turned(key: Hashable, turn: int) -> Hashable:
    """The key of a mixture's part: of two parts with pools of their own, each has an image number 0."""
    return (*key, turn) if isinstance(key, tuple) else key


# One for all data sets: a lock of its own would make a reference, and every explainer that holds one, uncopyable.
_reading = threading.Lock()


@dataclass(frozen=True)
class Images(Reference):
    """Images of a data set: a tensor (M, C, H, W), a data set or a loader of images or (image, label) pairs.

    Signals, volumes and video likewise, when such are explained.

    Samples go through the images in random order, again and again in the same one. An explained image that is itself
    in the set is never its own reference. Of a data set or loader at most `limit` images are read, once, when first
    needed: a random choice of a data set, the first ones of a loader.
    """

    source: Any
    limit: int = 64
    seed: int = 0
    _read: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def description(self) -> str:
        """How many images."""
        return f"{self.count} images"

    @property
    def count(self) -> int:
        """How many images were read."""
        return len(self._read[0] if self._read else self.pool)

    is_collection = True

    @property
    def pool(self) -> Tensor:
        """All images, (M, C, H, W)."""
        return self._pool(4)

    def _pool(self, axes: int) -> Tensor:
        """All images, each with its number of axes less one: that of the explained ones tells images from signals."""
        with _reading:
            if not self._read or self._read[0].ndim != axes:
                self._read[:] = [_read_images(self.source, self.limit, self.seed, axes)]
            return self._read[0]

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """Sample `sample` for each image: an image of the pool that is not the explained one."""
        return self.bind(images, rows, seed)(range(len(rows)), sample)

    def bind(self, images: Tensor, rows: Sequence[int], seed: int) -> Bound:
        """The order of the pool, without the explained image, worked out once for each image."""
        pool = self._pool(images.ndim)
        if pool.shape[1:] != images.shape[1:]:
            raise SamplingError(
                f"the reference images have shape {tuple(pool.shape[1:])}, the explained images "
                f"{tuple(images.shape[1:])}: resize and normalise both in the same way"
            )
        order = torch.randperm(len(pool), generator=generator(seed, "pool"), device="cpu").tolist()
        others = [[index for index in order if index not in itself] for itself in _where_equal(images, pool)]
        if not all(others):
            raise SamplingError("the reference holds nothing but the explained image itself; pass other images")

        # By content: a session outlives a pool, and the user may write to it between calls.
        @cache
        def content(index: int) -> bytes:
            return blake2b(bytes_of(pool[index]), digest_size=16).digest()

        def draw(own: Sequence[int], sample: int) -> Drawn:
            visits = [Visit(sample % len(others[i]), sample // len(others[i])) for i in own]
            chosen = [others[i][visit.reference] for i, visit in zip(own, visits, strict=True)]
            return Drawn(lambda: like(pool[chosen], images), [("pool", content(index)) for index in chosen], visits)

        return draw


@dataclass(frozen=True)
class _Normalised(Reference):
    """A reference that has to know how the images were normalised.

    Args:
        normalisation: the mean and the standard deviation, in the scale where white is 1; None lets each image's values
            decide.
        assumed: what was concluded from the images' values, in words.
    """

    normalisation: Normalisation | None = None
    assumed: str = ""

    def normalised(self, normalisation: Normalisation | None) -> Reference:
        """With this mean and standard deviation, if it has none yet."""
        return self if self.normalisation is not None else replace(self, normalisation=normalisation)

    def for_images(self, images: Tensor) -> Reference:
        """With what is assumed of these images, if nobody said how they are normalised."""
        if self.normalisation is not None:
            return self
        return replace(self, assumed=assumption(images))

    def _of(self, image: Tensor) -> Normalisation:
        return _assumed(image) if self.normalisation is None else self.normalisation

    def _with_assumption(self, text: str) -> str:
        return f"{text} ({self.assumed})" if self.assumed else text


@dataclass(frozen=True)
class Shade(_Normalised):
    """Black or white: `value`, 0 or 1, normalised like the images: (value - mean) / std.

    What was not known to be normalised and is no photograph (a signal, a volume, other than 1 or 3 channels) has 0 as
    black and 1 as white.
    """

    name: str = "black"
    value: float = 0.0
    varies = False

    @property
    def description(self) -> str:
        """The name, and what was assumed."""
        return self._with_assumption(self.name)

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """The same for every sample, and for all images that are normalised alike."""
        keys: list[Hashable] = [("always", self.name, self._of(image)) for image in images]
        return Drawn(lambda: shade(images, self.value, self.normalisation), keys)


@dataclass(frozen=True)
class Photographs(_Normalised):
    """64 free photographs that come with the package, for when you have no data of your own.

    They are scaled to the images' size and normalised like them.
    """

    @property
    def description(self) -> str:
        """What they are."""
        return self._with_assumption(f"{_COUNT} photographs")

    count = _COUNT
    is_collection = True

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """Photograph number `sample` of a random order, the same for all images."""
        return self.bind(images, rows, seed)(range(len(rows)), sample)

    def bind(self, images: Tensor, rows: Sequence[int], seed: int) -> Bound:
        """The order, and how each image seems to be normalised."""
        if images.ndim != 4:
            raise SamplingError(
                "photographs are images, and these are signals, volumes or video: pass others of your data as "
                "reference, or a name that fits any data, such as 'blurred', 'constant' or 'noise'"
            )
        if images.shape[1] not in (1, 3):
            raise SamplingError(
                f"photographs have 3 channels, or 1 in grey, and the images {images.shape[1]}: pass images of your "
                "data as reference"
            )
        order = torch.randperm(_COUNT, generator=generator(seed, "photographs"), device="cpu").tolist()
        norms = [self._of(image) for image in images]

        def draw(own: Sequence[int], sample: int) -> Drawn:
            index = order[sample % _COUNT]

            def make() -> Tensor:
                plain = _photograph(index, *images.shape[-2:])
                plain = plain if images.shape[1] == 3 else plain.mean(0, keepdim=True)
                return torch.stack([like(_normalised(plain, *norms[i]), images) for i in own])

            return Drawn(
                make, [("pool", index, norms[i]) for i in own], [Visit(sample % _COUNT, sample // _COUNT)] * len(own)
            )

        return draw


@dataclass(frozen=True)
class Usual(_Normalised):
    """The default: photographs; for what cannot be compared with them, such as signals and other channels, `mixed`."""

    @property
    def description(self) -> str:
        """What it is."""
        return "usual"

    is_collection = True

    def for_images(self, images: Tensor) -> Reference:
        """The photographs, or `mixed`."""
        comparable = images.ndim == 4 and images.shape[1] in (1, 3)
        return (Photographs(self.normalisation) if comparable else mixed()).for_images(images)

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """Those of what it stands for."""
        return self.for_images(images).draw(images, rows, sample, seed)


_FROM_0_TO_1: Normalisation = ((0.0,), (1.0,))
_FROM_0_TO_255: Normalisation = ((0.0,), (1 / 255,))
_FROM_MINUS_1: Normalisation = ((0.5,), (0.5,))
_LIKE_IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_WORDS = {
    _FROM_0_TO_1: "as values from 0 to 1",
    _FROM_0_TO_255: "as values from 0 to 255",
    _FROM_MINUS_1: "as values from -1 to 1",
    _LIKE_IMAGENET: "as images normalised with ImageNet's mean and std",
}


def seeming_normalisation(low: float, high: float) -> Normalisation:
    """(mean, std) with which pixels in [0, 1] seem to have been normalised, from the least and the largest value.

    >>> seeming_normalisation(-0.9, 0.8)
    ((0.5,), (0.5,))
    """
    if low >= 0:
        return _FROM_0_TO_1 if high <= 1 else _FROM_0_TO_255
    return _FROM_MINUS_1 if low >= -1 and high <= 1 else _LIKE_IMAGENET


def _assumed(image: Tensor) -> Normalisation:
    """How an image (C, H, W) seems to be normalised; what is no photograph is taken as it is."""
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        return _FROM_0_TO_1
    return seeming_normalisation(float(image.min()), float(image.max()))


def assumption(images: Tensor) -> str:
    """In words, how images that nobody said anything about seem to be normalised; some may differ from others.

    >>> assumption(torch.tensor([-0.9, 0.8]).reshape(1, 1, 1, 2))
    'as values from -1 to 1'
    """
    return " or ".join(dict.fromkeys(_WORDS[_assumed(image)] for image in images))


def shade(images: Tensor, value: float, normalisation: Normalisation | None = None) -> Tensor:
    """(N, C, H, W) one shade of grey, 0 black and 1 white, normalised like the images: (value - mean) / std.

    Without a normalisation each image's own values decide how it seems to be normalised.

    >>> shade(torch.zeros(1, 1, 1, 1), 1.0, ((0.5,), (0.25,))).item()
    2.0
    """
    if normalisation is None:
        rows = [shade(image[None], value, _assumed(image)) for image in images]
        return torch.cat(rows) if rows else images
    # A grey image has the mean of the colours' values, as a grey photograph has.
    is_grey = images.shape[1] == 1
    mean, std = (_filled(images, (fmean(values),) if is_grey else values) for values in normalisation)
    return (value - mean) / std


def _normalised(photograph: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(C, H, W) in [0, 1], normalised; a grey one with the mean of the colours' values."""
    columns = [photograph.new_tensor(values).reshape(-1, 1, 1) for values in (mean, std)]
    if len(photograph) == 1:
        columns = [column.mean(0, keepdim=True) for column in columns]
    return (photograph - columns[0]) / columns[1]


@lru_cache(maxsize=1)
def crops_of_photographs(height: int, width: int) -> Tensor:
    """(64, 3, H, W) in [0, 1]."""
    return _scaled(_photographs(), height, width)


def _photograph(index: int, height: int, width: int) -> Tensor:
    """(3, H, W) in [0, 1]; scaled anew each time, for 64 large images would take much memory."""
    return _scaled(_photographs()[index, None], height, width)[0]


def _scaled(crops: Tensor, height: int, width: int) -> Tensor:
    return functional.interpolate(crops, size=(height, width), mode="bilinear", antialias=True).clamp(0, 1)


@lru_cache(maxsize=1)
def _photographs() -> Tensor:
    """(64, 3, 160, 160) in [0, 1]."""
    import numpy as np

    from egcam.imagefiles import opened

    with opened(Path(__file__).parents[1] / "data" / "photographs.jpg") as sheet:
        pixels = torch.from_numpy(np.array(sheet.convert("RGB"))).float() / 255
    return pixels.unfold(0, _SIDE, _SIDE).unfold(1, _SIDE, _SIDE).flatten(0, 1)


def photographs(mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None) -> Reference:
    """Free photographs that come with the package, normalised with `mean` and `std`; see `Photographs`.

    For photographs. For X-rays, spectrograms and the like pass images of your data.
    """
    return Photographs(_normalisation(mean, std, "photographs take"))


def usual(mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None) -> Reference:
    """The default reference, for images normalised with `mean` and `std`; see `Usual`."""
    return Usual(_normalisation(mean, std, "the usual reference takes"))


def _normalisation(
    mean: float | Sequence[float] | None, std: float | Sequence[float] | None, taker: str
) -> Normalisation | None:
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise SamplingError(f"{taker} mean and std together, or neither")
    return _listed(mean), _listed(std)


def _listed(values: float | Sequence[float]) -> tuple[float, ...]:
    return (float(values),) if isinstance(values, int | float) else tuple(map(float, values))


def _where_equal(images: Tensor, pool: Tensor) -> list[frozenset[int]]:
    """For each image, the numbers of the pool's images that equal it."""
    step = max(1, pool[0].numel() // 64)
    marks = pool.flatten(1)[:, ::step].to(images.device, images.dtype)
    found = []
    for image in images:
        alike = (marks == image.flatten()[::step]).all(1).nonzero()[:, 0].tolist()
        found.append(frozenset(index for index in alike if torch.equal(like(pool[index], image), image)))
    return found


def _read_images(source: Any, limit: int, seed: int, axes: int) -> Tensor:
    if isinstance(source, Tensor):
        pool = source.detach()
        pool = pool.clone() if pool.is_inference() else pool
        pool = pool[None] if pool.ndim == axes - 1 else pool
    else:
        pool = _stack(_items(source, limit, seed), limit, axes)
    if pool.ndim > 0 and len(pool) == 0:
        raise SamplingError("the reference is empty: it holds no image")
    if pool.ndim != axes:
        wanted = {3: "(M, C, L)", 5: "(M, C, D, H, W)"}.get(axes, "(M, C, H, W)")
        raise SamplingError(f"reference images must have shape {wanted}, not {tuple(pool.shape)}")
    if not pool.is_floating_point():
        raise SamplingError(f"reference images are {pool.dtype}; normalise them to floats like the explained images")
    if not bool(torch.isfinite(pool).all()):
        raise SamplingError("a reference image holds NaN or infinite pixels")
    return pool


def _items(source: Any, limit: int, seed: int) -> Iterable[Any]:
    is_data_set = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if is_data_set:
        order = torch.randperm(len(source), generator=generator(seed, "data set"), device="cpu")[:limit].tolist()
        return (source[index] for index in order)
    if not hasattr(source, "__iter__"):
        raise SamplingError(f"a reference cannot be read from a {type(source).__name__}")
    return islice(source, limit)


def _stack(items: Iterable[Any], limit: int, axes: int) -> Tensor:
    images: list[Tensor] = []
    for item in items:
        image = item[0] if isinstance(item, tuple | list) else item
        image = image.get("image", image.get("pixel_values")) if isinstance(image, dict) else image
        if not isinstance(image, Tensor):
            raise SamplingError(
                f"the reference data set gives {type(image).__name__}, not tensors: give it the model's preprocessing"
            )
        images.extend(image if image.ndim == axes else [image])
        if len(images) >= limit:
            break
    if not images:
        raise SamplingError("the reference data set is empty")
    if len({image.shape for image in images}) > 1:
        raise SamplingError("the reference images have different sizes: resize and crop them to the model's input")
    return torch.stack(images[:limit]).detach()


def _checked(drawn: Tensor, images: Tensor, name: str) -> Tensor:
    if not isinstance(drawn, Tensor) or drawn.shape != images.shape:
        got = tuple(drawn.shape) if isinstance(drawn, Tensor) else type(drawn).__name__
        raise SamplingError(f"the reference {name!r} gives {got} for images of shape {tuple(images.shape)}")
    return like(drawn.detach(), images)


def blurred(sigma: float | None = None) -> Reference:
    """Each image blurred with a Gaussian of `sigma` pixels.

    Default: a twentieth of an image's shorter side, or of a signal's length. Of volumes and video a twentieth of each
    side along that side, for a few frames or slices must not decide how much is seen within one.
    """
    label = "blurred" if sigma is None else f"blurred (sigma {sigma:g})"
    return Made(label, lambda images: gaussian_blur(images, sigma or _usual_sigma(images)))


def _usual_sigma(images: Tensor) -> float | list[float]:
    size = size_of(images)
    return [side / 20 for side in size] if len(size) > 2 else min(size) / 20


def noise(scale: float = 0.5) -> Reference:
    """Each image plus Gaussian noise with a standard deviation of `scale` times the image's range (max - min)."""

    def function(images: Tensor, source: torch.Generator) -> Tensor:
        drawn = like(torch.randn(images.shape[1:], generator=source, device="cpu", dtype=torch.float32), images)
        return images + scale * value_range(images) * drawn

    return Random(f"noise (scale {scale:g})", function)


def uniform() -> Reference:
    """Pixels drawn uniformly from each image's range [min, max]; nothing of the image remains."""

    def function(images: Tensor, source: torch.Generator) -> Tensor:
        drawn = like(torch.rand(images.shape[1:], generator=source, device="cpu", dtype=torch.float32), images)
        return _least(images) + value_range(images) * drawn

    return Random("uniform", function)


def colours() -> Reference:
    """One colour everywhere, another for each sample: each channel uniform over the image's own range [min, max]."""

    def function(images: Tensor, source: torch.Generator) -> Tensor:
        axes = places(images)
        shape = (images.shape[1], *[1] * len(axes))
        drawn = like(torch.rand(shape, generator=source, device="cpu", dtype=torch.float32), images)
        least = images.amin(axes, keepdim=True)
        return (least + drawn * (images.amax(axes, keepdim=True) - least)).expand_as(images)

    return Random("colours", function)


def mixture(*references: ReferenceLike) -> Reference:
    """Several references in turn, each anything that can be a reference: images, a name, a callable.

    Example:
        >>> mixture("blurred", torch.zeros(8, 3, 4, 4)).description
        'blurred and 8 images'
    """
    return Mixture(tuple(as_reference(one) for one in references))


def mixed() -> Reference:
    """Blurred copies and plain colours in turn: on a path of images neither alone is good on every network."""
    return Mixture((blurred(), colours()))


def constant(value: float | Sequence[float] | None = None) -> Reference:
    """One colour everywhere: `value` (one number or one per channel), or each image's own mean colour."""
    if value is None:
        return Made("constant (mean colour)", lambda x: x.mean(places(x), keepdim=True).expand_as(x))
    return Made(f"constant ({value})", lambda images: _filled(images, value), always=True)


def black(mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None) -> Reference:
    """Black, normalised with `mean` and `std` like the images: (0 - mean) / std.

    Without them each image's values decide how it seems to be normalised; see `Shade`.
    """
    return Shade(_normalisation(mean, std, "black takes"), name="black", value=0.0)


def white(mean: float | Sequence[float] | None = None, std: float | Sequence[float] | None = None) -> Reference:
    """White, normalised with `mean` and `std` like the images, (1 - mean) / std; without them as `black`."""
    return Shade(_normalisation(mean, std, "white takes"), name="white", value=1.0)


def _filled(images: Tensor, value: float | Sequence[float]) -> Tensor:
    values = torch.as_tensor(value, dtype=images.dtype, device=images.device)
    if values.ndim == 1 and len(values) not in (1, images.shape[1]):
        raise SamplingError(f"{len(values)} channel values for images with {images.shape[1]} channels")
    return values.reshape(1, -1, *[1] * len(places(images))).expand(images.shape)


def value_range(images: Tensor) -> Tensor:
    """(N, 1, 1, 1) each image's max - min."""
    return images.amax((1, *places(images)), keepdim=True) - _least(images)


def _least(images: Tensor) -> Tensor:
    return images.amin((1, *places(images)), keepdim=True)


MADE_BY_NAME: dict[str, Callable[[], Reference]] = {
    "usual": Usual,
    "mixed": mixed,
    "photographs": Photographs,
    "blurred": blurred,
    "colours": colours,
    "noise": noise,
    "uniform": uniform,
    "constant": constant,
    "black": black,
    "white": white,
}


def by_name(name: str) -> Reference:
    """The reference called `name`.

    >>> by_name("colors").description
    'colours'
    """
    name = "colours" if name == "colors" else name
    if name not in MADE_BY_NAME:
        check_known(name, MADE_BY_NAME, "reference", SamplingError)
    return MADE_BY_NAME[name]()


def as_reference(reference: ReferenceLike, default: str = "usual", samples: int = 1, seed: int = 0) -> Reference:
    """The reference for what the user passed.

    A `Reference`; a tensor of images; a name ("usual", "mixed", "photographs", "blurred", "colours", "noise",
    "uniform", "constant", "black", "white"); a callable `f(images) -> references` or
    `f(images, generator) -> references`; a data set or loader; or None for `default`.

    >>> as_reference("black").description
    'black'
    """
    if reference is None:
        reference = default
    if isinstance(reference, Reference):
        return reference
    if isinstance(reference, str):
        return by_name(reference)
    if callable(reference) and not isinstance(reference, Tensor) and not hasattr(reference, "__getitem__"):
        return _from_callable(reference)
    return Images(reference, limit=max(64, samples), seed=seed)


def _from_callable(function: Callable[..., Tensor]) -> Reference:
    from inspect import Parameter, signature

    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    takes_generator = len([p for p in positional if p.default is Parameter.empty]) >= 2

    def draw(images: Tensor, source: torch.Generator) -> Tensor:
        # One image at a time, each from the same state: what an image gets must not depend on its place in the batch.
        state = source.get_state()
        drawn = []
        for image in (images[row, None] for row in range(len(images))):
            source.set_state(state)
            with OwnDraws(source):
                drawn.append(function(image, source) if takes_generator else function(image))
        return torch.cat(drawn) if all(isinstance(one, Tensor) for one in drawn) else drawn[0]

    return Random(name, draw)
