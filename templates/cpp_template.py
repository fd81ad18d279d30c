"""Inductor templates that call a kernel of the library: one class serves every op.

Inductor internals, checked in torch 2.13.0 to 2.15.0: CppTemplate (render, generate, input_nodes, output_node), CppTemplateKernel
(def_kernel, args.sizevars, rename_indexing), ir.ExternKernel.realize_input and require_*, V.graph.wrapper_code.add_import_once,
TemplateBuffer.allow_epilogue_fusion, cpp_utils.cexpr_index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config, ir
from torch._inductor.codegen.cpp_template import CppTemplate
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import cexpr_index
from torch._inductor.codegen.wrapper import pexpr
from torch._inductor.utils import parallel_num_threads
from torch._inductor.virtualized import V

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.bundle import OPAQUE_ELEMENTS
from bi_inductor.templates.library import DTYPES, Kernel, Parameter, start_loading
from bi_inductor.templates.operand import Address, Operand
from bi_inductor.templates.prologue import Prologue

# From the operands by parameter name (None for an absent one) and the output.
Arguments = Callable[[dict[str, Any], Operand], dict[str, Any]]


@dataclasses.dataclass(eq=False)
class RuntimeNumber:
    """A size or stride that the generated Python passes at each call; the text is Python.

    It stands where Inductor keeps the symbol of a size (KernelArgs.sizevars), which it only prints.
    """

    value: sympy.Expr

    def __str__(self) -> str:
        text: str = pexpr(V.graph.sizevars.simplify(self.value))
        return text


class RuntimeNumbers:
    """Makes sizes and strides arguments of the generated function, in the order of their use.

    Calls of one kernel then have one C++ source, compiled once, whatever their sizes; only an epilogue needs a source of its own.
    """

    def __init__(self, kernel: CppTemplateKernel) -> None:
        self.arguments: dict[Any, str] = kernel.args.sizevars
        self.arguments.clear()

    def argument(self, value: Any) -> str:
        """The C++ name of a new argument that carries ``value``."""
        name = f"n{len(self.arguments)}"
        self.arguments[RuntimeNumber(sympy.sympify(value))] = name
        return name


def on_triton(device: torch.device | None) -> bool:
    """Whether the graph being lowered runs ``device`` through Triton."""
    assert device is not None
    return device.type != "cpu" or config.cpu_backend == "triton"


def no_triton_template(name: str, device: torch.device) -> UnsupportedOpError:
    """The error for a kernel that exists in C++ only."""
    line = f"\n{V.graph.current_node.stack_trace}" if V.graph.current_node.stack_trace else ""
    return UnsupportedOpError(
        f"kernel {name!r} has no Triton template yet, so it cannot run on {device.type}; run the op on the CPU, or leave it out of the "
        f"compiled part with torch.compiler.disable.{line}"
    )


def realized(node: ir.TensorBox) -> Any:
    """``node`` as a buffer or a strided view of one; its layout no longer changes."""
    result = ir.ExternKernel.realize_input(node)
    result.freeze_layout()
    return result


def contiguous(node: ir.TensorBox) -> ir.TensorBox:
    """``node`` in row-major order; copies when it is not."""
    result: ir.TensorBox = ir.ExternKernel.require_contiguous(node)  # type: ignore[assignment]  # a TensorBox stays one
    return result


class KernelTemplate(CppTemplate):
    """One call of a library kernel as an Inductor template.

    Args:
        kernel: the kernel to call.
        dtype: the dtype it is instantiated for.
        inputs: realized input nodes by parameter name; None passes a null pointer.
        layout: layout of the output.
        arguments: builds the kernel's arguments from the operands.
        prologue: computes the input ``x``, which ``inputs`` then lacks.
    """

    renders_epilogue = False

    def __init__(
        self,
        kernel: Kernel,
        dtype: torch.dtype,
        inputs: Mapping[str, Any],
        layout: ir.Layout,
        arguments: Arguments,
        prologue: Prologue | None = None,
    ) -> None:
        nodes = [*(node for node in inputs.values() if node is not None), *(prologue.reads if prologue else ())]
        super().__init__(f"bi_{kernel.name}", nodes, layout, parallel_num_threads())
        self.library_kernel = kernel
        self.kernel_dtype = dtype
        self.inputs = inputs
        self.arguments = arguments
        self.prologue = prologue
        start_loading(kernel, dtype)

    def render(  # type: ignore[override]  # the base takes only keyword arguments
        self,
        kernel: CppTemplateKernel,
        template_buffer_node: ir.CppTemplateBuffer | None = None,
        flag_template_buffer_has_other_users: bool | None = None,
        epilogue_nodes: Sequence[ir.IRNode] | None = None,
        **kwargs: Any,
    ) -> str:
        """The C++ of the call, and of the epilogue where there is one."""
        if template_buffer_node is None:
            # generate() renders once for a benchmark that never runs; only the declared buffers are read.
            output: Any = self.output_node
            return self.signature(kernel, {"out": output})
        self.load_library()
        if epilogue_nodes:
            return self.render_with_epilogue(kernel, template_buffer_node, epilogue_nodes, bool(flag_template_buffer_has_other_users))
        signature = self.signature(kernel, {"out": template_buffer_node})
        operand = self.operand(template_buffer_node, kernel.args.output(template_buffer_node.get_name()))
        if self.prologue is not None:
            body = self.prologue.body(kernel, lambda value: self.expression(kernel, value))
            return self.function(self.header().getvalue(), signature, [*body, *self.call(kernel, operand)])
        if V.graph.cpp_wrapper:
            # One source for the whole graph, with Inductor's headers and sizes under their own names.
            return self.function(self.header().getvalue(), signature, self.call(kernel, operand))
        numbers = RuntimeNumbers(kernel)
        return self.function(OPAQUE_ELEMENTS, signature, self.call(kernel, operand, number=numbers.argument))

    def render_with_epilogue(self, kernel: CppTemplateKernel, result: ir.CppTemplateBuffer, nodes: Sequence[Any], kept: bool) -> str:
        """The C++ of the call and of the epilogue ``nodes``; ``kept``: others read the result too.

        Raises:
            AssertionError: Inductor hands an epilogue to a template that renders none.
        """
        raise AssertionError(f"{self.name} renders no epilogue")

    def load_library(self) -> None:
        """Makes the generated module build and load the library before its kernels. A graph in C++ has the kernels' sources instead."""
        if V.graph.cpp_wrapper:
            return
        symbol = self.library_kernel.symbol(self.kernel_dtype)
        # Inductor's generated module writes `async_compile = AsyncCompile()` after its imports.
        V.graph.wrapper_code.add_import_once("from bi_inductor.templates.bundle import BundledCompile as AsyncCompile")
        V.graph.wrapper_code.add_import_once("import bi_inductor.templates.bundle")
        V.graph.wrapper_code.add_import_once(
            f"bi_inductor.templates.bundle.require({self.library_kernel.name!r}, {DTYPES[self.kernel_dtype].name!r}, {symbol!r})"
        )

    def function(self, header: str, signature: str, body: Sequence[str]) -> str:
        """The C++ function that Inductor compiles."""
        library = self.library_kernel
        embedded = library.embedded(self.kernel_dtype) if V.graph.cpp_wrapper else ""
        declaration = embedded + library.declaration(self.kernel_dtype)
        threads = ["#include <omp.h>"] if config.cpp.dynamic_threads else []
        lines = [header, *threads, declaration, 'extern "C"', signature, "{", *("  " + line for line in body), "}", ""]
        return "\n".join(lines)

    def signature(self, kernel: CppTemplateKernel, outputs: dict[str, ir.Buffer], aliases: dict[str, str] | None = None) -> str:
        """Declares the buffers to Inductor; a buffer that is several operands (q, k, v of one projection) is one argument."""
        buffers: dict[str, ir.Buffer] = {}
        sizes: list[sympy.Expr] = []
        for node in self.input_nodes:
            if all(node.get_name() != other.get_name() for other in buffers.values()):
                buffers[f"in{len(buffers)}"] = node
            layout = node.get_layout()
            sizes.extend(sympy.sympify(size) for size in (layout.offset, *layout.size, *layout.stride))
        definition: str = kernel.def_kernel(inputs=buffers, outputs=outputs, aliases=aliases, extra_sizevars=sizes)
        return definition

    def call(
        self,
        kernel: CppTemplateKernel,
        output: Operand,
        epilogue: str = "nullptr",
        context: str = "nullptr",
        number: Callable[[Any], str] | None = None,
    ) -> list[str]:
        """The statements that call the library kernel.

        ``epilogue`` and ``context`` are C++ expressions; ``number`` turns a size or stride into C++, as an expression if None.
        """
        number = number or (lambda value: self.expression(kernel, value))
        operands = {
            name: None if node is None else self.operand(node, kernel.args.input(node.get_name())) for name, node in self.inputs.items()
        }
        if self.prologue is not None:
            operands["x"] = self.prologue.operand
        values = self.arguments(operands, output)
        given = {
            "threads": "omp_get_max_threads()" if config.cpp.dynamic_threads else str(parallel_num_threads()),
            "epilogue": epilogue,
            "epilogue_context": context,
            "prologue": self.prologue.function() if self.prologue else "nullptr",
            "prologue_context": "&prologue" if self.prologue else "nullptr",
        }
        statements, arguments = [], []
        for name, kind in self.library_kernel.parameters:
            value: Any = values.get(name)
            if name in given:
                arguments.append(given[name])
            elif kind is Parameter.SIZES and not isinstance(value, Address):
                sizes = ", ".join(number(size) for size in value) or "0"
                statements.append(f"const int64_t {name}[] = {{{sizes}}};")
                arguments.append(name)
            elif value is None:
                arguments.append("nullptr")
            elif isinstance(value, Address):
                arguments.append(value.base if value.offset == 0 else f"{value.base} + {number(value.offset)}")
            elif kind is Parameter.NUMBER:
                arguments.append(c_number(float(value)))
            else:
                arguments.append(number(value))
        return [*statements, f"{self.library_kernel.symbol(self.kernel_dtype)}({', '.join(arguments)});"]

    def expression(self, kernel: CppTemplateKernel, value: Any) -> str:
        """A size or stride as C++."""
        text: str = cexpr_index(kernel.rename_indexing(sympy.sympify(value)))
        return text

    @staticmethod
    def operand(node: ir.Buffer, name: str) -> Operand:
        """The operand of a node whose storage the generated function calls ``name``."""
        layout = node.get_layout()
        return Operand(Address(name, layout.offset), tuple(layout.size), tuple(layout.stride))


