"""cumsum, cumprod and logcumsumexp in Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.utils import triton_type

from bi_inductor.templates.common.triton_rows import STAGES, WARPS
from bi_inductor.templates.cpp_template import contiguous, realized
from bi_inductor.templates.cumsum.configurations import CONSTANTS
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.operand import product
from bi_inductor.templates.triton_template import lower, template

# Of each op: where its chain starts, and the function of common/triton_functions.py that is its step.
STEPS = {"cumsum": ("0.0", "add"), "cumprod": ("1.0", "multiply"), "logcumsumexp": ("float('-inf')", "add_logarithm")}


@SymbolicGridFn
def grid(chains: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each block of chains, along x."""
    return cdiv(chains, meta["CHAINS"]), 1, 1


def cumulate(op: str, x: ir.TensorBox, dim: int) -> ir.TensorBox:
    """The running ``op`` of ``x`` along ``dim`` >= 0; the result is contiguous."""
    dtype = x.get_dtype()
    size = list(x.get_size())
    outer, inner = product(size[:dim]), product(size[dim + 1 :])
    columns = inductor.view(contiguous(x), [outer, size[dim], inner])
    start, step = STEPS[op]
    # A chain of float32 is kept in float64 (docs/numerics.md section 4).
    chain = torch.float64 if dtype == torch.float32 else accumulation_dtype(dtype)
    out = lower(
        template("cumsum", op, grid, START=start, STEP=step),
        {"X": realized(columns)},
        [outer, size[dim], inner],
        {**CONSTANTS, "CHAIN": triton_type(chain)},
        (outer * inner,),
        warps=WARPS,
        stages=STAGES,
        dtype=dtype,
    )
    return inductor.view(out, size)
