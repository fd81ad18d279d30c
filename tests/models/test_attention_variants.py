"""Sliding windows and attention sinks, as models of transformers compute them.

A prompt's logits have the same bits alone, in a batch and padded on the left; with a window also token by token with the model's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache

from tests.models.tiny import VOCABULARY, seeded
from tests.templates.rows import assert_same_bits, differences

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS = ["sliding_attention", "full_attention"]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("MistralForCausalLM", {}),
    "gpt_oss": ("GptOssForCausalLM", {"layer_types": LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1}),
}
# transformers refuses sinks in sdpa.
CASES = [("mistral", "sdpa"), ("mistral", "eager"), ("gpt_oss", "eager")]
IN_EVERY_RUN = {("mistral", "sdpa"), ("gpt_oss", "eager")}
LENGTH, BATCH = 14, 3

Logits = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]


def model_of(name: str, attention: str) -> nn.Module:
    kind, given = MODELS[name]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**SIZES, **given, attn_implementation=attention)
    return seeded(lambda: model_class(config))


def logits_of(model: nn.Module) -> Logits:
    def logits(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        result: torch.Tensor = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=False
        )[0]
        return result

    return logits


@torch.no_grad()
def run(fn: Logits, config: Any, ids: torch.Tensor, left: int = 0, chunks: tuple[int, ...] = ()) -> torch.Tensor:
    """Logits of ``ids`` [prompts, length] with ``left`` pads before them, fed in ``chunks`` (at once if there are none)."""
    tokens = nn.functional.pad(ids, (left, 0), value=7)
    mask = torch.ones_like(tokens)
    mask[:, :left] = 0
    positions = (torch.arange(tokens.shape[1]) - left).clamp(min=0).expand_as(tokens)
    cache = DynamicCache(config=config)
    parts, start = [], 0
    for chunk in chunks or (tokens.shape[1],):
        stop = start + chunk
        parts.append(fn(tokens[:, start:stop], mask[:, :stop], positions[:, start:stop], cache))
        start = stop
    return torch.cat(parts, 1)[:, left:]


def prompts() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("name", "attention"), [case if case in IN_EVERY_RUN else pytest.param(*case, marks=pytest.mark.full) for case in CASES]
)
def test_batches_padding_and_cache(name: str, attention: str) -> None:
    model = model_of(name, attention)
    fn = torch.compile(logits_of(model), backend="batch_invariant", dynamic=True)
    ids = prompts()
    whole = run(fn, model.config, ids)
    assert_same_bits(run(fn, model.config, ids[1:2]), whole[1:2], "alone")
    assert_same_bits(run(fn, model.config, ids.flip(0)), whole.flip(0), "another order")
    assert_same_bits(run(fn, model.config, ids, left=3), whole, "left padding")
    # The place of a sink follows the number of keys (docs/numerics.md, section 8).
    if name != "gpt_oss":
        # Past the window, so that the cache has dropped keys.
        assert_same_bits(run(fn, model.config, ids, chunks=(9, *[1] * (LENGTH - 9))), whole, "token by token")
    # The model is the one that torch computes.
    torch.testing.assert_close(whole, run(logits_of(model), model.config, ids), rtol=1e-4, atol=1e-4)


def test_stock_differs() -> None:
    """Control: eager changes a row in this test."""
    model = model_of("mistral", "sdpa")
    fn, ids = logits_of(model), prompts()
    whole = run(fn, model.config, ids)
    assert differences(run(fn, model.config, ids, chunks=(9, *[1] * (LENGTH - 9))), whole) > 0
