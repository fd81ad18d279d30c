"""Pointwise producers of a row kernel's input, computed where the kernel reads them instead of being stored and read back.

Inductor fuses producers into its own loops, and into Triton templates, but not into templates of C++. Here the template takes the
producer while it is lowered: an input that Inductor has not realized is handed over as the function that computes an element.

Numerics: the producer's elements are rounded to its dtype when they are stored for the kernel, as in a buffer of their own, so fused and
unfused give the same bits (docs/numerics.md section 1).

Inductor internals, checked in torch 2.13.0: TensorBox over StorageBox over an unrealized ir.Pointwise; dependencies.extract_read_writes
(reads, index_exprs, range_vars); FlexibleLayout.allow_indexing; CppTemplateKernel.store_pointwise_nodes; cpp_utils.LocalBufferContext;
CppKernel.store takes names with "buf" in them only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.cpp_template_kernel import CppTemplateKernel
from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP, LocalBufferContext
from torch._inductor.dependencies import MemoryDep, extract_read_writes
from torch._inductor.utils import sympy_index_symbol
from torch._inductor.virtualized import V

from bi_inductor.templates.operand import Operand, product

# The name, in the generated function, of the memory that a call of the prologue fills.
TERMS = "prologue_buffer"

# Shorter runs spend more time on finding their place than a buffer costs.
SHORTEST_RUN = 32


@dataclasses.dataclass(frozen=True)
class Prologue:
    """A tensor that is computed as a row-major [rows, terms].

    Attributes:
        pointwise: the producer, over the dims of the tensor.
        reads: the buffers it reads, each once.
        terms: the number of terms of a row.
        order: all dims but those of size 1: those of the rows, then those of the terms.
        joined: how many of the last dims of ``order`` are one run in memory of everything that is read.
    """

    pointwise: ir.Pointwise
    reads: tuple[ir.Buffer, ...]
    terms: Any
    order: tuple[int, ...]
    joined: int

    @property
    def operand(self) -> Operand:
        """The tensor as an operand without memory."""
        size = tuple(self.pointwise.get_size())
        return Operand(None, size, (0,) * len(size))

    def body(self, kernel: CppTemplateKernel, expression: Callable[[Any], str]) -> list[str]:
        """The C++ that defines ``prologue``; ``expression`` turns a size into C++."""
        size = self.pointwise.get_size()
        element = DTYPE_TO_CPP[self.pointwise.get_dtype()]
        separate, joined = self.order[: -self.joined], self.order[-self.joined :]
        run = expression(product([size[dim] for dim in joined]))
        if separate:
            body = [
                "for (int64_t done = 0, prologue_count; done < count; done += prologue_count) {",
                "const int64_t position = start + done;",
                f"const int64_t {_first(joined[-1])} = position % ({run});",
                *self._coordinates(f"position / ({run})", separate, expression),
                f"prologue_count = std::min<int64_t>(({run}) - {_first(joined[-1])}, count - done);",
                f"{element}* {TERMS} = terms + done;",
                self._loops(kernel),
                "}",
            ]
        else:
            body = [
                f"const int64_t {_first(joined[-1])} = start, prologue_count = count;",
                f"{element}* {TERMS} = terms;",
                self._loops(kernel),
            ]
        return [
            f"auto prologue = [&](int64_t row, int64_t begin, int64_t count, {element}* terms) {{",
            f"const int64_t start = row * ({expression(self.terms)}) + begin;",
            *body,
            "};",
        ]

    def function(self) -> str:
        """The C++ expression of the function that the kernel calls."""
        element = DTYPE_TO_CPP[self.pointwise.get_dtype()]
        return (
            "[](void* context, int64_t row, int64_t begin, int64_t count, void* terms) "
            f"{{ (*static_cast<decltype(prologue)*>(context))(row, begin, count, static_cast<{element}*>(terms)); }}"
        )

    def _coordinates(self, position: str, dims: Sequence[int], expression: Callable[[Any], str]) -> list[str]:
        """Declares the coordinates of the row-major ``position`` over ``dims``."""
        size = self.pointwise.get_size()
        lines = []
        for i, dim in enumerate(dims):
            below = expression(product([size[other] for other in dims[i + 1 :]]))
            wrapped = "" if i == 0 else f" % ({expression(size[dim])})"
            lines.append(f"const int64_t {_first(dim)} = {position} / ({below}){wrapped};")
        return lines

    def _loops(self, kernel: CppTemplateKernel) -> str:
        """The loops over one run of terms."""
        separate, last = self.order[: -self.joined], self.order[-1]

        def reindex(indices: list[Any]) -> list[Any]:
            # A run of joined dims is counted in the last of them.
            index: list[Any] = [sympy.S.Zero] * len(self.pointwise.get_size())
            for dim in (*separate, last):
                index[dim] = sympy_index_symbol(_first(dim))
            index[last] += indices[0]
            return index

        layout = ir.FixedLayout(torch.device("cpu"), self.pointwise.get_dtype(), [sympy_index_symbol("prologue_count")])
        terms = ir.Buffer(name=TERMS, layout=layout)
        with LocalBufferContext(kernel.args) as context:
            context.add_local_buffer(terms)
            code: str = kernel.store_pointwise_nodes(terms, [self.pointwise], reindexers=[reindex])
        return code


def _first(dim: int) -> str:
    """The C++ name of the coordinate along ``dim`` of the first element of a run."""
    return f"first{dim}"


def prologue_of(x: ir.TensorBox, inner: Sequence[int], terms: Any = None) -> Prologue | None:
    """The prologue that computes ``x``; None where a buffer of its own serves better.

    Args:
        x: the input of a row kernel.
        inner: its dims, ascending, that number the terms of a row. The others number the rows.
        terms: the length of a row; that of all ``inner`` dims if None. A row may be a part of them (a group of channels).

    A buffer serves better where Inductor has realized ``x`` (others use it too, or it takes long to compute), where something is read at a
    place that depends on data, and where neighbouring terms do not lie next to each other in what is read.
    """
    storage: Any = x.data
    while isinstance(storage, ir.BaseView):
        storage = storage.data
    if not isinstance(storage, ir.StorageBox) or type(storage.data) is not ir.Pointwise or not inner:
        return None
    size = list(x.get_size())
    loader = x.make_loader()
    with patch.object(ir.FlexibleLayout, "allow_indexing", True):
        accesses = extract_read_writes(loader, size)
    assert accesses.range_vars is not None
    variables = list(accesses.range_vars)
    reads = list(accesses.reads)
    if not reads or not all(isinstance(read, MemoryDep) and not read.is_indirect() for read in reads):
        return None
    strides = [[_stride(read.index, variable, variables) for variable in variables] for read in reads]
    order = [dim for dim in (*(dim for dim in range(len(size)) if dim not in inner), *inner) if size[dim] != 1] or [inner[-1]]
    if any(stride[order[-1]] not in (0, 1) for stride in strides):
        return None
    joined = 1
    while joined < len(order) and _are_one_run(strides, accesses.index_exprs, variables, size, order[-joined - 1], order[-joined:]):
        joined += 1
    run = product([size[dim] for dim in order[-joined:]])
    if joined < len(order) and V.graph.sizevars.optimization_hint(run, fallback=SHORTEST_RUN) < SHORTEST_RUN:
        return None
    buffers = [buffer for name in dict.fromkeys(read.name for read in reads) if (buffer := _buffer(name)) is not None]
    if len(buffers) < len({read.name for read in reads}):
        return None
    for buffer in buffers:
        buffer.freeze_layout()
    terms = product([size[dim] for dim in inner]) if terms is None else terms
    device = x.get_device()
    assert device is not None
    pointwise = ir.Pointwise(device=device, dtype=x.get_dtype(), inner_fn=loader, ranges=size)
    return Prologue(pointwise, tuple(buffers), terms, tuple(order), joined)


def _buffer(name: str) -> ir.Buffer | None:
    """The buffer of this name, if it has memory of its own."""
    node: Any = V.graph.try_get_buffer(name)
    while isinstance(node, (ir.TensorBox, ir.StorageBox)):
        node = node.data
    if not isinstance(node, ir.Buffer) or not isinstance(node.get_layout(), ir.Layout):
        return None
    return node


def _stride(index: Any, variable: Any, variables: Sequence[Any]) -> Any:
    """The step of ``index`` along ``variable``; None where it is not the same everywhere. A dim of size 1 has no variable and stride 0."""
    if not isinstance(variable, sympy.Symbol):
        return 0
    step = V.graph.sizevars.simplify(index.subs(variable, variable + 1) - index)
    return None if step.free_symbols & set(variables) else step


def _are_one_run(
    strides: list[list[Any]], index_exprs: Any, variables: Sequence[Any], size: Sequence[Any], dim: int, run: Sequence[int]
) -> bool:
    """Whether every read goes through ``dim`` and the joined dims ``run`` in equal steps, and nothing else reads their coordinates."""
    used = {variables[d] for d in (dim, *run)}
    if any(used & expression.index.free_symbols for expression in index_exprs):
        return False
    length = product([size[d] for d in run])
    return all(
        stride[dim] is not None and V.graph.sizevars.statically_known_equals(stride[dim], stride[run[-1]] * length) for stride in strides
    )
