"""A small CLIP or SigLIP with a tokenizer of a few words, saved to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.small_models import seeded

BLOCKS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TOWER = {**BLOCKS, "intermediate_size": 24, "image_size": 32, "patch_size": 8}
WORDS = ["a", "photo", "of", "dog", "cat", "red", "blue", "bus"]


def tokenizer(length: int) -> Any:
    """Every word is a token; texts end with the token of the highest number, as CLIP's do."""
    hf: Any = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    tokenizers: Any = pytest.importorskip("tokenizers")
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[BOS]": 2, **{word: 3 + number for number, word in enumerate(WORDS)}}
    vocabulary["[EOS]"] = len(vocabulary)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", vocabulary["[EOS]"])]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]", model_max_length=length
    )


def two_towers(kind: str, folder: Path) -> tuple[nn.Module, Any]:
    """The model and its processor, which are also saved."""
    hf: Any = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    text = {**BLOCKS, "intermediate_size": 24, "vocab_size": 12, "max_position_embeddings": 8}
    ends = {"bos_token_id": 2, "eos_token_id": 11, "pad_token_id": 0}
    more = {"projection_size": 16} if kind == "Siglip" else {}
    config = getattr(hf, f"{kind}Config")(text_config={**text, **ends, **more}, vision_config=TOWER)
    model = seeded(lambda: getattr(hf, f"{kind}Model")(config)).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(len(name)))
    images = getattr(hf, f"{kind}ImageProcessor")
    size = {"height": 32, "width": 32}
    cut = {"size": {"shortest_edge": 32}, "crop_size": size} if kind == "CLIP" else {"size": size}
    processor = getattr(hf, f"{kind}Processor")(images(**cut), tokenizer(8))
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor
