"""Inductor templates in Triton: one class serves every op, beside the C++ ones in ``cpp_template.py``.

A template is a jinja source, ``<folder>/kernel.py.jinja`` but for second kernels. What it is rendered with are constants of the op, the
operands' dtypes and one pinned configuration; sizes and strides reach it through Inductor. Results are rounded to the op's dtype before an
epilogue reads them.

Inductor internals, checked in torch 2.13.0: TritonTemplate (generate, its keyword arguments become constants of the source and names for
jinja), TritonTemplateKernel.store_output (takes values of float32, or of ACC_TYPE), SymbolicGridFn, ir.ReinterpretView.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config, ir
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import TritonTemplate
from torch._inductor.utils import triton_type
from torch._inductor.virtualized import V

from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.library import TEMPLATES, accumulation_dtype, read_source
from bi_inductor.templates.operand import product

# The jinja macros that a source may use.
MACROS = ("common/rows.py.jinja", "common/groups.py.jinja", "matmul/tile.py.jinja", "attention/slices.py.jinja")


@functools.cache
def template(folder: str, name: str, grid: Callable[..., tuple[Any, Any, Any]], source: str = "kernel", **settings: Any) -> TritonTemplate:
    """The template in ``<folder>/<source>.py.jinja`` as the kernel ``name``.

    Args:
        grid: a SymbolicGridFn of the call's sizes and the constants.
        settings: what selects the variant of the source; strings, truth values, and tuples of strings, which are no constants of Triton's.
    """
    given = "".join(f"{{%- set {key} = {value!r} -%}}\n" for key, value in settings.items())
    text = given + "".join(read_source((TEMPLATES / file).resolve()) for file in (*MACROS, f"{folder}/{source}.py.jinja"))
    return TritonTemplate(f"bi_{name}", grid, text)


def lower(
    kernel: TritonTemplate,
    inputs: Mapping[str, Any],
    size: Sequence[Any],
    constants: Mapping[str, Any],
    call_sizes: Sequence[Any],
    *,
    warps: int,
    stages: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
    stride: Sequence[Any] | None = None,
) -> ir.TensorBox:
    """Adds a call of ``kernel`` to the graph being lowered and returns its output.

    Args:
        kernel: the template.
        inputs: realized nodes by their name in the source.
        size: sizes of the output; ``stride`` its strides, row-major if None.
        constants: what the source is rendered with.
        call_sizes: arguments of the grid before the constants.
        warps, stages: of a program, and of its pipeline of loads.
        dtype: the dtype whose accumulation type the kernel computes in.
        out_dtype: dtype of the output, ``dtype`` if None.
    """
    nodes = list(inputs.values())
    out_dtype = out_dtype or dtype
    sizes = [sympy.sympify(n) for n in size]
    strides = None if stride is None else [sympy.sympify(n) for n in stride]
    # Inductor drops the mask of a store whose place is a constant, and every lane would write a lone element. A second one keeps the mask.
    lone = bool(sizes) and all(n == 1 for n in sizes)
    if lone:
        sizes, strides = [*sizes[:-1], sympy.Integer(2)], None
    layout = ir.FixedLayout(nodes[0].get_device(), out_dtype, sizes, strides)
    # Inductor computes epilogues in float32 or, where elements are float64 or integers, in these.
    result = out_dtype if out_dtype in (torch.float64, torch.int32) else torch.float32
    choice: Any = kernel.generate(
        input_nodes=tuple(nodes),
        layout=layout,
        num_stages=stages,
        num_warps=warps,
        call_sizes=[sympy.sympify(n) for n in call_sizes],
        ACC_TYPE=triton_type(result),
        ELEMENT=triton_type(out_dtype),
        RESULT=triton_type(result),
        # Inductor says this of the kernels that it writes itself and of no template. An epilogue has to compute what its own kernel would.
        triton_meta={
            "enable_fp_fusion": not config.emulate_precision_casts,
            "disable_ftz": config.eager_numerics.disable_ftz,
        },
        **{"ACCUMULATOR": triton_type(accumulation_dtype(dtype)), **constants},
    )
    out: ir.TensorBox = choice.output_node()
    return lowerings[torch.ops.aten.slice.Tensor](out, len(sizes) - 1, 0, 1) if lone else out


def constant(value: float) -> str:
    """A number as Python source."""
    return repr(float(value)) if math.isfinite(value) else f'float("{value}")'


def strided(node: Any, size: Sequence[Any], stride: Sequence[Any]) -> ir.ReinterpretView:
    """The storage of a realized ``node``, from its first element on, with other sizes and strides."""
    layout = node.get_layout()
    storage = node
    # A view of a view, as two unfolds make it, holds another one; its layout's offset counts from the storage all the same.
    while isinstance(storage, (ir.BaseView, ir.TensorBox)):
        storage = storage.data
    if not isinstance(storage, ir.StorageBox):
        storage = ir.StorageBox(storage)
    other = ir.FixedLayout(layout.device, layout.dtype, list(size), list(stride), layout.offset)
    return ir.ReinterpretView(data=storage, layout=other)


def broadcast(node: Any, size: list[Any]) -> ir.ReinterpretView:
    """A realized ``node`` as ``size``, with a stride of 0 along every dim that it is repeated over."""
    missing = len(size) - len(node.get_size())
    strides = [
        0 if V.graph.sizevars.statically_known_equals(n, 1) else stride
        for n, stride in zip(node.get_size(), node.get_layout().stride, strict=True)
    ]
    return strided(node, size, [0] * missing + strides)


@dataclasses.dataclass(frozen=True)
class Rows:
    """An operand as rows: ``node`` has ``outer`` dims that number the rows and then ``reduced`` dims that number a row's elements."""

    node: Any
    outer: int
    reduced: int
    rows: Any
    n: Any

    @property
    def constants(self) -> dict[str, int]:
        """What the macros of ``common/rows.py.jinja`` read."""
        return {"OUTER_DIMS": self.outer, "REDUCED_DIMS": self.reduced}


def rows_of(x: ir.TensorBox, reduced: Sequence[int]) -> Rows:
    """``x`` as rows over the ascending dims ``reduced``, without a copy: dims that are one run in memory are merged."""
    node = realized(x)
    sizes, strides = node.get_size(), node.get_layout().stride
    outer = [d for d in range(len(sizes)) if d not in reduced]
    merged = [_merged([(sizes[d], strides[d]) for d in dims]) for dims in (outer, reduced)]
    both = [*merged[0], *merged[1]]
    rows, n = (sympy.sympify(product([sizes[d] for d in dims])) for dims in (outer, reduced))
    return Rows(strided(node, [size for size, _ in both], [stride for _, stride in both]), len(merged[0]), len(merged[1]), rows, n)


def _merged(dims: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(size, stride) pairs without dims of size 1, neighbours merged where they are one run in memory for every batch."""
    result: list[tuple[Any, Any]] = []
    for size, stride in dims:
        if V.graph.sizevars.statically_known_equals(size, 1):
            continue
        if result and V.graph.sizevars.statically_known_equals(result[-1][1], size * stride):
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return result
