"""Lowering of the sum over samples. Numerics: a tree over the samples in their order, every sum rounded (docs/numerics.md section 13)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.sample_sum import triton_lowering
from bi_inductor.templates.sample_sum.kernel import KERNEL, arguments


@register_lowering(torch.ops.bi_inductor.sample_sum.default, type_promotion_kind=None)
def sample_sum(x: TensorBox) -> TensorBox:
    """The sum [...] of ``x`` [samples, ...]."""
    if on_triton(x.get_device()):
        return triton_lowering.sample_sum(x)
    return lower(KERNEL, x.get_dtype(), {"x": contiguous(x)}, x.get_size()[1:], lambda t, out: arguments(t["x"], out))
