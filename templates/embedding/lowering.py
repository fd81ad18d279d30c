"""Lowering of the embedding's backward. Numerics: one chain a table entry, positions in order, no atomics (docs/numerics.md section 9)."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering, to_dtype

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.embedding.kernel import KERNEL, arguments
from bi_inductor.templates.scatter import triton_lowering


@register_lowering(torch.ops.bi_inductor.embedding_backward.default, type_promotion_kind=None)
def embedding_backward(grad: TensorBox, index: TensorBox, rows: Any, padding_idx: int = -1) -> TensorBox:
    """Gradient [rows, width] of a table read at ``index``."""
    if on_triton(grad.get_device()):
        return triton_lowering.embedding_backward(grad, index, rows, padding_idx)
    inputs = {"grad": contiguous(grad), "index": contiguous(to_dtype(index, torch.int64))}
    size = [rows, grad.get_size()[-1]]
    return lower(KERNEL, grad.get_dtype(), inputs, size, lambda t, out: arguments(t["grad"], t["index"], padding_idx, out))
