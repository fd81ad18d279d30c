"""`python -m benchmarks.roofline [target]`: what the pinned matmul configurations can reach on paper, for the linears of Llama-3-8B.

A model, not a measurement. The time of a product is the largest of three: moving A, B and the result once at the peak of the memory; the
waves of tiles at the peak of the matrix units, one tile at a time on a multiprocessor, padded rows counted; and what the tiles read, at
the peak of the L2 cache, of which each multiprocessor has its share. Padded rows are multiplied and not read. Latency is left out, so a
kernel stays below this.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch

from bi_inductor.targets import Target, target_named
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
# The tile of vLLM's batch-invariant matmul in bfloat16 (vllm/model_executor/layers/batch_invariant.py), whatever the number of rows.
PEER_TILE = (128, 128)


class Row(NamedTuple):
    """One product under the model."""

    moved: int
    operations: int
    tiles: int
    waves: int
    seconds: float
    fraction: float


def modelled(target: Target, m: int, n: int, k: int, tile: tuple[int, int], dtype: str = "bf16", size: int = 2) -> Row:
    """``[m, k] @ [k, n]`` in tiles of ``tile`` (rows, columns); ``fraction`` is that of the faster of the two peaks' bound."""
    moved, operations = size * (m * k + k * n + m * n), 2 * m * n * k
    tiles = -(-m // tile[0]) * -(-n // tile[1])
    waves = -(-tiles // target.multiprocessors)
    per_tile = 2 * tile[0] * tile[1] * k / (target.operations[dtype] / target.multiprocessors)
    read_per_tile = size * (min(tile[0], m) + tile[1]) * k / (CACHE[target.name] / target.multiprocessors)
    memory = moved / target.bandwidth
    seconds = max(memory, waves * max(per_tile, read_per_tile))
    return Row(moved, operations, tiles, waves, seconds, max(memory, operations / target.operations[dtype]) / seconds)


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
    """Prints the table of one target."""
    parser = argparse.ArgumentParser(description="what the pinned matmul configurations can reach on paper")
    parser.add_argument("target", nargs="?", default="sm_90", choices=sorted(CACHE))
    print(table(target_named(parser.parse_args().target)))


if __name__ == "__main__":
    main()
