"""Each rewriting rule: the graph before it and after it, and the same values from both."""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import expecttest
import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS
from bi_inductor.passes.capture import captured_ops
from bi_inductor.passes.decompositions import decomposition_table
from bi_inductor.passes.rewrite import rewrite
from bi_inductor.passes.rewriter import RULES

aten = torch.ops.aten


def described(value: Any) -> str:
    """dtype and shape of a fake value."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return f"{len(value)} results" if isinstance(value, (tuple, list)) else type(value).__name__


def rendered(graph: Graph) -> list[str]:
    """The calls of a graph, one a line, with the shape of each result."""
    lines = []
    for node in graph.nodes:
        if node.op == "placeholder":
            lines.append(f"{node.name}: {described(node.meta['val'])}")
        elif node.op == "output":
            lines.append(f"return {node.args[0]}")
        else:
            arguments = [str(argument) for argument in node.args] + [f"{key}={value}" for key, value in node.kwargs.items()]
            target = node.target if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__
            lines.append(f"{node.name} = {target}({', '.join(arguments)}) -> {described(node.meta['val'])}")
    return lines


def difference(before: list[str], after: list[str]) -> list[str]:
    """Both texts in one: lines of the first only behind "-", of the second only behind "+"."""
    return [line for line in difflib.ndiff(before, after) if not line.startswith("?")]


def with_sizes_named(text: str) -> str:
    """Symbolic sizes in order of appearance as n0, n1, ...: torch numbers them by a hash of their source."""
    names: dict[str, str] = {}
    return re.sub(r"\bs\d+\b", lambda match: names.setdefault(match[0], f"n{len(names)}"), text)


def rewritten(
    fn: Callable[..., Any],
    *args: Tensor,
    dynamic: bool = False,
    training: bool = False,
    values: bool = True,
    shown: Sequence[str] = ("inference", "forward", "backward"),
) -> str:
    """The post-grad graph of ``fn(*args)``, forward and under ``training`` backward, before ("-") and after ("+") the rewriting.

    ``values``: run both graphs on the arguments and compare the results within a tolerance; otherwise nothing is computed.
    """
    text: list[str] = []

    def compiler(label: str) -> Callable[..., Any]:
        def compile_graph(gm: GraphModule, _: Sequence[Any]) -> Any:
            before, lines = copy.deepcopy(gm), rendered(gm.graph)
            rewrite(gm.graph)
            gm.graph.lint()
            gm.recompile()
            if label in shown:
                text.extend((label, *difference(lines, rendered(gm.graph))))

            def run(*inputs: Any) -> Any:
                results = gm(*inputs)
                if values:
                    torch.testing.assert_close(results, before(*inputs), equal_nan=True)
                return results

            return make_boxed_func(run)

        return compile_graph

    compiled = aot_function(
        fn,
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=decomposition_table("test"),
        dynamic=dynamic,
    )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = list(args) if values else [mode.from_tensor(arg) for arg in args]
    with captured_ops():
        if values:
            out = compiled(*inputs)
            if training:
                torch.autograd.grad(out.sum(), [arg for arg in inputs if arg.requires_grad])
        else:
            with mode:
                compiled(*inputs)
    return with_sizes_named("\n".join(text))


def captured(fn: Callable[..., Any], *args: Tensor) -> str:
    """The graph that is traced without the captures of passes/capture.py ("-") and with them ("+"); both give the same values."""
    graphs = []
    for context in (contextlib.nullcontext(), captured_ops()):
        with context, enable_python_dispatcher():
            graphs.append(make_fx(fn, tracing_mode="fake")(*args))
    torch.testing.assert_close(graphs[1](*args), graphs[0](*args))
    return "\n".join(difference(*(rendered(gm.graph) for gm in graphs)))


def with_captures(fn: Callable[..., Any], *args: Tensor) -> str:
    """The graph that is traced with the captures of passes/capture.py; it gives the values of ``fn``."""
    with captured_ops(), enable_python_dispatcher():
        graph_module = make_fx(fn, tracing_mode="fake")(*args)
    torch.testing.assert_close(graph_module(*args), fn(*args))
    return "\n".join(rendered(graph_module.graph))


def f32(*shape: int) -> Tensor:
    return torch.randn(shape)


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


# --- Matmul family --------------------------------------------------------------------------------------------------


def test_mm() -> None:
    expecttest.assert_expected_inline(
        rewritten(torch.mm, f32(3, 4), f32(4, 5)),
        """\
inference
  arg0_1: float32[3, 4]
  arg1_1: float32[4, 5]
- mm = aten.mm.default(arg0_1, arg1_1) -> float32[3, 5]
+ matmul_default = bi_inductor.matmul.default(arg0_1, arg1_1) -> float32[3, 5]
- return (mm,)
+ return (matmul_default,)""",
    )


def test_bmm() -> None:
    expecttest.assert_expected_inline(
        rewritten(torch.bmm, bf16(2, 3, 4), bf16(2, 4, 5)),
        """\
inference
  arg0_1: bfloat16[2, 3, 4]
  arg1_1: bfloat16[2, 4, 5]
- bmm = aten.bmm.default(arg0_1, arg1_1) -> bfloat16[2, 3, 5]
+ matmul_default = bi_inductor.matmul.default(arg0_1, arg1_1) -> bfloat16[2, 3, 5]
- return (bmm,)
+ return (matmul_default,)""",
    )


def test_addmm_scales() -> None:
    def fn(bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.addmm(bias, a, b), torch.addmm(bias, a, b, beta=0.5, alpha=2)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(5), f32(3, 4), f32(4, 5)),
        """\
inference
  arg0_1: float32[5]
  arg1_1: float32[3, 4]
  arg2_1: float32[4, 5]
- addmm = aten.addmm.default(arg0_1, arg1_1, arg2_1) -> float32[3, 5]
- addmm_1 = aten.addmm.default(arg0_1, arg1_1, arg2_1, beta=0.5, alpha=2) -> float32[3, 5]
- return (addmm, addmm_1)
+ matmul_default = bi_inductor.matmul.default(arg1_1, arg2_1, arg0_1, 1.0, 1.0) -> float32[3, 5]
+ matmul_default_1 = bi_inductor.matmul.default(arg1_1, arg2_1, arg0_1, 2.0, 0.5) -> float32[3, 5]
+ return (matmul_default, matmul_default_1)""",
    )


def test_baddbmm_scales() -> None:
    def fn(bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.baddbmm(bias, a, b, alpha=0.25), torch.baddbmm(bias, a, b, beta=0)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 1, 5), f32(2, 3, 4), f32(2, 4, 5)),
        """\
inference
  arg0_1: float32[2, 1, 5]
  arg1_1: float32[2, 3, 4]
  arg2_1: float32[2, 4, 5]
- baddbmm = aten.baddbmm.default(arg0_1, arg1_1, arg2_1, alpha=0.25) -> float32[2, 3, 5]
- baddbmm_1 = aten.baddbmm.default(arg0_1, arg1_1, arg2_1, beta=0) -> float32[2, 3, 5]
- return (baddbmm, baddbmm_1)
+ matmul_default = bi_inductor.matmul.default(arg1_1, arg2_1, arg0_1, 0.25, 1.0) -> float32[2, 3, 5]
+ matmul_default_1 = bi_inductor.matmul.default(arg1_1, arg2_1, arg0_1, 1.0, 0.0) -> float32[2, 3, 5]
+ return (matmul_default, matmul_default_1)""",
    )


def test_mv() -> None:
    expecttest.assert_expected_inline(
        rewritten(torch.mv, f32(3, 4), f32(4)),
        """\
inference
  arg0_1: float32[3, 4]
  arg1_1: float32[4]
- mv = aten.mv.default(arg0_1, arg1_1) -> float32[3]
- return (mv,)
+ unsqueeze_default = aten.unsqueeze.default(arg1_1, 1) -> float32[4, 1]
+ matmul_default = bi_inductor.matmul.default(arg0_1, unsqueeze_default) -> float32[3, 1]
+ squeeze_dim = aten.squeeze.dim(matmul_default, 1) -> float32[3]
+ return (squeeze_dim,)""",
    )


def test_dot_has_no_dims() -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return torch.dot(a, b), torch.vdot(a, b)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(4), f32(4)),
        """\
