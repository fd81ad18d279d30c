"""How the Triton templates over rows are launched: one program, of one warp, a row."""

from __future__ import annotations

from typing import Any

from torch._inductor.select_algorithm import SymbolicGridFn

# One warp: with more, the layout would choose which lanes an exchange inside a warp adds. It holds for warps of 32 and of 64 lanes.
WARPS, STAGES = 1, 1

# Terms in flight for each lane, and columns that are written at a time; neither chooses a bit.
CONSTANTS = {"UNROLL": 4, "BLOCK": 256}


@SymbolicGridFn
def rows_grid(rows: Any, groups: Any, meta: dict[str, Any]) -> tuple[Any, Any, Any]:
    """A program for each row, in each of ``groups``."""
    return rows, groups, 1
