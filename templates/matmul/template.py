"""The matmul template: the library kernel, with Inductor's epilogue nodes run on each region of the output while it is in cache.

Numerics: the epilogue reads results that were rounded to the op's dtype, so fused and unfused give the same bits
(docs/numerics.md section 1).

Inductor internals, checked in torch 2.13.0 to 2.15.0: CppTemplateKernel.slice_nd, local_buffers, args.inplace_buffers; aliases of
def_kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

from bi_inductor.templates.cpp_template import KernelTemplate
from bi_inductor.templates.epilogue import epilogue_loops

# The name, in the generated function, of the rounded results that the epilogue reads.
RESULTS = "matmul_results"


class MatmulTemplate(KernelTemplate):
    """A matmul with its epilogue.

    Where the results go before the epilogue: into the template's own buffer when others read it too; else into the epilogue's
    output when that has the same dtype and no input of the epilogue lies there; else into scratch.
    """

    renders_epilogue = True

    def render_with_epilogue(self, kernel: CppTemplateKernel, result: ir.CppTemplateBuffer, nodes: Sequence[Any], kept: bool) -> str:
        """The C++ of the call and of the epilogue."""
        matmul, final = result, nodes[-1]
        outputs: dict[str, ir.Buffer] = {"out": final}
        aliases: dict[str, str] | None = None
        if kept:
            outputs = {"matmul_out": matmul, "out": final}
        else:
            aliases = {matmul.get_name(): final.get_name()}
        signature = self.signature(kernel, outputs, aliases)
        results = self.results(kernel, matmul, final, kept)
        # A local name makes Inductor drop the buffer it stands for, so a buffer that others read keeps its own.
        source = matmul if kept else self.local_results(kernel, matmul)
        region = self.epilogue(kernel, source, matmul, final, nodes)
        call = self.call(
            kernel,
            self.operand(matmul, RESULTS),
            "[](void* context, int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1) "
            "{ (*static_cast<decltype(epilogue)*>(context))(b, m0, m1, n0, n1); }",
            "&epilogue",
        )
        body = [
            results,
            "auto epilogue = [&](int64_t b, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {",
            region,
            "};",
            *call,
        ]
        return self.function(self.header().getvalue(), signature, body)

    def results(self, kernel: CppTemplateKernel, matmul: ir.Buffer, final: ir.Buffer, has_other_users: bool) -> str:
        """Declares the memory that the matmul writes and the epilogue reads."""
        element = DTYPE_TO_CPP[matmul.get_dtype()]
        if has_other_users:
            return f"{element}* {RESULTS} = {kernel.args.output(matmul.get_name())};"
        if final.get_dtype() == matmul.get_dtype() and not kernel.args.inplace_buffers:
            return f"{element}* {RESULTS} = {kernel.args.output(final.get_name())};"
        numel = self.expression(kernel, matmul.get_numel())
        return f"std::unique_ptr<{element}[]> scratch(new {element}[{numel}]); {element}* {RESULTS} = scratch.get();"

    @staticmethod
    def local_results(kernel: CppTemplateKernel, matmul: ir.Buffer) -> ir.Buffer:
        """The results as a buffer of the generated function."""
        local = ir.Buffer(name=RESULTS, layout=ir.FixedLayout(torch.device("cpu"), matmul.get_dtype(), matmul.get_size()))
        kernel.local_buffers[RESULTS] = local
        return local

    def epilogue(self, kernel: CppTemplateKernel, results: ir.Buffer, matmul: ir.Buffer, final: ir.Buffer, nodes: Sequence[Any]) -> str:
        """The loops of the epilogue over one region [b, m0:m1, n0:n1]."""
        region = [("m0", "m1"), ("n0", "n1")]
        ranges = region if len(matmul.get_size()) == 2 else [("b", "b + 1"), *region]
        return epilogue_loops(kernel, kernel.slice_nd(results, ranges), matmul, final, nodes)
