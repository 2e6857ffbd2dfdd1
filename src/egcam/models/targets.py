"""Which number to explain: from what the user says (a class, a name, a callable) to one score per image."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from egcam.errors import EgcamError, ModelError, TargetError, near_misses
from egcam.models.class_names import Classes, as_class_names

Score: TypeAlias = Literal["logit", "probability", "sigmoid"]
OneTarget: TypeAlias = int | str | None
TargetCallable: TypeAlias = Callable[[Any], Tensor]
Target: TypeAlias = OneTarget | Sequence[OneTarget] | Tensor | TargetCallable

SCORES: tuple[Score, ...] = ("logit", "probability", "sigmoid")
_LOGIT_KEYS = ("logits", "logit", "out", "output", "outputs", "scores", "pred", "preds", "prediction")


@cache
def imagenet_classes() -> tuple[str, ...]:
    """The 1,000 class names of ILSVRC2012, in the order of the networks' outputs."""
    text = files("egcam.models").joinpath("imagenet_classes.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def _entries(output: object) -> list[tuple[str, Tensor]] | None:
    """The named tensors of a structured output, or None when the kind of output is unknown."""
    if isinstance(output, Mapping):
        pairs = [(str(key), value) for key, value in output.items()]
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        pairs = [(entry.name, getattr(output, entry.name)) for entry in dataclasses.fields(output)]
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        pairs = [(name, getattr(output, name)) for name in output._fields]
    elif isinstance(output, tuple | list):
        pairs = [(f"[{index}]", value) for index, value in enumerate(output)]
    else:
        return None
    return [(name, value) for name, value in pairs if isinstance(value, Tensor)]


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
            raise ModelError(
                f"the model returned {_shape(output)} for {count} image(s), not one score per class, (N, classes); "
                "pass a callable target that turns this output into one number per image, "
                "e.g. target=lambda out: out[:, 3].mean((1, 2))"
            )
        return scores
    entries = _entries(output)
    if entries is None:
        raise ModelError(
            f"the model returned a {type(output).__name__}; egcam reads tensors, tuples, lists, dicts and dataclasses. "
            "Pass a callable target that turns this output into one number per image"
        )
    readable = {name: scores for name, value in entries if (scores := _as_class_scores(value, count)) is not None}
    for key in _LOGIT_KEYS:
        if key in readable:
            return readable[key]
    if len(readable) == 1:
        return next(iter(readable.values()))
    shown = ", ".join(f"{name}: {_shape(value)}" for name, value in entries) or "no tensor"
    raise ModelError(
        f"which part of the model's output holds the class scores is unclear ({type(output).__name__} with {shown}); "
        f"pass a callable target that says so, e.g. target=lambda out: {_an_example(output, entries, readable)}"
    )


def _an_example(output: object, entries: list[tuple[str, Tensor]], readable: Mapping[str, Tensor]) -> str:
    """A callable's body that would read one class from this output; classes are fewer than an embedding's numbers."""
    if not entries:
        return "out.logits[:, 3]"
    tensors = dict(entries)
    name = min(readable, key=lambda name: readable[name].shape[1]) if readable else next(iter(tensors))
    by_name = f"[{name!r}]" if isinstance(output, Mapping) else f".{name}"
    part = "out" + (name if name.startswith("[") else by_name)
    tensor = tensors[name]
    if tensor.ndim < 2:
        return part
    places = tuple(range(1, tensor.ndim - 1))
    one = f"{part}[:, {min(3, tensor.shape[1] - 1)}]"
    return f"{one}.mean({places})" if len(places) > 1 else f"{one}.mean(1)" if places else one


def _shape(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"a {kind} tensor of shape {tuple(tensor.shape)}"


def known_classes(model: nn.Module, given: Classes | None) -> Sequence[str] | None:
    """The class names: those given, else those the model carries (`classes`, `class_names`, `config.id2label`).

    A parallel or compiled model carries those of what it wraps, too.
    """
    if given is not None:
        return as_class_names(given)
    found = _carried_names(model)
    inner = [child for name, child in model.named_children() if name in ("module", "_orig_mod")]
    return known_classes(inner[0], None) if found is None and inner else found


def _carried_names(model: nn.Module) -> Sequence[str] | None:
    for attribute in ("classes", "class_names"):
        names = getattr(model, attribute, None)
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return names
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if isinstance(labels, Mapping) and labels:
        return [str(labels[key]) for key in sorted(labels, key=int)]
    return None


def class_count(outputs: int, classes: Sequence[str] | None) -> int:
    """How many classes a network with so many outputs tells apart; refuses class names that do not fit.

    One output is one class, or two when there are two names: [negative, positive].

    Example:
        >>> class_count(5, None), class_count(1, None), class_count(1, ["benign", "malignant"])
        (5, 1, 2)
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

    Example:
        >>> by_class(torch.tensor([[2.0]]), ["benign", "malignant"])
        tensor([[-2.,  2.]])
    """
    if class_count(outputs.shape[1], classes) == outputs.shape[1]:
        return outputs
    return torch.cat([-outputs, outputs], 1)


def probabilities(outputs: Tensor, classes: Sequence[str] | None = None) -> Tensor:
    """(N, classes) the softmax of the (N, outputs) of the model; of a single output, the sigmoid.

    Example:
        >>> probabilities(torch.tensor([[0.0]]), ["benign", "malignant"])
        tensor([[0.5000, 0.5000]])
    """
    logits = by_class(outputs, classes)
    return logits.sigmoid() if outputs.shape[1] == 1 else logits.softmax(1)


def class_index(name: str, classes: Sequence[str] | None, count: int) -> int:
    """The index of a class name; case and underscores do not matter, and one of several synonyms is enough.

    A network with exactly 1,000 outputs and no names of its own is taken to be an ImageNet network.

    Example:
        >>> class_index("Golden Retriever", None, 1000)
        207
    """
    names = classes if classes is not None else (imagenet_classes() if count == 1000 else None)
    if names is None:
        raise TargetError(
            f"target {name!r} is a class name, but this model's class names are unknown; "
            f"pass classes=[…] with {count} names, or the class's index"
        )
    if len(names) != count:
        raise TargetError(
            f"target {name!r}: there are {len(names)} class names but the model has {count} outputs, so a name "
            "does not say which output is meant; pass the right classes=[…], or the class's index"
        )
    wanted = _plain(name)
    exact = [index for index, known in enumerate(names) if _plain(known) == wanted]
    found = exact or [i for i, known in enumerate(names) if wanted in {_plain(part) for part in known.split(",")}]
    if not found:
        raise TargetError(f"no class is called {name!r}; {near_misses(name, names)}")
    if len(found) > 1:
        raise TargetError(f"{len(found)} classes are called {name!r}: pass the index, one of {found}")
    return found[0]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


class Targets:
    """What is explained for each image of one call: resolved class indices, or the user's callable.

    Args:
        target: None (the prediction), a class index or name, one of those per image, or a callable that gets the
            model's output and returns one number per image.
        count: the number N of images.
        score: "logit", or "probability" (softmax over classes; the sigmoid of a single output), or "sigmoid" (per
            class, for multi-label networks).
        classes: the class names, where known: one for each output, or [negative, positive] for a single one.
    """

    def __init__(
        self,
        target: Target,
        count: int,
        score: Score = "logit",
        classes: Sequence[str] | None = None,
    ) -> None:
        if score not in SCORES:
            raise TargetError(f"unknown score {score!r}; {near_misses(str(score), SCORES)}")
        self.score = score
        self.classes = classes
        self.count = count
        self.function: TargetCallable | None = None
        self.wanted: list[OneTarget] = []
        if callable(target) and not isinstance(target, Tensor | str):
            self.function = target
        else:
            self.wanted = _one_per_image(target, count)

    def part(self, start: int, stop: int) -> Targets:
        """The targets of images `start` to `stop`."""
        part = Targets(None, stop - start, self.score, self.classes)
        part.function = self.function
        part.wanted = self.wanted[start:stop]
        return part

    def indices(self, output: object) -> Tensor | None:
        """(N,) class indices, given the output for the unperturbed images; None with a callable target."""
        if self.function is not None:
            return None
        logits = by_class(class_scores(output, self.count), self.classes)
        total = logits.shape[1]
        chosen = []
        for one in self.wanted:
            index = class_index(one, self.classes, total) if isinstance(one, str) else one
            if index is not None and not 0 <= index < total:
                raise out_of_range(index, total)
            chosen.append(-1 if index is None else index)
        given = torch.tensor(chosen, device=logits.device)
        return torch.where(given < 0, logits.argmax(1), given)

    def scores(self, output: object, indices: Tensor | None, count: int) -> Tensor:
        """(N,) the number explained for each row of a batch of `count` rows; `indices` are the rows' classes."""
        if self.function is not None:
            scores = self.function(output)
            if not isinstance(scores, Tensor) or scores.shape != (count,):
                got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise TargetError(
                    f"the target callable returned {got}; it must return one number per image, shape ({count},)"
                )
            return scores
        assert indices is not None
        return class_score(class_scores(output, count), indices, self.score, self.classes)

    def predictions(self, output: object, count: int) -> Tensor | None:
        """(N,) the predicted classes, or None when the output holds no readable class scores."""
        outputs = self.outputs(output, count)
        try:
            return None if outputs is None else by_class(outputs, self.classes).argmax(1)
        except EgcamError:
            return None

    def outputs(self, output: object, count: int) -> Tensor | None:
        """(N, outputs) the class scores before any softmax, or None when the output holds no readable ones."""
        try:
            return class_scores(output, count)
        except EgcamError:
            return None


def class_score(outputs: Tensor, indices: Tensor, score: Score, classes: Sequence[str] | None = None) -> Tensor:
    """(N,) the logit, probability or sigmoid of class `indices[n]` in row n of the (N, outputs) of a model."""
    if score == "probability":
        scores = probabilities(outputs, classes)
    else:
        scores = by_class(outputs, classes)
        scores = scores.sigmoid() if score == "sigmoid" else scores
    return scores.gather(1, indices[:, None])[:, 0]


def out_of_range(index: int, count: int) -> TargetError:
    """What is said of a class index beyond the model's classes."""
    if count == 1:
        return TargetError(
            f"target {index} is out of range: the model has one output, class 0. If that is the logit of the second of "
            "two classes, pass classes=[negative, positive]: then 1 is the positive class and 0 the negative one"
        )
    return TargetError(f"target {index} is out of range: the model has {count} classes, 0 to {count - 1}")


def _one_per_image(target: Target, count: int) -> list[OneTarget]:
    if isinstance(target, Tensor) and (target.dtype == torch.bool or target.is_floating_point() or target.is_complex()):
        raise TargetError(f"targets are class indices: an integer tensor, not {target.dtype}")
    target = _plain_numbers(target)
    if target is None or isinstance(target, str) or _is_index(target):
        return [_one(target)] * count
    if not isinstance(target, Sequence):
        raise TargetError(
            f"target must be None, a class index or name, one per image, or a callable; not {type(target).__name__}"
        )
    if len(target) != count:
        raise TargetError(f"{len(target)} targets for {count} image(s): pass one target, or one per image")
    return [_one(item) for item in target]


def _plain_numbers(value: Any) -> Any:
    """Tensors and NumPy's arrays and numbers as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_index(value: object) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__") and not isinstance(value, bool)


def _one(value: object) -> OneTarget:
    if value is None or isinstance(value, str):
        return value
    plain = _plain_numbers(value)
    if _is_index(plain):
        return int(plain)
    raise TargetError(f"a target is a class index, a class name or None; not {value!r}")
