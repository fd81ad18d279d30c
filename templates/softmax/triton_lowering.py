"""softmax and log_softmax in Triton."""

from __future__ import annotations

from torch._inductor import ir
from torch._inductor import lowering as inductor

from bi_inductor.templates.common.triton_rows import CONSTANTS, STAGES, WARPS, rows_grid
from bi_inductor.templates.triton_template import lower, rows_of, template


def softmax(log: bool, x: ir.TensorBox, dim: int) -> ir.TensorBox:
    """Softmax, or its logarithm, of ``x`` along ``dim`` >= 0, of any strides."""
    rows = rows_of(x, [dim])
    out = lower(
        template("softmax", "log_softmax" if log else "softmax", rows_grid, LOG=log),
        {"X": rows.node},
        [rows.rows, rows.n],
        {**CONSTANTS, **rows.constants},
        (rows.rows, 1),
        warps=WARPS,
        stages=STAGES,
        dtype=x.get_dtype(),
    )
    size = list(x.get_size())
    order = [i for i in range(len(size)) if i != dim] + [dim]
    out = inductor.view(out, [size[i] for i in order])
    result: ir.TensorBox = inductor.permute(out, [order.index(i) for i in range(len(size))])
    return result
