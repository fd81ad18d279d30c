"""The pinned configurations of the Triton attention: one for each target, dtype and head dim.

CHUNK, the number of keys whose scores share a maximum, is part of the numerics; no size that follows the batch chooses it. Prefill and
decode have tiles of one size, so that both use one instruction family. A wide row takes more registers than there are, so it may be
multiplied in slices.

Whether one program walks over all chunks or several share them may follow sizes (``shares_keys``), because both have the same bits: the
sums of a chunk are the same source on the same tiles, and a second kernel merges them in the one program's order.
"""

from __future__ import annotations

import dataclasses

import torch

from bi_inductor.templates import gpu
from bi_inductor.templates.matmul.configurations import CHAINED


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Queries of a tile, keys of a chunk, warps and pipeline stages of one kernel, and the columns of a row that it holds at a time."""

    block_m: int
    chunk: int
    warps: int
    stages: int
    slice: int = 256

    def constants(self, dtype: torch.dtype, head_dim: int, value_dim: int) -> dict[str, int]:
        """What the source is rendered with: rows of ``head_dim`` and ``value_dim`` columns in slices, the last one in REST columns.

        RUN: products of a score that are one chain, as in matmul. A slice is a part of a run or the whole row, so slices decide no bits.
        """
        result = {"BLOCK_M": self.block_m, "CHUNK": self.chunk, "RUN": head_dim if dtype in CHAINED else 256}
        for name, dim in (("D", head_dim), ("V", value_dim)):
            block = min(padded(dim), self.slice)
            result |= {f"BLOCK_{name}": block, f"REST_{name}": padded(dim - (dim - 1) // block * block)}
        return {**result, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim}


# target -> kind of element -> padded head dim -> configuration; a larger head dim has none.
#                          queries chunk warps stages (slice)
CONFIGURATIONS: dict[str, dict[str, dict[int, Configuration]]] = {
    "sm_80": {
        "16 bit": {64: Configuration(64, 64, 8, 2), 128: Configuration(64, 32, 8, 2), 256: Configuration(64, 32, 8, 1)},
        "float32": {64: Configuration(32, 32, 4, 1), 128: Configuration(16, 32, 8, 1), 256: Configuration(16, 16, 8, 1)},
    },
    "sm_90": {
        "16 bit": {64: Configuration(64, 64, 8, 2), 128: Configuration(64, 32, 8, 2), 256: Configuration(32, 32, 8, 1)},
        "float32": {64: Configuration(32, 32, 8, 1), 128: Configuration(16, 32, 8, 1), 256: Configuration(16, 16, 8, 1)},
    },
    "sm_100": {
        "16 bit": {64: Configuration(64, 64, 8, 2), 128: Configuration(64, 32, 8, 2), 256: Configuration(64, 32, 8, 1)},
        "float32": {64: Configuration(32, 32, 8, 1), 128: Configuration(16, 32, 8, 1), 256: Configuration(16, 16, 8, 1, slice=128)},
    },
    "gfx942": {
        "16 bit": {64: Configuration(64, 64, 4, 1), 128: Configuration(64, 32, 8, 1), 256: Configuration(64, 32, 8, 1)},
        "float32": {64: Configuration(32, 32, 4, 1), 128: Configuration(32, 32, 8, 1), 256: Configuration(16, 16, 8, 1)},
    },
    gpu.DEFAULT: {
        "16 bit": {64: Configuration(32, 32, 4, 1), 128: Configuration(32, 32, 4, 1), 256: Configuration(32, 32, 8, 1)},
        "float32": {64: Configuration(16, 16, 4, 1), 128: Configuration(16, 16, 4, 1), 256: Configuration(16, 16, 8, 1)},
    },
}

LARGEST_HEAD_DIM = 256

# Where programs share the keys: the chunks of a program, and how many chunks the second kernel, of one warp, loads at a time.
PART = 4
UNROLL = 8
MERGE_WARPS = 1
# Few queries leave most of a GPU idle while one program of each head walks over the keys; this many programs fill it.
FEW_QUERIES = 16
MANY_PROGRAMS = 1024


def shares_keys(few_queries: bool, many_programs: bool, few_keys: bool) -> bool:
    """Whether several programs share the keys of a tile of queries.

    Args:
        few_queries: at most FEW_QUERIES of a sample (of all requests, where there are blocks of a cache), whatever the batch.
        many_programs: the samples and heads are MANY_PROGRAMS or more, whatever the batch.
        few_keys: they are at most PART chunks, whatever the batch.
    """
    return few_queries and not many_programs and not few_keys


def padded(dim: int) -> int:
    """The power of two, of 16 or more, that holds ``dim`` elements."""
    return max(16, 1 << (dim - 1).bit_length())


def configuration(target: str, dtype: torch.dtype, head_dim: int) -> Configuration:
    """The configuration for rows of ``head_dim`` (the larger of those of keys and values, at most LARGEST_HEAD_DIM) on ``target``."""
    kind = "16 bit" if dtype in (torch.bfloat16, torch.float16) else "float32"
    table = CONFIGURATIONS[target][kind]
    return table[min(largest for largest in table if head_dim <= largest)]
