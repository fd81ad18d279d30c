"""Rewritings of scatter, index_put with accumulation, and grouped matmuls: what mixtures of experts and gathers' backwards are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from bi_inductor.passes.rewriter import Rewriter, rule
from bi_inductor.templates.library import DTYPES

aten = torch.ops.aten
ops = torch.ops.bi_inductor

# Storing moves elements without reading them, so integers go as floating point of their size.
CARRIERS = {8: torch.float64, 4: torch.float32, 2: torch.float16}

# What scatter with `reduce` and scatter_reduce call the same reductions.
REDUCE_NAMES = {"add": "sum", "multiply": "prod"}


@rule(aten.scatter.src)
def _scatter_src(rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node) -> Node | None:
    return _scatter(rewriter, x, dim, index, src, "set", True)


@rule(aten.scatter.value)
def _scatter_value(rewriter: Rewriter, x: Node, dim: int, index: Node, value: Any) -> Node | None:
    return _scatter(rewriter, x, dim, index, _filled(rewriter, x, index, value), "set", True)


@rule(aten.scatter.reduce)
def _scatter_with_reduce(rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node, *, reduce: str) -> Node | None:
    return _scatter(rewriter, x, dim, index, src, REDUCE_NAMES[reduce], True)


@rule(aten.scatter.value_reduce)
def _scatter_value_with_reduce(rewriter: Rewriter, x: Node, dim: int, index: Node, value: Any, *, reduce: str) -> Node | None:
    return _scatter(rewriter, x, dim, index, _filled(rewriter, x, index, value), REDUCE_NAMES[reduce], True)


@rule(aten.scatter_add.default)
def _scatter_add(rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node) -> Node | None:
    return _scatter(rewriter, x, dim, index, src, "sum", True)


@rule(aten.scatter_reduce.two)
def _scatter_reduce(
    rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Node | None:
    return _scatter(rewriter, x, dim, index, src, reduce, include_self)


@rule(aten.index_reduce.default)
def _index_reduce(
    rewriter: Rewriter, x: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True
) -> Node | None:
    if x.meta["val"].dtype not in DTYPES:
        return None
    rows, index, source = (_with_a_dim(rewriter, t) for t in (x, index, source))
    reduced = rewriter.emit(ops.scatter.default, rows, dim, index, source, REDUCE_NAMES.get(reduce, reduce), include_self)
    return reduced if rows is x else rewriter.emit(aten.squeeze.dim, reduced, 0)


def _filled(rewriter: Rewriter, x: Node, index: Node, value: Any) -> Node:
    # Inductor lowers full alone: full_like it takes apart before its post-grad passes.
    return rewriter.emit(aten.full.default, rewriter.sizes(index), value, dtype=x.meta["val"].dtype, device=x.meta["val"].device)


def _scatter(rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node, reduce: str, include_self: bool) -> Node | None:
    dtype: torch.dtype = x.meta["val"].dtype
    if dtype not in DTYPES:
        # Reductions of integers are exact as they are; of several integers stored in one place, the last must stay.
        return _carried(rewriter, x, dim, index, src) if reduce == "set" and not dtype.is_complex else None
    if x.meta["val"].dim() == 0:
        rows = (_with_a_dim(rewriter, t) for t in (x, index, src))
        scattered = _scatter(rewriter, next(rows), 0, next(rows), next(rows), reduce, include_self)
        return rewriter.emit(aten.squeeze.dim, scattered, 0)
    dim %= x.meta["val"].dim()
    for d in range(x.meta["val"].dim()):
        src = _narrowed(rewriter, src, d, index)
    return _scatter_into(rewriter, x, dim, index, src, reduce, include_self, [d for d in range(x.meta["val"].dim()) if d != dim])


def _scatter_into(
    rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node, reduce: str, include_self: bool, dims: Sequence[int]
) -> Node:
    """An index may be shorter than ``x`` in the other dims; what lies beyond stays."""
    for i, d in enumerate(dims):
        part = _narrowed(rewriter, x, d, index)
        if part is not x:
            written = _scatter_into(rewriter, part, dim, index, src, reduce, include_self, dims[i + 1 :])
            return rewriter.emit(aten.slice_scatter.default, x, written, d, 0, rewriter.size(index, d))
    return rewriter.emit(ops.scatter.default, x, dim, index, src, reduce, include_self)


def _narrowed(rewriter: Rewriter, x: Node, d: int, index: Node) -> Node:
    """The part of ``x`` along ``d`` that ``index`` covers; ``x`` itself when that is all of it."""
    if statically_known_true(x.meta["val"].shape[d] == index.meta["val"].shape[d]):
        return x
    return rewriter.emit(aten.slice.Tensor, x, d, 0, rewriter.size(index, d))


def _with_a_dim(rewriter: Rewriter, x: Node) -> Node:
    return x if x.meta["val"].dim() else rewriter.emit(aten.unsqueeze.default, x, 0)


def _carried(rewriter: Rewriter, x: Node, dim: int, index: Node, src: Node) -> Node | None:
    """Stores integers or booleans through the kernel for floating point of the same size."""
    dtype: torch.dtype = x.meta["val"].dtype
    wide = torch.int32 if dtype.itemsize == 1 else dtype
    carrier = CARRIERS[wide.itemsize]
    x, src = (rewriter.emit(aten.view.dtype, rewriter.cast(t, wide), carrier) for t in (x, src))
    stored = _scatter(rewriter, x, dim, index, src, "set", True)
    return None if stored is None else rewriter.cast(rewriter.emit(aten.view.dtype, stored, wide), dtype)


@rule(aten.index_put.default)
def _index_put(rewriter: Rewriter, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node | None:
    """Adding at indices of neighbouring dims: those become one dim, and the index a linear one. Storing: see ``_stored``."""
    value = x.meta["val"]
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    of_integers = all(not index.meta["val"].dtype.is_floating_point and index.meta["val"].dtype != torch.bool for index in given)
    if not of_integers or not dims:
        return None
    if not accumulate:
        return _stored(rewriter, x, indices, values)
    if value.dtype not in DTYPES or dims != list(range(dims[0], dims[-1] + 1)):
        return None
    linear = _linear_index(rewriter, x, indices)
    before, after = rewriter.sizes(x)[: dims[0]], rewriter.sizes(x)[dims[-1] + 1 :]
    places, count = rewriter.sizes(linear), _product(linear.meta["val"].shape)
    spread = rewriter.emit(aten.expand.default, rewriter.cast(values, value.dtype), [*before, *places, *after])
    src = rewriter.emit(aten.reshape.default, spread, [*before, count, *after])
    rows = rewriter.emit(aten.reshape.default, x, [*before, _product(value.shape[dims[0] : dims[-1] + 1]), *after])
    index = rewriter.emit(aten.reshape.default, linear, [count])
    added = rewriter.emit(ops.scatter.default, rows, dims[0], index, src, "sum", True)
    return rewriter.emit(aten.reshape.default, added, rewriter.sizes(x))


def _linear_index(rewriter: Rewriter, x: Node, indices: Sequence[Node | None]) -> Node:
    """The place that the indices name in the flattened dims that they index."""
    linear = None
    for d, index in enumerate(indices):
        if index is None:
            continue
        size = rewriter.size(x, d)
        index = rewriter.cast(index, torch.int64)
        wrapped = rewriter.emit(
            aten.where.self, rewriter.emit(aten.lt.Scalar, index, 0), rewriter.emit(aten.add.Tensor, index, size), index
        )
        linear = wrapped if linear is None else rewriter.emit(aten.add.Tensor, rewriter.emit(aten.mul.Tensor, linear, size), wrapped)
    assert linear is not None
    return linear


def _stored(rewriter: Rewriter, x: Node, indices: Sequence[Node | None], values: Node) -> Node | None:
    """Storing at indices: where several elements go to one place, each of them is replaced by the last, so that no thread can win.

    The values alone are copied, not ``x``: a cache that is written in place still is.
    """
    dims = [d for d, index in enumerate(indices) if index is not None]
    places: Any = torch.broadcast_shapes(*(index.meta["val"].shape for index in indices if index is not None))
    if all(statically_known_true(size == 1) for size in places) or (len(places) == 1 and _counts_up(indices, places[0])):
        return None
    linear = _linear_index(rewriter, x, indices)
    sizes, device = rewriter.sizes(linear), x.meta["val"].device
    flat = rewriter.emit(aten.reshape.default, linear, [_product(linear.meta["val"].shape)])
    counting = {"start": 0, "step": 1, "dtype": torch.int64, "device": device, "requires_grad": False}
    order = rewriter.emit(torch.ops.prims.iota.default, rewriter.size(flat, 0), **counting)
    # Positions are exact in float64, and the scatter keeps the last one.
    nowhere = rewriter.emit(aten.full.default, [rewriter.size(x, d) for d in dims], 0.0, dtype=torch.float64, device=device)
    nowhere = rewriter.emit(aten.reshape.default, nowhere, [_product([x.meta["val"].shape[d] for d in dims])])
    last = rewriter.emit(ops.scatter.default, nowhere, 0, flat, rewriter.cast(order, torch.float64), "set", True)
    winner = rewriter.cast(rewriter.emit(aten.gather.default, last, 0, flat), torch.int64)
    # The dims of the index stand where the indexed dims do when those are neighbours, else in front.
    neighbours = dims == list(range(dims[0], dims[-1] + 1))
    before = rewriter.sizes(x)[: dims[0]] if neighbours else []
    after = rewriter.sizes(x)[dims[-1] + 1 :] if neighbours else [rewriter.size(x, d) for d in range(x.meta["val"].dim()) if d not in dims]
    spread = rewriter.emit(aten.expand.default, rewriter.cast(values, x.meta["val"].dtype), [*before, *sizes, *after])
    rows = rewriter.emit(aten.reshape.default, spread, [*before, _product(linear.meta["val"].shape), *after])
    chosen = rewriter.emit(aten.index.Tensor, rows, [*[None] * len(before), winner])
    chosen = rewriter.emit(aten.reshape.default, chosen, [*before, *sizes, *after])
    return rewriter.emit(aten.index_put.default, x, list(indices), chosen, False)


def _counts_up(indices: Sequence[Node | None], size: Any) -> bool:
    """Whether some index counts from place to place, all ``size`` of them, so that no two elements go to one place."""
    counting = [index for index in indices if index is not None and index.target is torch.ops.prims.iota.default]
    return any(statically_known_true(index.meta["val"].shape[0] == size) for index in counting)


@rule(aten._unsafe_masked_index_put_accumulate.default)
def _masked_index_put(rewriter: Rewriter, x: Node, mask: Node, indices: Sequence[Node | None], values: Node) -> Node | None:
    """Adding at indices where ``mask`` is true: elsewhere a zero at index 0."""
    if x.meta["val"].dtype not in DTYPES:
        return None
    valid = [None if i is None else rewriter.emit(aten.where.ScalarOther, mask, i, 0) for i in indices]
    put: Node | None = _index_put(rewriter, x, valid, rewriter.emit(aten.where.ScalarOther, mask, values, 0), True)
    return put


# The gradient of a tensor that a score_mod of flex_attention reads at indices (torch 2.13: torch._dynamo._trace_wrapped_higher_order_op).
@rule("flex_lib::zeros_and_scatter")
def _zeros_and_scatter(rewriter: Rewriter, shape: Sequence[Any], indices: Sequence[Node], values: Node) -> Node | None:
    """Adding at indices of a tensor of zeros, in the order of the values."""
    value = values.meta["val"]
    if value.dtype not in DTYPES:
        return None
    zeros = rewriter.emit(aten.full.default, list(shape), 0.0, dtype=value.dtype, device=value.device, pin_memory=False)
    put: Node | None = _index_put(rewriter, zeros, indices, values, True)
    return put


def _product(sizes: Sequence[Any]) -> int:
    """The number of elements as reshape takes it: -1 when a size is symbolic."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else -1


