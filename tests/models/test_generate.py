"""transformers' own generate(): the same tokens and the same bits of logits for a prompt alone and left-padded in a batch."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.models.tiny import VOCABULARY, llama
from tests.templates.rows import assert_same_bits, differences

LENGTHS = (5, 9, 7)
NEW_TOKENS = 5


def prompts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def generated(model: transformers.PreTrainedModel, batch: list[torch.Tensor], cache: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy tokens int64[prompts, new] and their logits [prompts, new, vocabulary]."""
    longest = max(map(len, batch))
    ids = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in batch])
    mask = torch.stack([torch.arange(longest) >= longest - len(prompt) for prompt in batch]).long()
    result = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        cache_implementation=cache,
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=0,
    )
    return result.sequences[:, longest:], torch.stack(result.logits, 1)


# Four graphs for each: prefill and one token, alone and in a batch. In every run, test_sequences.py has the same without generate().
@pytest.mark.full
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_alone_and_in_a_batch(cache: str) -> None:
    model = llama()
    model.forward = torch.compile(model.forward, backend="batch_invariant", dynamic=True)
    tokens, logits = generated(model, prompts(), cache)
    for i, prompt in enumerate(prompts()):
        alone, logits_alone = generated(model, [prompt], cache)
        assert torch.equal(alone, tokens[i : i + 1])
        assert_same_bits(logits_alone, logits[i : i + 1], f"prompt {i}")


def test_stock_differs() -> None:
    model = llama()
    _, logits = generated(model, prompts(), "dynamic")
    assert sum(differences(generated(model, [prompt], "dynamic")[1], logits[i : i + 1]) for i, prompt in enumerate(prompts())) > 0
