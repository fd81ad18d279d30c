"""The grouped matmul kernel: its parameters, and how operands become arguments (docs/numerics.md section 3)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand

PARAMETERS = {
    "grouped": Parameter.SIZE,
    "groups": Parameter.SIZE,
    "m": Parameter.SIZE,
    "n": Parameter.SIZE,
    "k": Parameter.SIZE,
    "ends": Parameter.SIZES,
    "a": Parameter.INPUT,
    "a_group": Parameter.SIZE,
    "a_row": Parameter.SIZE,
    "a_col": Parameter.SIZE,
    "b": Parameter.INPUT,
    "b_group": Parameter.SIZE,
    "b_row": Parameter.SIZE,
    "b_col": Parameter.SIZE,
    "out": Parameter.OUTPUT,
    "out_group": Parameter.SIZE,
    "out_row": Parameter.SIZE,
    "threads": Parameter.SIZE,
}

KERNEL = register_kernel("grouped_matmul", "grouped_matmul", PARAMETERS)

# The values of `grouped` in kernel.h, by the number of dims of a and b.
GROUPED = {(2, 3): 0, (3, 2): 1, (2, 2): 2}


def arguments(a: Operand, b: Operand, ends: Operand, out: Operand) -> dict[str, Any]:
    """Arguments for ``a`` [groups?, m, k] and ``b`` [groups?, k, n]; where neither has groups, their k is grouped."""

    def strides(operand: Operand) -> tuple[Any, Any, Any]:
        group, row, col = operand.stride if len(operand.size) == 3 else (0, *operand.stride)
        return group, row, col

    result: dict[str, Any] = {
        "grouped": GROUPED[len(a.size), len(b.size)],
        "groups": ends.size[0],
        "m": a.size[-2],
        "n": b.size[-1],
        "k": a.size[-1],
        "ends": ends.pointer,
        "out": out.pointer,
        "out_group": out.stride[0] if len(out.size) == 3 else 0,
        "out_row": out.stride[-2],
    }
    for name, operand in (("a", a), ("b", b)):
        result[name] = operand.pointer
        result[f"{name}_group"], result[f"{name}_row"], result[f"{name}_col"] = strides(operand)
    return result
