"""The paged attention kernel: its parameters, and how operands become arguments (docs/numerics.md section 8)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand

KERNEL = register_kernel(
    "paged_attention",
    "paged_attention",
    {
        "requests": Parameter.SIZE,
        "heads": Parameter.SIZE,
        "kv_heads": Parameter.SIZE,
        "head_dim": Parameter.SIZE,
        "block_size": Parameter.SIZE,
        "q": Parameter.INPUT,
        "q_row": Parameter.SIZE,
        "q_head": Parameter.SIZE,
        "cache": Parameter.INPUT,
        "table": Parameter.SIZES,
        "table_row": Parameter.SIZE,
        "starts": Parameter.SIZES,
        "lengths": Parameter.SIZES,
        "window": Parameter.SIZE,
        "scale": Parameter.NUMBER,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
    },
)


def arguments(
    q: Operand, cache: Operand, table: Operand, starts: Operand, lengths: Operand, scale: float, window: int, out: Operand
) -> dict[str, Any]:
    """Arguments for ``q`` [tokens, heads, head_dim] with a last dim of stride 1; ``cache``, ``table``, ``out`` are contiguous."""
    return {
        "requests": lengths.size[0],
        "heads": q.size[1],
        "kv_heads": cache.size[2],
        "head_dim": q.size[2],
        "block_size": cache.size[1],
        "q": q.pointer,
        "q_row": q.stride[0],
        "q_head": q.stride[1],
        "cache": cache.pointer,
        "table": table.pointer,
        "table_row": table.size[1],
        "starts": starts.pointer,
        "lengths": lengths.pointer,
        "window": window,
        "scale": scale,
        "out": out.pointer,
    }
