"""Norms that models write out, ``x * rsqrt(mean(x * x) + eps) * weight``, as one operator, so that one kernel reads ``x`` once.

It has the bits of the ops it replaces, one after the other: a graph for training, which keeps the root for its backward and so stays as it
is, agrees with the graph for inference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config
from torch.fx import Graph, Node

from bi_inductor.passes.rewriter import Rewriter

aten = torch.ops.aten
ops = torch.ops.bi_inductor


def join_mean_square_norms(graph: Graph) -> None:
    """Replaces them in place, on the CPU, where nobody reads what lies between and the dtype is that of accumulation."""
    if config.cpu_backend == "triton":
        return
    for root in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        found = _square_mean(root)
        if found is None:
            continue
        x, normalized_dims, eps = found
        (last,) = root.users
        weight = _weight(last, normalized_dims)
        if weight is not None:
            (last,) = last.users
        replacement = Rewriter(last).emit(ops.mean_square_norm.default, x, normalized_dims, weight, eps)
        last.replace_all_uses_with(replacement)
    graph.eliminate_dead_code()


def _square_mean(root: Node) -> tuple[Node, int, float] | None:
    """``x``, the number of its trailing dims and eps, if ``root`` is their rsqrt and only scales ``x``."""
    total = _only(root.args[0], aten.add.Tensor)
    if total is None or total.kwargs or not isinstance(total.args[1], (int, float)):
        return None
    mean = _only(total.args[0], ops.mean.default)
    if mean is None or len(mean.args) < 3 or not mean.args[2]:
        return None
    squares = _only(mean.args[0], aten.pow.Tensor_Scalar) or _only(mean.args[0], aten.mul.Tensor)
    if squares is None:
        return None
    x: Any = squares.args[0]
    value = x.meta["val"]
    dims: Any = mean.args[1]
    trailing = sorted(dim % max(value.dim(), 1) for dim in dims) == [*range(value.dim() - len(dims), value.dim())]
    if squares.args[1] not in ((2,) if squares.target is aten.pow.Tensor_Scalar else (x,)) or not dims or not trailing:
        return None
    if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64):
        return None
    (user, *others) = root.users
    if others or user.target is not aten.mul.Tensor or set(user.args) != {x, root}:
        return None
    return x, len(dims), float(total.args[1])


def _weight(scaled: Node, normalized_dims: int) -> Node | None:
    """What multiplies the normalised rows and nothing else reads them: one element for each of a row, of their dtype."""
    (user, *others) = scaled.users or (None,)
    if others or user is None or user.target is not aten.mul.Tensor:
        return None
    factors = [factor for factor in user.args if factor is not scaled]
    if len(factors) != 1 or not isinstance(factors[0], Node):
        return None
    weight, value = factors[0].meta["val"], scaled.meta["val"]
    return factors[0] if weight.dtype == value.dtype and weight.shape == value.shape[value.dim() - normalized_dims :] else None


def _only(node: Any, target: Any) -> Node | None:
    """``node`` if it is a call of ``target`` with one user."""
    return node if isinstance(node, Node) and node.target is target and len(node.users) == 1 else None
