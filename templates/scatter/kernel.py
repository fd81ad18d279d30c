"""The scatter kernel: its parameters, and how operands become arguments (docs/numerics.md section 9)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

KERNEL = register_kernel(
    "scatter",
    "scatter",
    {
        "reduce": Parameter.SIZE,
        "include_self": Parameter.SIZE,
        "outer": Parameter.SIZE,
        "rows": Parameter.SIZE,
        "columns": Parameter.SIZE,
        "count": Parameter.SIZE,
        "self": Parameter.INPUT,
        "index": Parameter.SIZES,
        "index_outer": Parameter.SIZE,
        "index_row": Parameter.SIZE,
        "index_column": Parameter.SIZE,
        "src": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)

# The values of `reduce` in kernel.h.
REDUCTIONS = ("set", "sum", "prod", "amax", "amin", "mean")


def arguments(reduce: str, include_self: bool, dim: int, x: Operand, index: Operand, src: Operand) -> dict[str, Any]:
    """Arguments for contiguous ``x``, ``src`` and ``index``; ``index`` has the shape of ``src``, or one dim: a whole slice each."""
    columns, count = product(x.size[dim + 1 :]), src.size[dim]
    shared = len(index.size) == 1
    return {
        "reduce": REDUCTIONS.index(reduce),
        "include_self": int(include_self),
        "outer": product(x.size[:dim]),
        "rows": x.size[dim],
        "columns": columns,
        "count": count,
        "self": x.pointer,
        "index": index.pointer,
        "index_outer": 0 if shared else count * columns,
        "index_row": 1 if shared else columns,
        "index_column": 0 if shared else 1,
        "src": src.pointer,
    }