inference
  arg0_1: float32[4]
  arg1_1: float32[4]
- dot = aten.dot.default(arg0_1, arg1_1) -> float32[]
- vdot = aten.vdot.default(arg0_1, arg1_1) -> float32[]
- return (dot, vdot)
+ unsqueeze_default = aten.unsqueeze.default(arg0_1, 0) -> float32[1, 4]
+ unsqueeze_default_1 = aten.unsqueeze.default(arg1_1, 1) -> float32[4, 1]
+ matmul_default = bi_inductor.matmul.default(unsqueeze_default, unsqueeze_default_1) -> float32[1, 1]
+ view_default = aten.view.default(matmul_default, []) -> float32[]
+ unsqueeze_default_2 = aten.unsqueeze.default(arg0_1, 0) -> float32[1, 4]
+ unsqueeze_default_3 = aten.unsqueeze.default(arg1_1, 1) -> float32[4, 1]
+ matmul_default_1 = bi_inductor.matmul.default(unsqueeze_default_2, unsqueeze_default_3) -> float32[1, 1]
+ view_default_1 = aten.view.default(matmul_default_1, []) -> float32[]
+ return (view_default, view_default_1)""",
    )


def test_integer_matmuls_stay() -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a @ b, torch.addmm(a, a, b), a[None] @ b[None], a.mv(b[0]), a[0].dot(b[0])

    expecttest.assert_expected_inline(
        rewritten(fn, torch.arange(4).view(2, 2), torch.arange(4).view(2, 2)),
        """\
inference
  arg0_1: int64[2, 2]
  arg1_1: int64[2, 2]
  mm = aten.mm.default(arg0_1, arg1_1) -> int64[2, 2]
  addmm = aten.addmm.default(arg0_1, arg0_1, arg1_1) -> int64[2, 2]
  unsqueeze = aten.unsqueeze.default(arg0_1, 0) -> int64[1, 2, 2]
  unsqueeze_1 = aten.unsqueeze.default(arg1_1, 0) -> int64[1, 2, 2]
  expand = aten.expand.default(unsqueeze, [1, 2, 2]) -> int64[1, 2, 2]
  view = aten.view.default(expand, [1, 2, 2]) -> int64[1, 2, 2]
  expand_1 = aten.expand.default(unsqueeze_1, [1, 2, 2]) -> int64[1, 2, 2]
  view_1 = aten.view.default(expand_1, [1, 2, 2]) -> int64[1, 2, 2]
  bmm = aten.bmm.default(view, view_1) -> int64[1, 2, 2]
  view_2 = aten.view.default(bmm, [1, 2, 2]) -> int64[1, 2, 2]
  select = aten.select.int(arg1_1, 0, 0) -> int64[2]
  mv = aten.mv.default(arg0_1, select) -> int64[2]
  select_1 = aten.select.int(arg0_1, 0, 0) -> int64[2]
  select_2 = aten.select.int(arg1_1, 0, 0) -> int64[2]
  dot = aten.dot.default(select_1, select_2) -> int64[]
  return (mm, addmm, view_2, mv, dot)""",
    )


def test_matmul_with_vectors() -> None:
    def fn(a: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return a @ x, x @ a.mT, x @ x

    expecttest.assert_expected_inline(
        rewritten(fn, f32(3, 4), f32(4)),
        """\
inference
  arg0_1: float32[3, 4]
  arg1_1: float32[4]
- mv = aten.mv.default(arg0_1, arg1_1) -> float32[3]
+ unsqueeze_default = aten.unsqueeze.default(arg1_1, 1) -> float32[4, 1]
+ matmul_default = bi_inductor.matmul.default(arg0_1, unsqueeze_default) -> float32[3, 1]
+ squeeze_dim = aten.squeeze.dim(matmul_default, 1) -> float32[3]
  permute = aten.permute.default(arg0_1, [1, 0]) -> float32[4, 3]
  unsqueeze = aten.unsqueeze.default(arg1_1, 0) -> float32[1, 4]
- mm = aten.mm.default(unsqueeze, permute) -> float32[1, 3]
+ matmul_default_1 = bi_inductor.matmul.default(unsqueeze, permute) -> float32[1, 3]
- squeeze = aten.squeeze.dim(mm, 0) -> float32[3]
+ squeeze = aten.squeeze.dim(matmul_default_1, 0) -> float32[3]
- dot = aten.dot.default(arg1_1, arg1_1) -> float32[]
- return (mv, squeeze, dot)
+ unsqueeze_default_1 = aten.unsqueeze.default(arg1_1, 0) -> float32[1, 4]
+ unsqueeze_default_2 = aten.unsqueeze.default(arg1_1, 1) -> float32[4, 1]
+ matmul_default_2 = bi_inductor.matmul.default(unsqueeze_default_1, unsqueeze_default_2) -> float32[1, 1]
+ view_default = aten.view.default(matmul_default_2, []) -> float32[]
+ return (squeeze_dim, squeeze, view_default)""",
    )


def test_linear_is_one_op_for_every_rank() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return functional.linear(x, weight, bias), functional.linear(x[0, 0], weight), functional.linear(x.transpose(0, 1), weight[0])

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3, 4), f32(5, 4), f32(5)),
        """\
inference
  arg0_1: float32[2, 3, 4]
  arg1_1: float32[5, 4]
  arg2_1: float32[5]
  view = aten.view.default(arg0_1, [6, 4]) -> float32[6, 4]
  permute = aten.permute.default(arg1_1, [1, 0]) -> float32[4, 5]
  matmul = bi_inductor.matmul.default(view, permute, arg2_1) -> float32[6, 5]
  view_1 = aten.view.default(matmul, [2, 3, 5]) -> float32[2, 3, 5]
  select = aten.select.int(arg0_1, 0, 0) -> float32[3, 4]
  select_1 = aten.select.int(select, 0, 0) -> float32[4]
  view_2 = aten.view.default(select_1, [1, 4]) -> float32[1, 4]
  permute_1 = aten.permute.default(arg1_1, [1, 0]) -> float32[4, 5]
  matmul_1 = bi_inductor.matmul.default(view_2, permute_1) -> float32[1, 5]
  view_3 = aten.view.default(matmul_1, [5]) -> float32[5]
  permute_2 = aten.permute.default(arg0_1, [1, 0, 2]) -> float32[3, 2, 4]
  select_2 = aten.select.int(arg1_1, 0, 0) -> float32[4]
  unsqueeze = aten.unsqueeze.default(select_2, 0) -> float32[1, 4]
  clone = aten.clone.default(permute_2, memory_format=torch.contiguous_format) -> float32[3, 2, 4]
  view_4 = aten.view.default(clone, [6, 4]) -> float32[6, 4]
  permute_3 = aten.permute.default(unsqueeze, [1, 0]) -> float32[4, 1]
  matmul_2 = bi_inductor.matmul.default(view_4, permute_3) -> float32[6, 1]
  view_5 = aten.view.default(matmul_2, [3, 2]) -> float32[3, 2]
  return (view_1, view_3, view_5)""",
    )


# --- Reductions -----------------------------------------------------------------------------------------------------


def test_sum_over_dims() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(-1), x.sum((0, 2), keepdim=True), x.sum(()), x.sum(0, dtype=torch.float64)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3, 4)),
        """\
inference
  arg0_1: float32[2, 3, 4]
- sum_1 = aten.sum.dim_IntList(arg0_1, [-1]) -> float32[2, 3]
+ sum_default = bi_inductor.sum.default(arg0_1, [-1], False) -> float32[2, 3]
- sum_2 = aten.sum.dim_IntList(arg0_1, [0, 2], True) -> float32[1, 3, 1]
+ sum_default_1 = bi_inductor.sum.default(arg0_1, [0, 2], True) -> float32[1, 3, 1]
- sum_3 = aten.sum.dim_IntList(arg0_1, []) -> float32[]
- sum_4 = aten.sum.dim_IntList(arg0_1, [0], dtype=torch.float64) -> float64[3, 4]
- return (sum_1, sum_2, sum_3, sum_4)
+ sum_default_2 = bi_inductor.sum.default(arg0_1, [], False) -> float32[]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float64) -> float64[2, 3, 4]
+ sum_default_3 = bi_inductor.sum.default(convert_element_type_default, [0], False) -> float64[3, 4]
+ return (sum_default, sum_default_1, sum_default_2, sum_default_3)""",
    )


def test_sum_of_all() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.sum(dtype=torch.float32), x[0, 0].sum()

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 3)),
        """\
