"""A Llama's logits for a token: the same bits padded on either side, with a KV cache, prefilled at once or in chunks."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from tests.models.tiny import VOCABULARY, llama
from tests.templates.rows import assert_same_bits, differences

LENGTH = 19


def decoder(attention: str, backend: str | None) -> object:
    model = llama(attention, layers=2)

    def logits(ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        result: torch.Tensor = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, return_dict=False
        )[0]
        return result

    if backend is None:
        return logits, model.config
    return torch.compile(logits, backend=backend, dynamic=True), model.config


def run(fn: object, config: object, ids: torch.Tensor, pads: tuple[int, int], chunks: list[int]) -> torch.Tensor:
    """Logits of the real tokens of one prompt, ``pads`` tokens to its left and right, fed in ``chunks``."""
    left, right = pads
    width = left + ids.shape[1] + right
    tokens = torch.nn.functional.pad(ids, pads, value=7)
    mask = torch.zeros(1, width, dtype=torch.int64)
    mask[:, left : width - right] = 1
    positions = (torch.arange(width) - left).clamp(min=0)[None]
    cache = DynamicCache(config=config)
    parts, start = [], 0
    for chunk in chunks:
        stop = start + chunk
        parts.append(fn(tokens[:, start:stop], mask[:, :stop], positions[:, start:stop], cache))
        start = stop
    return torch.cat(parts, 1)[:, left : width - right]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_cache_and_chunks(attention: str) -> None:
    fn, config = decoder(attention, "batch_invariant")
    ids = torch.randint(0, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        whole = run(fn, config, ids, (0, 0), [LENGTH])
        for pads in [(5, 0), (0, 4), (16, 3)]:
            assert_same_bits(run(fn, config, ids, pads, [LENGTH + sum(pads)]), whole, f"pads {pads}")
        assert_same_bits(run(fn, config, ids, (0, 0), [7, 9, 3]), whole, "chunks")
        assert_same_bits(run(fn, config, ids, (0, 0), [4] + [1] * (LENGTH - 4)), whole, "token by token")
        assert_same_bits(run(fn, config, ids, (5, 0), [10, 10] + [1] * (LENGTH - 15)), whole, "padded, chunked, then token by token")


def test_stock_differs() -> None:
    fn, config = decoder("sdpa", None)
    ids = torch.randint(0, VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        whole = run(fn, config, ids, (0, 0), [LENGTH])
        assert differences(run(fn, config, ids, (0, 0), [4] + [1] * (LENGTH - 4)), whole) > 0
