"""Lowering of ``bi_inductor::matmul``. Numerics: 16 lanes of fma along K, folded by halves, bias after, one rounding
(docs/numerics.md section 3).
"""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering

from bi_inductor.templates.cpp_template import lower, on_triton
from bi_inductor.templates.matmul import triton_lowering
from bi_inductor.templates.matmul.kernel import KERNEL, arguments
from bi_inductor.templates.matmul.template import MatmulTemplate


@register_lowering(torch.ops.bi_inductor.matmul.default, type_promotion_kind=None)
def matmul(a: TensorBox, b: TensorBox, bias: TensorBox | None = None, alpha: float = 1.0, beta: float = 1.0) -> TensorBox:
    """``alpha * a @ b + beta * bias`` for ``a`` [batch?, m, k] and ``b`` [batch?, k, n] of any strides."""
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    bias = None if beta == 0 else bias
    if on_triton(a.get_device()):
        return triton_lowering.matmul(a, b, bias, alpha, beta)
    return lower(
        KERNEL,
        a.get_dtype(),
        {"a": a, "b": b, "bias": bias},
        size,
        lambda x, out: arguments(x["a"], x["b"], x["bias"], out, alpha, beta),
        template=MatmulTemplate,
    )
