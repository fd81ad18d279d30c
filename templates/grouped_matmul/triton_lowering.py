"""The grouped matmul in Triton: a matmul for each group, on the tiles of matmul's table."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.virtualized import V

from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.grouped_matmul.configurations import GROUPED_DIMS, stages
from bi_inductor.templates.grouped_matmul.kernel import GROUPED
from bi_inductor.templates.matmul.configurations import CHAINED
from bi_inductor.templates.matmul.triton_lowering import chosen_for
from bi_inductor.templates.triton_template import lower, template


@SymbolicGridFn
def grid(m: Any, n: Any, row_groups: Any, column_groups: Any, products: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile, along x. Groups of rows (columns) and what comes after the last one begin a tile of their own each: as
    many more tiles at most as there are groups. Programs that find no tile left compute nothing.
    """
    return (cdiv(m, meta["BLOCK_M"]) + row_groups) * (cdiv(n, meta["BLOCK_N"]) + column_groups) * products, 1, 1


def grouped_matmul(a: ir.TensorBox, b: ir.TensorBox, ends: ir.TensorBox) -> ir.TensorBox:
    """The matmul of each group: ``a`` [m, k] by ``b`` [groups, k, n], [groups, m, k] by [k, n], or [m, k] by [k, n] with grouped k.

    ``ends`` [groups], of any integer dtype, is not checked: kernels have no errors. What does not ascend within the grouped dim gives
    results without meaning, read from and written to the operands alone.
    """
    dtype = a.get_dtype()
    grouped, grouped_size = GROUPED_DIMS[GROUPED[len(a.get_size()), len(b.get_size())]]
    m, k, n, groups = *a.get_size()[-2:], b.get_size()[-1], ends.get_size()[0]
    chosen = chosen_for(a.get_device(), dtype, n)
    chain = dtype in CHAINED
    kernel = template(
        "grouped_matmul",
        "_".join(["grouped_matmul", grouped, *([] if chain else ["runs"])]),
        grid,
        GROUPED=grouped,
        GROUPED_SIZE=grouped_size,
        CHAIN=chain,
    )
    even = grouped != "terms" and V.graph.sizevars.statically_known_multiple_of(k, chosen.block_k)
    return lower(
        kernel,
        {"A": realized(a), "B": realized(b), "ENDS": realized(ends)},
        [*([groups] if grouped == "terms" else []), m, n],
        {**chosen.constants, "EVEN_K": even},
        (m, n, groups if grouped == "rows" else 0, groups if grouped == "columns" else 0, groups if grouped == "terms" else 1),
        warps=chosen.warps,
        stages=stages(target_of(a.get_device()), chosen, dtype, grouped),
        dtype=dtype,
    )
