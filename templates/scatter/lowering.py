"""Lowering of scatter. Numerics: one chain for each element written, in the order of the index, no atomics (docs/numerics.md section 9)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering, to_dtype

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.scatter import triton_lowering
from bi_inductor.templates.scatter.kernel import KERNEL, arguments


@register_lowering(torch.ops.bi_inductor.scatter.default, type_promotion_kind=None)
def scatter(x: TensorBox, dim: int, index: TensorBox, src: TensorBox, reduce: str, include_self: bool = True) -> TensorBox:
    """``x`` with the slices of ``src`` along ``dim`` written or reduced into the places that ``index`` names."""
    size = x.get_size()
    if on_triton(x.get_device()):
        return triton_lowering.scatter(x, dim % len(size), index, src, reduce, include_self)
    inputs = {"self": contiguous(x), "index": contiguous(to_dtype(index, torch.int64)), "src": contiguous(src)}
    return lower(
        KERNEL,
        x.get_dtype(),
        inputs,
        size,
        lambda t, out: {**arguments(reduce, include_self, dim % len(size), t["self"], t["index"], t["src"]), "out": out.pointer},
    )
