"""The distribution the reference x' is drawn from.

A reference stands for "nothing to see here": the images an explained image is compared with. Sample s of image x is
drawn with a generator keyed by the seed and s alone, so a batch gives the same draws as its images one by one.

Tensors do not say how they were normalised. `black` and `white` are therefore 0 and 1 unless `mean` and `std` are
given; with them they are the normalised black and white: (0 - mean) / std and (1 - mean) / std.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import SamplingError, check_known
from egcam.imageops import gaussian_blur, places, size_of
from egcam.rng import generator, like

ReferenceLike: TypeAlias = "Reference | Tensor | str | Callable[..., Tensor] | Iterable[Any] | None"


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
    """A distribution of reference images. `varies` says whether two samples of one image can differ."""

    varies: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether its images are the same in every call, so that what a network makes of them is worth keeping."""
        return False

    @property
    @abstractmethod
    def description(self) -> str:
        """A few words for the result, e.g. "64 images" or "blurred (sigma 11.2)"."""

    @property
    def count(self) -> int | None:
        """How many images there are to draw from, if that is a number."""
        return None

    def described(self, drawn: int | None) -> str:
        """The description; where it is known that fewer are drawn than there are, "32 of 64 images"."""
        if drawn is None or self.count is None or drawn >= self.count:
            return self.description
        return f"{drawn} of {self.description}"

    @abstractmethod
    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """References for `images` (n, C, H, W), which are the images numbered `rows` of the current call."""

    def for_path(self, images: Tensor | None, latent: bool) -> Reference:
        """What it stands for on a path of images, or in a layer's own space; itself unless it is `Usual`."""
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

    @property
    def is_kept(self) -> bool:
        """Where it does not depend on the image."""
        return self.always

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
    def is_kept(self) -> bool:
        """Where all its parts are."""
        return all(part.is_kept for part in self.parts)

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

    @property
    def is_kept(self) -> bool:
        """Always."""
        return True

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

        version = pool._version  # the user's own tensor, which may be written to between calls

        def draw(own: Sequence[int], sample: int) -> Drawn:
            visits = [Visit(sample % len(others[i]), sample // len(others[i])) for i in own]
            chosen = [others[i][visit.reference] for i, visit in zip(own, visits, strict=True)]
            return Drawn(lambda: like(pool[chosen], images), [("pool", index, version) for index in chosen], visits)

        return draw


@dataclass(frozen=True)
class Photographs(Reference):
    """64 free photographs that come with the package, for when you have no data of your own.

    They are scaled to the images' size and normalised with `mean` and `std`. If these are not given, the normalisation
    is guessed from each image's values: [0, 1], [-1, 1], [0, 255], or ImageNet's mean and std.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def description(self) -> str:
        """What they are."""
        return f"{_COUNT} photographs"

    @property
    def count(self) -> int:
        """All of them."""
        return _COUNT

    @property
    def is_kept(self) -> bool:
        """Always."""
        return True

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
        norms = [self._normalisation(image) for image in images]

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

    def _normalisation(self, image: Tensor) -> Normalisation:
        if self.mean is not None and self.std is not None:
            return self.mean, self.std
        return seeming_normalisation(float(image.min()), float(image.max()))


@dataclass(frozen=True)
class Usual(Reference):
    """The default, chosen by measurement: photographs on a path at the layer, else `mixed`.

    Images that cannot be compared with photographs, with neither 1 nor 3 channels, have `mixed` there, too.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def description(self) -> str:
        """What it is."""
        return "usual"

    def for_path(self, images: Tensor | None, latent: bool) -> Reference:
        """The photographs, or `mixed`."""
        comparable = images is None or (images.ndim == 4 and images.shape[1] in (1, 3))
        return Photographs(self.mean, self.std) if latent and comparable else mixed()

    def draw(self, images: Tensor, rows: Sequence[int], sample: int, seed: int) -> Drawn:
        """Those of `mixed`."""
        return mixed().draw(images, rows, sample, seed)


Normalisation: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
_COUNT = 64
_SIDE = 160


def seeming_normalisation(low: float, high: float) -> Normalisation:
    """(mean, std) with which pixels in [0, 1] seem to have been normalised, from the least and the largest value.

    >>> seeming_normalisation(-0.9, 0.8)
    ((0.5,), (0.5,))
    """
    if low >= 0:
        return ((0.0,), (1.0,)) if high <= 1 else ((0.0,), (1 / 255,))
    if low >= -1 and high <= 1:
        return (0.5,), (0.5,)
    return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
    if (mean is None) != (std is None):
        raise SamplingError("photographs take mean and std together, or neither")

    def listed(values: float | Sequence[float] | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(values) if isinstance(values, Sequence) else (float(values),)

    return Photographs(listed(mean), listed(std))


def usual(mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Reference:
    """The default reference, for images normalised with `mean` and `std`; see `Usual`."""
    return Usual(None if mean is None else tuple(mean), None if std is None else tuple(std))


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


def black(mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> Reference:
    """Black, normalised with `mean` and `std` like the images: (0 - mean) / std."""
    return _shade("black", 0.0, mean, std)


def white(mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> Reference:
    """White, normalised with `mean` and `std` like the images: (1 - mean) / std."""
    return _shade("white", 1.0, mean, std)


def _shade(name: str, value: float, mean: float | Sequence[float], std: float | Sequence[float]) -> Reference:
    def function(images: Tensor) -> Tensor:
        return (_filled(images, value) - _filled(images, mean)) / _filled(images, std)

    return Made(name, function, always=True)


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
    "usual": usual,
    "mixed": mixed,
    "photographs": photographs,
    "blurred": blurred,
    "colours": colours,
    "noise": noise,
    "uniform": uniform,
    "constant": constant,
    "black": black,
    "white": white,
}


def by_name(name: str, mean: Sequence[float], std: Sequence[float]) -> Reference:
    """The reference called `name`; black and white are normalised with `mean` and `std` like the images.

    >>> float(by_name("white", (0.5,), (0.25,)).draw(torch.zeros(1, 1, 2, 2), [0], 0, 0).images[0, 0, 0, 0])
    2.0
    """
    name = "colours" if name == "colors" else name
    check_known(name, MADE_BY_NAME, "reference", SamplingError)
    if name in ("black", "white"):
        return (black if name == "black" else white)(mean, std)
    if name in ("photographs", "usual") and (tuple(mean), tuple(std)) != ((0.0,), (1.0,)):
        return (photographs if name == "photographs" else usual)(mean, std)
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
        return by_name(reference, (0.0,), (1.0,))
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
            drawn.append(function(image, source) if takes_generator else _seeded(function, image, source))
        return torch.cat(drawn) if all(isinstance(one, Tensor) for one in drawn) else drawn[0]

    return Random(name, draw)


_global_generator_lock = threading.Lock()


def _seeded(function: Callable[[Tensor], Tensor], images: Tensor, source: torch.Generator) -> Tensor:
    """Call a function that may use torch's global generators, seeded for this draw; the caller restores them."""
    seed = int(torch.randint(2**31, (1,), generator=source, device="cpu"))
    with _global_generator_lock:
        torch.default_generator.manual_seed(seed)
        if images.is_cuda:
            torch.cuda.manual_seed(seed)
        elif images.device.type == "mps":
            torch.mps.manual_seed(seed)
        return function(images)
