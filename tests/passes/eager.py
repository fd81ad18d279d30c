"""A function as its rewritten graph, run op by op: the bits of sums and matmuls are ours, and nothing but their kernels is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch.fx import GraphModule

from bi_inductor.options import Options
from bi_inductor.passes.capture import captured_ops
from bi_inductor.passes.decompositions import decomposition_table
from bi_inductor.passes.post_grad import PostGradPass


def ours(fn: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    """The results of ``fn(*args)``, then the gradients of its first result's sum of squares; every op of the graphs has a class."""

    def compile_graph(gm: GraphModule, _: Sequence[Any]) -> Any:
        PostGradPass(Options(), "test")(gm.graph)
        gm.recompile()
        return make_boxed_func(gm.forward)

    leaves = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    with captured_ops():
        out = aot_function(fn, compile_graph, compile_graph, decompositions=decomposition_table("test"))(*leaves)
        return with_gradients(out, leaves)


def stock(fn: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    """As ``ours``, by torch's eager kernels."""
    leaves = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    return with_gradients(fn(*leaves), leaves)


def with_gradients(out: Any, leaves: Sequence[Tensor]) -> list[Tensor]:
    results: list[Tensor] = list(out) if isinstance(out, (tuple, list)) else [out]
    inputs = [leaf for leaf in leaves if leaf.requires_grad]
    if not inputs:
        return results
    gradients = torch.autograd.grad(results[0].double().square().sum(), inputs, materialize_grads=True)
    return [result.detach() for result in results] + list(gradients)