inference
  arg0_1: bfloat16[2, 3]
- sum_1 = aten.sum.default(arg0_1) -> bfloat16[]
- sum_2 = aten.sum.default(arg0_1, dtype=torch.float32) -> float32[]
+ sum_default = bi_inductor.sum.default(arg0_1, [], False) -> bfloat16[]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ sum_default_1 = bi_inductor.sum.default(convert_element_type_default, [], False) -> float32[]
  select = aten.select.int(arg0_1, 0, 0) -> bfloat16[3]
  select_1 = aten.select.int(select, 0, 0) -> bfloat16[]
- sum_3 = aten.sum.default(select_1) -> bfloat16[]
- return (sum_1, sum_2, sum_3)
+ sum_default_2 = bi_inductor.sum.default(select_1, [], False) -> bfloat16[]
+ return (sum_default, sum_default_1, sum_default_2)""",
    )


def test_cumulative_products_and_logarithms_of_sums() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x: (x.cumprod(1), x.logcumsumexp(-1)), f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
- cumprod = aten.cumprod.default(arg0_1, 1) -> float32[2, 3]
+ cumprod_default = bi_inductor.cumprod.default(arg0_1, 1) -> float32[2, 3]
- logcumsumexp = aten.logcumsumexp.default(arg0_1, -1) -> float32[2, 3]
+ logcumsumexp_default = bi_inductor.logcumsumexp.default(arg0_1, -1) -> float32[2, 3]
- return (cumprod, logcumsumexp)
+ return (cumprod_default, logcumsumexp_default)""",
    )


def test_sums_of_floats_taken_as_integers_are_exact() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(0, dtype=torch.int64), x.cumsum(0, dtype=torch.int32)

    expecttest.assert_expected_inline(
        rewritten(fn, torch.tensor([[1.5, -2.5], [3.0, 4.0]])),
        """\
inference
  arg0_1: float32[2, 2]
- sum_1 = aten.sum.dim_IntList(arg0_1, [0], dtype=torch.int64) -> int64[2]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.int64) -> int64[2, 2]
+ sum_dim_int_list = aten.sum.dim_IntList(convert_element_type_default, [0], dtype=torch.int64) -> int64[2]
+ convert_element_type_default_1 = prims.convert_element_type.default(arg0_1, torch.int32) -> int32[2, 2]
- cumsum = aten.cumsum.default(arg0_1, 0, dtype=torch.int32) -> int32[2, 2]
+ cumsum_default = aten.cumsum.default(convert_element_type_default_1, 0, dtype=torch.int32) -> int32[2, 2]
- return (sum_1, cumsum)
+ return (sum_dim_int_list, cumsum_default)""",
    )


def test_sums_of_integers_stay_unless_they_become_floats() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(), x.sum(0), x.prod(), x.prod(0), x.cumsum(0), x.sum(0, dtype=torch.float32), x.mean(dtype=torch.float32)

    expecttest.assert_expected_inline(
        rewritten(fn, torch.arange(6).view(2, 3)),
        """\
inference
  arg0_1: int64[2, 3]
  sum_1 = aten.sum.default(arg0_1) -> int64[]
  sum_2 = aten.sum.dim_IntList(arg0_1, [0]) -> int64[3]
  prod = aten.prod.default(arg0_1) -> int64[]
  prod_1 = aten.prod.dim_int(arg0_1, 0) -> int64[3]
  cumsum = aten.cumsum.default(arg0_1, 0) -> int64[2, 3]
- sum_3 = aten.sum.dim_IntList(arg0_1, [0], dtype=torch.float32) -> float32[3]
- mean = aten.mean.default(arg0_1, dtype=torch.float32) -> float32[]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ sum_default = bi_inductor.sum.default(convert_element_type_default, [0], False) -> float32[3]
+ convert_element_type_default_1 = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ mean_default = bi_inductor.mean.default(convert_element_type_default_1, [], False) -> float32[]
- return (sum_1, sum_2, prod, prod_1, cumsum, sum_3, mean)
+ return (sum_1, sum_2, prod, prod_1, cumsum, sum_default, mean_default)""",
    )


def test_mean() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.mean(), x.mean((0, -1)), x.mean(1, keepdim=True, dtype=torch.float32)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 3, 4)),
        """\
inference
  arg0_1: bfloat16[2, 3, 4]
- mean = aten.mean.default(arg0_1) -> bfloat16[]
- mean_1 = aten.mean.dim(arg0_1, [0, -1]) -> bfloat16[3]
- mean_2 = aten.mean.dim(arg0_1, [1], True, dtype=torch.float32) -> float32[2, 1, 4]
- return (mean, mean_1, mean_2)
+ mean_default = bi_inductor.mean.default(arg0_1, [], False) -> bfloat16[]
+ mean_default_1 = bi_inductor.mean.default(arg0_1, [0, -1], False) -> bfloat16[3]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3, 4]
+ mean_default_2 = bi_inductor.mean.default(convert_element_type_default, [1], True) -> float32[2, 1, 4]
+ return (mean_default, mean_default_1, mean_default_2)""",
    )


def test_prod() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.prod(), x.prod(1), x.prod(0, keepdim=True, dtype=torch.float64)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
- prod = aten.prod.default(arg0_1) -> float32[]
- prod_1 = aten.prod.dim_int(arg0_1, 1) -> float32[2]
- prod_2 = aten.prod.dim_int(arg0_1, 0, True, dtype=torch.float64) -> float64[1, 3]
- return (prod, prod_1, prod_2)
+ prod_default = bi_inductor.prod.default(arg0_1, [], False) -> float32[]
+ prod_default_1 = bi_inductor.prod.default(arg0_1, [1], False) -> float32[2]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float64) -> float64[2, 3]
+ prod_default_2 = bi_inductor.prod.default(convert_element_type_default, [0], True) -> float64[1, 3]
+ return (prod_default, prod_default_1, prod_default_2)""",
    )


def test_var_and_std() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.var(), x.var(1, correction=0, keepdim=True), x.std((0, 1)), x.std(-1, unbiased=False)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(3, 4)),
        """\
inference
  arg0_1: float32[3, 4]
- var = aten.var.correction(arg0_1) -> float32[]
- var_1 = aten.var.correction(arg0_1, [1], correction=0, keepdim=True) -> float32[3, 1]
- std = aten.std.correction(arg0_1, [0, 1], correction=1) -> float32[]
- std_1 = aten.std.correction(arg0_1, [-1], correction=0) -> float32[3]
- return (var, var_1, std, std_1)
+ var_default = bi_inductor.var.default(arg0_1, [], False, 1.0) -> float32[]
+ var_default_1 = bi_inductor.var.default(arg0_1, [1], True, 0.0) -> float32[3, 1]
+ std_default = bi_inductor.std.default(arg0_1, [0, 1], False, 1.0) -> float32[]
+ std_default_1 = bi_inductor.std.default(arg0_1, [-1], False, 0.0) -> float32[3]
+ return (var_default, var_default_1, std_default, std_default_1)""",
    )


def test_var_mean_and_std_mean() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return *torch.var_mean(x, 1), *torch.std_mean(x, 0, keepdim=True)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(3, 4)),
        """\
inference
  arg0_1: float32[3, 4]
+ var_default = bi_inductor.var.default(arg0_1, [1], False, 1.0) -> float32[3]
+ mean_default = bi_inductor.mean.default(arg0_1, [1], False) -> float32[3]
+ var_default_1 = bi_inductor.var.default(arg0_1, [0], True, 1.0) -> float32[1, 4]
+ mean_default_1 = bi_inductor.mean.default(arg0_1, [0], True) -> float32[1, 4]
- var_mean = aten.var_mean.correction(arg0_1, [1], correction=1) -> 2 results
- getitem = getitem(var_mean, 0) -> float32[3]
- getitem_1 = getitem(var_mean, 1) -> float32[3]
- var_mean_1 = aten.var_mean.correction(arg0_1, [0], correction=1.0, keepdim=True) -> 2 results
- getitem_2 = getitem(var_mean_1, 0) -> float32[1, 4]
- getitem_3 = getitem(var_mean_1, 1) -> float32[1, 4]
- sqrt = aten.sqrt.default(getitem_2) -> float32[1, 4]
+ sqrt = aten.sqrt.default(var_default_1) -> float32[1, 4]
- return (getitem, getitem_1, sqrt, getitem_3)
+ return (var_default, mean_default, sqrt, mean_default_1)""",
    )


def test_var_mean_with_one_result_used() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return torch.var_mean(x, 1, correction=0)[0], torch.var_mean(x)[1]

    expecttest.assert_expected_inline(
        rewritten(fn, f32(3, 4)),
        """\
