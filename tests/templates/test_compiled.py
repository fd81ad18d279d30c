"""Every op with a template through torch.compile: bits of the eager operator, of rows in any batch and any graph, gradients, accuracy.

All ops of a dtype are one graph, compiled once for each kind of shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines the operators
from bi_inductor.settings import thread_count
from tests.templates.rows import BATCHES, DTYPES, HOSTILE, THREADS, assert_same_bits, differences, randn, relative_error

# The tests share compiles.
pytestmark = pytest.mark.xdist_group("compiled ops")

ops = torch.ops.bi_inductor
Function = Callable[[Tensor], Tensor]
CHANNELS, WIDTH = 6, 96


class Op(NamedTuple):
    """``public``: the op as a model writes it, on x [rows, CHANNELS, WIDTH]; ``operator``: ours called eagerly, where it is one call."""

    public: Function
    operator: Function | None = None


def operations(dtype: torch.dtype, computed_in: torch.dtype | None = None) -> dict[str, Op]:
    """Every op with a template. Weights are seeded and of ``dtype``, ``computed_in`` a wider one if given; prod has factors near one."""

    def t(*shape: int, seed: int) -> Tensor:
        return randn(*shape, dtype=dtype, seed=seed).to(computed_in or dtype)

    matrix, bias, vector = t(WIDTH, 24, seed=1), t(24, seed=2), t(WIDTH, seed=3)
    weight, shift, channels = t(WIDTH, seed=4), t(WIDTH, seed=5), t(CHANNELS, seed=6)
    table = matrix.t().contiguous()
    filters, squares = t(24, CHANNELS // 2, 5, seed=7), t(CHANNELS, CHANNELS, 3, 3, seed=8)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(2, (2, WIDTH // 2)).transpose(1, 2)

    def images(x: Tensor) -> Tensor:
        return x.unflatten(2, (8, WIDTH // 8))

    def mask(x: Tensor) -> Tensor:
        return torch.ones(CHANNELS, CHANNELS, dtype=torch.bool).tril()

    def flat(fn: Function) -> Function:
        return lambda x: fn(x.flatten(0, 1)).unflatten(0, (x.shape[0], CHANNELS))

    found = {
        "matmul": Op(lambda x: x @ matrix, flat(lambda x: ops.matmul(x, matrix))),
        "linear": Op(lambda x: functional.linear(x, table, bias), flat(lambda x: ops.matmul(x, table.t(), bias))),
        "mm": Op(lambda x: torch.mm(x[:, 0], matrix), lambda x: ops.matmul(x[:, 0], matrix)),
        "addmm": Op(
            lambda x: torch.addmm(bias, x[:, 1], matrix, beta=0.5, alpha=2.0), lambda x: ops.matmul(x[:, 1], matrix, bias, 2.0, 0.5)
        ),
        "bmm": Op(lambda x: torch.bmm(x, x.mT), lambda x: ops.matmul(x, x.mT)),
        "baddbmm": Op(
            lambda x: torch.baddbmm(x[:, :, :CHANNELS], x, x.mT, alpha=0.1), lambda x: ops.matmul(x, x.mT, x[:, :, :CHANNELS], 0.1)
        ),
        "mv": Op(lambda x: torch.mv(x[:, 2], vector), lambda x: ops.matmul(x[:, 2], vector[:, None])[:, 0]),
        "conv1d": Op(
            lambda x: functional.conv1d(x, filters, bias, 2, 1, 1, 2),
            lambda x: ops.convolution(x, filters, bias, [2], [1, 1], [1], 2),
        ),
        "conv2d, norm, residual": Op(
            lambda x: (functional.conv2d(images(x), squares, padding=1) * channels[:, None, None] - images(x)).relu(),
        ),
        "sum": Op(lambda x: x.sum(-1), lambda x: ops.sum(x, [2])),
        "sum over two dims": Op(lambda x: x.sum((1, 2), keepdim=True), lambda x: ops.sum(x, [1, 2], True)),
        "mean": Op(lambda x: x.mean(1), lambda x: ops.mean(x, [1])),
        "prod": Op(lambda x: (x * 0.1 + 1).prod(2), lambda x: ops.prod(x * 0.1 + 1, [2])),
        "var": Op(lambda x: x.var(2), lambda x: ops.var(x, [2])),
        "std": Op(lambda x: x.std((1, 2), correction=0), lambda x: ops.std(x, [1, 2], False, 0.0)),
        "var of var_mean": Op(lambda x: torch.var_mean(x, 1)[0], lambda x: ops.var(x, [1])),
        "mean of var_mean": Op(lambda x: torch.var_mean(x, 1)[1], lambda x: ops.mean(x, [1])),
        "cumsum": Op(lambda x: x.cumsum(2), lambda x: ops.cumsum(x, 2)),
        "logsumexp": Op(lambda x: x.logsumexp(2)),
        "norm 1": Op(lambda x: torch.linalg.vector_norm(x, 1, 2)),
        "norm 2": Op(lambda x: torch.linalg.vector_norm(x, 2, 2)),
        "norm 3": Op(lambda x: torch.linalg.vector_norm(x, 3, 2)),
        "softmax": Op(lambda x: x.softmax(2), lambda x: ops.softmax(x, 2)),
        "softmax along channels": Op(lambda x: x.softmax(1), lambda x: ops.softmax(x, 1)),
        "log_softmax": Op(lambda x: x.log_softmax(2), lambda x: ops.log_softmax(x, 2)),
        "layer_norm": Op(lambda x: functional.layer_norm(x, [WIDTH], weight, shift), lambda x: ops.layer_norm(x, 1, weight, shift, 1e-5)),
        "rms_norm": Op(lambda x: functional.rms_norm(x, [WIDTH], weight, 1e-6), lambda x: ops.rms_norm(x, 1, weight, 1e-6)),
        "group_norm": Op(
            lambda x: functional.group_norm(x, 3, channels, channels), lambda x: ops.group_norm(x, 3, channels, channels, 1e-5)
        ),
        "attention": Op(lambda x: functional.scaled_dot_product_attention(heads(x), heads(x), heads(x))),
        "causal attention": Op(
            lambda x: functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True, scale=0.3),
            lambda x: ops.attention(heads(x), heads(x), heads(x), None, True, 0.3),
        ),
        "masked attention": Op(
            lambda x: functional.scaled_dot_product_attention(heads(x), heads(x), heads(x), mask(x)),
            lambda x: ops.attention(heads(x), heads(x), heads(x), mask(x)),
        ),
    }
    return found


@functools.cache
def public(dtype: torch.dtype) -> Callable[[Tensor], dict[str, Tensor]]:
    """All ops as one function."""
    table = operations(dtype)
    return lambda x: {name: op.public(x) for name, op in table.items()}


@functools.cache
def whole(dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """A batch of all rows, and what the dynamic graph gives for it."""
    x = randn(max(BATCHES), CHANNELS, WIDTH, dtype=dtype)
    with torch.no_grad():
        return x, compiled(dtype, dynamic=True)(x)


def compiled(dtype: torch.dtype, dynamic: bool | None) -> Callable[[Tensor], dict[str, Tensor]]:
    return torch.compile(public(dtype), backend="batch_invariant", dynamic=dynamic, options={"cpp.dynamic_threads": True})


def assert_rows(results: dict[str, Tensor], expected: dict[str, Tensor], rows: slice | Tensor, what: object) -> None:
    for name, result in results.items():
        assert_same_bits(result, expected[name][rows], f"{name}, {what}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_is_the_eager_operator(dtype: torch.dtype) -> None:
    x = randn(5, CHANNELS, WIDTH, dtype=dtype)
    with torch.no_grad():
        results = compiled(dtype, dynamic=False)(x)
    for name, op in operations(dtype).items():
        if op.operator is not None:
            assert_same_bits(results[name], op.operator(x), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_keep_their_bits(dtype: torch.dtype) -> None:
    x, expected = whole(dtype)
    fn = compiled(dtype, dynamic=True)
    with torch.no_grad():
        for m in BATCHES:
            assert_rows(fn(x[:m].clone()), expected, slice(0, m), f"batch {m}")
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        assert_rows(fn(x[order]), expected, order, "permuted")
        for value in HOSTILE:
            neighbours = torch.full_like(x, value)
            neighbours[3] = x[3]
            assert_rows({name: result[3:4] for name, result in fn(neighbours).items()}, expected, slice(3, 4), f"neighbours {value}")
        for threads in THREADS:
            with thread_count(threads):
                assert_rows(fn(x), expected, slice(None), f"{threads} threads")


def test_static_and_recompiled_are_dynamic() -> None:
    x, expected = whole(torch.float32)
    fn = compiled(torch.float32, dynamic=None)
    with torch.no_grad():
        # The first size is a constant of the first graph; the second makes it a symbol; a batch of one is a graph of its own.
        for m in (5, 17, 1, 64):
            assert_rows(fn(x[:m].clone()), expected, slice(0, m), f"batch {m}")


# Linear, attention and the other norms: tests/passes/test_capture.py. Autograd writes the gradient of prod with cumprod, which raises.
DIFFERENTIATED = (
    *("addmm", "sum over two dims", "mean", "var", "std", "cumsum", "logsumexp", "norm 2", "norm 3"),
    *("softmax along channels", "log_softmax", "group_norm"),
)


def with_inputs_of_their_own(xs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ops of float32, each on an input of its own, so that each has a gradient of its own."""
    return {name: operations(torch.float32)[name].public(x) for name, x in xs.items()}


