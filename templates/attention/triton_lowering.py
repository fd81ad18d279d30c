"""Attention in Triton, and the logarithm of each row's sum of exponentials."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.utils import triton_type
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import CeilDiv

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.attention.configurations import (
    FEW_QUERIES,
    LARGEST_HEAD_DIM,
    MANY_PROGRAMS,
    MERGE_WARPS,
    PART,
    UNROLL,
    configuration,
    padded,
    shares_keys,
)
from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.triton_template import broadcast, constant, lower, template


@SymbolicGridFn
def grid(rows: Any, queries: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile of queries of each head of each sample, along x: the other axes take 65535 programs at most."""
    return cdiv(queries, meta["BLOCK_M"]) * rows, 1, 1


@SymbolicGridFn
def parts_grid(rows: Any, queries: Any, chunks: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """As many programs for each of ``grid`` as share its keys."""
    return cdiv(queries, meta["BLOCK_M"]) * rows * cdiv(chunks, meta["PART"]), 1, 1


@SymbolicGridFn
def merge_grid(rows: Any, meta: dict[str, Any]) -> tuple[Any, Any, Any]:
    """A program for each query of each head."""
    return rows, 1, 1


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
    keys, known = k.get_size()[2], V.graph.sizevars
    # With the causal rule few queries see few keys.
    split = (
        v is not None
        and not is_causal
        and shares_keys(
            known.statically_known_leq(queries, FEW_QUERIES),
            known.statically_known_geq(batch * heads, MANY_PROGRAMS),
            known.statically_known_leq(keys, PART * chosen.chunk),
        )
    )
    kind = ["additive_mask" if additive else "mask"] if mask is not None else []
    operator = "attention_lse" if v is None else "attention_part" if split else "attention"
    kernel = template(
        "attention",
        "_".join([operator, *(["causal"] if is_causal else []), *kind]),
        parts_grid if split else grid,
        NAMES=tuple(inputs),
        LSE=v is None,
        CAUSAL=is_causal,
        MASKED=mask is not None,
        ADDITIVE=additive,
        SPLIT=split,
    )
    constants: dict[str, Any] = {
        **chosen.constants(dtype, dims[0], dims[-1]),
        "SCALE": constant(scale),
        # The logarithm of the sum is that of exponentials as they are.
        "WEIGHT": triton_type(dtype if v is not None else accumulation_dtype(dtype)),
    }
    size = [batch, heads, queries, *(dims[1:] if v is not None else [])]
    if split:
        chunks = CeilDiv(keys, chosen.chunk)
        parts = lower(
            kernel,
            inputs,
            [batch * heads * queries, chunks, dims[-1] + 4],
            {**constants, "PART": PART},
            (batch * heads, queries, chunks),
            warps=chosen.warps,
            stages=chosen.stages,
            dtype=dtype,
            out_dtype=accumulation_dtype(dtype),
        )
        return merge({"PARTS": parts}, size, dtype, stride=stride)
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


def merge(
    inputs: dict[str, ir.TensorBox],
    size: list[Any],
    dtype: torch.dtype,
    constants: dict[str, Any] | None = None,
    window: int = 0,
    stride: list[Any] | None = None,
) -> ir.TensorBox:
    """The attention ``size`` [..., dim] from what programs that share the keys have stored, "PARTS" [rows, chunks, dim + 4].

    For paged attention ``inputs`` has "ENDS" and "LENGTHS" too and ``constants`` its "CHUNK".
    """
    paged = "ENDS" in inputs
    kernel = template(
        "attention",
        f"attention_merge{'_paged' * paged}{f'_window_{window}' if window else ''}",
        merge_grid,
        "merge",
        NAMES=tuple(inputs),
        PAGED=paged,
        WINDOW=window,
    )
    return lower(
        kernel,
        {name: realized(node) for name, node in inputs.items()},
        size,
        {**(constants or {}), "ROWS": 1, "UNROLL": UNROLL, "VALUE_DIM": size[-1], "BLOCK_V": padded(size[-1])},
        (sympy.Mul(*size[:-1]),),
        warps=MERGE_WARPS,
        stages=1,
        dtype=dtype,
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
