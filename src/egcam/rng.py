"""Random draws that are seeded, local and keyed: the same key gives the same draw, whatever else was drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from egcam.errors import SamplingError


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator for one purpose, independent of every other key and of torch's global state.

    Draws are made on the CPU, so the numbers do not depend on the device.

    >>> torch.equal(torch.rand(2, generator=generator(0, "a")), torch.rand(2, generator=generator(0, "a")))
    True
    """
    given: object = seed
    if not isinstance(given, Integral):
        raise SamplingError(f"a seed is a whole number, not {seed!r}; the same seed gives the same draws")
    digest = blake2b(repr((int(seed), *key)).encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)


def like(drawn: Tensor, images: Tensor) -> Tensor:
    """A draw moved to the device and dtype of the images."""
    return drawn.to(images.device, images.dtype)


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, what this thread would draw from torch's global generators is drawn from a given one.

    The global generators belong to all threads: to seed them and put them back would repeat what others draw meanwhile.
    What has no generator to choose keeps to the global one: dropout within attention and within cuDNN's recurrent
    layers.

    Args:
        source: of the draws on the CPU; those on other devices come from generators with its first seed.

    Example:
        >>> with OwnDraws(generator(0, "example")):
        ...     drawn = torch.rand(2)
        >>> torch.equal(drawn, torch.rand(2, generator=generator(0, "example")))
        True

    Attributes:
        count: of operations that drew.
    """

    def __init__(self, source: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._sources: dict[torch.device, torch.Generator] = {torch.device("cpu"): source}
        self._seed = source.initial_seed()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch load dynamo in order to skip it.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation's result."""
        given = dict(kwargs or {})
        draw = _way_to_draw(func)
        if draw is None or any(isinstance(value, torch.Generator) for value in (*args, *given.values())):
            return func(*args, **given)
        self.count += 1
        like = next((value for value in args if isinstance(value, Tensor)), None)
        device = given.get("device") or (torch.device("cpu") if like is None else like.device)
        source = self._source(device)
        return func(*args, **given) if source is None else draw(source, args, given)

    def begin_anew(self) -> None:
        """Draw the same numbers again."""
        for source in self._sources.values():
            source.manual_seed(self._seed)

    def _source(self, device: torch.device) -> torch.Generator | None:
        """The device's generator; None for what has no numbers."""
        if device not in self._sources:
            if device.type == "meta":
                return None
            self._sources[device] = torch.Generator(device).manual_seed(self._seed)
        return self._sources[device]


_Draw = Callable[[torch.Generator, Sequence[Any], dict[str, Any]], Any]

# Overloads that take a generator, of those that take none.
_WITH_GENERATOR = {"default": "generator", "low": "low_generator"}


@cache
def _way_to_draw(func: Any) -> _Draw | None:
    """How an operation draws from a given generator; None if it does not draw, or cannot be told from what."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    aten = torch.ops.aten
    known: dict[Any, _Draw] = {
        aten.rand_like.default: lambda source, args, given: _empty(args, given).uniform_(generator=source),
        aten.randn_like.default: lambda source, args, given: _empty(args, given).normal_(generator=source),
        aten.randint_like.default: lambda source, args, given: _empty(args, given).random_(
            0, args[1], generator=source
        ),
        aten.randint_like.low_dtype: lambda source, args, given: _empty(args, given).random_(
            args[1], args[2], generator=source
        ),
        aten.native_dropout.default: _dropped,
    }
    if func in known:
        return known[func]
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return lambda source, args, given: func(*args, **given, generator=source)
    twin = getattr(func.overloadpacket, _WITH_GENERATOR.get(func._overloadname, ""), None)
    return None if twin is None else lambda source, args, given: twin(*args, **given, generator=source)


def _empty(args: Sequence[Any], given: dict[str, Any]) -> Tensor:
    return torch.empty_like(args[0], **given)


def _dropped(source: torch.Generator, args: Sequence[Any], given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    values, share, training = args
    if training is False:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    kept = torch.empty_like(values, dtype=torch.bool).bernoulli_(1 - share, generator=source)
    return values * kept * (1 / (1 - share) if share < 1 else 0.0), kept
