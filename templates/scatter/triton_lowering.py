"""scatter and the embedding's backward in Triton."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.virtualized import V

from bi_inductor.templates.common.triton_rows import STAGES, WARPS
from bi_inductor.templates.cpp_template import contiguous, realized
from bi_inductor.templates.operand import product
from bi_inductor.templates.scatter.configurations import CONSTANTS
from bi_inductor.templates.triton_template import broadcast, lower, template

# A value of SKIPPED that is no row.
NOTHING = -1


@SymbolicGridFn
def grid(places: Any, columns: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each block of ``columns`` of each of ``places``, along x."""
    return places * cdiv(columns, meta["BLOCK"]), 1, 1


def scatter(x: ir.TensorBox, dim: int, index: ir.TensorBox, src: ir.TensorBox, reduce: str, include_self: bool) -> ir.TensorBox:
    """``src`` reduced into ``x`` along ``dim`` >= 0; ``index`` has the shape of ``src``, or one dim: a whole slice each.

    Indices are not checked: an element whose index is out of bounds goes nowhere.
    """
    size = list(x.get_size())
    outer, rows, columns = product(size[:dim]), size[dim], product(size[dim + 1 :])
    count = src.get_size()[dim]
    slices = len(index.get_size()) == 1
    # Slices of one element would leave a warp with one lane to work.
    shared = slices and not V.graph.sizevars.statically_known_equals(columns, 1)
    if shared:
        places = realized(index)
    else:
        places = broadcast(_columns(index, 1 if slices else outer, count, columns), [outer, count, columns])
    out = lower(
        template(
            "scatter",
            "_".join(["scatter", reduce, *([] if include_self else ["without_self"]), *(["slices"] if shared else [])]),
            grid,
            NAMES=("SELF", "INDEX", "SRC"),
            REDUCE=reduce,
            SHARED_INDEX=shared,
        ),
        {"SELF": _columns(x, outer, rows, columns), "INDEX": places, "SRC": _columns(src, outer, count, columns)},
        [outer, rows, columns],
        {**CONSTANTS, "INCLUDE_SELF": include_self, "SKIPPED": NOTHING},
        (outer * rows, columns) if shared else (1, outer * rows * columns),
        warps=WARPS,
        stages=STAGES,
        dtype=x.get_dtype(),
    )
    return inductor.view(out, size)


def embedding_backward(grad: ir.TensorBox, index: ir.TensorBox, rows: Any, padding_idx: int) -> ir.TensorBox:
    """The gradient [rows, width] of a table read at ``index``: a sum of slices of ``grad`` [..., width], from +0."""
    width = grad.get_size()[-1]
    positions = product(index.get_size())
    out = lower(
        template("scatter", "embedding_backward", grid, NAMES=("INDEX", "SRC"), REDUCE="sum", SHARED_INDEX=True),
        {"INDEX": realized(inductor.view(contiguous(index), [positions])), "SRC": _columns(grad, 1, positions, width)},
        [1, rows, width],
        {**CONSTANTS, "INCLUDE_SELF": False, "SKIPPED": max(padding_idx, NOTHING)},
        (rows, width),
        warps=WARPS,
        stages=STAGES,
        dtype=grad.get_dtype(),
    )
    return inductor.view(out, [rows, width])


def _columns(x: ir.TensorBox, outer: Any, rows: Any, columns: Any) -> Any:
    """``x`` realized as [outer, rows, columns]."""
    return realized(inductor.view(contiguous(x), [outer, rows, columns]))
