"""The kernel of cumsum, cumprod and logcumsumexp: its parameters, and how operands become arguments (docs/numerics.md section 4)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

KERNEL = register_kernel(
    "cumsum",
    "cumsum",
    {
        "op": Parameter.SIZE,
        "outer": Parameter.SIZE,
        "n": Parameter.SIZE,
        "inner": Parameter.SIZE,
        "x": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)


# The values of `op` in kernel.h.
CUMULATIONS = ("cumsum", "cumprod", "logcumsumexp")


def arguments(op: str, dim: int, x: Operand, out: Operand) -> dict[str, Any]:
    """Arguments for the running ``op`` along ``dim`` of the contiguous ``x``."""
    return {
        "op": CUMULATIONS.index(op),
        "outer": product(x.size[:dim]),
        "n": x.size[dim],
        "inner": product(x.size[dim + 1 :]),
        "x": x.pointer,
        "out": out.pointer,
    }
