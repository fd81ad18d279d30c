"""The pinned configurations of the Triton matmul: one for each target and dtype, and one for narrow results.

A configuration follows the target, the dtype and N, never the number of rows. Tiles of another M or N add the same blocks of BLOCK_K
in the same order, but a tile of fewer than 64 rows would be another instruction family on sm_90 (mma.sync in the place of wgmma), whose
order inside a block is the hardware's. So prefill and decode share one tile.
"""

from __future__ import annotations

import dataclasses

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

# Below this many columns a wide tile would leave most multiprocessors without one.
NARROW = 2048

DEFAULT = gpu.DEFAULT

# target -> kind of element -> (narrow N, wide N). `bi-inductor compile` shows registers, shared memory and spills.
#                                           M    N   K warps stages
CONFIGURATIONS: dict[str, dict[str, tuple[Configuration, Configuration]]] = {
    "sm_80": {
        "8 bit": (Configuration(64, 64, 128, 4, 3), Configuration(64, 128, 64, 4, 3)),
        "16 bit": (Configuration(64, 64, 64, 4, 4), Configuration(64, 128, 64, 4, 3)),
        "float32": (Configuration(64, 64, 32, 8, 3), Configuration(64, 64, 32, 8, 3)),
        "float64": (Configuration(32, 32, 16, 4, 2), Configuration(32, 32, 16, 4, 2)),
    },
    "sm_90": {
        "8 bit": (Configuration(64, 64, 128, 4, 3), Configuration(64, 128, 128, 4, 3)),
        "16 bit": (Configuration(64, 64, 64, 4, 4), Configuration(64, 128, 64, 4, 4)),
        "float32": (Configuration(64, 64, 32, 8, 3), Configuration(64, 64, 32, 8, 3)),
        "float64": (Configuration(32, 32, 16, 8, 2), Configuration(32, 32, 16, 8, 2)),
    },
    "sm_100": {
        "8 bit": (Configuration(64, 64, 128, 4, 3), Configuration(64, 128, 128, 4, 3)),
        "16 bit": (Configuration(64, 64, 64, 4, 4), Configuration(64, 128, 64, 4, 4)),
        "float32": (Configuration(64, 64, 32, 8, 3), Configuration(64, 64, 32, 8, 3)),
        "float64": (Configuration(32, 32, 16, 4, 2), Configuration(32, 32, 16, 4, 2)),
    },
    "gfx942": {
        "8 bit": (Configuration(64, 64, 64, 4, 2), Configuration(64, 128, 64, 4, 2)),
        "16 bit": (Configuration(64, 64, 64, 4, 2), Configuration(64, 128, 64, 4, 2)),
        "float32": (Configuration(64, 64, 32, 4, 2), Configuration(64, 64, 32, 4, 2)),
        "float64": (Configuration(32, 32, 16, 4, 2), Configuration(32, 32, 16, 4, 2)),
    },
    DEFAULT: {
        "8 bit": (Configuration(64, 64, 32, 4, 2), Configuration(64, 64, 32, 4, 2)),
        "16 bit": (Configuration(64, 64, 32, 4, 2), Configuration(64, 64, 32, 4, 2)),
        "float32": (Configuration(32, 32, 32, 4, 2), Configuration(32, 32, 32, 4, 2)),
        "float64": (Configuration(32, 32, 16, 4, 2), Configuration(32, 32, 16, 4, 2)),
    },
}


def configuration(target: str, dtype: torch.dtype, narrow: bool) -> Configuration:
    """The configuration on ``target``, a key of CONFIGURATIONS; ``narrow``: the results have at most NARROW columns, whatever the batch."""
    kind = {torch.float32: "float32", torch.float64: "float64", **dict.fromkeys(CHAINED, "16 bit")}.get(dtype, "8 bit")
    return CONFIGURATIONS[target][kind][0 if narrow else 1]
