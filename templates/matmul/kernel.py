"""The matmul kernel: its parameters, and how operands become arguments (docs/numerics.md section 3)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand

PARAMETERS = {
    "batch": Parameter.SIZE,
    "m": Parameter.SIZE,
    "n": Parameter.SIZE,
    "k": Parameter.SIZE,
    "a": Parameter.INPUT,
    "a_batch": Parameter.SIZE,
    "a_row": Parameter.SIZE,
    "a_col": Parameter.SIZE,
    "b": Parameter.INPUT,
    "b_batch": Parameter.SIZE,
    "b_row": Parameter.SIZE,
    "b_col": Parameter.SIZE,
    "bias": Parameter.INPUT,
    "bias_batch": Parameter.SIZE,
    "bias_row": Parameter.SIZE,
    "bias_col": Parameter.SIZE,
    "alpha": Parameter.NUMBER,
    "beta": Parameter.NUMBER,
    "out": Parameter.OUTPUT,
    "out_batch": Parameter.SIZE,
    "out_row": Parameter.SIZE,
    "threads": Parameter.SIZE,
    "epilogue": Parameter.EPILOGUE,
    "epilogue_context": Parameter.CONTEXT,
}

KERNEL = register_kernel("matmul", "matmul", PARAMETERS)


def arguments(a: Operand, b: Operand, bias: Operand | None, out: Operand, alpha: float, beta: float) -> dict[str, Any]:
    """Arguments for ``out = alpha * a @ b + beta * bias``; ``a`` [batch?, m, k], ``b`` [batch?, k, n], ``bias`` broadcast to ``out``."""
    batched = len(out.size) == 3

    def strides(operand: Operand | None) -> tuple[Any, Any, Any]:
        if operand is None:
            return 0, 0, 0
        batch, row, col = operand.expanded(3).stride
        return batch, row, col

    result: dict[str, Any] = {
        "batch": out.size[0] if batched else 1,
        "m": out.size[-2],
        "n": out.size[-1],
        "k": a.size[-1],
        "alpha": alpha,
        "beta": beta,
        "epilogue": None,
        "epilogue_context": None,
        "out": out.pointer,
        "out_batch": out.stride[0] if batched else 0,
        "out_row": out.stride[-2],
    }
    for name, operand in (("a", a), ("b", b), ("bias", bias)):
        result[name] = None if operand is None else operand.pointer
        result[f"{name}_batch"], result[f"{name}_row"], result[f"{name}_col"] = strides(operand)
    return result
