"""Rewrites the ops that have a template into ``torch.ops.bi_inductor.*``: one rule an op, one operator a meaning."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

import bi_inductor.passes.scatter  # noqa: F401  # registers its rules
from bi_inductor.passes.complex_numbers import COMPLEX_RULES, resolve_bits, touches_complex
from bi_inductor.passes.one_sample import one_sample
from bi_inductor.passes.rewriter import Rewriter, Rule, rule, rule_of
from bi_inductor.templates.library import DTYPES

aten = torch.ops.aten
ops = torch.ops.bi_inductor


def rewrite(graph: Graph, on_replaced: Callable[[Node, Sequence[Node]], None] | None = None) -> list[Node]:
    """Applies the rules to every node, in place; dead results are removed. Returns the nodes that their rule left as they are.

    ``on_replaced`` is told each node and what its rule wrote for it, before the node goes.
    """
    declined = []
    for node in list(graph.nodes):
        resolve_bits(node)
        found = rule_for(node)
        if found is None:
            continue
        rewriter = Rewriter(node)
        replacement = found(rewriter, *node.args, **node.kwargs)
        if replacement is None:
            declined.append(node)
            continue
        if on_replaced is not None:
            on_replaced(node, rewriter.emitted)
        if isinstance(replacement, tuple):
            for user in list(node.users):
                user.replace_all_uses_with(replacement[user.args[1]])
                graph.erase_node(user)
        else:
            node.replace_all_uses_with(replacement)
        graph.erase_node(node)
    # Statistics that nobody saved.
    graph.eliminate_dead_code()
    return [node for node in declined if not node._erased]


def rule_for(node: Node) -> Rule | None:
    """The rewriting of a call: complex tensors have rules of their own, but for ops of ours that take them as they are."""
    if node.op != "call_function":
        return None
    found = rule_of(node.target)
    if found is not one_sample and touches_complex(node):
        return COMPLEX_RULES.get(node.target)
    return found


def _is_float(x: Any) -> bool:
    return x.meta["val"].dtype in DTYPES


@rule(aten.mm.default, aten.bmm.default)
def _mm(rewriter: Rewriter, a: Node, b: Node) -> Node | None:
    return rewriter.emit(ops.matmul.default, a, b) if _is_float(a) else None


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(rewriter: Rewriter, bias: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    return rewriter.emit(ops.matmul.default, a, b, bias, float(alpha), float(beta)) if _is_float(a) else None


@rule(aten.mv.default)
def _mv(rewriter: Rewriter, a: Node, x: Node) -> Node | None:
    if not _is_float(a):
        return None
    product = rewriter.emit(ops.matmul.default, a, rewriter.emit(aten.unsqueeze.default, x, 1))
    return rewriter.emit(aten.squeeze.dim, product, 1)


@rule(aten.dot.default, aten.vdot.default)
def _dot(rewriter: Rewriter, a: Node, b: Node) -> Node | None:
    if not _is_float(a):
        return None
    row, column = rewriter.emit(aten.unsqueeze.default, a, 0), rewriter.emit(aten.unsqueeze.default, b, 1)
    return rewriter.emit(aten.view.default, rewriter.emit(ops.matmul.default, row, column), [])


def _in_integers(rewriter: Rewriter, x: Node, *args: Any, dtype: torch.dtype | None) -> Node | None:
    """The sum or product of floating-point numbers that the caller wants taken as integers: exact once they are."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return None
    return rewriter.emit(rewriter.node.target, rewriter.cast(x, dtype), *args, dtype=dtype)