def gradients(fn: Callable[[dict[str, Tensor]], dict[str, Tensor]], x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The results on ``x`` and the gradients of the inputs, for fixed gradients of the results."""
    leaves = {name: x.clone().requires_grad_() for name in DIFFERENTIATED}
    out = fn(leaves)
    grads = [torch.arange(value[0].numel()).cos().to(value.dtype).view(value.shape[1:]).expand_as(value) for value in out.values()]
    found = torch.autograd.grad(list(out.values()), list(leaves.values()), grads)
    return {name: value.detach() for name, value in out.items()}, dict(zip(leaves, found, strict=True))


def test_gradients_of_rows_and_forward_under_grad() -> None:
    x, expected = whole(torch.float32)
    dynamic, static = (torch.compile(with_inputs_of_their_own, backend="batch_invariant", dynamic=value) for value in (True, False))
    results, of_whole = gradients(dynamic, x[:8])
    assert_rows(results, expected, slice(0, 8), "under grad")
    for m in (1, 2, 5):
        results, of_part = gradients(static if m == 1 else dynamic, x[:m])
        assert_rows(results, expected, slice(0, m), f"under grad, batch {m}")
        assert_rows(of_part, of_whole, slice(0, m), f"gradient, batch {m}")
    for name, exact in gradients(with_inputs_of_their_own, x[:8])[1].items():
        torch.testing.assert_close(of_whole[name], exact, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accuracy_is_that_of_stock(dtype: torch.dtype) -> None:
    x, results = whole(dtype)
    stock = public(dtype)(x)
    for name, op in operations(dtype, computed_in=torch.float64).items():
        exact = op.public(x.double())
        error, of_stock = relative_error(results[name], exact), relative_error(stock[name], exact)
        # Stock accumulates var and std in float64: it is exact but for the last rounding, which is half of eps at most.
        assert error <= max(1.5 * of_stock, torch.finfo(dtype).eps / 2), f"{name}: {error}, stock {of_stock}"


def test_stock_varies() -> None:
    x, _ = whole(torch.float32)
    fn = public(torch.float32)
    every = fn(x)
    varying = {name for m in (1, 3, 17) for name, result in fn(x[:m].clone()).items() if differences(result, every[name][:m])}
    if not varying:
        pytest.skip("this CPU's BLAS has one order for all numbers of rows")


def test_one_graph_for_a_batch_of_one_and_more() -> None:
    """A batch whose size is unbacked is never taken for known, so one graph runs all of them."""
    graphs = CompileCounterWithBackend("batch_invariant")

    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.softmax(functional.linear(x, weight), -1) * functional.rms_norm(x, (64,))

    torch.compiler.reset()
    call = torch.compile(model, backend=graphs, fullgraph=True)
    x, weight = randn(4096, 64), randn(64, 64, seed=1)
    with torch.no_grad():
        whole = call(unbacked(x), weight)
        for batch in (1, 2, 16, 17):
            assert_same_bits(call(unbacked(x[:batch]), weight), whole[:batch], batch)
    assert graphs.frame_count == 1


def unbacked(x: torch.Tensor) -> torch.Tensor:
    """A copy whose number of rows is an unbacked symbol."""
    x = x.clone()
    mark_unbacked(x, 0)
    return x
