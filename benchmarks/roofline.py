"""`python -m benchmarks.roofline [target]`: what the pinned configurations of matmul and attention can reach on paper, for Llama-3-8B.

A model, not a measurement. The time of a product is the largest of three: moving A, B and the result once at the peak of the memory; the
waves of tiles at the peak of the matrix units, one tile at a time on a multiprocessor, padded rows counted; and what the tiles read, at
the peak of the L2 cache, of which each multiprocessor has its share. Padded rows are multiplied and not read. Latency is left out, so a
kernel stays below this. Of attention over a cache the two products are counted, exponentials are not; tiles read the keys and values that
they see, and with the causal rule a wave is taken for as long as its mean tile.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch

from bi_inductor.targets import Target, target_named
from bi_inductor.templates.attention import configurations as attention
from bi_inductor.templates.matmul.configurations import configuration

# Rows of weights, and the length of each: as vLLM joins them, then as transformers leaves them apart.
LINEARS = {
    "q, k, v": (6144, 4096),
    "output": (4096, 4096),
    "gate, up": (28672, 4096),
    "down": (4096, 14336),
    "gate": (14336, 4096),
    "k": (1024, 4096),
}
ROWS = {"prefill 4096": 4096, "decode 64": 64, "decode 1": 1}
# Bytes a second that the L2 cache hands out: 5120 bytes a clock at the boost clock (NVIDIA A100 white paper; taken for the H100 too, whose
# white paper gives none); 2048 on each of the 8 dies of an MI300X (AMD CDNA 3 white paper). None is published for the B200.
CACHE = {"sm_80": 5120 * 1.41e9, "sm_90": 5120 * 1.755e9, "gfx942": 8 * 2048 * 2.1e9}
# The tile of vLLM's batch-invariant matmul in bfloat16 (matmul_persistent of vllm/model_executor/determinism/batch_invariant.py in 0.32),
# whatever the number of rows.
PEER_TILE = (128, 128)
# Rows of a tile of vLLM's attention over a cache (vllm/v1/attention/ops/triton_unified_attention.py); in its batch-invariant mode no
# programs share the keys of a tile.
PEER_ROWS = 16

# Attention of Llama-3-8B, and how many requests of how many new tokens each have so many keys.
HEADS, KV_HEADS, HEAD_DIM, KEYS = 32, 8, 128, 4096
REQUESTS = {"prefill 4096": (1, 4096), "decode 64": (64, 1), "decode 1": (1, 1)}


class Row(NamedTuple):
    """One product under the model."""

    moved: int
    operations: int
    tiles: int
    waves: int
    seconds: float
    fraction: float


def bounded(target: Target, moved: int, operations: int, tiles: int, multiplied: float, read: float, dtype: str) -> Row:
    """What bounds a kernel: see above. ``multiplied`` operations and ``read`` bytes of the cache are those of one tile."""
    waves = -(-tiles // target.multiprocessors)
    peak, memory = target.operations[dtype], moved / target.bandwidth
    seconds = max(memory, waves * target.multiprocessors * max(multiplied / peak, read / CACHE[target.name]))
    return Row(moved, operations, tiles, waves, seconds, max(memory, operations / peak) / seconds)


def modelled(target: Target, m: int, n: int, k: int, tile: tuple[int, int], dtype: str = "bf16", size: int = 2) -> Row:
    """``[m, k] @ [k, n]`` in tiles of ``tile`` (rows, columns); ``fraction`` is that of the faster of the two peaks' bound."""
    moved, operations = size * (m * k + k * n + m * n), 2 * m * n * k
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    return bounded(target, moved, operations, tiles, 2 * tile[0] * tile[1] * k, size * (min(tile[0], m) + tile[1]) * k, dtype)


def modelled_attention(target: Target, requests: int, tokens: int, rows: int, parts: int = 1) -> Row:
    """Paged attention in bfloat16: a tile is ``rows`` queries of a request, those of the heads that share a KV head among them.

    Args:
        requests: each with KEYS keys.
        tokens: the last ones of a request, which are the queries; each sees the keys up to its own.
        parts: programs that share the keys of a tile.
    """
    sharing = HEADS // KV_HEADS
    last = [KEYS - tokens + min((tile + 1) * rows // sharing, tokens) for tile in range(-(-tokens * sharing // rows))]
    seen = sum(last) / len(last)
    pairs = sum(range(KEYS - tokens + 1, KEYS + 1))
    moved = 2 * requests * HEAD_DIM * (2 * KEYS * KV_HEADS + 2 * tokens * HEADS)
    operations = 4 * HEAD_DIM * HEADS * requests * pairs
    tiles = requests * KV_HEADS * len(last) * parts
    read = 2 * HEAD_DIM * (min(rows, tokens * sharing) + 2 * seen / parts)
    return bounded(target, moved, operations, tiles, 4 * rows * HEAD_DIM * seen / parts, read, "bf16")


def attention_table(target: Target) -> str:
    """Attention over a cache as a table in Markdown."""
    lines = [
        "| rows | MB | GFLOP | tile (rows x keys) | programs for it | tiles | waves | of the roofline | with vLLM's: tiles, waves, share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    chosen = attention.configuration(target.name, torch.bfloat16, HEAD_DIM)
    for name, (requests, tokens) in REQUESTS.items():
        few = requests * tokens <= attention.FEW_QUERIES
        split = attention.shares_keys(few_queries=few, many_programs=False, few_keys=attention.PART * chosen.chunk >= KEYS)
        parts = -(-KEYS // (attention.PART * chosen.chunk)) if split else 1
        ours = modelled_attention(target, requests, tokens, chosen.block_m, parts)
        peer = modelled_attention(target, requests, tokens, PEER_ROWS)
        lines.append(
            f"| {name} | {ours.moved / 1e6:.0f} | {ours.operations / 1e9:.3g} | {chosen.block_m} x {chosen.chunk} | {parts} | {ours.tiles} "
            f"| {ours.waves} | {ours.fraction:.0%} | {peer.tiles}, {peer.waves}, {peer.fraction:.0%} |"
        )
    return "\n".join(lines)


def table(target: Target) -> str:
    """The products of all linears as a table in Markdown."""
    lines = [
        "| rows | linear (N x K) | MB | GFLOP | tile | tiles | waves | of the roofline | with vLLM's tile: tiles, waves, share |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for rows, m in ROWS.items():
        for linear, (n, k) in LINEARS.items():
            chosen = configuration(target.name, torch.bfloat16, n)
            tile = (chosen.block_m, chosen.block_n)
            ours, peer = modelled(target, m, n, k, tile), modelled(target, m, n, k, PEER_TILE)
            lines.append(
                f"| {rows} | {linear} ({n} x {k}) | {ours.moved / 1e6:.0f} | {ours.operations / 1e9:.3g} | {tile[0]} x {tile[1]} "
                f"| {ours.tiles} | {ours.waves} | {ours.fraction:.0%} | {peer.tiles}, {peer.waves}, {peer.fraction:.0%} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints the tables of one target."""
    parser = argparse.ArgumentParser(description="what the pinned configurations can reach on paper")
    parser.add_argument("target", nargs="?", default="sm_90", choices=sorted(CACHE))
    target = target_named(parser.parse_args().target)
    print(table(target), attention_table(target), sep="\n\n")


if __name__ == "__main__":
    main()