def _reduction(op: Any) -> Rule:
    def apply(rewriter: Rewriter, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Node | None:
        if (dtype or x.meta["val"].dtype) not in DTYPES:
            return _in_integers(rewriter, x, *rewriter.node.args[1:], dtype=dtype)
        dims = [dims] if isinstance(dims, int) else list(dims or [])
        return rewriter.emit(op, rewriter.cast(x, dtype), dims, keepdim)

    return apply


def _whole_reduction(op: Any) -> Rule:
    def apply(rewriter: Rewriter, x: Node, *, dtype: torch.dtype | None = None) -> Node | None:
        return _reduction(op)(rewriter, x, None, False, dtype=dtype)  # type: ignore[no-any-return]  # rules are untyped

    return apply


rule(aten.sum.dim_IntList)(_reduction(ops.sum.default))
rule(aten.mean.dim)(_reduction(ops.mean.default))
rule(aten.prod.dim_int)(_reduction(ops.prod.default))
rule(aten.sum.default)(_whole_reduction(ops.sum.default))
rule(aten.mean.default)(_whole_reduction(ops.mean.default))
rule(aten.prod.default)(_whole_reduction(ops.prod.default))


def _dims(dims: Sequence[int] | None) -> list[int]:
    return list(dims or [])


@rule(aten.var.correction)
def _var(rewriter: Rewriter, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node | None:
    correction = 1.0 if correction is None else float(correction)
    return rewriter.emit(ops.var.default, x, _dims(dim), keepdim, correction) if _is_float(x) else None


@rule(aten.std.correction)
def _std(rewriter: Rewriter, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Node | None:
    correction = 1.0 if correction is None else float(correction)
    return rewriter.emit(ops.std.default, x, _dims(dim), keepdim, correction) if _is_float(x) else None


@rule(aten.var_mean.correction)
def _var_mean(rewriter: Rewriter, x: Node, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Node, Node] | None:
    variance = _var(rewriter, x, dim, correction=correction, keepdim=keepdim)
    if variance is None:
        return None
    return variance, rewriter.emit(ops.mean.default, x, _dims(dim), keepdim)


@rule(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def _extremum(rewriter: Rewriter, x: Node, *args: Any) -> Node | None:
    # Which of +0 and -0 a maximum keeps follows the order of the loop; adding +0 leaves one zero.
    return rewriter.emit(aten.add.Tensor, rewriter.emit(rewriter.node.target, x, *args), 0.0) if _is_float(x) else None


@rule(aten.max.dim, aten.min.dim)
def _extremum_and_index(rewriter: Rewriter, x: Node, *args: Any) -> tuple[Node, Node] | None:
    if not _is_float(x):
        return None
    both = rewriter.emit(rewriter.node.target, x, *args)
    values, indices = (rewriter.emit(operator.getitem, both, i) for i in (0, 1))
    return rewriter.emit(aten.add.Tensor, values, 0.0), indices


def _cumulation(op: Any) -> Rule:
    def apply(rewriter: Rewriter, x: Node, dim: int, *, dtype: torch.dtype | None = None) -> Node | None:
        if (dtype or x.meta["val"].dtype) not in DTYPES:
            return _in_integers(rewriter, x, dim, dtype=dtype)
        return rewriter.emit(op, rewriter.cast(x, dtype), dim)

    return apply


rule(aten.cumsum.default)(_cumulation(ops.cumsum.default))
rule(aten.cumprod.default)(_cumulation(ops.cumprod.default))
rule(aten.logcumsumexp.default)(_cumulation(ops.logcumsumexp.default))


@rule(aten._softmax.default)
def _softmax(rewriter: Rewriter, x: Node, dim: int, half_to_float: bool) -> Node:
    return rewriter.emit(ops.softmax.default, rewriter.cast(x, torch.float32 if half_to_float else None), dim)


@rule(aten._log_softmax.default)
def _log_softmax(rewriter: Rewriter, x: Node, dim: int, half_to_float: bool) -> Node:
    return rewriter.emit(ops.log_softmax.default, rewriter.cast(x, torch.float32 if half_to_float else None), dim)


@rule(aten.native_layer_norm.default)
def _layer_norm(
    rewriter: Rewriter, x: Node, normalized_shape: Sequence[Any], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, ...]:
    dims = len(normalized_shape)
    out = _normalize(rewriter, ops.layer_norm.default, x, dims, weight, bias, eps)
    statistics = rewriter.emit(ops.layer_norm_statistics.default, x, dims, float(eps))
    return out, *_statistics(rewriter, statistics)


@rule(aten.native_group_norm.default)
def _group_norm(
    rewriter: Rewriter, x: Node, weight: Node | None, bias: Node | None, n: Any, c: Any, hxw: Any, groups: int, eps: float
) -> tuple[Node, ...]:
    out = _normalize(rewriter, ops.group_norm.default, x, groups, weight, bias, eps)
    statistics = rewriter.emit(ops.group_norm_statistics.default, x, groups, float(eps))
    return out, *_statistics(rewriter, statistics)


def _normalize(rewriter: Rewriter, op: Any, x: Node, extent: int, weight: Node | None, bias: Node | None, eps: float) -> Node:
    """The normalised result in the dtype of ``x``; operands of several dtypes meet in the widest and round once."""
    dtypes = [t.meta["val"].dtype for t in (x, weight, bias) if t is not None]
    wide = dtypes[0]
    for dtype in dtypes[1:]:
        wide = torch.promote_types(wide, dtype)
    x, weight, bias = (rewriter.cast(t, wide) for t in (x, weight, bias))
    out = rewriter.emit(op, x, extent, weight, bias, float(eps))
    result: Node = rewriter.cast(out, dtypes[0])
    return result


def _statistics(rewriter: Rewriter, statistics: Node) -> list[Node]:
    """Mean and rstd in the shape and dtype that autograd saved for the op being replaced."""
    results = []
    for i in (0, 1):
        expected = rewriter.node.meta["val"][1 + i]
        part = rewriter.emit(aten.select.int, statistics, 0, i)
        while part.meta["val"].dim() < expected.dim():
            part = rewriter.emit(aten.unsqueeze.default, part, -1)
        results.append(rewriter.cast(part, expected.dtype))
    return results


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(rewriter: Rewriter, grad: Node, index: Node, rows: Any, padding_idx: int, scale_grad_by_freq: bool) -> Node | None:
    if scale_grad_by_freq or not _is_float(grad):
        return None
    return rewriter.emit(ops.embedding_backward.default, grad, index, rows, padding_idx)
