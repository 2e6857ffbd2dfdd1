"""Class scores: found in whatever a model returns, and read by class, by name, as logits or probabilities."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from egcam.errors import ModelError, TargetError, check_known, near_misses
from egcam.models.class_names import Classes, as_class_names

Score: TypeAlias = Literal["logit", "probability", "sigmoid"]
SCORES: tuple[Score, ...] = ("logit", "probability", "sigmoid")
_LOGITS = ("logits", "logits_per_image", "logit")
TENSOR_KEYS = (*_LOGITS, "out", "output", "outputs", "scores", "pred", "preds", "prediction")
_AT_TOP = re.compile(r"\[[^][]*\]|\.\w+")
_WITH_CLASSES = re.compile("Classification|ObjectDetection|Segmentation")


def check_score(score: Score | None) -> None:
    """Refuse a number of a class that nobody has defined; None is left to others to say."""
    if score is not None and score not in SCORES:
        check_known(score, SCORES, "score", TargetError)


@cache
def imagenet_classes() -> tuple[str, ...]:
    """The 1,000 class names of ILSVRC2012, in the order of the networks' outputs."""
    text = files("egcam.models").joinpath("imagenet_classes.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def _as_class_scores(tensor: Tensor, count: int) -> Tensor | None:
    """`tensor` as (N, classes) when it can be read so: (N, C), (N, C, 1, 1) or (N,)."""
    if not tensor.is_floating_point() or tensor.ndim == 0 or tensor.shape[0] != count:
        return None
    if tensor.ndim == 1:
        return tensor[:, None]
    if tensor.ndim == 2 or all(size == 1 for size in tensor.shape[2:]):
        return tensor.flatten(1)
    return None


def class_scores(output: object, count: int) -> Tensor:
    """The (N, outputs) logits inside whatever the model returned.

    A tensor is taken as it is. Of a dict, named tuple or dataclass the entry called "logits" (or "out", "scores", …) is
    taken; of these without such an entry, and of a tuple or list, the only tensor that can be read as (N, outputs).
    Several of them are refused, for an embedding looks like scores, too.

    Args:
        output: what the model returned for a batch.
        count: the number N of images in that batch.

    Example:
        >>> class_scores({"features": torch.zeros(2, 8, 7, 7), "logits": torch.ones(2, 3)}, 2).shape
        torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        scores = _as_class_scores(output, count)
        if scores is None:
            raise _no_class_scores(output, count)
        return scores
    if not isinstance(output, Mapping | tuple | list) and not dataclasses.is_dataclass(output):
        raise ModelError(
            f"the model returned a {type(output).__name__}; egcam reads tensors, tuples, lists, dicts and dataclasses. "
            "Pass a callable target that turns this output into one number per image"
        )
    parts = _parts(output)
    readable = {way: scores for way, part in parts.items() if (scores := _as_class_scores(part, count)) is not None}
    for key in TENSOR_KEYS:
        for way in (f"[{key!r}]", f".{key}"):
            if way in readable:
                return readable[way]
    if len(readable) == 1 and _AT_TOP.fullmatch(next(iter(readable))):
        return next(iter(readable.values()))
    listed = {way: part for way, part in parts.items() if way in readable or _AT_TOP.fullmatch(way)} or parts
    shown = ", ".join(f"{way.removeprefix('.')}: {_shape(part)}" for way, part in listed.items()) or "no tensor"
    raise ModelError(
        f"which part of the model's output holds the class scores is unclear ({type(output).__name__} with {shown}); "
        f"{_for_places(output, [] if readable else [*listed.values()])}pass a callable target that says so"
        + ("" if _are_detections(output) else _an_example(listed, readable))
    )


def _parts(value: object, way: str = "") -> dict[str, Tensor]:
    """The tensors in an output, by the way to each: "['a'].logits[0]"."""
    if isinstance(value, Tensor):
        return {way: value}
    steps: dict[str, object] = {}
    if isinstance(value, Mapping):
        steps = {f"[{key!r}]": part for key, part in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        steps = {f".{entry.name}": getattr(value, entry.name) for entry in dataclasses.fields(value)}
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        steps = {f"[{place}]" if names is None else f".{names[place]}": part for place, part in enumerate(value)}
    return {inner: part for step, within in steps.items() for inner, part in _parts(within, way + step).items()}


def _no_class_scores(output: Tensor, count: int) -> ModelError:
    """The error text for a tensor that is not (N, classes), with a callable that would read it."""
    what = f"the model returned {_shape(output)} for {count} image(s), not one score per class, (N, classes); "
    if not output.is_floating_point():
        return ModelError(
            f"{what}whole numbers, such as decisions, have no gradient: explain the model that returns the scores"
        )
    if output.ndim == 0:
        return ModelError(
            f"{what}one number for all images cannot be split by image: pass a callable target, and "
            "a model that returns one for each"
        )
    if output.ndim == 1:
        each = max(1, len(output) // count)
        example = f"out.reshape(-1, {each})[:, {min(3, each - 1)}]"
    elif output.ndim == 2 and output.shape[1] == count:
        example = f"out[{min(3, len(output) - 1)}]"
    else:
        example = _one_channel("out", output)
    return ModelError(
        f"{what}{_for_places(output, [output])}pass a callable target that turns this output into one number per image"
        + (f", e.g. target=lambda out: {example}" if example else "")
    )


def _for_places(output: object, tensors: Sequence[Tensor]) -> str:
    """What to pass for a detector or a segmenter, where the output may be that of one."""
    if _are_detections(output):
        return "for an object of a detector pass target=egcam.targets.Box((left, top, right, bottom), label); else "
    if tensors and tensors[0].ndim == 3:
        return (
            "for an object of a detector pass target=egcam.targets.Box((left, top, right, bottom), label, layout=…), "
            "for a class of a signal's segmenter egcam.targets.Mask(label, mask); else "
        )
    if tensors and tensors[0].ndim > 3:
        return "for a class of a segmenter pass target=egcam.targets.Mask(label, mask); else "
    return ""


def _are_detections(output: object) -> bool:
    """Whether an output holds boxes by name, or is a list with one (n, 6) for each image."""
    parts = output if isinstance(output, list) else [output]
    if any(isinstance(part, Mapping) and ("boxes" in part or "pred_boxes" in part) for part in parts):
        return True
    return isinstance(output, list) and all(isinstance(rows, Tensor) and rows.shape[1:] == (6,) for rows in output)


def _an_example(listed: Mapping[str, Tensor], readable: Mapping[str, Tensor]) -> str:
    """A callable that would read one class from this output; classes are fewer than an embedding's numbers."""
    if not listed:
        return ""
    way = min(readable, key=lambda way: readable[way].shape[1]) if readable else next(iter(listed))
    body = f"out{way}" if listed[way].ndim < 2 else _one_channel(f"out{way}", listed[way])
    return f", e.g. target=lambda out: {body}" if body else ""


def _one_channel(part: str, tensor: Tensor) -> str:
    """What reads channel 3 of (N, C, ...), the mean over its places, as Python writes it.

    Empty for three axes: which of them are classes, tokens, anchors or places is unknown.
    """
    if tensor.ndim == 3:
        return ""
    places = tuple(range(1, tensor.ndim - 1))
    channel = f"{part}[:, {min(3, tensor.shape[1] - 1)}]"
    return f"{channel}.mean({places})" if len(places) > 1 else f"{channel}.mean(1)" if places else channel


def _shape(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"a {kind} tensor of shape {tuple(tensor.shape)}"


def known_classes(model: nn.Module, given: Classes | None) -> Sequence[str] | None:
    """The class names: those given, else those the model carries.

    They are its `classes`, `class_names`, `names` or `config.id2label`.

    A parallel or compiled model carries those of what it wraps, too.
    """
    if given is not None:
        return as_class_names(given)
    names = _carried_names(model)
    inner = [child for name, child in model.named_children() if name in ("module", "_orig_mod")]
    return known_classes(inner[0], None) if names is None and inner else names


def _carried_names(model: nn.Module) -> Sequence[str] | None:
    for attribute in ("classes", "class_names", "names"):
        names = getattr(model, attribute, None)
        if isinstance(names, Mapping) and names and set(names) == set(range(len(names))):  # ultralytics'
            names = [names[index] for index in range(len(names))]
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return names
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or not labels:
        return None
    names = [str(labels[key]) for key in sorted(labels, key=int)]
    # Hugging Face's models have two such labels also where they have no classes.
    made_up = names == [f"LABEL_{number}" for number in range(len(names))]
    return None if made_up and not _WITH_CLASSES.search(type(model).__name__) else names


def class_count(outputs: int, classes: Sequence[str] | None) -> int:
    """How many classes a network with that many outputs distinguishes; refuses class names that do not fit.

    One output is one class, or two when there are two names: [negative, positive].
    """
    if classes is None or len(classes) == outputs:
        return outputs
    if outputs == 1 and len(classes) == 2:
        return 2
    also = ", or two: the negative class, then the positive one" if outputs == 1 else ""
    raise TargetError(
        f"there are {len(classes)} class names but the model has {outputs} output{'s' if outputs != 1 else ''}, so a "
        f"name does not say which output is meant; pass classes=[…] (the command: --classes) with one name for each "
        f"output{also}"
    )


def by_class(outputs: Tensor, classes: Sequence[str] | None) -> Tensor:
    """(N, classes) logits from the (N, outputs) of the model.

    They are the same, but for one output z with two class names: those are the logits -z and z, of probabilities
    sigmoid(-z) = 1 - p and sigmoid(z) = p.
    """
    if classes is None or class_count(outputs.shape[1], classes) == outputs.shape[1]:
        return outputs
    return torch.cat([-outputs, outputs], 1)


def probabilities(outputs: Tensor, classes: Sequence[str] | None = None) -> Tensor:
    """(N, classes) the softmax of the (N, outputs) of the model; of a single output, the sigmoid."""
    logits = by_class(outputs, classes)
    return logits.sigmoid() if outputs.shape[1] == 1 else logits.softmax(1)


def class_score(outputs: Tensor, indices: Tensor, score: Score, classes: Sequence[str] | None = None) -> Tensor:
    """(N,) the logit, probability or sigmoid of class `indices[n]` in row n of the (N, outputs) of a model."""
    return scores_of_classes(outputs, score, classes).gather(1, indices[:, None])[:, 0]


def scores_of_classes(outputs: Tensor, score: Score, classes: Sequence[str] | None = None) -> Tensor:
    """(N, classes) the logits, probabilities or sigmoids in the (N, outputs) of a model."""
    if score == "probability":
        return probabilities(outputs, classes)
    logits = by_class(outputs, classes)
    return logits.sigmoid() if score == "sigmoid" else logits


def class_index(name: str, classes: Sequence[str] | None, count: int) -> int:
    """The index of a class name; case and underscores do not matter, and one of several synonyms is enough.

    Example:
        >>> class_index("Golden Retriever", imagenet_classes(), 1000)
        207
    """
    names = classes
    if names is None:
        # 1,000 faces or products are as many as ImageNet's classes.
        hint = ", if it was trained on ImageNet classes=egcam.zoo.imagenet_classes()" if count == 1000 else ""
        raise TargetError(
            f"target {name!r} is a class name, but this model's class names are unknown; "
            f"pass classes=[…] with {count} names where it is taken{hint}, or set model.classes to them, or pass the "
            "class's index"
        )
    if len(names) != count:
        raise TargetError(
            f"target {name!r}: there are {len(names)} class names but the model has {count} outputs, so a name "
            "does not say which output is meant; pass the right classes=[…], or the class's index"
        )
    spelling = _plain(name)
    exact = [index for index, label in enumerate(names) if _plain(label) == spelling]
    places = exact or [i for i, label in enumerate(names) if spelling in {_plain(part) for part in label.split(",")}]
    if not places:
        raise TargetError(f"no class is called {name!r}; {near_misses(name, names)}")
    if len(places) > 1:
        raise TargetError(f"{len(places)} classes are called {name!r}: pass the index, one of {places}")
    return places[0]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


def out_of_range(index: int, count: int) -> TargetError:
    """The error text for a class index beyond the model's classes."""
    if count == 1:
        return TargetError(
            f"target {index} is out of range: the model has one output, class 0. If that is the logit of the second of "
            "two classes, pass classes=[negative, positive]: then 1 is the positive class and 0 the negative one"
        )
    return TargetError(f"target {index} is out of range: the model has {count} classes, 0 to {count - 1}")


def label_index(label: int | str, classes: Sequence[str] | None, count: int) -> int:
    """The index of a class among `count`."""
    index = class_index(label, classes, count) if isinstance(label, str) else label
    if not 0 <= index < count:
        raise out_of_range(index, count)
    return index
