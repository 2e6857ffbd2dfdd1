"""Models of the Hugging Face hub, or from a folder that `save_pretrained` wrote: image classifiers, CLIP and SigLIP."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from egcam.errors import ModelError, require
from egcam.models.class_names import as_class_names
from egcam.models.class_scores import known_classes
from egcam.models.classifier import Classifier
from egcam.models.preprocessing import FlippedPreprocessing, Interpolation, Preprocessing
from egcam.models.weights import downloaded, no_vain_retries, one_line, seeded

# transformers would ask whether to run a model's own code, and take "y" from a pipe, too.
_NO_CODE = {"trust_remote_code": False}
_RESAMPLING: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def is_folder(name: str) -> bool:
    """Whether it is a folder with a model that `save_pretrained` wrote."""
    return (Path(name) / "config.json").is_file()


def hugging_face(name: str, pretrained: bool = True, texts: Sequence[str] | None = None) -> Classifier:
    """The classifier in a folder or on the hub, with the preprocessing of its image processor.

    Args:
        name: as on the hub, or a folder.
        pretrained: with its weights, else untrained, the same every time.
        texts: what images are compared with, by models that do so; they become the classes.
    """
    require("transformers", "hf", f"the model hf:{name}")
    library: Any = importlib.import_module("transformers")
    with no_vain_retries():
        config = _read(name, lambda: library.AutoConfig.from_pretrained(name, **_NO_CODE))
        compares = hasattr(config, "text_config") and hasattr(config, "vision_config")
        if compares and not texts:
            raise ModelError(f"hf:{name} compares images with texts: say which, texts=[…] (the command: --text …)")
        if texts and not compares:
            raise ModelError(f"hf:{name} has classes of its own and compares no images with texts: leave the texts out")
        model = _model(library, name, config, pretrained, compares)
        kind = library.AutoProcessor if compares else library.AutoImageProcessor
        processor = _read(name, lambda: kind.from_pretrained(name, **_NO_CODE))
    preprocessing = _preprocessing(name, processor.image_processor if compares else processor)
    if texts:
        tokens = _tokens(processor, config, list(texts))
        model = ImageAgainstTexts(model, tokens)
        return Classifier(model.eval(), f"hf:{name}", as_class_names(texts), preprocessing)
    if next(iter(inspect.signature(model.forward).parameters), None) != "pixel_values":
        raise ModelError(
            f"hf:{name} does not take an image as its first input; write path/to/file.py:function, a function that "
            "returns a module which does"
        )
    names = known_classes(model, None)
    unnamed = names is not None and all(label == f"LABEL_{number}" for number, label in enumerate(names))
    return Classifier(model, f"hf:{name}", None if unnamed else names, preprocessing)


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read() if is_folder(name) else downloaded(f"hf:{name}", read)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"hf:{name} comes with code of its own, which egcam does not run; if you trust it, load it in "
                "path/to/file.py:function, a function that returns a module"
            ) from error
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the folder {name} could not be loaded: {one_line(error)}") from error


def _model(library: Any, name: str, config: Any, pretrained: bool, compares: bool) -> nn.Module:
    kind = library.AutoModel if compares else library.AutoModelForImageClassification
    if not pretrained:
        untrained: nn.Module = seeded(lambda: kind.from_config(config, **_NO_CODE))
        return untrained
    model, info = _read(name, lambda: kind.from_pretrained(name, output_loading_info=True, **_NO_CODE))
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"hf:{name} has no weights for {', '.join(missing[:3])}: it was saved without a classifier; load one that "
            "was trained to classify, or pass weights=… (--weights FILE)"
        )
    return model  # type: ignore[no-any-return]


# -- images against texts ---------------------------------------------------------------------------


class ImageAgainstTexts(nn.Module):
    """A model of images and texts as a classifier of images whose classes are some texts.

    Args:
        model: of Hugging Face; takes pixel_values and the texts' tokens, and outputs logits_per_image.
        texts: the texts' tokens, as the tokenizer puts them out.
    """

    def __init__(self, model: nn.Module, texts: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model.eval()
        self._names = tuple(texts)
        for name, tensor in texts.items():
            self.register_buffer(f"text_{name}", tensor)
        self.register_buffer("_read", None)
        self._read_texts()

    def forward(self, images: Tensor) -> Tensor:
        """(N, texts) how well each text fits each image."""
        if self._read is None:
            return self._whole(images).logits_per_image  # type: ignore[no-any-return]
        features = self.model.get_image_features(pixel_values=images)  # type: ignore[operator]
        features = features if isinstance(features, Tensor) else features.pooler_output
        scores: Tensor = features / features.norm(dim=-1, keepdim=True) @ self._read.T
        return scores * self.model.logit_scale.exp() + getattr(self.model, "logit_bias", 0)  # type: ignore[operator]

    def _whole(self, images: Tensor) -> Any:
        return self.model(pixel_values=images, **{name: getattr(self, f"text_{name}") for name in self._names})

    def _read_texts(self) -> None:
        """Read the texts once instead of in every pass, if that makes no difference."""
        config: Any = self.model.config
        size = int(config.vision_config.image_size)
        image = torch.linspace(-1, 1, 3 * size * size).reshape(1, 3, size, size)
        with torch.no_grad():
            whole = self._whole(image)
            try:
                self._read = whole.text_embeds
                is_same = torch.allclose(self(image), whole.logits_per_image, atol=1e-5)
            except Exception:  # a model that compares in another way
                is_same = False
        if not is_same:
            self._read = None


def _tokens(processor: Any, config: Any, texts: list[str]) -> dict[str, Tensor]:
    # SigLIP was trained on texts filled up to one length, CLIP on texts that end.
    fill_up = "max_length" if config.model_type.startswith("siglip") else True
    return dict(processor(text=texts, padding=fill_up, truncation=True, return_tensors="pt"))


# -- preprocessing ----------------------------------------------------------------------------------


def _preprocessing(name: str, processor: Any) -> Preprocessing:
    """What the image processor does, as resizing, cutting and normalising; refused if that is not what it does."""
    size, crop, resize = _sizes(processor)
    factor = 255 * getattr(processor, "rescale_factor", 1 / 255) if getattr(processor, "do_rescale", True) else 255.0
    normalises = getattr(processor, "do_normalize", True)
    mean = [float(number) for number in (processor.image_mean if normalises else (0.0,) * 3)]
    std = [float(number) for number in (processor.image_std if normalises else (1.0,) * 3)]
    kind = FlippedPreprocessing if getattr(processor, "do_flip_channel_order", False) else Preprocessing
    preprocessing = kind(
        crop or size,
        resize,
        _RESAMPLING.get(int(getattr(processor, "resample", 2) or 0), "bicubic"),
        tuple(number / factor for number in mean),
        tuple(number / factor for number in std),
    )
    _check_alike(name, preprocessing, processor)
    return preprocessing


def _sizes(processor: Any) -> tuple[tuple[int, int], tuple[int, int] | None, int | None]:
    """(height, width) the image is resized to, that of the part cut out of it, and the length of its shorter side."""
    size = dict(getattr(processor, "size", None) or {})
    cut = dict(getattr(processor, "crop_size", None) or {}) if getattr(processor, "do_center_crop", False) else {}
    short = size.get("shortest_edge")
    crop = (int(cut["height"]), int(cut["width"])) if "height" in cut else None
    if short is None:
        square = (int(size.get("height", 224)), int(size.get("width", 224)))
        return square, crop, None
    share = getattr(processor, "crop_pct", None)
    if share is not None and crop is None:
        # ConvNeXt: the centre of a larger image, unless the image is large itself.
        return (short, short), None, None if short >= 384 else int(short / share)
    return (short, short), crop, int(short)


def _check_alike(name: str, preprocessing: Preprocessing, processor: Any) -> None:
    ramp = np.linspace(0, 255, 320)
    across, down = np.meshgrid(ramp, ramp[:256])
    image = Image.fromarray(np.stack([across, down, 255 - across / 2 - down / 3], 2).astype(np.uint8))
    theirs = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0]).float()
    ours = preprocessing(image)
    if ours.shape != theirs.shape or (ours - theirs).abs().mean() > 0.02 * theirs.std():
        raise ModelError(
            f"the image processor of hf:{name} does more than resize, cut out the centre and normalise; write "
            "path/to/file.py:function, a function that returns a Classifier with a preprocessing of your own"
        )
