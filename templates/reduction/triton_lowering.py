"""The reductions in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.utils import triton_type

from bi_inductor.templates.common.triton_rows import CONSTANTS, STAGES, WARPS, rows_grid
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.triton_template import constant, lower, rows_of, template


def reduce(op: str, x: ir.TensorBox, reduced: Sequence[int], size: Sequence[Any], correction: float) -> ir.TensorBox:
    """``op`` over the ascending dims ``reduced`` of ``x``; ``size`` is that of the result."""
    dtype = x.get_dtype()
    rows = rows_of(x, reduced)
    # var and std of float32 are computed in float64 (docs/numerics.md section 4).
    wide = torch.float64 if op in ("var", "std") and dtype == torch.float32 else accumulation_dtype(dtype)
    out = lower(
        template("reduction", f"reduction_{op}", rows_grid, OP=op),
        {"X": rows.node},
        [rows.rows],
        {**CONSTANTS, **rows.constants, "CORRECTION": constant(correction), "ACCUMULATOR": triton_type(wide)},
        (rows.rows, 1),
        warps=WARPS,
        stages=STAGES,
        dtype=dtype,
    )
    return ir.TensorBox(ir.View.create(out, size))