inference
  arg0_1: float32[3, 4]
+ var_default = bi_inductor.var.default(arg0_1, [1], False, 0.0) -> float32[3]
+ mean_default_1 = bi_inductor.mean.default(arg0_1, [], False) -> float32[]
+ return (var_default, mean_default_1)
- var_mean = aten.var_mean.correction(arg0_1, [1], correction=0) -> 2 results
- getitem = getitem(var_mean, 0) -> float32[3]
- var_mean_1 = aten.var_mean.correction(arg0_1) -> 2 results
- getitem_3 = getitem(var_mean_1, 1) -> float32[]
- return (getitem, getitem_3)""",
    )


def test_extrema_have_one_zero() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(1), x.amin((0, 1), keepdim=True), x.max(), x.min(), *x.max(0), x.min(1).indices

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
- amax = aten.amax.default(arg0_1, [1]) -> float32[2]
+ amax_default = aten.amax.default(arg0_1, [1]) -> float32[2]
+ add_tensor = aten.add.Tensor(amax_default, 0.0) -> float32[2]
- amin = aten.amin.default(arg0_1, [0, 1], True) -> float32[1, 1]
+ amin_default = aten.amin.default(arg0_1, [0, 1], True) -> float32[1, 1]
+ add_tensor_1 = aten.add.Tensor(amin_default, 0.0) -> float32[1, 1]
- max_1 = aten.max.default(arg0_1) -> float32[]
+ max_default = aten.max.default(arg0_1) -> float32[]
+ add_tensor_2 = aten.add.Tensor(max_default, 0.0) -> float32[]
- min_1 = aten.min.default(arg0_1) -> float32[]
+ min_default = aten.min.default(arg0_1) -> float32[]
+ add_tensor_3 = aten.add.Tensor(min_default, 0.0) -> float32[]
- max_2 = aten.max.dim(arg0_1, 0) -> 2 results
+ max_dim = aten.max.dim(arg0_1, 0) -> 2 results
- getitem = getitem(max_2, 0) -> float32[3]
+ getitem_4 = getitem(max_dim, 0) -> float32[3]
- getitem_1 = getitem(max_2, 1) -> int64[3]
+ getitem_5 = getitem(max_dim, 1) -> int64[3]
+ add_tensor_4 = aten.add.Tensor(getitem_4, 0.0) -> float32[3]
- min_2 = aten.min.dim(arg0_1, 1) -> 2 results
+ min_dim = aten.min.dim(arg0_1, 1) -> 2 results
- getitem_3 = getitem(min_2, 1) -> int64[2]
+ getitem_7 = getitem(min_dim, 1) -> int64[2]
- return (amax, amin, max_1, min_1, getitem, getitem_1, getitem_3)
+ return (add_tensor, add_tensor_1, add_tensor_2, add_tensor_3, add_tensor_4, getitem_5, getitem_7)""",
    )


def test_extrema_of_integers_stay() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(1), x.min(), x.max(0).values

    expecttest.assert_expected_inline(
        rewritten(fn, torch.arange(6).view(2, 3)),
        """\
inference
  arg0_1: int64[2, 3]
  amax = aten.amax.default(arg0_1, [1]) -> int64[2]
  min_1 = aten.min.default(arg0_1) -> int64[]
  max_1 = aten.max.dim(arg0_1, 0) -> 2 results
  getitem = getitem(max_1, 0) -> int64[3]
  return (amax, min_1, getitem)""",
    )


def test_cumsum() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.cumsum(-1), x.cumsum(0, dtype=torch.float32), x[0, 0].cumsum(0)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 3)),
        """\
inference
  arg0_1: bfloat16[2, 3]
- cumsum = aten.cumsum.default(arg0_1, -1) -> bfloat16[2, 3]
+ cumsum_default = bi_inductor.cumsum.default(arg0_1, -1) -> bfloat16[2, 3]
- cumsum_1 = aten.cumsum.default(arg0_1, 0, dtype=torch.float32) -> float32[2, 3]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ cumsum_default_1 = bi_inductor.cumsum.default(convert_element_type_default, 0) -> float32[2, 3]
  select = aten.select.int(arg0_1, 0, 0) -> bfloat16[3]
  select_1 = aten.select.int(select, 0, 0) -> bfloat16[]
- cumsum_2 = aten.cumsum.default(select_1, 0) -> bfloat16[]
+ cumsum_default_2 = bi_inductor.cumsum.default(select_1, 0) -> bfloat16[]
- return (cumsum, cumsum_1, cumsum_2)
+ return (cumsum_default, cumsum_default_1, cumsum_default_2)""",
    )


def test_norms_and_logsumexp_end_in_sums() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return torch.logsumexp(x, 1), torch.linalg.vector_norm(x, dim=1), x.norm(p=1)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
- amax = aten.amax.default(arg0_1, [1], True) -> float32[2, 1]
+ amax_default = aten.amax.default(arg0_1, [1], True) -> float32[2, 1]
+ add_tensor = aten.add.Tensor(amax_default, 0.0) -> float32[2, 1]
- abs_1 = aten.abs.default(amax) -> float32[2, 1]
+ abs_1 = aten.abs.default(add_tensor) -> float32[2, 1]
  eq = aten.eq.Scalar(abs_1, inf) -> bool[2, 1]
  scalar_tensor = aten.scalar_tensor.default(0.0, dtype=torch.float32, layout=torch.strided, device=cpu) -> float32[]
- where = aten.where.self(eq, scalar_tensor, amax) -> float32[2, 1]
+ where = aten.where.self(eq, scalar_tensor, add_tensor) -> float32[2, 1]
  squeeze = aten.squeeze.dims(where, [1]) -> float32[2]
  sub = aten.sub.Tensor(arg0_1, where) -> float32[2, 3]
  exp = aten.exp.default(sub) -> float32[2, 3]
- sum_1 = aten.sum.dim_IntList(exp, [1]) -> float32[2]
+ sum_default = bi_inductor.sum.default(exp, [1], False) -> float32[2]
- log = aten.log.default(sum_1) -> float32[2]
+ log = aten.log.default(sum_default) -> float32[2]
  add = aten.add.Tensor(log, squeeze) -> float32[2]
  pow_1 = aten.pow.Tensor_Scalar(arg0_1, 2) -> float32[2, 3]
- sum_2 = aten.sum.dim_IntList(pow_1, [1]) -> float32[2]
+ sum_default_1 = bi_inductor.sum.default(pow_1, [1], False) -> float32[2]
- pow_2 = aten.pow.Tensor_Scalar(sum_2, 0.5) -> float32[2]
+ pow_2 = aten.pow.Tensor_Scalar(sum_default_1, 0.5) -> float32[2]
  abs_2 = aten.abs.default(arg0_1) -> float32[2, 3]
  pow_3 = aten.pow.Tensor_Scalar(abs_2, 1) -> float32[2, 3]
- sum_3 = aten.sum.dim_IntList(pow_3, None) -> float32[]
+ sum_default_2 = bi_inductor.sum.default(pow_3, [], False) -> float32[]
- pow_4 = aten.pow.Tensor_Scalar(sum_3, 1.0) -> float32[]
+ pow_4 = aten.pow.Tensor_Scalar(sum_default_2, 1.0) -> float32[]
  return (add, pow_2, pow_4)""",
    )


# --- Softmax --------------------------------------------------------------------------------------------------------


def test_softmax() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.softmax(-1), x.log_softmax(0), x.softmax(1, dtype=torch.float32), x[0, 0].softmax(0)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 3)),
        """\
