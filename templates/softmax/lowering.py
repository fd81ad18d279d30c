"""Lowering of softmax and log_softmax. Numerics: exact maximum, our exp, 128-lane sum, one division, one rounding
(docs/numerics.md section 6).
"""

from __future__ import annotations

import torch
from torch._inductor import lowering as inductor
from torch._inductor.ir import TensorBox

from bi_inductor.templates.cpp_template import contiguous, on_triton
from bi_inductor.templates.prologue import prologue_of
from bi_inductor.templates.row_template import lower_rows
from bi_inductor.templates.softmax import triton_lowering
from bi_inductor.templates.softmax.kernel import KERNEL, arguments


def _lower(log: bool, x: TensorBox, dim: int) -> TensorBox:
    size = list(x.get_size())
    ndim = len(size)
    if ndim == 0:
        return inductor.view(_lower(log, inductor.view(x, [1]), 0), [])
    dim %= ndim
    if on_triton(x.get_device()):
        return triton_lowering.softmax(log, x, dim)
    # The kernel's rows are contiguous; another dim is moved last and back, which changes no value.
    order = [i for i in range(ndim) if i != dim] + [dim]
    rows = inductor.permute(x, order) if dim != ndim - 1 else x
    prologue = prologue_of(rows, [ndim - 1])
    inputs = {} if prologue else {"x": contiguous(rows)}
    out = lower_rows(KERNEL, rows, 1, inputs, lambda t, out: arguments(log, t["x"], out), prologue)
    return inductor.permute(out, [order.index(i) for i in range(ndim)]) if dim != ndim - 1 else out


@inductor.register_lowering(torch.ops.bi_inductor.softmax.default, type_promotion_kind=None)
def softmax(x: TensorBox, dim: int) -> TensorBox:
    """Softmax of ``x`` along ``dim``."""
    return _lower(False, x, dim)


@inductor.register_lowering(torch.ops.bi_inductor.log_softmax.default, type_promotion_kind=None)
def log_softmax(x: TensorBox, dim: int) -> TensorBox:
    """Logarithm of the softmax of ``x`` along ``dim``."""
    return _lower(True, x, dim)
