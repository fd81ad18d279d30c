"""Lowering of cumsum. Numerics: one chain in index order, each prefix rounded on its own (docs/numerics.md section 4)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import clone, register_lowering

from bi_inductor.templates.cpp_template import contiguous, lower
from bi_inductor.templates.cumsum.kernel import KERNEL, arguments


@register_lowering(torch.ops.bi_inductor.cumsum.default, type_promotion_kind=None)
def cumsum(x: TensorBox, dim: int) -> TensorBox:
    """Running sum along ``dim``."""
    ndim = len(x.get_size())
    if ndim == 0:
        result: TensorBox = clone(x)
        return result
    inputs = {"x": contiguous(x)}
    return lower(KERNEL, x.get_dtype(), inputs, x.get_size(), lambda t, out: arguments(dim % ndim, t["x"], out))