inference
  arg0_1: bfloat16[2, 3]
- _softmax = aten._softmax.default(arg0_1, -1, False) -> bfloat16[2, 3]
+ softmax_default = bi_inductor.softmax.default(arg0_1, -1) -> bfloat16[2, 3]
- _log_softmax = aten._log_softmax.default(arg0_1, 0, False) -> bfloat16[2, 3]
+ log_softmax_default = bi_inductor.log_softmax.default(arg0_1, 0) -> bfloat16[2, 3]
  convert_element_type = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
- _softmax_1 = aten._softmax.default(convert_element_type, 1, False) -> float32[2, 3]
+ softmax_default_1 = bi_inductor.softmax.default(convert_element_type, 1) -> float32[2, 3]
  select = aten.select.int(arg0_1, 0, 0) -> bfloat16[3]
  select_1 = aten.select.int(select, 0, 0) -> bfloat16[]
- _softmax_2 = aten._softmax.default(select_1, 0, False) -> bfloat16[]
+ softmax_default_2 = bi_inductor.softmax.default(select_1, 0) -> bfloat16[]
- return (_softmax, _log_softmax, _softmax_1, _softmax_2)
+ return (softmax_default, log_softmax_default, softmax_default_1, softmax_default_2)""",
    )


def test_half_to_float_softmax_computes_in_float32() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return aten._softmax.default(x, 1, True), aten._log_softmax.default(x, 1, True)

    expecttest.assert_expected_inline(
        rewritten(fn, torch.randn(2, 3).half(), values=False),
        """\
inference
  arg0_1: float16[2, 3]
- _softmax = aten._softmax.default(arg0_1, 1, True) -> float32[2, 3]
- _log_softmax = aten._log_softmax.default(arg0_1, 1, True) -> float32[2, 3]
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ softmax_default = bi_inductor.softmax.default(convert_element_type_default, 1) -> float32[2, 3]
+ convert_element_type_default_1 = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 3]
+ log_softmax_default = bi_inductor.log_softmax.default(convert_element_type_default_1, 1) -> float32[2, 3]
- return (_softmax, _log_softmax)
+ return (softmax_default, log_softmax_default)""",
    )


# --- Normalisations -------------------------------------------------------------------------------------------------


def test_layer_norm_in_inference_has_no_statistics() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return functional.layer_norm(x, [4], weight[0], bias[0]), functional.layer_norm(x, [3, 4]), functional.layer_norm(x, [3, 4], weight)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3, 4), f32(3, 4), f32(3, 4)),
        """\
inference
  arg0_1: float32[2, 3, 4]
  arg1_1: float32[3, 4]
  arg2_1: float32[3, 4]
  select = aten.select.int(arg1_1, 0, 0) -> float32[4]
  select_1 = aten.select.int(arg2_1, 0, 0) -> float32[4]
+ layer_norm_default = bi_inductor.layer_norm.default(arg0_1, 1, select, select_1, 1e-05) -> float32[2, 3, 4]
+ layer_norm_default_1 = bi_inductor.layer_norm.default(arg0_1, 2, None, None, 1e-05) -> float32[2, 3, 4]
+ layer_norm_default_2 = bi_inductor.layer_norm.default(arg0_1, 2, arg1_1, None, 1e-05) -> float32[2, 3, 4]
+ return (layer_norm_default, layer_norm_default_1, layer_norm_default_2)
- native_layer_norm = aten.native_layer_norm.default(arg0_1, [4], select, select_1, 1e-05) -> 3 results
- getitem = getitem(native_layer_norm, 0) -> float32[2, 3, 4]
- native_layer_norm_1 = aten.native_layer_norm.default(arg0_1, [3, 4], None, None, 1e-05) -> 3 results
- getitem_3 = getitem(native_layer_norm_1, 0) -> float32[2, 3, 4]
- native_layer_norm_2 = aten.native_layer_norm.default(arg0_1, [3, 4], arg1_1, None, 1e-05) -> 3 results
- getitem_6 = getitem(native_layer_norm_2, 0) -> float32[2, 3, 4]
- return (getitem, getitem_3, getitem_6)""",
    )


def test_layer_norm_of_two_dtypes_rounds_once() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, [4], weight, bias)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 4), f32(4), f32(4)),
        """\
inference
  arg0_1: bfloat16[2, 4]
  arg1_1: float32[4]
  arg2_1: float32[4]
- native_layer_norm = aten.native_layer_norm.default(arg0_1, [4], arg1_1, arg2_1, 1e-05) -> 3 results
- getitem = getitem(native_layer_norm, 0) -> bfloat16[2, 4]
- return (getitem,)
+ convert_element_type_default = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 4]
+ layer_norm_default = bi_inductor.layer_norm.default(convert_element_type_default, 1, arg1_1, arg2_1, 1e-05) -> float32[2, 4]
+ convert_element_type_default_1 = prims.convert_element_type.default(layer_norm_default, torch.bfloat16) -> bfloat16[2, 4]
+ return (convert_element_type_default_1,)""",
    )


def test_layer_norm_in_training() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, [4], weight, bias)

    expecttest.assert_expected_inline(
        rewritten(fn, leaf(2, 4), leaf(4), leaf(4), training=True),
        """\
forward
  primals_1: float32[2, 4]
  primals_2: float32[4]
  primals_3: float32[4]
- native_layer_norm = aten.native_layer_norm.default(primals_1, [4], primals_2, primals_3, 1e-05) -> 3 results
- getitem = getitem(native_layer_norm, 0) -> float32[2, 4]
- getitem_1 = getitem(native_layer_norm, 1) -> float32[2, 1]
- getitem_2 = getitem(native_layer_norm, 2) -> float32[2, 1]
- return (getitem, primals_1, primals_2, getitem_1, getitem_2)
+ layer_norm_default = bi_inductor.layer_norm.default(primals_1, 1, primals_2, primals_3, 1e-05) -> float32[2, 4]
+ layer_norm_statistics_default = bi_inductor.layer_norm_statistics.default(primals_1, 1, 1e-05) -> float32[2, 2]
+ select_int = aten.select.int(layer_norm_statistics_default, 0, 0) -> float32[2]
+ unsqueeze_default = aten.unsqueeze.default(select_int, -1) -> float32[2, 1]
+ select_int_1 = aten.select.int(layer_norm_statistics_default, 0, 1) -> float32[2]
+ unsqueeze_default_1 = aten.unsqueeze.default(select_int_1, -1) -> float32[2, 1]
+ return (layer_norm_default, primals_1, primals_2, unsqueeze_default, unsqueeze_default_1)
backward
  primals_1: float32[2, 4]
  primals_2: float32[4]
  getitem_1: float32[2, 1]
  getitem_2: float32[2, 1]
  tangents_1: float32[2, 4]
  sub = aten.sub.Tensor(primals_1, getitem_1) -> float32[2, 4]
  mul = aten.mul.Tensor(sub, getitem_2) -> float32[2, 4]
  mul_1 = aten.mul.Tensor(tangents_1, primals_2) -> float32[2, 4]
  mul_2 = aten.mul.Tensor(mul_1, 4) -> float32[2, 4]
- sum_1 = aten.sum.dim_IntList(mul_1, [1], True) -> float32[2, 1]
+ sum_default = bi_inductor.sum.default(mul_1, [1], True) -> float32[2, 1]
  mul_3 = aten.mul.Tensor(mul_1, mul) -> float32[2, 4]
- sum_2 = aten.sum.dim_IntList(mul_3, [1], True) -> float32[2, 1]
+ sum_default_1 = bi_inductor.sum.default(mul_3, [1], True) -> float32[2, 1]
- mul_4 = aten.mul.Tensor(mul, sum_2) -> float32[2, 4]
+ mul_4 = aten.mul.Tensor(mul, sum_default_1) -> float32[2, 4]
- sub_1 = aten.sub.Tensor(mul_2, sum_1) -> float32[2, 4]
+ sub_1 = aten.sub.Tensor(mul_2, sum_default) -> float32[2, 4]
  sub_2 = aten.sub.Tensor(sub_1, mul_4) -> float32[2, 4]
  div = aten.div.Tensor(getitem_2, 4) -> float32[2, 1]
  mul_5 = aten.mul.Tensor(div, sub_2) -> float32[2, 4]
  mul_6 = aten.mul.Tensor(tangents_1, mul) -> float32[2, 4]