@rule(aten._grouped_mm.default)
def _grouped_mm(
    rewriter: Rewriter, a: Node, b: Node, offs: Node | None = None, bias: Node | None = None, out_dtype: torch.dtype | None = None
) -> Node | None:
    if bias is not None or a.meta["val"].dtype not in DTYPES:
        return None
    both_grouped = a.meta["val"].dim() == b.meta["val"].dim() == 3
    if both_grouped == (offs is not None):
        return None
    product = rewriter.emit(ops.matmul.default, a, b) if offs is None else rewriter.emit(ops.grouped_matmul.default, a, b, offs)
    result: Node = rewriter.cast(product, out_dtype)
    return result


# Ops that transformers (checked in 5.24) brings for mixtures of experts where torch has no kernel.
@rule("transformers::grouped_mm_fallback")
def _transformers_grouped_mm(rewriter: Rewriter, rows: Node, weight: Node, offs: Node) -> Node | None:
    product: Node | None = _grouped_mm(rewriter, rows, weight, offs)
    return product


@rule("transformers::grouped_mm_fallback_backward")
def _transformers_grouped_mm_backward(rewriter: Rewriter, rows: Node, weight: Node, offs: Node, grad: Node) -> tuple[Any, ...] | None:
    transposed = rewriter.emit(aten.permute.default, weight, [0, 2, 1])
    columns = rewriter.emit(aten.permute.default, rows, [1, 0])
    grads = _grouped_mm(rewriter, grad, transposed, offs), _grouped_mm(rewriter, columns, grad, offs)
    return None if None in grads else grads
