"""Lowering of cumsum, cumprod and logcumsumexp. Numerics: one chain in index order, each prefix rounded (docs/numerics.md section 4)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import clone, register_lowering

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.cumsum import triton_lowering
from bi_inductor.templates.cumsum.kernel import CUMULATIONS, KERNEL, arguments


def _register(op: str) -> None:
    @register_lowering(getattr(torch.ops.bi_inductor, op).default, type_promotion_kind=None)
    def lowering(x: TensorBox, dim: int) -> TensorBox:
        ndim = len(x.get_size())
        if ndim == 0:
            result: TensorBox = clone(x)
            return result
        if on_triton(x.get_device()):
            return triton_lowering.cumulate(op, x, dim % ndim)
        inputs = {"x": contiguous(x)}
        return lower(KERNEL, x.get_dtype(), inputs, x.get_size(), lambda t, out: arguments(op, dim % ndim, t["x"], out))


for _op in CUMULATIONS:
    _register(_op)
