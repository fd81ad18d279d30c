"""The softmax kernel: its parameters, and how operands become arguments (docs/numerics.md section 6)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import NEITHER, ROW_PARAMETERS, Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

KERNEL = register_kernel(
    "softmax",
    "softmax",
    {
        "log": Parameter.SIZE,
        "rows": Parameter.SIZE,
        "n": Parameter.SIZE,
        "x": Parameter.INPUT,
        "x_row": Parameter.SIZE,
        "out": Parameter.OUTPUT,
        **ROW_PARAMETERS,
        "threads": Parameter.SIZE,
    },
)


def arguments(log: bool, x: Operand, out: Operand) -> dict[str, Any]:
    """Arguments for the softmax, or log_softmax, along the last dim of the contiguous ``x``."""
    n = x.size[-1]
    return {"log": int(log), "rows": product(x.size[:-1]), "n": n, "x": x.pointer, "x_row": n, "out": out.pointer, **NEITHER}
