"""The rows of the model tables: a few that take minutes, and all of them.

A row is made when its turn comes and dropped afterwards, so that one model with its cache lies in memory at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.models import Llama, LlamaShape, SentenceEncoder, residual_network, vision_transformer


class Row(NamedTuple):
    """A model, the arguments it is called with, and how many samples they hold."""

    model: nn.Module
    arguments: tuple[Any, ...]
    batch: int


# The shape of TinyLlama 1.1B, less 18 of its 22 layers: heads of 64, eight of them to each key and value head.
WIDE = LlamaShape(hidden=2048, heads=32, key_value_heads=4, feed_forward=5632)
LLAMAS = {512: LlamaShape(), 2048: WIDE}
DTYPES = (torch.float32, torch.bfloat16)


@functools.lru_cache(maxsize=1)
def _sentence_encoder() -> nn.Module:
    return SentenceEncoder().eval()


@functools.lru_cache(maxsize=1)
def _llama(hidden: int, dtype: torch.dtype, context: int) -> Llama:
    return Llama(LLAMAS[hidden], context).eval().to(dtype)


@functools.lru_cache(maxsize=1)
def _vision_model(make: Callable[[], nn.Module]) -> nn.Module:
    return make().eval()


def minilm_row(batch: int) -> Row:
    ids = torch.randint(1000, 30000, (batch, 64))
    return Row(_sentence_encoder(), (ids, torch.ones_like(ids)), batch)


def _llama_row(hidden: int, dtype: torch.dtype, batch: int, tokens: int, context: int) -> Row:
    """The last `tokens` tokens of the context: all of them are a prefill, one is a step of decoding."""
    model = _llama(hidden, dtype, context)
    ids = torch.randint(0, model.shape.vocabulary, (batch, tokens))
    return Row(model, (ids, context - tokens, model.empty_cache(batch)), batch)


def _vision_row(make: Callable[[], nn.Module], batch: int) -> Row:
    return Row(_vision_model(make), (torch.randn(batch, 3, 224, 224),), batch)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _few() -> dict[str, Callable[[], Row]]:
    rows: dict[str, Callable[[], Row]] = {f"MiniLM, batch {batch}": partial(minilm_row, batch) for batch in (1, 8, 64)}
    for dtype in DTYPES:
        name = f"Llama {_dtype_name(dtype)}"
        rows[f"{name}, prefill"] = partial(_llama_row, 512, dtype, 1, 128, 128)
        for batch in (1, 8, 64):
            rows[f"{name}, decode, batch {batch}"] = partial(_llama_row, 512, dtype, batch, 1, 128)
    return rows


def _full() -> dict[str, Callable[[], Row]]:
    rows: dict[str, Callable[[], Row]] = {f"MiniLM, batch {batch}": partial(minilm_row, batch) for batch in (1, 8, 64)}
    for hidden in LLAMAS:
        for dtype in DTYPES:
            name = f"Llama {hidden} {_dtype_name(dtype)}"
            for tokens in (128, 1024):
                rows[f"{name}, prefill {tokens}"] = partial(_llama_row, hidden, dtype, 1, tokens, tokens)
            for batch in (1, 8, 64):
                rows[f"{name}, decode at 1024, batch {batch}"] = partial(_llama_row, hidden, dtype, batch, 1, 1024)
    for batch in (1, 8, 64):
        rows[f"ViT-tiny, batch {batch}"] = partial(_vision_row, vision_transformer, batch)
    for batch in (1, 8):
        rows[f"ResNet-18, batch {batch}"] = partial(_vision_row, residual_network, batch)
    return rows


FEW_ROWS, ALL_ROWS = _few(), _full()


def select(full: bool, wanted: str) -> dict[str, Callable[[], Row]]:
    """The rows of a table whose name contains ``wanted``."""
    return {name: row for name, row in (ALL_ROWS if full else FEW_ROWS).items() if wanted in name}
