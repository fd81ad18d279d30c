"""Lowerings of ``bi_inductor::matmul`` and ``scaled_matmul``. Numerics: 16 lanes of fma along K, folded by halves, scales and bias after,
one rounding (docs/numerics.md sections 3 and 12).
"""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import lowerings, register_lowering, to_dtype

from bi_inductor.templates.cpp_template import lower, on_triton
from bi_inductor.templates.library import Kernel, accumulation_dtype
from bi_inductor.templates.matmul import triton_lowering
from bi_inductor.templates.matmul.kernel import KERNEL, arguments
from bi_inductor.templates.matmul.template import MatmulTemplate

aten = torch.ops.aten


@register_lowering(torch.ops.bi_inductor.matmul.default, type_promotion_kind=None)
def matmul(a: TensorBox, b: TensorBox, bias: TensorBox | None = None, alpha: float = 1.0, beta: float = 1.0) -> TensorBox:
    """``alpha * a @ b + beta * bias`` for ``a`` [batch?, m, k] and ``b`` [batch?, k, n] of any strides."""
    if on_triton(a.get_device()):
        return triton_lowering.matmul(a, b, None if beta == 0 else bias, alpha, beta)
    return lower_matmul(KERNEL, a, b, bias, alpha, beta)


def lower_matmul(kernel: Kernel, a: TensorBox, b: TensorBox, bias: TensorBox | None, alpha: float, beta: float) -> TensorBox:
    """Adds a call of a kernel with matmul's parameters, and with epilogues, to the graph being lowered."""
    size = [*a.get_size()[:-1], b.get_size()[-1]]
    bias = None if beta == 0 else bias
    return lower(
        kernel,
        a.get_dtype(),
        {"a": a, "b": b, "bias": bias},
        size,
        lambda x, out: arguments(x["a"], x["b"], x["bias"], out, alpha, beta),
        template=MatmulTemplate,
    )


@register_lowering(torch.ops.bi_inductor.scaled_matmul.default, type_promotion_kind=None)
def scaled_matmul(
    a: TensorBox,
    b: TensorBox,
    dtype: torch.dtype,
    scale_a: TensorBox | None = None,
    scale_b: TensorBox | None = None,
    bias: TensorBox | None = None,
) -> TensorBox:
    """``a @ b * scale_a * scale_b + bias``: ``a`` [m, k], ``b`` [k, n] of float8 or int8; in C++ the matmul of the numbers they are."""
    if on_triton(a.get_device()):
        return triton_lowering.scaled_matmul(a, b, dtype, scale_a, scale_b, bias)
    if dtype == torch.int32:
        product: TensorBox = lowerings[aten._int_mm.default](a, b)
        return product
    wide = accumulation_dtype(a.get_dtype())
    result = matmul(to_dtype(a, wide), to_dtype(b, wide))
    for scale in (scale_a, scale_b):
        if scale is not None:
            result = lowerings[aten.mul.Tensor](result, to_dtype(scale, wide))
    if bias is not None:
        result = lowerings[aten.add.Tensor](result, to_dtype(bias, wide))
    rounded: TensorBox = to_dtype(result, dtype)
    return rounded
