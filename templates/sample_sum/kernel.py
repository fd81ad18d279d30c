"""The kernel of the sum over samples: its parameters, and how operands become arguments (docs/numerics.md section 13)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

KERNEL = register_kernel(
    "sample_sum",
    "sample_sum",
    {
        "samples": Parameter.SIZE,
        "n": Parameter.SIZE,
        "x": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)


def arguments(x: Operand, out: Operand) -> dict[str, Any]:
    """Arguments for the sum ``out`` [...] of the contiguous ``x`` [samples, ...]."""
    return {"samples": x.size[0], "n": product(x.size[1:]), "x": x.pointer, "out": out.pointer}