- sum_3 = aten.sum.dim_IntList(mul_6, [0]) -> float32[4]
- sum_4 = aten.sum.dim_IntList(tangents_1, [0]) -> float32[4]
- return (mul_5, sum_3, sum_4)
+ sum_default_2 = bi_inductor.sum.default(mul_6, [0], False) -> float32[4]
+ sum_default_3 = bi_inductor.sum.default(tangents_1, [0], False) -> float32[4]
+ return (mul_5, sum_default_2, sum_default_3)""",
    )


def test_layer_norm_statistics_have_the_dtype_that_autograd_saves() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return aten.native_layer_norm.default(x, [4], None, None, 1e-5)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 4)),
        """\
inference
  arg0_1: bfloat16[2, 4]
- native_layer_norm = aten.native_layer_norm.default(arg0_1, [4], None, None, 1e-05) -> 3 results
- getitem = getitem(native_layer_norm, 0) -> bfloat16[2, 4]
- getitem_1 = getitem(native_layer_norm, 1) -> bfloat16[2, 1]
- getitem_2 = getitem(native_layer_norm, 2) -> bfloat16[2, 1]
- return (getitem, getitem_1, getitem_2)
+ layer_norm_default = bi_inductor.layer_norm.default(arg0_1, 1, None, None, 1e-05) -> bfloat16[2, 4]
+ layer_norm_statistics_default = bi_inductor.layer_norm_statistics.default(arg0_1, 1, 1e-05) -> float32[2, 2]
+ select_int = aten.select.int(layer_norm_statistics_default, 0, 0) -> float32[2]
+ unsqueeze_default = aten.unsqueeze.default(select_int, -1) -> float32[2, 1]
+ convert_element_type_default = prims.convert_element_type.default(unsqueeze_default, torch.bfloat16) -> bfloat16[2, 1]
+ select_int_1 = aten.select.int(layer_norm_statistics_default, 0, 1) -> float32[2]
+ unsqueeze_default_1 = aten.unsqueeze.default(select_int_1, -1) -> float32[2, 1]
+ convert_element_type_default_1 = prims.convert_element_type.default(unsqueeze_default_1, torch.bfloat16) -> bfloat16[2, 1]
+ return (layer_norm_default, convert_element_type_default, convert_element_type_default_1)""",
    )


def test_rms_norm_is_one_op() -> None:
    def fn(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return functional.rms_norm(x, [4]), functional.rms_norm(x, [4], weight, 1e-6)

    expecttest.assert_expected_inline(
        rewritten(fn, bf16(2, 4), f32(4)),
        """\
inference
  arg0_1: bfloat16[2, 4]
  arg1_1: float32[4]
  rms_norm = bi_inductor.rms_norm.default(arg0_1, 1, None, 1.1920928955078125e-07) -> bfloat16[2, 4]
  convert_element_type = prims.convert_element_type.default(arg0_1, torch.float32) -> float32[2, 4]
  rms_norm_1 = bi_inductor.rms_norm.default(convert_element_type, 1, arg1_1, 1e-06) -> float32[2, 4]
  convert_element_type_1 = prims.convert_element_type.default(rms_norm_1, torch.bfloat16) -> bfloat16[2, 4]
  return (rms_norm, convert_element_type_1)""",
    )


def test_group_norm() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return functional.group_norm(x, 2, weight, bias), functional.group_norm(x, 4)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 4, 3), f32(4), f32(4)),
        """\
inference
  arg0_1: float32[2, 4, 3]
  arg1_1: float32[4]
  arg2_1: float32[4]
+ group_norm_default = bi_inductor.group_norm.default(arg0_1, 2, arg1_1, arg2_1, 1e-05) -> float32[2, 4, 3]
+ group_norm_default_1 = bi_inductor.group_norm.default(arg0_1, 4, None, None, 1e-05) -> float32[2, 4, 3]
+ return (group_norm_default, group_norm_default_1)
- native_group_norm = aten.native_group_norm.default(arg0_1, arg1_1, arg2_1, 2, 4, 3, 2, 1e-05) -> 3 results
- getitem = getitem(native_group_norm, 0) -> float32[2, 4, 3]
- native_group_norm_1 = aten.native_group_norm.default(arg0_1, None, None, 2, 4, 3, 4, 1e-05) -> 3 results
- getitem_3 = getitem(native_group_norm_1, 0) -> float32[2, 4, 3]
- return (getitem, getitem_3)""",
    )


def test_group_norm_in_training() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.group_norm(x, 2, weight, bias)

    expecttest.assert_expected_inline(
        rewritten(fn, leaf(2, 4, 3), leaf(4), leaf(4), training=True, shown=["forward"]),
        """\
forward
  primals_1: float32[2, 4, 3]
  primals_2: float32[4]
  primals_3: float32[4]
- native_group_norm = aten.native_group_norm.default(primals_1, primals_2, primals_3, 2, 4, 3, 2, 1e-05) -> 3 results
- getitem = getitem(native_group_norm, 0) -> float32[2, 4, 3]
- getitem_1 = getitem(native_group_norm, 1) -> float32[2, 2]
- getitem_2 = getitem(native_group_norm, 2) -> float32[2, 2]
+ group_norm_default = bi_inductor.group_norm.default(primals_1, 2, primals_2, primals_3, 1e-05) -> float32[2, 4, 3]
+ group_norm_statistics_default = bi_inductor.group_norm_statistics.default(primals_1, 2, 1e-05) -> float32[2, 2, 2]
+ select_int = aten.select.int(group_norm_statistics_default, 0, 0) -> float32[2, 2]
+ select_int_1 = aten.select.int(group_norm_statistics_default, 0, 1) -> float32[2, 2]
- alias = aten.alias.default(getitem_1) -> float32[2, 2]
+ alias = aten.alias.default(select_int) -> float32[2, 2]
- alias_1 = aten.alias.default(getitem_2) -> float32[2, 2]
+ alias_1 = aten.alias.default(select_int_1) -> float32[2, 2]
- return (getitem, primals_1, primals_2, alias, alias_1)
+ return (group_norm_default, primals_1, primals_2, alias, alias_1)""",
    )


# --- Backwards ------------------------------------------------------------------------------------------------------


def test_embedding_backward() -> None:
    def fn(weight: Tensor, index: Tensor) -> Tensor:
        return functional.embedding(index, weight, padding_idx=1)

    expecttest.assert_expected_inline(
        rewritten(fn, leaf(5, 3), torch.tensor([0, 4, 1, 4]), training=True),
        """\
forward
  primals_1: float32[5, 3]
  primals_2: int64[4]
  embedding = aten.embedding.default(primals_1, primals_2, 1) -> float32[4, 3]
  return (embedding, primals_2)
backward
  primals_2: int64[4]
  tangents_1: float32[4, 3]
- embedding_dense_backward = aten.embedding_dense_backward.default(tangents_1, primals_2, 5, 1, False) -> float32[5, 3]
+ embedding_backward_default = bi_inductor.embedding_backward.default(tangents_1, primals_2, 5, 1) -> float32[5, 3]
- return (embedding_dense_backward, None)
+ return (embedding_backward_default, None)""",
    )


def test_embedding_backward_scaled_by_frequency_stays() -> None:
    def fn(grad: Tensor, index: Tensor) -> Tensor:
        return aten.embedding_dense_backward.default(grad, index, 5, -1, True)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(4, 3), torch.tensor([0, 4, 1, 4])),
        """\
inference
  arg0_1: float32[4, 3]
  arg1_1: int64[4]
  embedding_dense_backward = aten.embedding_dense_backward.default(arg0_1, arg1_1, 5, -1, True) -> float32[5, 3]
  return (embedding_dense_backward,)""",
    )


def test_mm_backward() -> None:
    expecttest.assert_expected_inline(
        rewritten(torch.mm, leaf(3, 4), leaf(4, 5), training=True),
        """\
forward
  primals_1: float32[3, 4]
  primals_2: float32[4, 5]
