"""The reduction kernels: their parameters, and how operands become arguments (docs/numerics.md section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bi_inductor.templates.library import NO_PROLOGUE, PROLOGUE_PARAMETERS, Kernel, Parameter, register_kernel
from bi_inductor.templates.operand import Operand

_DIMS = {
    "outer_dims": Parameter.SIZE,
    "outer_size": Parameter.SIZES,
    "outer_stride": Parameter.SIZES,
    "reduced_dims": Parameter.SIZE,
    "reduced_size": Parameter.SIZES,
    "reduced_stride": Parameter.SIZES,
    "x": Parameter.INPUT,
    "out": Parameter.OUTPUT,
}
_THREADS = {"threads": Parameter.SIZE}

SUM = register_kernel("reduction", "reduce_sum", {"mean": Parameter.SIZE, **_DIMS, **PROLOGUE_PARAMETERS, **_THREADS})
VAR = register_kernel(
    "reduction", "reduce_var", {"root": Parameter.SIZE, "correction": Parameter.NUMBER, **_DIMS, **PROLOGUE_PARAMETERS, **_THREADS}
)
PROD = register_kernel("reduction", "reduce_prod", {**_DIMS, **_THREADS})

KERNEL_OF: dict[str, Kernel] = {"sum": SUM, "mean": SUM, "var": VAR, "std": VAR, "prod": PROD}


def arguments(op: str, x: Operand, dims: Sequence[int], correction: float, out: Operand) -> dict[str, Any]:
    """Arguments of KERNEL_OF[op] for reducing the ascending ``dims`` of ``x`` into the contiguous ``out``."""
    outer = [i for i in range(len(x.size)) if i not in dims]
    return {
        "mean": int(op == "mean"),
        "root": int(op == "std"),
        "correction": correction,
        "outer_dims": len(outer),
        "outer_size": [x.size[i] for i in outer],
        "outer_stride": [x.stride[i] for i in outer],
        "reduced_dims": len(dims),
        "reduced_size": [x.size[i] for i in dims],
        "reduced_stride": [x.stride[i] for i in dims],
        "x": x.pointer,
        "out": out.pointer,
        **NO_PROLOGUE,
    }