def c_number(value: float) -> str:
    """A double literal that reads back to the same bits."""
    if value != value:
        return "std::numeric_limits<double>::quiet_NaN()"
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + "std::numeric_limits<double>::infinity()"
    return value.hex()


def lower(
    kernel: Kernel,
    dtype: torch.dtype,
    inputs: Mapping[str, ir.TensorBox | None],
    size: Sequence[Any],
    arguments: Arguments,
    *,
    stride: Sequence[Any] | None = None,
    out_dtype: torch.dtype | None = None,
    template: type[KernelTemplate] = KernelTemplate,
    prologue: Prologue | None = None,
) -> ir.TensorBox:
    """Adds a call of ``kernel`` to the graph being lowered and returns its output.

    Args:
        kernel: library kernel to call.
        dtype: element dtype it is instantiated for.
        inputs: tensors by parameter name, None for absent ones. Callers make them contiguous where the kernel needs it.
        size: sizes of the output; ``stride`` its strides, row-major if None; ``out_dtype`` its dtype, ``dtype`` if None.
        arguments: builds the kernel's arguments from the operands.
        prologue: computes the input ``x``, which ``inputs`` then lacks.

    Raises:
        UnsupportedOpError: the graph runs on a GPU, for which the kernel has no template yet.
    """
    nodes = {name: None if node is None else realized(node) for name, node in inputs.items()}
    sources = [node for node in nodes.values() if node is not None] + ([prologue.pointwise] if prologue else [])
    device: torch.device = sources[0].get_device()
    if on_triton(device):
        raise no_triton_template(kernel.name, device)
    layout = ir.FixedLayout(
        device,
        out_dtype or dtype,
        [sympy.sympify(n) for n in size],
        None if stride is None else [sympy.sympify(n) for n in stride],
    )
    caller: Any = template(kernel, dtype, nodes, layout, arguments, prologue).generate()  # type: ignore[no-untyped-call]  # Inductor's
    result: Any = caller.output_node()
    result.data.data.allow_epilogue_fusion = template.renders_epilogue
    return result  # type: ignore[no-any-return]  # a TensorBox
