"""The template of row kernels: a library kernel of rows, with Inductor's epilogue nodes run on its rows while they are in cache.

Numerics: the epilogue reads results that were rounded to the op's dtype, so fused and unfused give the same bits
(docs/numerics.md section 1).

Inductor internals, checked in torch 2.13.0 to 2.15.0: CppTemplateKernel.slice_nd; aliases of def_kernel; parse_expr_with_index_symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel, parse_expr_with_index_symbols
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

from bi_inductor.templates.cpp_template import Arguments, KernelTemplate, lower
from bi_inductor.templates.epilogue import epilogue_loops
from bi_inductor.templates.library import Kernel
from bi_inductor.templates.operand import product
from bi_inductor.templates.prologue import Prologue

# The name, in the generated function, of the rounded rows that the epilogue reads.
RESULTS = "row_results"


class RowTemplate(KernelTemplate):
    """A kernel of rows, its output [rows, n], with its epilogue.

    The rows stay in memory of the thread that made them, unless others read them too: then they go to the template's own buffer.
    """

    renders_epilogue = True

    def render_with_epilogue(self, kernel: CppTemplateKernel, result: ir.CppTemplateBuffer, nodes: Sequence[Any], kept: bool) -> str:
        """The C++ of the call and of the epilogue."""
        rows, final = result, nodes[-1]
        outputs: dict[str, ir.Buffer] = {"rows_out": rows, "out": final} if kept else {"out": final}
        signature = self.signature(kernel, outputs, None if kept else {rows.get_name(): final.get_name()})
        element = DTYPE_TO_CPP[rows.get_dtype()]
        source = self._region(kernel, rows, kept)
        loops = epilogue_loops(kernel, source, rows, final, nodes)
        operand = self.operand(rows, kernel.args.output(rows.get_name()) if kept else "nullptr")
        call = self.call(
            kernel,
            operand,
            "[](void* context, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const void* results) "
            f"{{ (*static_cast<decltype(epilogue)*>(context))(m0, m1, n0, n1, static_cast<const {element}*>(results)); }}",
            "&epilogue",
        )
        body = [
            *(self.prologue.body(kernel, lambda value: self.expression(kernel, value)) if self.prologue else ()),
            f"auto epilogue = [&](int64_t m0, int64_t m1, int64_t n0, int64_t n1, const {element}* {RESULTS}) {{",
            loops,
            "};",
            *call,
        ]
        return self.function(self.header().getvalue(), signature, body)

    @staticmethod
    def _region(kernel: CppTemplateKernel, rows: ir.Buffer, kept: bool) -> Any:
        """The rows of a region as the epilogue reads them."""
        if kept:
            # A local name makes Inductor drop the buffer it stands for.
            return kernel.slice_nd(rows, [("m0", "m1"), ("n0", "n1")])
        size = parse_expr_with_index_symbols(["m1 - m0", "n1 - n0"])
        return ir.Buffer(name=RESULTS, layout=ir.FixedLayout(torch.device("cpu"), rows.get_dtype(), size))


def lower_rows(
    kernel: Kernel,
    x: ir.TensorBox,
    inner_dims: int,
    inputs: Mapping[str, ir.TensorBox | None],
    arguments: Arguments,
    prologue: Prologue | None,
) -> ir.TensorBox:
    """Adds a call of ``kernel`` to the graph being lowered: rows of the last ``inner_dims`` dims of ``x``, an output of the shape of ``x``.

    The other arguments are those of ``lower``; ``inputs`` lacks "x" where there is a prologue.
    """
    size = list(x.get_size())
    split = len(size) - inner_dims
    rows = [product(size[:split]), product(size[split:])]
    out = lower(kernel, x.get_dtype(), inputs, rows, arguments, template=RowTemplate, prologue=prologue)
    result: ir.TensorBox = inductor.view(out, size)
    return result
