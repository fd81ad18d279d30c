"""The loops of an epilogue: Inductor's consumers of a template's result, run on a region of it while it is in cache.

Inductor internals, checked in torch 2.13.0 to 2.15.0: CppTemplateKernel.slice_nd, store_output;
cpp_gemm_template.gen_2d_view_of_epilogue_buf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.cpp_gemm_template import gen_2d_view_of_epilogue_buf
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.utils import sympy_index_symbol


def epilogue_loops(kernel: CppTemplateKernel, source: Any, result: ir.Buffer, final: ir.Buffer, nodes: Sequence[Any]) -> str:
    """The C++ of the loops over one region, [m0:m1, n0:n1] or [b, m0:m1, n0:n1], named so in the code around.

    Args:
        kernel: the kernel being rendered.
        source: the region of the result, as the epilogue reads it.
        result: the template's whole result, 2-d or 3-d; ``final`` what the epilogue writes.
        nodes: Inductor's nodes of the epilogue.
    """
    view, _ = gen_2d_view_of_epilogue_buf(final, result, list(nodes), [], [None] * len(nodes))
    # One by one: images and their views as rows may be nodes of one epilogue.
    reindexers = [gen_2d_view_of_epilogue_buf(node, result, [node], [], [None])[1][0] for node in nodes]
    region = [("m0", "m1"), ("n0", "n1")]
    ranges = region if len(result.get_size()) == 2 else [("b", "b + 1"), *region]
    target: Any = kernel.slice_nd(view, ranges)
    if len(ranges) == 3:
        # Inductor leaves a loop of one step out when it looks for contiguous accesses, and then takes the rows for the columns.
        source, target = _without_first_dim(source), _without_first_dim(target)
        reindexers = [*(_in_entry(sympy_index_symbol("b"), reindexer) for reindexer in reindexers)]
    offsets = [start for start, _ in region]
    code: str = kernel.store_output(target, source, result, list(nodes), offsets=offsets, reindexers=reindexers)
    return code


def _without_first_dim(view: ir.ReinterpretView) -> ir.ReinterpretView:
    """``view`` [1, m, n] as [m, n]."""
    layout = view.get_layout()
    return ir.ReinterpretView(
        data=view.data, layout=ir.FixedLayout(layout.device, layout.dtype, layout.size[1:], layout.stride[1:], layout.offset)
    )


Reindexer = Callable[[list[Any]], list[Any]]


def _in_entry(b: Any, reindexer: Reindexer | None) -> Reindexer:
    """``reindexer`` of indices [b, m, n] as one of [m, n], in the batch entry ``b``."""
    return lambda indices: [b, *indices] if reindexer is None else reindexer([b, *indices])
