"""What goes into the model: the images, checked and laid out, and any further inputs, kept in step with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from egcam.errors import InputError, InputWarning, ModelError, warn_user
from egcam.models.nested import mapped, mapped_tensors
from egcam.models.shadow import shallow

Result = TypeVar("Result")

_COLOURS = (1, 3, 4)
_MOST_COLOURS = 4
_DARKEST = 32  # of 255; photographs have lighter places than this, and normalised images no values so large


@dataclass(frozen=True)
class Shared:
    """A further input that all images share; see `shared`."""

    value: Any


def shared(value: Any) -> Any:
    """Mark an additional input of the model as shared by all images, however many rows it has.

    Without this, a tensor with as many rows as images is taken to have one row per image.

    Args:
        value: a tensor, or a tuple, list or dict with tensors in it.

    Example:
        >>> import egcam
        >>> class Similarity(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh())
        ...     def forward(self, images, prompts):
        ...         return self.body(images).mean((2, 3)) @ prompts.T
        >>> images, prompts = torch.rand(2, 1, 8, 8), torch.rand(2, 4)
        >>> egcam.explain(Similarity(), images, target=1, inputs=(egcam.shared(prompts),), signed=True).maps.shape
        torch.Size([2, 6, 6])
    """
    return Shared(value)


@dataclass(frozen=True)
class ExtraInputs:
    """Positional and keyword inputs of the model besides the images.

    Tensors whose first dimension is the number of images belong to the images row by row: when image i is run at
    some path point, row i goes with it. Everything else, and what is `shared`, is passed on as it is.
    """

    count: int  # of images
    args: tuple[Any, ...] = ()  # the positional inputs after the images
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    listed: bool = False  # whether the model takes its images as a list, as detectors do

    def images(self, batch: Tensor) -> Tensor | list[Tensor]:
        """(B, C, H, W) images in the form the model takes them."""
        return list(batch.unbind()) if self.listed else batch

    def rows(self, index: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The extra inputs for a batch whose row b shows image `index[b]`."""
        args = tuple(self._take(value, index) for value in self.args)
        return args, {name: self._take(value, index) for name, value in self.kwargs.items()}

    def part(self, index: Tensor) -> ExtraInputs:
        """The extra inputs of the images `index`, on their own: what is not one row for each image stays common."""

        def taken(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            return item[index.to(item.device)] if self._has_rows(item) else Shared(item)

        args = tuple(mapped(value, taken) for value in self.args)
        kwargs = {name: mapped(value, taken) for name, value in self.kwargs.items()}
        return ExtraInputs(len(index), args, kwargs, self.listed)

    def for_call(self) -> dict[str, Any]:
        """The keywords with which an explainer is given them; none if there are none."""
        return {"inputs": self.args, "keywords": dict(self.kwargs)} if self.args or self.kwargs else {}

    def by_row(self) -> list[str]:
        """Where the tensors are that go with the images row by row, as in "inputs[0]"."""
        places = [name for number, value in enumerate(self.args) for name in self._rows_in(value, f"inputs[{number}]")]
        for key, value in self.kwargs.items():
            places += self._rows_in(value, f"keywords[{key!r}]")
        return places

    def _rows_in(self, value: Any, name: str) -> list[str]:
        if isinstance(value, Tensor):
            return [name] if self._has_rows(value) else []
        if isinstance(value, dict):
            return [inner for key, item in value.items() for inner in self._rows_in(item, f"{name}[{key!r}]")]
        if isinstance(value, tuple | list):
            return [inner for place, item in enumerate(value) for inner in self._rows_in(item, f"{name}[{place}]")]
        return []

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.ndim > 0 and tensor.shape[0] == self.count

    def _take(self, value: Any, index: Tensor) -> Any:
        def taken(item: Any) -> Any:
            if isinstance(item, Shared):
                return mapped_tensors(item.value, Tensor.clone)
            if not isinstance(item, Tensor):
                return item
            # Always copies, because the model may write into its inputs.
            return item[index.to(item.device)] if self._has_rows(item) else item.clone()

        return mapped(value, taken)


def plain_model(model: nn.Module) -> nn.Module:
    """The eager module behind wrappers, or an error that says what to pass instead.

    `torch.compile`'s wrapper and (Distributed)DataParallel are seen through: what they wrap has the same weights.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel | FromList):
            model = model.module
        elif _is_compile_wrapper(model):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    for name, module in model.named_modules():
        _refuse_opaque(name or "the model", module)
    return _with_image_first(model)


def _with_image_first(model: nn.Module) -> nn.Module:
    """A model that takes its image by name, `pixel_values`, as one that takes it first; it shares all modules.

    As CLIP of Hugging Face, whose first input are texts.
    """
    inputs = signature(model.forward).parameters
    by_name = inputs.get("pixel_values")
    if by_name is None or (next(iter(inputs)) == "pixel_values" and by_name.kind is not Parameter.KEYWORD_ONLY):
        return model
    return shallow(model, type(type(model).__name__, (_ImageFirst, type(model)), {}))


class _ImageFirst(nn.Module):
    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, pixel_values=images, **kwargs)


def _is_compile_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def _refuse_opaque(name: str, module: nn.Module) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"{name} is a TorchScript module, which cannot be looked into; pass the original nn.Module it was made from"
        )
    # What stands in for `+` and the like in networks that may be quantised later is plain float code.
    if ".quantized" in type(module).__module__ and type(module).__name__ != "FloatFunctional":
        raise ModelError(
            f"{name} is quantised ({type(module).__name__}) and has no gradients; "
            "pass the float model it was converted from"
        )
    if _is_compile_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None:
        raise ModelError(
            f"{name} is compiled in place, and compiled code does not show its layers; "
            "explain the model before compiling it (the weights are the same)"
        )


class FromList(nn.Module):
    """A model that takes its images as a list, as one that takes a batch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The model's output for the images of a batch."""
        return self.module(list(images.unbind()), *args, **kwargs)


def is_listed(images: object) -> TypeGuard[Sequence[Tensor]]:
    """Whether images come as a list or tuple of tensors, as detectors take them."""
    return isinstance(images, list | tuple) and bool(images) and all(isinstance(image, Tensor) for image in images)


def stacked(images: Sequence[Tensor]) -> Tensor:
    """(N, C, H, W) of a list of images (C, H, W), which must be of one size."""
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1 or len(next(iter(shapes))) != 3:
        raise InputError(
            f"the images of a list must all be (C, H, W) of one size, and these are {sorted(shapes)}; explain images "
            "of different sizes one at a time"
        )
    return torch.stack(list(images))


def check_images(images: Tensor | Sequence[Tensor], model: nn.Module, dimensions: int = 2) -> Tensor:
    """The images as a finite (N, C, H, W) float tensor that fits the model, or an error that says what is wrong.

    Signals have one dimension in place of height and width, volumes three.
    """
    if is_listed(images):
        images = stacked(images)
    if isinstance(images, Mapping):
        raise InputError(
            "images come as a tensor (N, C, H, W), not as a dictionary: pass the tensor that holds them, and the "
            "others as keywords={…}. A network whose forward takes a dictionary needs a small module around it that "
            "makes one of the images"
        )
    if not isinstance(images, Tensor):
        raise InputError(
            f"images must be a float tensor of shape (N, C, H, W), not {type(images).__name__}; "
            "for files use the command `egcam explain`, for PIL images a preprocessing transform"
        )
    if images.layout != torch.strided:
        raise InputError(f"the images are a sparse tensor ({images.layout}): pass images.to_dense()")
    if images.ndim == dimensions + 1:
        images = images[None]
    if images.ndim != dimensions + 2:
        raise InputError(f"images must have shape (N, C, H, W) or (C, H, W), not {tuple(images.shape)}")
    if images.shape[0] == 0:
        raise InputError("the batch is empty: there is no image to explain")
    if 0 in images.shape:
        raise InputError(f"the images have no pixels: shape {tuple(images.shape)}")
    if not images.is_floating_point():
        raise InputError(
            f"images are {images.dtype}; gradients need floats. Convert and normalise them as the model expects, "
            "e.g. images.float() / 255"
        )
    _check_fits(images, model)
    _check_finite(images)
    if not images.is_inference():
        return images.detach()
    # A copy made inside inference mode would be an inference tensor, too, and take part in no gradient.
    with torch.inference_mode(False):
        return images.clone()


def warn_if_channels_last(images: object) -> None:
    """Warn of (N, H, W, C) or (H, W, C), as image files are read and other frameworks have it."""
    if not isinstance(images, Tensor) or images.ndim not in (3, 4):
        return
    *_, first, second, last = images.shape
    if last in _COLOURS and min(first, second) > _MOST_COLOURS:
        axes = (0, 3, 1, 2) if images.ndim == 4 else (2, 0, 1)
        warn_user(
            f"images of shape {tuple(images.shape)} seem to have their channels last; egcam takes (N, C, H, W): "
            f"pass images.permute{axes}",
            InputWarning,
        )


def warn_if_up_to_255(images: Tensor) -> None:
    """Warn of pixels that run from 0 to 255, where nearly every network was trained with small numbers around 0."""
    if images.ndim != 4 or images.shape[1] not in _COLOURS:
        return
    low, high = float(images.min()), float(images.max())
    if low >= 0 and _DARKEST < high <= 255:
        warn_user(
            f"the images' values run from {low:.3g} to {high:.3g}, as in a file; most networks want them in [0, 1] or "
            "normalised: pass images / 255, normalised as in training. If yours expects such values, silence this with "
            'warnings.simplefilter("ignore", egcam.errors.InputWarning)',
            InputWarning,
        )


def _check_finite(images: Tensor) -> None:
    finite = torch.isfinite(images).flatten(1).all(1)
    if not bool(finite.all()):
        bad = (~finite).nonzero()[:, 0].tolist()
        raise InputError(f"image {bad[0]} holds NaN or infinite pixels ({len(bad)} of {len(images)} images do)")


def _check_fits(images: Tensor, model: nn.Module) -> None:
    parameters = list(model.parameters())
    if not parameters:
        return
    if any(is_lazy(parameter) for parameter in parameters):
        raise ModelError(
            "the model has lazy layers whose weights do not exist yet; run it once, model(images), before explaining it"
        )
    if any(parameter.is_meta for parameter in parameters) or images.is_meta:
        if any(hasattr(module, "_hf_hook") for module in model.modules()):
            raise ModelError(
                "the model's weights are offloaded (accelerate) and are loaded for the length of a call only: load it "
                "without offloading, as with from_pretrained(name) without device_map"
            )
        what = "images are" if images.is_meta else "model is"
        raise InputError(
            f"the {what} on the device 'meta', which holds shapes and no numbers; "
            + (
                "pass real ones"
                if images.is_meta
                else "give it weights first: model.to_empty(device='cpu'), then model.load_state_dict(…)"
            )
        )
    devices = {parameter.device for parameter in parameters}
    if images.device not in devices:
        device = parameters[0].device
        raise InputError(f"the model is on {device}, the images on {images.device}: pass images.to('{device}')")
    if any(parameter.is_inference() for parameter in parameters):
        raise ModelError(
            "the model's weights were created inside torch.inference_mode, so no gradient can pass them; "
            "create or load the model outside of it"
        )
    floats = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    kind = images.device.type
    autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if len(floats) == 1 and not autocasts:
        (dtype,) = floats
        if dtype != images.dtype:
            raise InputError(f"the model's weights are {dtype}, the images {images.dtype}: pass images.to({dtype})")


class Layout:
    """In which memory layout to run a model: the same numbers, faster.

    On a CPU in float32, networks run 1.3 to 1.5 times as fast when images come channels-last (`benchmarks/layout.py`).
    Some cannot take that (`x.view(n, -1)` after a convolution): their error shows it, once, and they run as usual.
    """

    def __init__(self) -> None:
        self.fast = True

    def run(self, images: Tensor, call: Callable[[torch.memory_format], Result]) -> Result:
        """`call` with the memory format the copies of `images` it feeds to the model shall have."""
        if self.fast and _is_worth_it(images):
            try:
                return call(torch.channels_last)
            except RuntimeError as error:
                if not _is_about_layout(error):
                    raise
                self.fast = False
        return call(torch.preserve_format)


def _is_about_layout(error: RuntimeError) -> bool:
    return any(word in str(error) for word in ("view size", "stride", "contiguous", "memory format", "channels_last"))


def _is_worth_it(images: Tensor) -> bool:
    on_cpu = images.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return on_cpu and images.dtype == torch.float32 and images.ndim == 4 and images.is_contiguous()
