"""Tiny seeded models of transformers: a decoder, an older one, an encoder, an encoder-decoder. A layer more takes seconds to compile."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import nn

VOCABULARY = 100


def llama(attention: str = "sdpa", layers: int = 1) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        attn_implementation=attention,
    )
    return seeded(lambda: transformers.LlamaForCausalLM(config))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=1, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=0)
    return seeded(lambda: transformers.GPT2LMHeadModel(config))


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=1, num_attention_heads=4
    )
    return seeded(lambda: transformers.BertModel(config))


def t5() -> nn.Module:
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=80, num_layers=1, num_heads=4, decoder_start_token_id=0)
    return seeded(lambda: transformers.T5ForConditionalGeneration(config))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """The model with weights of seed 0, in eval mode, larger than their usual 0.02 so that activations are of order one."""
    torch.manual_seed(0)
    model = build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2, "bert": bert, "t5": t5}


class Logits(nn.Module):
    """A model as a function of token ids and a padding mask to its first result [batch, length, ...]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask, "return_dict": False}
        if isinstance(self.model, transformers.T5ForConditionalGeneration):
            inputs["decoder_input_ids"] = ids
            inputs["use_cache"] = False
        elif not isinstance(self.model, transformers.BertModel):
            inputs["use_cache"] = False
        result: torch.Tensor = self.model(**inputs)[0]
        return result


def tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and a mask of ones."""
    ids = torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(3))
    return ids, torch.ones_like(ids)
