"""Lowering of paged attention. Numerics: those of attention, one request at a time (docs/numerics.md section 8)."""

from __future__ import annotations

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering, to_dtype

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.paged_attention import triton_lowering
from bi_inductor.templates.paged_attention.kernel import KERNEL, arguments


@register_lowering(torch.ops.bi_inductor.paged_attention.default, type_promotion_kind=None)
def paged_attention(
    q: TensorBox, cache: TensorBox, table: TensorBox, starts: TensorBox, lengths: TensorBox, scale: float, window: int = 0
) -> TensorBox:
    """Attention of each request's last queries over its blocks of the cache."""
    if on_triton(q.get_device()):
        return triton_lowering.paged_attention(q, cache, table, starts, lengths, scale, window)
    numbers = {"table": table, "starts": starts, "lengths": lengths}
    inputs = {
        "q": contiguous(q),
        "cache": contiguous(cache),
        **{name: contiguous(to_dtype(tensor, torch.int64)) for name, tensor in numbers.items()},
    }
    return lower(
        KERNEL,
        q.get_dtype(),
        inputs,
        list(q.get_size()),
        lambda t, out: arguments(t["q"], t["cache"], t["table"], t["starts"], t["lengths"], scale, window, out),
    )
