"""Lowering of ``bi_inductor::convolution``. Numerics: the matmul family's sum over (channel, kernel position), bias after, one rounding
(docs/numerics.md section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering, view

from bi_inductor.templates.convolution import triton_lowering
from bi_inductor.templates.convolution.kernel import KERNEL, arguments, output_sizes
from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.matmul.template import MatmulTemplate
from bi_inductor.templates.operand import product


@register_lowering(torch.ops.bi_inductor.convolution.default, type_promotion_kind=None)
def convolution(
    x: TensorBox,
    weight: TensorBox,
    bias: TensorBox | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> TensorBox:
    """``x`` [batch, channels, *size] with ``weight`` [out channels, channels / groups, *kernel]; the result is row-major."""
    if on_triton(x.get_device()):
        return triton_lowering.convolution(x, weight, bias, stride, padding, dilation, groups)
    batch, _, *size = x.get_size()
    out_channels, _, *kernel = weight.get_size()
    sizes = output_sizes(size, kernel, stride, padding, dilation)
    # The rows of the product are channels, its columns positions, as the epilogue of a matmul takes them.
    out = lower(
        KERNEL,
        x.get_dtype(),
        {"x": x, "weight": contiguous(weight), "bias": bias},
        [batch, out_channels, product(sizes)],
        lambda t, out: arguments(t["x"], t["weight"], t["bias"], out.pointer, stride, padding, dilation, groups),
        template=MatmulTemplate,
    )
    result: TensorBox = view(out, [batch, out_channels, *sizes])
    return result
