"""The pinned configurations of the Triton matmul, by target, dtype and number of columns of the result.

A configuration follows these, never the number of rows. Tiles of another M or N add the same products in the same order, but a tile of
fewer than 64 rows would be another instruction family on sm_90 (mma.sync in the place of wgmma), whose order inside a block is the
hardware's. So prefill and decode share one tile.

It is a compromise. Prefill wants large tiles: one reads BLOCK_M + BLOCK_N numbers for BLOCK_M * BLOCK_N products. Decode wants small
ones: rows that it does not have are multiplied all the same, and all that it can share among the multiprocessors are columns. Multiplying
one tile takes a multiprocessor as long as reading N columns of weights takes the memory when BLOCK_M * BLOCK_N is N * bytes / 2 *
operations / multiprocessors / bandwidth: 2.2 N for 16-bit numbers on an H100, 1.9 N on a B200, 1.4 N on an A100 and 0.8 N on an MI300X. A
larger tile would slow decode down, so it is left to results of more columns. The caches of the A100 and the MI300X feed tiles of 64 x 128
fast enough. `python -m benchmarks.roofline` prints what prefill and decode come to.

Rows of the table differ in no bit of a sum: a target and kind have one instruction, which adds 16 products of 16-bit numbers (8 on gfx942)
at a time to its accumulator, in ascending k whatever BLOCK_K is; warps share out rows and columns of a tile, never k. On sm_90 and sm_100
tiles differ in how many columns, on sm_100 also in how many rows an instruction takes. That it adds its 16 products alike for any is not
documented: it matters where columns hold the batch (a weight times transposed samples), and tests/gpu compares it.
"""

from __future__ import annotations

import dataclasses
import sys

import torch

from bi_inductor.templates import gpu
from bi_inductor.templates.library import FLOAT8


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Sizes of the tile, warps and pipeline stages of one kernel."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        """What the source is rendered with. GROUP_M: rows of tiles that share their columns of B in the cache."""
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k, "GROUP_M": 8}


# One chain of products; other dtypes add runs of 256. Partial sums keep float32 as accurate as libraries are; tensor cores' products of
# 16-bit numbers lose less than rounding the result does.
CHAINED = (torch.bfloat16, torch.float16)

# Where an instruction converts which float8 to float16.
CONVERTING = dict.fromkeys(("sm_90", "sm_100"), (torch.float8_e4m3fn, torch.float8_e5m2))

# The float8 that Triton knows on a target; others are read by their bytes and cannot be written.
KNOWN_FLOAT8 = {"sm_80": (torch.float8_e5m2,), **CONVERTING, "gfx942": FLOAT8}

DEFAULT = gpu.DEFAULT

# Results of any number of columns; and what a number that is not known when the graph is compiled is taken for.
ANY = sys.maxsize
UNKNOWN = 4096

# target -> kind of element -> the most columns of the result that a configuration is for. `bi-inductor compile` shows registers, shared
# memory and spills. Registers keep tiles below the sizes above: 128 x 256 would spill in epilogues that read another operand, float8 is
# converted in registers, and threads multiply float32 and float64. Where one block holds all products there is no loop, and ptxas would
# keep some of the float32 operands of a block of 32 in memory. GROUP_M is 8 for all: on an H100 the tiles of a wave then read at most 1.07
# times what the best shape of a group would, in a quarter of the wave's time.
#                             columns:             M    N    K warps stages
CONFIGURATIONS: dict[str, dict[str, dict[int, Configuration]]] = {
    "sm_80": {
        "8 bit": {2048: Configuration(64, 64, 128, 4, 3), ANY: Configuration(64, 128, 64, 8, 3)},
        "16 bit": {2048: Configuration(64, 64, 64, 4, 3), ANY: Configuration(64, 128, 64, 4, 3)},
        "float32": {ANY: Configuration(64, 64, 16, 8, 3)},
        "float64": {ANY: Configuration(32, 32, 16, 4, 2)},
    },
    "sm_90": {
        "8 bit": {2048: Configuration(64, 64, 128, 4, 3), ANY: Configuration(128, 64, 128, 4, 3)},
        "16 bit": {
            2048: Configuration(64, 64, 64, 4, 4),
            7168: Configuration(128, 64, 64, 4, 4),
            ANY: Configuration(128, 128, 64, 8, 3),
        },
        "float32": {ANY: Configuration(64, 32, 16, 4, 3)},
        "float64": {ANY: Configuration(32, 32, 16, 8, 2)},
    },
    "sm_100": {
        "8 bit": {2048: Configuration(64, 64, 128, 4, 3), ANY: Configuration(64, 128, 128, 4, 3)},
        "16 bit": {
            2048: Configuration(64, 64, 64, 4, 4),
            8192: Configuration(128, 64, 64, 8, 4),
            ANY: Configuration(128, 128, 64, 8, 3),
        },
        "float32": {ANY: Configuration(64, 64, 16, 8, 3)},
        "float64": {ANY: Configuration(32, 32, 16, 4, 2)},
    },
    "gfx942": {
        "8 bit": {2048: Configuration(64, 64, 64, 4, 2), ANY: Configuration(64, 128, 64, 4, 2)},
        "16 bit": {2048: Configuration(64, 64, 64, 4, 2), ANY: Configuration(64, 128, 64, 4, 2)},
        "float32": {ANY: Configuration(64, 64, 32, 4, 2)},
        "float64": {ANY: Configuration(32, 32, 16, 4, 2)},
    },
    DEFAULT: {
        "8 bit": {ANY: Configuration(64, 64, 32, 4, 2)},
        "16 bit": {ANY: Configuration(64, 64, 32, 4, 2)},
        "float32": {ANY: Configuration(32, 32, 32, 4, 2)},
        "float64": {ANY: Configuration(32, 32, 16, 4, 2)},
    },
}


def configuration(target: str, dtype: torch.dtype, columns: int | None) -> Configuration:
    """The configuration on ``target``, a key of CONFIGURATIONS, of results that have ``columns`` columns (None: a number not known yet)."""
    kind = {torch.float32: "float32", torch.float64: "float64", **dict.fromkeys(CHAINED, "16 bit")}.get(dtype, "8 bit")
    known = UNKNOWN if columns is None else columns
    return next(chosen for most, chosen in CONFIGURATIONS[target][kind].items() if known <= most)
