"""The decomposition table: Inductor's, less what would take an op apart that has a template, plus fused inference ops of torch.nn.

Inductor's own decompositions of mm, addmm, bmm depend on sizes (M, N or K of 1, K up to 16) and turn dot products into sums;
those of softmax, norms and variance spell the op as a chain of roundings. Without them the ops reach the post-grad passes whole
and are rewritten there.

Inductor internals, checked in torch 2.13.0 to 2.15.0: select_decomp_table; compile_fx(decompositions=...) puts the table into the FX
graph cache's key by pickling it. The table pickles as a reference to this module plus a hash of our sources, so it takes part
in the key and can be cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp.decompositions import _index_add
from torch.nn import functional

from bi_inductor.passes import distances, foreach, padding, pooling, quantized, resizing
from bi_inductor.passes.capture import CAPTURED

aten = torch.ops.aten

KEPT_WHOLE = (
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.mv,
    aten.dot,
    aten.vdot,
    aten._softmax,
    aten._log_softmax,
    aten.native_layer_norm,
    aten.native_group_norm,
    aten.var.correction,
    aten.std.correction,
    aten.var_mean.correction,
    aten.sum,
    aten.mean,
    aten.prod,
    aten.cumsum,
    aten.cumprod,
    aten.logcumsumexp,
    aten.embedding_dense_backward,
    aten.index_reduce,
)


class DecompositionTable(dict[Any, Callable[..., Any]]):
    """A table that pickles by the hash of the sources it is made from."""

    version: str

    def __reduce__(self) -> tuple[Any, ...]:
        return decomposition_table, (self.version,)


def decomposition_table(version: str) -> DecompositionTable:
    """Inductor's table for the configuration in force, changed as this module says. ``version`` is the hash of our sources."""
    from torch._inductor.decomposition import select_decomp_table

    table = DecompositionTable(select_decomp_table())
    table.version = version
    for kept in KEPT_WHOLE:
        overloads = [kept] if isinstance(kept, torch._ops.OpOverload) else [getattr(kept, name) for name in kept.overloads()]
        for overload in overloads:
            table.pop(overload, None)
    # The table also holds torch's own parts of composite ops. A decomposition that calls a captured one has to find our kernel instead.
    for captured in CAPTURED:
        table.pop(captured, None)
    table.update(pooling.DECOMPOSITIONS)
    table.update(distances.DECOMPOSITIONS)
    table.update(quantized.DECOMPOSITIONS)
    table.update(resizing.DECOMPOSITIONS)
    table.update(padding.DECOMPOSITIONS)
    table.update(quantized.decomposed_ops())
    table.update(foreach.DECOMPOSITIONS)
    table[aten.addbmm.default] = addbmm
    # torch.grid_sampler_3d by its own name; grid_sample is captured.
    table[aten.grid_sampler_3d.default] = resizing.grid_sampler_3d
    for op, shift in ((aten.__lshift__, aten.bitwise_left_shift), (aten.__rshift__, aten.bitwise_right_shift)):
        # What Python's << and >> call, under the names that have a class.
        table[op.Tensor], table[op.Scalar] = shift.Tensor, shift.Tensor_Scalar
    table[aten._transformer_encoder_layer_fwd.default] = transformer_encoder_layer
    table[aten._native_multi_head_attention.default] = native_multi_head_attention
    table[aten.any.default], table[aten.any.dim] = any_of(aten.any.default), any_of(aten.any.dim)
    table[aten.any.dims] = nothing_without_dims(any_of(aten.any.dims))
    table[aten.all.dims] = nothing_without_dims(table[aten.all.dims])
    table[aten.index_add.default] = index_add
    table[aten.sort.default] = sort
    table[aten.sort.stable] = sort_stable
    return table


def addbmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    """One matmul, k running over (batch, k): ``bias`` broadcasts to [n, m], ``a`` [batch, n, k], ``b`` [batch, k, m]."""
    return torch.addmm(bias, a.transpose(0, 1).flatten(1), b.flatten(0, 1), beta=beta, alpha=alpha)


def index_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1) -> Any:
    """As Inductor has it for all dtypes but bfloat16, which it leaves to torch's kernel (2.13): a scatter (docs/numerics.md section 9)."""
    return _index_add(x, dim, index, source, inplace=False, alpha=alpha)


def any_of(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """any of bytes is a byte, as in eager; Inductor's lowering (2.13) gives a bool."""

    def decomposed(x: torch.Tensor, *args: Any) -> Any:
        return op(x != 0, *args).to(torch.uint8) if x.dtype == torch.uint8 else NotImplemented

    return decomposed


def nothing_without_dims(reduction: Callable[..., Any]) -> Callable[..., Any]:
    """any and all over an empty list of dims tell where ``x`` is not zero, as in eager; Inductor (2.13) reduces every dim."""

    def decomposed(x: torch.Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Any:
        if dim is None or dim:
            return reduction(x, dim, keepdim)
        return (x != 0).to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)

    return decomposed


def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Stable: the order of equal elements is then defined, whichever algorithm a machine has for the other kind."""
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def sort_stable(x: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    """As ``sort`` where the caller left the order of equal elements open."""
    return NotImplemented if stable else sort(x, dim, descending)


def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fast path of nn.MultiheadAttention in eval mode, as the ops its slow path has: the two give the same bits.

    query, key, value are [batch, length, embed_dim]; ``mask_type`` 0 is a mask [queries, keys], 1 a key padding mask [batch,
    keys], 2 both merged to [batch, heads, queries, keys]. A bool mask is true where a key is masked.
    """
    attn_mask = key_padding_mask = None
    if mask is not None:
        additive = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else mask
        if mask_type == 1:
            key_padding_mask = additive
        elif mask_type == 2:
            attn_mask = additive.expand(query.shape[0], num_head, query.shape[1], key.shape[1]).flatten(0, 1)
        else:
            attn_mask = additive
    out, weights = functional.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        embed_dim,
        num_head,
        qkv_weight,
        qkv_bias,
        None,
        None,
        False,
        0.0,
        proj_weight,
        proj_bias,
        training=False,
        key_padding_mask=key_padding_mask,
        need_weights=need_weights,
        attn_mask=attn_mask,
        average_attn_weights=average_attn_weights,
    )
    return out.transpose(0, 1), query.new_empty(0) if weights is None else weights


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """nn.TransformerEncoderLayer in eval mode, as the ops its slow path has; ``src`` [batch, length, embed_dim]."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    if norm_first:
        src = src + attend(first(src))
        return src + feed_forward(second(src))
    src = first(src + attend(src))
    return second(src + feed_forward(src))
