"""The attention kernel: its parameters, and how operands become arguments (docs/numerics.md section 8)."""

from __future__ import annotations

import math
from typing import Any

import torch

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, Size

KERNEL = register_kernel(
    "attention",
    "attention",
    {
        "batch": Parameter.SIZE,
        "heads": Parameter.SIZE,
        "kv_heads": Parameter.SIZE,
        "queries": Parameter.SIZE,
        "keys": Parameter.SIZE,
        "head_dim": Parameter.SIZE,
        "value_dim": Parameter.SIZE,
        **{
            f"{x}{suffix}": kind
            for x in "qkv"
            for suffix, kind in (("", Parameter.INPUT), ("_batch", Parameter.SIZE), ("_head", Parameter.SIZE), ("_row", Parameter.SIZE))
        },
        "mask_kind": Parameter.SIZE,
        "mask": Parameter.BYTES,
        "mask_batch": Parameter.SIZE,
        "mask_head": Parameter.SIZE,
        "mask_query": Parameter.SIZE,
        "mask_key": Parameter.SIZE,
        "causal": Parameter.SIZE,
        "scale": Parameter.NUMBER,
        "out": Parameter.OUTPUT,
        "out_batch": Parameter.SIZE,
        "out_head": Parameter.SIZE,
        "out_row": Parameter.SIZE,
        "lse": Parameter.STATISTICS,
        "threads": Parameter.SIZE,
    },
)

# The numbers of bi::Mask in kernel.h.
NO_MASK, BOOLEAN_MASK, ADDITIVE_MASK = 0, 1, 2


def mask_kind(dtype: torch.dtype | None) -> int:
    """How the kernel reads a mask of ``dtype``, None for no mask."""
    if dtype is None:
        return NO_MASK
    return BOOLEAN_MASK if dtype == torch.bool else ADDITIVE_MASK


def default_scale(head_dim: Size, scale: float | None) -> float:
    """``scale``, or 1/sqrt(head dim). A symbolic head dim becomes a constant of the graph: the scale is one."""
    return 1.0 / math.sqrt(int(head_dim)) if scale is None else scale


def arguments(q: Operand, k: Operand, v: Operand, mask: Operand | None, mask_kind: int, causal: bool, scale: float) -> dict[str, Any]:
    """Arguments for ``q`` [batch, heads, queries, head_dim], ``k``, ``v`` [batch, kv_heads, keys, ...]; the caller adds the outputs.

    The last dim of q, k and v has stride 1; ``mask`` broadcasts to [batch, heads, queries, keys].
    """
    result: dict[str, Any] = {
        "batch": q.size[0],
        "heads": q.size[1],
        "kv_heads": k.size[1],
        "queries": q.size[2],
        "keys": k.size[2],
        "head_dim": q.size[3],
        "value_dim": v.size[3],
        "mask_kind": mask_kind,
        "mask": None if mask is None else mask.pointer,
        "causal": int(causal),
        "scale": scale,
        "out": None,
        "out_batch": 0,
        "out_head": 0,
        "out_row": 0,
        "lse": None,
    }
    for name, operand in (("q", q), ("k", k), ("v", v)):
        result[name] = operand.pointer
        result[f"{name}_batch"], result[f"{name}_head"], result[f"{name}_row"] = operand.stride[:3]
    strides = (0, 0, 0, 0) if mask is None else mask.expanded(4).stride
    for name, stride in zip(("batch", "head", "query", "key"), strides, strict=True):
        result[f"mask_{name}"] = stride
    return result
