"""The reduction kernel: its parameters, and how operands become arguments (docs/numerics.md section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand

KERNEL = register_kernel(
    "reduction",
    "reduce",
    {
        "op": Parameter.SIZE,
        "correction": Parameter.NUMBER,
        "outer_dims": Parameter.SIZE,
        "outer_size": Parameter.SIZES,
        "outer_stride": Parameter.SIZES,
        "reduced_dims": Parameter.SIZE,
        "reduced_size": Parameter.SIZES,
        "reduced_stride": Parameter.SIZES,
        "x": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "mean_out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)

# The numbers of bi::Reduction in kernel.h.
REDUCTIONS = {"sum": 0, "mean": 1, "prod": 2, "var": 3, "std": 4}


def arguments(op: str, x: Operand, dims: Sequence[int], correction: float, out: Operand) -> dict[str, Any]:
    """Arguments for reducing the ascending ``dims`` of ``x`` into the contiguous ``out``."""
    outer = [i for i in range(len(x.size)) if i not in dims]
    return {
        "op": REDUCTIONS[op],
        "correction": correction,
        "outer_dims": len(outer),
        "outer_size": [x.size[i] for i in outer],
        "outer_stride": [x.stride[i] for i in outer],
        "reduced_dims": len(dims),
        "reduced_size": [x.size[i] for i in dims],
        "reduced_stride": [x.stride[i] for i in dims],
        "x": x.pointer,
        "out": out.pointer,
        "mean_out": None,
    }
