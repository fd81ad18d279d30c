"""``bi_inductor::attention`` and the statistic of its rows (docs/numerics.md section 8)."""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.operators.matmul import sum_to_shape
from bi_inductor.templates.attention import kernel as attention_kernel
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.operand import Operand


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.dtype:
    """The dtype of the operands. Raises ValueError or TypeError when they do not fit."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"bi_inductor::attention: {name} must be [batch, heads, length, dim]; given {tuple(tensor.shape)}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    torch._check(q.shape[-1] == k.shape[-1], lambda: f"bi_inductor::attention: head dims differ: {shapes}")
    torch._check(q.shape[0] == k.shape[0] and k.shape[0] == v.shape[0], lambda: f"bi_inductor::attention: batches differ: {shapes}")
    torch._check(k.shape[1] == v.shape[1], lambda: f"bi_inductor::attention: heads of k and v differ: {shapes}")
    torch._check(k.shape[2] == v.shape[2], lambda: f"bi_inductor::attention: lengths of k and v differ: {shapes}")
    torch._check(q.shape[1] % k.shape[1] == 0, lambda: f"bi_inductor::attention: heads of q and k do not divide: {shapes}")
    if mask is not None and mask.dtype != torch.bool and mask.dtype != q.dtype:
        raise TypeError(f"bi_inductor::attention: mask must be bool or {q.dtype}; given {mask.dtype}")
    return check_dtypes("attention", {"q": q, "k": k, "v": v})


def _arguments(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float | None
) -> dict[str, object]:
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    return attention_kernel.arguments(
        Operand.of(q),
        Operand.of(k),
        Operand.of(v),
        None if mask is None else Operand.of(mask),
        attention_kernel.mask_kind(None if mask is None else mask.dtype),
        is_causal,
        attention_kernel.default_scale(q.shape[-1], scale),
    )


def attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    dtype = check(q, k, v, mask)
    out = attention_fake(q, k, v, mask, is_causal, scale)
    strides = dict(zip(("out_batch", "out_head", "out_row"), out.stride(), strict=False))
    return run(attention_kernel.KERNEL, out, dtype, {**_arguments(q, k, v, mask, is_causal, scale), "out": out, **strides})


def attention_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    check(q, k, v, mask)
    attention_kernel.default_scale(q.shape[-1], scale)
    # Laid out as q where that keeps rows together, as torch's CPU kernel does: heads split off a projection merge without a copy.
    out = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else q.new_empty([*q.shape[:3], v.shape[-1]])
    return out if out.stride(-1) == 1 else q.new_empty(out.shape)


def attention_lse_cpu(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    v = k[..., :0]
    dtype = check(q, k, v, mask)
    out = attention_lse_fake(q, k, mask, is_causal, scale)
    arguments = _arguments(q, k, v if v.stride(-1) == 1 else k.contiguous()[..., :0], mask, is_causal, scale)
    return run(attention_kernel.KERNEL, out, dtype, {**arguments, "lse": out})


def attention_lse_fake(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    attention_kernel.default_scale(q.shape[-1], scale)
    return q.new_empty(q.shape[:3], dtype=accumulation_dtype(q.dtype))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    q, k, v, mask, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask, output)


def _batched(matrix: torch.Tensor, other: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """4-D matmul through the 3-D operator."""
    product = torch.ops.bi_inductor.matmul(matrix.flatten(0, 1), other.flatten(0, 1), None, scale)
    result: torch.Tensor = product.reshape([*matrix.shape[:2], *product.shape[1:]])
    return result


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Recomputes the probabilities from the saved inputs; all sums are operators of ours, in the accumulation type."""
    ops = torch.ops.bi_inductor
    q, k, v, mask, out = ctx.saved_tensors
    wide = accumulation_dtype(q.dtype)
    scale = attention_kernel.default_scale(q.shape[-1], ctx.scale)
    heads, kv_heads = q.shape[1], k.shape[1]
    group = heads // kv_heads
    lse = ops.attention_lse(q, k, mask, ctx.is_causal, ctx.scale).unsqueeze(-1)
    q_wide, grad_wide = q.to(wide), grad.to(wide)
    k_wide, v_wide = (t.to(wide).repeat_interleave(group, 1) if group != 1 else t.to(wide) for t in (k, v))
    scores = _batched(q_wide, k_wide.mT, scale)
    attended = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if ctx.is_causal:
        attended = attended.tril()
    if mask is not None and mask.dtype == torch.bool:
        attended = attended & mask
    elif mask is not None:
        scores = scores + mask.to(wide)
        attended = attended & (mask != float("-inf"))
    probabilities = torch.where(attended, (scores - lse).exp(), 0)
    grad_v = _batched(probabilities.mT, grad_wide)
    grad_probabilities = _batched(grad_wide, v_wide.mT)
    delta = ops.sum(grad_wide * out.to(wide), [3], True)
    grad_scores = torch.where(attended, probabilities * (grad_probabilities - delta), 0)
    grad_q = _batched(grad_scores, k_wide, scale).to(q.dtype)
    grad_k = _batched(grad_scores.mT, q_wide, scale)
    if group != 1:
        grad_k, grad_v = (ops.sum(t.unflatten(1, (kv_heads, group)), [2], False) for t in (grad_k, grad_v))
    grad_mask = None
    if mask is not None and ctx.needs_input_grad[3]:
        grad_mask = sum_to_shape(grad_scores, mask.shape).to(mask.dtype)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_mask, None, None


define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool is_causal=False, float? scale=None) -> Tensor",
    attention_cpu,
    attention_fake,
    _backward,
    _save,
)
define(
    "attention_lse(Tensor q, Tensor k, Tensor? mask=None, bool is_causal=False, float? scale=None) -> Tensor",
    attention_lse_cpu,
    attention_lse_fake,
)
