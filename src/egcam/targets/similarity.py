"""How similar an embedding is to another one: of an image, of a text, or given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from egcam.errors import TargetError, check_known
from egcam.models.nested import named_or_only
from egcam.models.targets import ImageTarget, Setting

Measure: TypeAlias = Literal["cosine", "dot"]

_EMBEDDING_KEYS = ("image_embeds", "embedding", "embeddings", "pooler_output", "features")


@dataclass(frozen=True, eq=False)
class Similarity(ImageTarget):
    """How similar the model's embedding of an image is to another embedding.

        cosine: <e, f> / (|e| |f|),   dot: <e, f>

    Args:
        to: the other: an embedding (D,); an image (C, H, W), prepared as the explained ones, whose embedding the model
            gives; or a text, whose embedding `encode` gives.
        by: "cosine" or "dot".
        encode: from a text to its embedding, (D,) or (1, D).

    Example:
        >>> Similarity(torch.tensor([0.0, 2.0]))(torch.tensor([3.0, 4.0]))
        tensor(0.8000)
        >>> Similarity("twice up", by="dot", encode=lambda text: torch.tensor([0.0, 2.0]))(torch.tensor([3.0, 4.0]))
        tensor(8.)
    """

    to: Tensor | str
    by: Measure = "cosine"
    encode: Callable[[str], Tensor] | None = None

    def __post_init__(self) -> None:
        check_known(self.by, get_args(Measure), "similarity", TargetError)
        if isinstance(self.to, str):
            if self.encode is None:
                raise TargetError(
                    f"similarity to the text {self.to!r} needs its embedding: pass encode=, a function from a text to "
                    "an embedding, or the embedding itself"
                )
        elif not isinstance(self.to, Tensor) or not self.to.is_floating_point() or not _is_readable(self.to):
            got = tuple(self.to.shape) if isinstance(self.to, Tensor) else type(self.to).__name__
            raise TargetError(
                f"similarity is to an embedding (D,), an image (C, H, W) or a text; not to {got}. For one each image, "
                "pass a list of targets"
            )

    def __call__(self, output: Any) -> Tensor:
        """The similarity of one image's embedding."""
        embedding = _embedding_in(output)
        other = self._other().to(embedding)
        if other.shape != embedding.shape:
            raise TargetError(
                f"the model's embedding has {len(embedding)} numbers and the one it is compared with {len(other)}"
            )
        if self.by == "dot":
            return (embedding * other).sum()
        return functional.cosine_similarity(embedding, other, dim=0)

    @property
    def description(self) -> str:
        """What it is similar to."""
        what = repr(self.to) if isinstance(self.to, str) else "an image" if self.to.ndim > 2 else "an embedding"
        return f"similarity to {what}"

    @property
    def reads_embedding(self) -> bool:
        """It does."""
        return True

    def settled(self, setting: Setting) -> Self:
        """With the embedding of its image or text, made once."""
        if isinstance(self.to, Tensor) and self.to.ndim > 2:
            if setting.run is None:
                raise TargetError("similarity to an image needs the model; here it can only be to an embedding")
            return replace(self, to=_embedding_in(setting.run(self.to.reshape(self.to.shape[-3:]))).detach())
        return replace(self, to=self._other(), encode=None)

    def _other(self) -> Tensor:
        """(D,) what the embedding is compared with."""
        if isinstance(self.to, str):
            assert self.encode is not None
            with torch.no_grad():
                embedding = self.encode(self.to)
            if not isinstance(embedding, Tensor) or embedding.ndim > 2 or embedding.numel() != embedding.shape[-1]:
                got = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
                raise TargetError(f"encode must return an embedding (D,) or (1, D) of the text, not {got}")
            return embedding.detach().flatten()
        if self.to.ndim > 2:
            raise TargetError("the embedding of an image is known only when it is explained with a model")
        return self.to.detach().flatten()


def _is_readable(tensor: Tensor) -> bool:
    """An embedding, (D,) or (1, D), or an image, (C, H, W) or (1, C, H, W)."""
    return tensor.ndim in (1, 3) or (tensor.ndim in (2, 4) and len(tensor) == 1)


def _embedding_in(output: Any) -> Tensor:
    """(D,) the embedding in one image's output: by its name, else the only vector there is."""
    return named_or_only(output, _EMBEDDING_KEYS, _is_vector, "the embedding", "Similarity").flatten()


def _is_vector(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.ndim > 0 and tensor.numel() == tensor.shape[0] > 1
