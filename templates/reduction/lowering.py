"""Lowering of the reductions. Numerics: 128 lanes along the reduced index, folded by halves, one rounding (docs/numerics.md section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering

from bi_inductor.templates.cpp_template import lower, on_triton
from bi_inductor.templates.prologue import prologue_of
from bi_inductor.templates.reduction import triton_lowering
from bi_inductor.templates.reduction.kernel import KERNEL_OF, arguments


def _lower(op: str, x: TensorBox, dims: Sequence[int], keepdim: bool, correction: float) -> TensorBox:
    ndim = len(x.get_size())
    reduced = sorted(dim % ndim for dim in dims) if dims and ndim else list(range(ndim))
    size = [1 if i in reduced else n for i, n in enumerate(x.get_size()) if keepdim or i not in reduced]
    if on_triton(x.get_device()):
        return triton_lowering.reduce(op, x, reduced, size, correction)
    prologue = None if op == "prod" else prologue_of(x, reduced)
    inputs = {} if prologue else {"x": x}
    return lower(
        KERNEL_OF[op], x.get_dtype(), inputs, size, lambda t, out: arguments(op, t["x"], reduced, correction, out), prologue=prologue
    )


def _register(op: str) -> Callable[..., TensorBox]:
    @register_lowering(getattr(torch.ops.bi_inductor, op).default, type_promotion_kind=None)
    def lowering(x: TensorBox, dims: Sequence[int], keepdim: bool = False, correction: float = 1.0) -> TensorBox:
        return _lower(op, x, dims, keepdim, correction)

    return lowering


for _op in ("sum", "mean", "prod", "var", "std"):
    _register(_op)
