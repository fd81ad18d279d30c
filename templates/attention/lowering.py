"""Lowering of attention. Numerics: exact maximum, our exp, sums over keys in lanes, masked keys skipped (docs/numerics.md section 8)."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering
from torch._inductor.utils import convert_shape_to_inductor
from torch._inductor.virtualized import V

from bi_inductor.templates.attention import kernel as attention_kernel
from bi_inductor.templates.attention import triton_lowering
from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.operand import Operand


def _rows(x: TensorBox) -> TensorBox:
    """``x`` with a last dim of stride 1; Inductor's require_stride1 is content with any dim of stride 1."""
    stride = x.maybe_get_stride()
    if stride is not None and V.graph.sizevars.statically_known_equals(stride[-1], 1):
        return x
    return contiguous(x)


@register_lowering(torch.ops.bi_inductor.attention.default, type_promotion_kind=None)
def attention(
    q: TensorBox,
    k: TensorBox,
    v: TensorBox,
    mask: TensorBox | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> TensorBox:
    """Attention of ``q`` [batch, heads, queries, dim] over ``k``, ``v`` [batch, kv_heads, keys, dim]."""

    kind = attention_kernel.mask_kind(None if mask is None else mask.get_dtype())
    factor = attention_kernel.default_scale(q.get_size()[-1], scale)

    fake = V.graph.current_node.meta["val"]
    size, stride = (convert_shape_to_inductor(numbers) for numbers in (fake.shape, fake.stride()))
    if on_triton(q.get_device()):
        return triton_lowering.attention(q, k, v, mask, is_causal, factor, list(stride))

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        values = attention_kernel.arguments(t["q"], t["k"], t["v"], t["mask"], kind, is_causal, factor)
        strides = dict(zip(("out_batch", "out_head", "out_row"), out.stride, strict=False))
        return {**values, "out": out.pointer, **strides}

    inputs = {"q": _rows(q), "k": _rows(k), "v": _rows(v), "mask": mask}
    return lower(attention_kernel.KERNEL, q.get_dtype(), inputs, size, arguments, stride=stride)


@register_lowering(torch.ops.bi_inductor.attention_lse.default, type_promotion_kind=None)
def attention_lse(
    q: TensorBox, k: TensorBox, mask: TensorBox | None = None, is_causal: bool = False, scale: float | None = None
) -> TensorBox:
    """Logarithm of each row's sum of exponentials, [batch, heads, queries]."""

    kind = attention_kernel.mask_kind(None if mask is None else mask.get_dtype())
    factor = attention_kernel.default_scale(q.get_size()[-1], scale)

    if on_triton(q.get_device()):
        return triton_lowering.attention(q, k, None, mask, is_causal, factor)

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        k_operand = t["k"]
        assert k_operand is not None
        v = Operand(k_operand.pointer, (*k_operand.size[:3], 0), k_operand.stride)
        values = attention_kernel.arguments(t["q"], t["k"], v, t["mask"], kind, is_causal, factor)
        return {**values, "lse": out.pointer}

    inputs = {"q": _rows(q), "k": _rows(k), "mask": mask}
    size = list(q.get_size())[:3]
    return lower(attention_kernel.KERNEL, q.get_dtype(), inputs, size, arguments, out_dtype=accumulation_dtype(q.get_dtype()))
