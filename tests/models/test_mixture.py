"""A mixture of experts: a token's experts, their outputs and their gradients do not depend on the tokens of other samples."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from bi_inductor.settings import thread_count
from tests.models.tiny import VOCABULARY, Logits, seeded, tokens
from tests.templates.rows import differences

PARTS = ((0, 1), (1, 3), (2, 7), (7, 8))


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    return seeded(lambda: transformers.MixtralForCausalLM(config))


@pytest.fixture(scope="module")
def model() -> Logits:
    return Logits(mixtral())


def varying_parts(run: nn.Module) -> int:
    ids, mask = tokens(8, 9)
    mask[2, :4] = 0
    whole = run(ids, mask)
    return sum(differences(run(ids[i:j], mask[i:j]), whole[i:j]) > 0 for i, j in PARTS)


def test_logits_keep_their_bits_in_any_batch(model: Logits) -> None:
    with torch.no_grad():
        assert varying_parts(torch.compile(model, backend="batch_invariant", dynamic=True)) == 0
        # The control: experts get as many rows as a batch sends them.
        assert varying_parts(model) > 0


def test_gradients_have_the_same_bits_on_any_number_of_threads(model: Logits) -> None:
    compiled = torch.compile(model, backend="batch_invariant")
    ids, mask = tokens(3, 6)
    results = []
    for threads in (1, 2, 3):
        with thread_count(threads):
            model.zero_grad()
            compiled(ids, mask).square().mean().backward()
            results.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    expected = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(results[0]) == len(expected)
    assert [sum(differences(a, b) for a, b in zip(results[0], other, strict=True)) for other in results[1:]] == [0, 0]
