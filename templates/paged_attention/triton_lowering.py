"""Paged attention in Triton: attention's arithmetic and its table of configurations, over blocks of a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.utils import triton_type
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import CeilDiv

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.attention.configurations import FEW_QUERIES, LARGEST_HEAD_DIM, PART, configuration, shares_keys
from bi_inductor.templates.attention.triton_lowering import merge
from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.triton_template import constant, lower, template


@SymbolicGridFn
def grid(rows: Any, requests: Any, kv_heads: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile of each KV head, along x. Each request begins a tile of its own: as many more tiles at most as there are
    requests. Programs that find no tile left compute nothing.
    """
    return (cdiv(rows, meta["BLOCK_M"]) + requests) * kv_heads, 1, 1


@SymbolicGridFn
def parts_grid(rows: Any, requests: Any, kv_heads: Any, chunks: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """As many programs for each of ``grid`` as share the keys of the longest request that the table has room for."""
    return (cdiv(rows, meta["BLOCK_M"]) + requests) * kv_heads * cdiv(chunks, meta["PART"]), 1, 1


def paged_attention(
    q: ir.TensorBox, cache: ir.TensorBox, table: ir.TensorBox, starts: ir.TensorBox, lengths: ir.TensorBox, scale: float, window: int
) -> ir.TensorBox:
    """Attention of ``q`` [tokens, heads, dim] over ``cache`` [blocks, block_size, kv_heads, 2 * dim], both of any strides, read in place.

    What ``table``, ``starts`` and ``lengths`` hold, of any integer dtype, is not checked: kernels have no errors. Requests that are not
    well formed give results without meaning, read from and written to the operands alone. Tokens after the last request are zero.

    Raises:
        UnsupportedOpError: a head dim of more than 256.
    """
    tokens = q.get_size()[0]
    requests = lengths.get_size()[0]
    # Where these are symbolic they become constants of the graph: no batch has others.
    heads, head_dim, kv_heads, window = V.graph.sizevars.guard_int_seq([*q.get_size()[1:], cache.get_size()[2], window])
    if head_dim > LARGEST_HEAD_DIM:
        raise UnsupportedOpError(f"paged_attention on a GPU takes head dims up to {LARGEST_HEAD_DIM}; given {head_dim}")
    dtype = q.get_dtype()
    chosen = configuration(target_of(q.get_device()), dtype, head_dim)
    known, keys = V.graph.sizevars, table.get_size()[1] * cache.get_size()[1]
    split = shares_keys(known.statically_known_leq(tokens, FEW_QUERIES), False, known.statically_known_leq(keys, PART * chosen.chunk))
    kernel = template(
        "paged_attention",
        f"paged_attention{'_part' * split}{f'_window_{window}' if window else ''}",
        parts_grid if split else grid,
        WINDOW=window,
        SPLIT=split,
    )
    inputs = {
        "Q": realized(q),
        "CACHE": realized(cache),
        "TABLE": realized(table),
        "ENDS": realized(inductor.lowerings[torch.ops.aten.slice.Tensor](starts, 0, 1)),
        "LENGTHS": realized(lengths),
    }
    constants: dict[str, Any] = {
        **chosen.constants(dtype, head_dim, head_dim),
        "SCALE": constant(scale),
        "WEIGHT": triton_type(dtype),
    }
    programs = (tokens * heads // kv_heads, requests, kv_heads)
    if split:
        chunks = CeilDiv(keys, chosen.chunk)
        parts = lower(
            kernel,
            inputs,
            [tokens * heads, chunks, head_dim + 4],
            {**constants, "PART": PART},
            (*programs, chunks),
            warps=chosen.warps,
            stages=chosen.stages,
            dtype=dtype,
            out_dtype=accumulation_dtype(dtype),
        )
        stored = {"PARTS": parts, "ENDS": inputs["ENDS"], "LENGTHS": inputs["LENGTHS"]}
        return merge(stored, [tokens, heads, head_dim], dtype, {"CHUNK": chosen.chunk}, window)
    return lower(
        kernel,
        inputs,
        [tokens, heads, head_dim],
        constants,
        programs,
        warps=chosen.warps,
        stages=chosen.stages,
        dtype=dtype,
    )
