"""Attention in Triton, and the logarithm of each row's sum of exponentials."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.virtualized import V, ops

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.attention.configurations import LARGEST_HEAD_DIM, configuration, padded
from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.triton_template import broadcast, constant, lower, template


@SymbolicGridFn
def grid(rows: Any, queries: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile of queries of each head of each sample, along x: the other axes take 65535 programs at most."""
    return cdiv(queries, meta["BLOCK_M"]) * rows, 1, 1


def attention(
    q: ir.TensorBox,
    k: ir.TensorBox,
    v: ir.TensorBox | None,
    mask: ir.TensorBox | None,
    is_causal: bool,
    scale: float,
    stride: list[Any] | None = None,
) -> ir.TensorBox:
    """Attention of ``q`` [batch, heads, queries, dim] over ``k``, ``v`` [batch, kv_heads, keys, dim], laid out with ``stride``.

    Without ``v``: the logarithm of each row's sum of exponentials, [batch, heads, queries].

    Raises:
        UnsupportedOpError: a head dim of more than 256.
    """
    batch, heads, queries, head_dim = q.get_size()
    # Symbolic head dims become constants of the graph.
    dims = V.graph.sizevars.guard_int_seq([head_dim, *([v.get_size()[-1]] if v is not None else [])])
    if max(dims) > LARGEST_HEAD_DIM:
        raise UnsupportedOpError(f"attention on a GPU takes head dims up to {LARGEST_HEAD_DIM}; given {max(dims)}")
    dtype = q.get_dtype()
    inputs = {"Q": realized(q), "K": realized(k)}
    if v is not None:
        inputs["V"] = realized(v)
    additive = mask is not None and mask.get_dtype() != torch.bool
    if mask is not None:
        inputs["MASK"] = broadcast(realized(mask), [batch, heads, queries, k.get_size()[2]])
        inputs["FIRST_KEY"] = realized(_first_keys(mask, batch))
    chosen = configuration(target_of(q.get_device()), dtype, max(dims))
    kind = ["additive_mask" if additive else "mask"] if mask is not None else []
    kernel = template(
        "attention",
        "_".join(["attention" if v is not None else "attention_lse", *(["causal"] if is_causal else []), *kind]),
        grid,
        NAMES=tuple(inputs),
        LSE=v is None,
        CAUSAL=is_causal,
        MASKED=mask is not None,
        ADDITIVE=additive,
    )
    constants: dict[str, Any] = {
        "BLOCK_M": chosen.block_m,
        "CHUNK": chosen.chunk,
        "HEAD_DIM": dims[0],
        "BLOCK_D": padded(dims[0]),
        "VALUE_DIM": dims[-1],
        "BLOCK_V": padded(dims[-1]),
        "SCALE": constant(scale),
    }
    size = [batch, heads, queries, *([v.get_size()[-1]] if v is not None else [])]
    out_dtype = dtype if v is not None else accumulation_dtype(dtype)
    return lower(
        kernel,
        inputs,
        size,
        constants,
        (batch * heads, queries),
        warps=chosen.warps,
        stages=chosen.stages,
        dtype=dtype,
        out_dtype=out_dtype,
        stride=stride,
    )


def _first_keys(mask: ir.TensorBox, batch: Any) -> ir.TensorBox:
    """The first key of each sample that a query may see, [batch], or one key for all of them; the number of keys where there is none."""
    while len(mask.get_size()) < 4:
        mask = inductor.unsqueeze(mask, 0)
    sizes = mask.get_size()
    load = mask.make_loader()
    additive = mask.get_dtype() != torch.bool

    def key(index: Any) -> Any:
        seen = load(index)
        if additive:
            seen = ops.ne(seen, ops.constant(float("-inf"), mask.get_dtype()))
        return ops.where(seen, ops.index_expr(index[3], torch.int64), ops.index_expr(sizes[3], torch.int64))

    keys = ir.Pointwise.create(device=mask.get_device(), dtype=torch.int64, inner_fn=key, ranges=list(sizes))
    first = inductor.lowerings[torch.ops.aten.amin.default](keys, [1, 2, 3])
    result: ir.TensorBox = inductor.expand(first, [batch])
    return result
