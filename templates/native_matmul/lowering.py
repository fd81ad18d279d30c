"""Lowerings of ``bi_inductor::native_matmul`` and ``native_grouped_matmul``. Numerics: sixteen lanes of pairs of products along K by the
CPU's own instruction, folded by halves, bias after, one rounding (docs/numerics.md section 3, native bfloat16).
"""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering

from bi_inductor.native_bfloat16 import require_native_bfloat16
from bi_inductor.templates.cpp_template import on_triton
from bi_inductor.templates.grouped_matmul.lowering import lower_grouped_matmul
from bi_inductor.templates.matmul.lowering import lower_matmul
from bi_inductor.templates.native_matmul.kernel import GROUPED_KERNEL, KERNEL


def _require(a: TensorBox) -> None:
    device = a.get_device()
    assert device is not None
    require_native_bfloat16("triton" if on_triton(device) else "cpp", device.type)


@register_lowering(torch.ops.bi_inductor.native_matmul.default, type_promotion_kind=None)
def native_matmul(a: TensorBox, b: TensorBox, bias: TensorBox | None = None, alpha: float = 1.0, beta: float = 1.0) -> TensorBox:
    """``alpha * a @ b + beta * bias`` in bfloat16 for ``a`` [batch?, m, k] and ``b`` [batch?, k, n] of any strides."""
    _require(a)
    return lower_matmul(KERNEL, a, b, bias, alpha, beta)


@register_lowering(torch.ops.bi_inductor.native_grouped_matmul.default, type_promotion_kind=None)
def native_grouped_matmul(a: TensorBox, b: TensorBox, ends: TensorBox) -> TensorBox:
    """The native matmul of each group of rows, columns or terms."""
    _require(a)
    return lower_grouped_matmul(GROUPED_KERNEL, a, b, ends)