- mm = aten.mm.default(primals_1, primals_2) -> float32[3, 5]
+ matmul_default = bi_inductor.matmul.default(primals_1, primals_2) -> float32[3, 5]
- return (mm, primals_1, primals_2)
+ return (matmul_default, primals_1, primals_2)
backward
  primals_1: float32[3, 4]
  primals_2: float32[4, 5]
  tangents_1: float32[3, 5]
  permute = aten.permute.default(primals_1, [1, 0]) -> float32[4, 3]
- mm_1 = aten.mm.default(permute, tangents_1) -> float32[4, 5]
+ matmul_default = bi_inductor.matmul.default(permute, tangents_1) -> float32[4, 5]
  permute_1 = aten.permute.default(primals_2, [1, 0]) -> float32[5, 4]
- mm_2 = aten.mm.default(tangents_1, permute_1) -> float32[3, 4]
+ matmul_default_1 = bi_inductor.matmul.default(tangents_1, permute_1) -> float32[3, 4]
- return (mm_2, mm_1)
+ return (matmul_default_1, matmul_default)""",
    )


# --- Captures -------------------------------------------------------------------------------------------------------


def test_linear_is_captured() -> None:
    expecttest.assert_expected_inline(
        captured(functional.linear, f32(2, 3, 4).transpose(0, 1), f32(5, 4), f32(5)),
        """\
  arg0_1: float32[3, 2, 4]
  arg1_1: float32[5, 4]
  arg2_1: float32[5]
+ clone = aten.clone.default(arg0_1, memory_format=torch.contiguous_format) -> float32[3, 2, 4]
+ _unsafe_view = aten._unsafe_view.default(clone, [6, 4]) -> float32[6, 4]
  t = aten.t.default(arg1_1) -> float32[4, 5]
+ matmul = bi_inductor.matmul.default(_unsafe_view, t, arg2_1) -> float32[6, 5]
- expand = aten.expand.default(arg0_1, [3, 2, 4]) -> float32[3, 2, 4]
- view = aten.view.default(expand, [3, 2, 4]) -> float32[3, 2, 4]
- expand_1 = aten.expand.default(t, [3, 4, 5]) -> float32[3, 4, 5]
- view_1 = aten.view.default(expand_1, [3, 4, 5]) -> float32[3, 4, 5]
- bmm = aten.bmm.default(view, view_1) -> float32[3, 2, 5]
- view_2 = aten.view.default(bmm, [3, 2, 5]) -> float32[3, 2, 5]
+ view = aten.view.default(matmul, [3, 2, 5]) -> float32[3, 2, 5]
+ return view
- add = aten.add.Tensor(view_2, arg2_1) -> float32[3, 2, 5]
- return add""",
    )


def test_rms_norm_is_captured() -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, [4], weight, 1e-6)

    expecttest.assert_expected_inline(
        captured(fn, f32(2, 4), f32(4)),
        """\
  x_1: float32[2, 4]
  weight_1: float32[4]
+ rms_norm = bi_inductor.rms_norm.default(x_1, 1, weight_1, 1e-06) -> float32[2, 4]
+ return rms_norm
- pow_1 = aten.pow.Tensor_Scalar(x_1, 2) -> float32[2, 4]
- mean = aten.mean.dim(pow_1, [1], True) -> float32[2, 1]
- add_ = aten.add_.Scalar(mean, 9.999999974752427e-07) -> float32[2, 1]
- rsqrt = aten.rsqrt.default(add_) -> float32[2, 1]
- mul = aten.mul.Tensor(x_1, rsqrt) -> float32[2, 4]
- mul_1 = aten.mul.Tensor(mul, weight_1) -> float32[2, 4]
- return mul_1""",
    )


def test_attention_is_captured() -> None:
    expecttest.assert_expected_inline(
        captured(functional.scaled_dot_product_attention, f32(2, 4, 3, 8), f32(2, 4, 5, 8), f32(2, 4, 5, 8)),
        """\
  arg0_1: float32[2, 4, 3, 8]
  arg1_1: float32[2, 4, 5, 8]
  arg2_1: float32[2, 4, 5, 8]
- _scaled_dot_product_flash_attention_for_cpu = aten._scaled_dot_product_flash_attention_for_cpu.default(arg0_1, arg1_1, arg2_1) -> 2 results
- getitem = getitem(_scaled_dot_product_flash_attention_for_cpu, 0) -> float32[2, 4, 3, 8]
- getitem_1 = getitem(_scaled_dot_product_flash_attention_for_cpu, 1) -> float32[2, 4, 3]
- return getitem
+ expand = aten.expand.default(arg0_1, [2, 4, 3, 8]) -> float32[2, 4, 3, 8]
+ expand_1 = aten.expand.default(arg1_1, [2, 4, 5, 8]) -> float32[2, 4, 5, 8]
+ expand_2 = aten.expand.default(arg2_1, [2, 4, 5, 8]) -> float32[2, 4, 5, 8]
+ attention = bi_inductor.attention.default(expand, expand_1, expand_2) -> float32[2, 4, 3, 8]
+ return attention""",  # noqa: E501  # torch's name of its kernel is that long
    )


def test_attention_of_three_dims_is_captured() -> None:
    # Shown without the graph that torch makes of it: up to 2.13 a chain of matmuls, later its fused op on four dims.
    def fn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, scale=0.5)

    expecttest.assert_expected_inline(
        with_captures(fn, f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8), f32(3, 5)),
        """\
q_1: float32[2, 3, 8]
k_1: float32[2, 5, 8]
v_1: float32[2, 5, 8]
mask_1: float32[3, 5]
expand = aten.expand.default(q_1, [2, 3, 8]) -> float32[2, 3, 8]
expand_1 = aten.expand.default(k_1, [2, 5, 8]) -> float32[2, 5, 8]
expand_2 = aten.expand.default(v_1, [2, 5, 8]) -> float32[2, 5, 8]
expand_3 = aten.expand.default(mask_1, [2, 3, 5]) -> float32[2, 3, 5]
unsqueeze = aten.unsqueeze.default(expand_3, -3) -> float32[2, 1, 3, 5]
unsqueeze_1 = aten.unsqueeze.default(expand, -3) -> float32[2, 1, 3, 8]
unsqueeze_2 = aten.unsqueeze.default(expand_1, -3) -> float32[2, 1, 5, 8]
unsqueeze_3 = aten.unsqueeze.default(expand_2, -3) -> float32[2, 1, 5, 8]
attention = bi_inductor.attention.default(unsqueeze_1, unsqueeze_2, unsqueeze_3, unsqueeze, False, 0.5) -> float32[2, 1, 3, 8]
view = aten.view.default(attention, [2, 3, 8]) -> float32[2, 3, 8]
return view""",
    )


def test_attention_of_grouped_heads_is_captured() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    expecttest.assert_expected_inline(
        captured(fn, f32(2, 4, 3, 8), f32(2, 2, 3, 8), f32(2, 2, 3, 8)),
        """\
  q_1: float32[2, 4, 3, 8]
  k_1: float32[2, 2, 3, 8]
  v_1: float32[2, 2, 3, 8]
- _scaled_dot_product_flash_attention_for_cpu = aten._scaled_dot_product_flash_attention_for_cpu.default(q_1, k_1, v_1, 0.0, True) -> 2 results
- getitem = getitem(_scaled_dot_product_flash_attention_for_cpu, 0) -> float32[2, 4, 3, 8]
- getitem_1 = getitem(_scaled_dot_product_flash_attention_for_cpu, 1) -> float32[2, 4, 3]
- return getitem
+ expand = aten.expand.default(q_1, [2, 4, 3, 8]) -> float32[2, 4, 3, 8]
+ expand_1 = aten.expand.default(k_1, [2, 2, 3, 8]) -> float32[2, 2, 3, 8]
+ expand_2 = aten.expand.default(v_1, [2, 2, 3, 8]) -> float32[2, 2, 3, 8]
+ attention = bi_inductor.attention.default(expand, expand_1, expand_2, None, True) -> float32[2, 4, 3, 8]
+ return attention""",  # noqa: E501  # torch's name of its kernel is that long
    )


def test_convolution_is_captured() -> None:
    expecttest.assert_expected_inline(
        captured(functional.conv1d, f32(2, 3, 5), f32(4, 3, 2), f32(4)),
        """\
  arg0_1: float32[2, 3, 5]
  arg1_1: float32[4, 3, 2]
  arg2_1: float32[4]
