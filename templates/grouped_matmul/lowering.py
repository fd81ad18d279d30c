"""Lowering of the grouped matmul. Numerics: those of matmul, one group at a time (docs/numerics.md section 3)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering, to_dtype

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.grouped_matmul import triton_lowering
from bi_inductor.templates.grouped_matmul.kernel import KERNEL, arguments
from bi_inductor.templates.library import Kernel


@register_lowering(torch.ops.bi_inductor.grouped_matmul.default, type_promotion_kind=None)
def grouped_matmul(a: TensorBox, b: TensorBox, ends: TensorBox) -> TensorBox:
    """The matmul of each group of rows, columns or terms."""
    if on_triton(a.get_device()):
        return triton_lowering.grouped_matmul(a, b, ends)
    return lower_grouped_matmul(KERNEL, a, b, ends)


def lower_grouped_matmul(kernel: Kernel, a: TensorBox, b: TensorBox, ends: TensorBox) -> TensorBox:
    """Adds a call of a kernel with grouped_matmul's parameters to the graph being lowered."""
    groups = ends.get_size() if len(a.get_size()) == len(b.get_size()) else []
    size = [*groups, a.get_size()[-2], b.get_size()[-1]]
    inputs = {"ends": contiguous(to_dtype(ends, torch.int64)), "a": a, "b": b}
    return lower(kernel, a.get_dtype(), inputs, size, lambda t, out: arguments(t["a"], t["b"], t["ends"], out))
