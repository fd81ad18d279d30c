"""The kernel of the embedding's backward: its parameters, and how operands become arguments (docs/numerics.md section 9)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

KERNEL = register_kernel(
    "embedding",
    "embedding_backward",
    {
        "positions": Parameter.SIZE,
        "width": Parameter.SIZE,
        "rows": Parameter.SIZE,
        "padding_idx": Parameter.SIZE,
        "grad": Parameter.INPUT,
        "index": Parameter.SIZES,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)


def arguments(grad: Operand, index: Operand, padding_idx: int, out: Operand) -> dict[str, Any]:
    """Arguments for the gradient ``out`` [rows, width] of a table; ``grad`` [..., width] and int64 ``index`` [...] are contiguous."""
    return {
        "positions": product(index.size),
        "width": out.size[1],
        "rows": out.size[0],
        "padding_idx": padding_idx,
        "grad": grad.pointer,
        "index": index.pointer,
        "out": out.pointer,
    }