- convolution = aten.convolution.default(arg0_1, arg1_1, arg2_1, [1], [0], [1], False, [0], 1) -> float32[2, 4, 4]
+ convolution = bi_inductor.convolution.default(arg0_1, arg1_1, arg2_1, [1], [0, 0], [1], 1) -> float32[2, 4, 4]
  return convolution""",
    )


def test_a_convolution_with_gradients_keeps_its_patches() -> None:
    expecttest.assert_expected_inline(
        with_captures(functional.conv1d, leaf(2, 3, 5), f32(4, 3, 2), f32(4)),
        """\
arg0_1: float32[2, 3, 5]
arg1_1: float32[4, 3, 2]
arg2_1: float32[4]
constant_pad_nd = aten.constant_pad_nd.default(arg0_1, [0, 0], 0.0) -> float32[2, 3, 5]
slice_1 = aten.slice.Tensor(constant_pad_nd, 2, 0, 4) -> float32[2, 3, 4]
slice_2 = aten.slice.Tensor(constant_pad_nd, 2, 1, 5) -> float32[2, 3, 4]
stack = aten.stack.default([slice_1, slice_2], 2) -> float32[2, 3, 2, 4]
view = aten.view.default(arg1_1, [1, 4, 6]) -> float32[1, 4, 6]
expand = aten.expand.default(view, [2, -1, -1]) -> float32[2, 4, 6]
unsqueeze = aten.unsqueeze.default(arg2_1, 1) -> float32[4, 1]
view_1 = aten.view.default(stack, [2, 6, 4]) -> float32[2, 6, 4]
matmul = bi_inductor.matmul.default(expand, view_1, unsqueeze) -> float32[2, 4, 4]
view_2 = aten.view.default(matmul, [2, 4, 4]) -> float32[2, 4, 4]
return view_2""",
    )


def test_grouped_convolution_is_captured() -> None:
    def fn(x: Tensor, weight: Tensor) -> Tensor:
        return functional.conv2d(x, weight, None, 2, "valid", 1, 2)

    expecttest.assert_expected_inline(
        captured(fn, f32(2, 4, 3, 3), f32(6, 2, 2, 2)),
        """\
  x_1: float32[2, 4, 3, 3]
  weight_1: float32[6, 2, 2, 2]
- convolution = aten.convolution.default(x_1, weight_1, None, [2, 2], [0], [1, 1], False, [0], 2) -> float32[2, 6, 1, 1]
+ convolution = bi_inductor.convolution.default(x_1, weight_1, None, [2, 2], [0, 0, 0, 0], [1, 1], 2) -> float32[2, 6, 1, 1]
  return convolution""",
    )


def test_convolution_of_volumes_is_captured() -> None:
    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.conv3d(x, weight, bias, (1, 2, 1), (0, 0, 1))

    expecttest.assert_expected_inline(
        captured(fn, f32(2, 2, 2, 3, 2), f32(3, 2, 1, 1, 2), f32(3)),
        """\
  x_1: float32[2, 2, 2, 3, 2]
  weight_1: float32[3, 2, 1, 1, 2]
  bias_1: float32[3]
- convolution = aten.convolution.default(x_1, weight_1, bias_1, [1, 2, 1], [0, 0, 1], [1, 1, 1], False, [0, 0, 0], 1) -> float32[2, 3, 2, 2, 3]
+ convolution = bi_inductor.convolution.default(x_1, weight_1, bias_1, [1, 2, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1], 1) -> float32[2, 3, 2, 2, 3]
  return convolution""",  # noqa: E501  # a convolution names everything three times
    )


# --- The rewriting itself -------------------------------------------------------------------------------------------


def test_sizes_may_be_symbolic() -> None:
    def fn(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        return (x @ weight).softmax(-1), x.mean((0, 1)), functional.layer_norm(x, x.shape[2:]), x.var(1)

    expecttest.assert_expected_inline(
        rewritten(fn, f32(2, 3, 4), f32(4, 4), dynamic=True),
        """\
inference
  arg0_1: float32[n0, n1, n2]
  arg1_1: float32[n2, n2]
  sym_size_int = aten.sym_size.int(arg0_1, 0) -> SymInt
  sym_size_int_1 = aten.sym_size.int(arg0_1, 1) -> SymInt
  mul = mul(sym_size_int, sym_size_int_1) -> SymInt
  sym_size_int_2 = aten.sym_size.int(arg0_1, 2) -> SymInt
  view = aten.view.default(arg0_1, [mul, sym_size_int_2]) -> float32[n0*n1, n2]
- mm = aten.mm.default(view, arg1_1) -> float32[n0*n1, n2]
+ matmul_default = bi_inductor.matmul.default(view, arg1_1) -> float32[n0*n1, n2]
  sym_size_int_3 = aten.sym_size.int(arg1_1, 1) -> SymInt
- view_1 = aten.view.default(mm, [sym_size_int, sym_size_int_1, sym_size_int_3]) -> float32[n0, n1, n2]
+ view_1 = aten.view.default(matmul_default, [sym_size_int, sym_size_int_1, sym_size_int_3]) -> float32[n0, n1, n2]
- _softmax = aten._softmax.default(view_1, -1, False) -> float32[n0, n1, n2]
+ softmax_default = bi_inductor.softmax.default(view_1, -1) -> float32[n0, n1, n2]
+ mean_default = bi_inductor.mean.default(arg0_1, [0, 1], False) -> float32[n2]
+ layer_norm_default = bi_inductor.layer_norm.default(arg0_1, 1, None, None, 1e-05) -> float32[n0, n1, n2]
+ var_default = bi_inductor.var.default(arg0_1, [1], False, 1.0) -> float32[n0, n2]
+ return (softmax_default, mean_default, layer_norm_default, var_default)
- mean = aten.mean.dim(arg0_1, [0, 1]) -> float32[n2]
- native_layer_norm = aten.native_layer_norm.default(arg0_1, [sym_size_int_2], None, None, 1e-05) -> 3 results
- getitem = getitem(native_layer_norm, 0) -> float32[n0, n1, n2]
- var = aten.var.correction(arg0_1, [1], correction=1) -> float32[n0, n2]
- return (_softmax, mean, getitem, var)""",
    )


def test_every_rule_is_shown_above() -> None:
    rules, _, _ = Path(__file__).read_text().partition("# --- Captures ---")
    for name in ("scatter", "complex", "one_sample", "pooling", "decomposed"):
        rules += (Path(__file__).parent / f"test_{name}.py").read_text()
    shown = set(re.findall(r"^- \w+ = ([\w.]+)\(", rules, re.MULTILINE))
    # One rule serves all ops that run one sample at a time.
    assert shown & {str(op) for op in ONE_SAMPLE_OPS}
    assert {str(target).replace("::", ".") for target in RULES if target not in ONE_SAMPLE_OPS} - {
        name.removesuffix(".default") for name in shown
    } - shown == set()


def traced_sum() -> tuple[GraphModule, Node]:
    with FakeTensorMode():
        gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.sum(1))(torch.empty(2, 3))
    (node,) = (node for node in gm.graph.nodes if node.op == "call_function")
    return gm, node


def test_replacements_keep_the_source_line() -> None:
    gm, node = traced_sum()
    node.meta["stack_trace"] = 'File "model.py", line 7, in forward\n    x.sum(1)'
    rewrite(gm.graph)
    (replacement,) = (node for node in gm.graph.nodes if node.op == "call_function")
    assert replacement.target is torch.ops.bi_inductor.sum.default
    assert replacement.meta["stack_trace"] == node.meta["stack_trace"]


def test_a_second_rewriting_changes_nothing() -> None:
    gm, _ = traced_sum()
    rewrite(gm.graph)
    once = rendered(gm.graph)
    rewrite(gm.graph)
    assert rendered(gm.graph) == once


def test_a_wrong_rule_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the values are compared, not only the text."""
    monkeypatch.setitem(RULES, aten.mm.default, lambda rewriter, a, b: rewriter.emit(torch.ops.bi_inductor.matmul.default, a, b, None, 2.0))
    with pytest.raises(AssertionError, match="not close"):
        rewritten(torch.mm, f32(3, 4), f32(4, 5))
