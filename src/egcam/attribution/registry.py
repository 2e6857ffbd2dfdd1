"""The methods by name, each with what is known of it: what `egcam.explain`, the command, pages and studies look up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from torch import Tensor, nn

from egcam.attribution.references import Normalisation, Reference, ReferenceLike, as_reference
from egcam.errors import MethodError, near_misses
from egcam.registry import Registry

if TYPE_CHECKING:
    from egcam.attribution.explainer import Explainer
    from egcam.attribution.explanation import Explanation
    from egcam.models.targets import Target

Factory: TypeAlias = "Callable[..., Explainer]"
Made = TypeVar("Made", bound=Factory)
Group: TypeAlias = Literal["gradient", "gradient-free", "attention", "input", "control", "yours"]

GROUPS: dict[Group, str] = {
    "gradient": "class activation maps from gradients",
    "gradient-free": "class activation maps without gradients",
    "attention": "from the attention of transformers",
    "input": "attributions at the pixels",
    "control": "maps that ignore the class, which a method must beat",
    "yours": "registered by you",
}

# Options people look for among a method's, and where they are instead.
ELSEWHERE = {
    "sharpness": "sharpness is an exponent of pictures, not of maps: pass it where maps are drawn, as "
    "explanation.overlay(sharpness=2) or --sharpness 2",
}


@dataclass(frozen=True)
class Method:
    """What is known of a method; whatever lists, draws or times methods reads it here.

    Attributes:
        name: by which `egcam.explain` and the command find it.
        factory: makes the explainer of a model.
        label: its name in legends and tables.
        summary: what it does, in a line.
        group: what kind of method it is, a key of `GROUPS`.
        slow: whether it takes hundreds of passes for an image, so that a first look leaves it out.
        line: colour (a name of `egcam.figures.style`), line style and marker in plots; None is chosen by its name.
        usual: whether it is compared where nobody says which methods to compare.
        highlight: whether pages frame it and tables set it in bold.
        package: the optional package that does the work; "" for egcam's own.
    """

    name: str
    factory: Factory
    label: str = ""
    summary: str = "registered by you"
    group: Group = "yours"
    slow: bool = False
    line: tuple[str, str, str] | None = None
    usual: bool = False
    highlight: bool = False
    package: str = ""

    @property
    def is_available(self) -> bool:
        """Whether the package it needs, if any, is installed."""
        return not self.package or find_spec(self.package) is not None

    def options(self) -> dict[str, Any]:
        """The options it takes and their defaults, its own before those all methods share."""
        return dict(_options_of(self.factory))


_methods = Registry[Method]("method", MethodError)


@cache
def _options_of(factory: Factory) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for parameter in signature(factory).parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            found.update((name, default) for name, default in _common().items() if name not in found)
        elif parameter.name != "model":
            found[parameter.name] = parameter.default
    return found


@cache
def _common() -> dict[str, Any]:
    """The options that all methods share, and their defaults."""
    from egcam.attribution.explainer import Common, Explainer  # only here: to look a name up takes no networks

    return {n: given.default for n, given in signature(Explainer).parameters.items() if n in Common.__annotations__}


class Facts(TypedDict, total=False):
    """What may be said of a method when it is registered; see `Method`."""

    label: str
    summary: str
    group: Group
    slow: bool
    line: tuple[str, str, str] | None
    usual: bool
    highlight: bool
    package: str


@overload
def register(name: str, factory: Factory, **facts: Unpack[Facts]) -> None: ...
@overload
def register(name: str, factory: None = None, **facts: Unpack[Facts]) -> Callable[[Made], Made]: ...
def register(name: str, factory: Factory | None = None, **facts: Unpack[Facts]) -> Callable[[Made], Made] | None:
    """Add a method under a name of its own; `factory(model, **options)` must return an explainer.

    Without a factory it is a decorator of a class.

    Args:
        name: by which `egcam.explain` and the command find it.
        factory: a class, or a function that makes an explainer of a model.
        facts: all may be left out. `label`, its name in legends and tables (else `name`); `summary`, what it does in a
            line; `group`, "gradient", "gradient-free", "attention", "input", "control" (left out of lists) or "yours";
            `slow`, whether it takes hundreds of passes for an image; `line`, colour, line style and marker in
            plots, such as ("orange", "--", "D"); `usual`, whether it is compared where nobody says which methods to
            compare; `highlight`, whether pages frame it and tables set it in bold; `package`, an optional package it
            needs.

    Example:
        >>> from functools import partial
        >>> from egcam import GradCAM
        >>> register("grad-cam-signed", partial(GradCAM, signed=True), label="Signed Grad-CAM")
        >>> method("grad-cam-signed").label
        'Signed Grad-CAM'
        >>> unregister("grad-cam-signed")
    """
    facts.setdefault("label", name)
    group = facts.get("group", "yours")
    if group not in GROUPS:
        raise MethodError(f"there is no group of methods {group!r}; {near_misses(str(group), GROUPS)}")

    def add(made: Factory) -> None:
        _methods.register(name, Method(name, made, **facts))

    if factory is not None:
        add(factory)
        return None

    def decorate(made: Made) -> Made:
        if isinstance(made, type):
            made.name = name  # type: ignore[attr-defined]
        add(made)
        return made

    return decorate


def unregister(name: str) -> None:
    """Take a method out of the registry again."""
    _methods.unregister(name)


def method(name: str) -> Method:
    """What is known of the method called `name`.

    Example:
        >>> method("grad-cam").label, method("score-cam").slow
        ('Grad-CAM', True)
    """
    return _methods.get(name)


def records(controls: bool = False) -> Iterator[Method]:
    """All methods: the highlighted ones first, then group by group; without controls unless they are asked for."""
    groups = list(GROUPS)
    listed = [one for one in _methods if controls or one.group != "control"]
    return iter(sorted(listed, key=lambda one: (not one.highlight, groups.index(one.group))))


def methods(controls: bool = False) -> list[str]:
    """The names of all registered methods, without controls unless they are asked for.

    >>> "slope-cam" in methods(), "random" in methods(), "random" in methods(controls=True)
    (True, False, True)
    """
    return [one.name for one in records(controls)]


def is_control(name: str) -> bool:
    """Whether the method called `name`, if it is registered, is a control."""
    return name in _methods and _methods.get(name).group == "control"


def usual_methods() -> list[str]:
    """What to compare where nobody says, the highlighted method last.

    >>> usual_methods()[-2:]
    ['ablation-cam', 'slope-cam']
    """
    chosen = [one for one in records() if one.usual]
    return [one.name for one in sorted(chosen, key=lambda one: one.highlight)]


def is_highlighted(name: str) -> bool:
    """Whether the method called `name`, if it is registered, is framed on pages and bold in tables."""
    return name in _methods and _methods.get(name).highlight


def create(name: str, model: nn.Module, **options: Any) -> Explainer:
    """An explainer by name.

    Args:
        name: one of `methods()`.
        model: the classifier.
        options: what that method takes; see `takes`.
    """
    found = _methods.get(name)
    unknown = sorted(set(options).difference(found.options()))
    if unknown:
        raise MethodError(f"method {name!r} takes no option {unknown[0]!r}; {_instead(name, unknown[0])}")
    explainer = found.factory(model, **options)
    explainer.method = name
    return explainer


def _instead(name: str, option: str) -> str:
    """What to do about an option that a method does not take: no near misses where it is one of other methods."""
    if option in ELSEWHERE:
        return ELSEWHERE[option]
    known = sorted(takes(name))
    listed = f"(it takes {', '.join(known)})"
    others = [one.name for one in records() if option in one.options()]
    if option == "layer" and others:
        return f"it works at the pixels, or through the whole network, and has no layer {listed}"
    if others:
        more = ", …" if len(others) > 2 else ""
        return f"it is one of {', '.join(others[:2])}{more} {listed}"
    return f"{near_misses(option, known)} {listed}"


def takes(name: str) -> set[str]:
    """The option names a method's factory takes.

    >>> "samples" in takes("slope-cam"), "samples" in takes("grad-cam"), "layer" in takes("smooth-grad")
    (True, False, False)
    """
    return set(method(name).options())


def explain(
    model: nn.Module,
    images: Tensor | Sequence[Tensor],
    method: str = "slope-cam",
    target: Target = None,
    **options: Any,
) -> Explanation:
    """Explain images with a method by name, by default SlopeCAM.

    Args:
        model: the classifier.
        images: (N, C, H, W) floats, preprocessed as the model expects, or (C, H, W); or a list of images of one size,
            for models that take lists.
        method: one of `methods()`.
        target: None (the predicted class), a class index or name, one of `egcam.targets`, one of those per image, or a
            callable on the output.
        options: `inputs`, `keywords` and `progress` go to the call, all else to the method: layer, reference, samples,
            seed, batch_size, …

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> explain(net, torch.rand(2, 1, 8, 8), method="layer-cam", target=[1, 2], signed=True).targets
        tensor([1, 2])
    """
    for_call = {key: options.pop(key) for key in ("inputs", "keywords", "progress") if key in options}
    return create(method, model, **options)(images, target, **for_call)


def options_for(
    name: str,
    shared: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    normalisation: Normalisation | None = None,
) -> dict[str, Any]:
    """The options that a method is made with.

    Args:
        name: the method's.
        shared: options meant for several methods; those that are None, or that this one does not take, are left out.
        own: options of this method, which come before the shared ones; none is left out.
        normalisation: how the network's images are normalised, if that is known. Then black, white and photographs
            are normalised in the same way.

    Example:
        >>> options_for("grad-cam", {"samples": 8, "signed": True})
        {'signed': True}
        >>> options_for("occlusion", {"reference": "white"}, normalisation=((0.5,), (0.5,)))["reference"].normalisation
        ((0.5,), (0.5,))
    """
    left_out = ignored(name, shared)
    used = {key: value for key, value in shared.items() if value is not None and key not in left_out}
    used |= own or {}
    takes = method(name).options()
    if normalisation is not None and "reference" in takes:
        given = used.get("reference")
        used["reference"] = _normalised(_default(takes) if given is None else given, normalisation)
    return used


def ignored(name: str, shared: Mapping[str, Any]) -> list[str]:
    """The options among those meant for several methods that this one does not take.

    Example:
        >>> ignored("grad-cam", {"samples": 8, "signed": True}), ignored("occlusion", {"reference": "photographs"})
        (['samples'], ['reference'])
    """
    takes = method(name).options()
    return [
        key
        for key, value in shared.items()
        if value is not None and (key not in takes or (key == "reference" and not _suits(name, value)))
    ]


def starts_from_one_image(name: str) -> bool:
    """Whether the method compares with a single image, by default its own, where others average over many."""
    return isinstance(_default(method(name).options()), str)


def _suits(name: str, reference: ReferenceLike) -> bool:
    """Whether a reference meant for several methods is one for this method."""
    return not (starts_from_one_image(name) and as_reference(reference).is_collection)


def _default(takes: Mapping[str, Any]) -> Any:
    default = takes.get("reference")
    return None if default is Parameter.empty else default


def _normalised(reference: ReferenceLike, normalisation: Normalisation) -> Any:
    if reference is None or isinstance(reference, str | Reference):
        return as_reference(reference).normalised(normalisation)
    return reference
