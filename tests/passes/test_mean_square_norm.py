"""RMS norms that a model writes out: one kernel where nothing between is read, with the bits of the ops one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from bi_inductor.passes.mean_square_norm import join_mean_square_norms
from bi_inductor.passes.rewrite import rewrite
from bi_inductor.settings import thread_count
from tests.templates.rows import assert_same_bits, differences, randn
from tests.templates.test_prologue import compiled, pointwise_kernels

# Batches are taken apart here by what is computed, not by what the samples are.
pytestmark = pytest.mark.filterwarnings("ignore::bi_inductor.SampleMixingWarning")

Function = Callable[[Tensor, Tensor], Any]


def norm(x: Tensor, w: Tensor) -> Tensor:
    """As in Llama: float32 inside, the weight in the dtype of the model."""
    wide = x.to(torch.float32)
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def norm_with_root(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and what a backward would keep: two kernels."""
    wide = x.to(torch.float32)
    root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (wide * root).to(x.dtype), root


def joined(function: Function, x: Tensor, w: Tensor) -> str:
    """The calls of the rewritten graph of ``function``."""
    graph = make_fx(function, tracing_mode="fake")(x, w).graph
    rewrite(graph)
    join_mean_square_norms(graph)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return "; ".join(f"{node.target.overloadpacket.__name__}({', '.join(map(str, node.args))})" for node in calls)


JOINED: dict[str, tuple[Function, str]] = {
    "power": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        "mean_square_norm(x_1, 1, None, 1e-06)",
    ),
    "product, root first": (
        lambda x, w: w * (torch.rsqrt((x * x).mean([-1], True) + 1) * x),
        "mean_square_norm(x_1, 1, w_1, 1.0)",
    ),
    "two dims": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean((-1, 1), keepdim=True) + 1e-6) * x[0],
        "select(x_1, 0, 0); mean_square_norm(x_1, 2, select, 1e-06)",
    ),
    "of a sum": (
        lambda x, w: norm(x + w, w),
        "add(x_1, w_1); mean_square_norm(add, 1, w_1, 1e-06)",
    ),
    "a factor of another shape": (
        lambda x, w: norm(x, w[:1]),
        "slice(w_1, 0, 0, 1); mean_square_norm(x_1, 1, None, 1e-06); mul(slice_1, mean_square_norm_default)",
    ),
    "a weight in another dtype": (
        lambda x, w: norm(x.half(), w.half()),
        "_to_copy(x_1); _to_copy(w_1); _to_copy(_to_copy); mean_square_norm(_to_copy_2, 1, None, 1e-06); "
        "_to_copy(mean_square_norm_default); mul(_to_copy_1, _to_copy_3)",
    ),
    "rows that are read as well": (
        lambda x, w: (rows := x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), rows * w),
        "mean_square_norm(x_1, 1, None, 1e-06); mul(mean_square_norm_default, w_1)",
    ),
}
LEFT: dict[str, Function] = {
    "the root is read": norm_with_root,
    "the mean is read": lambda x, w: (mean := x.pow(2).mean(-1, keepdim=True), x * torch.rsqrt(mean + 1e-6)),
    "another tensor is scaled": lambda x, w: (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "another power": lambda x, w: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6),
    "a product of two": lambda x, w: x * torch.rsqrt((x * w).mean(-1, keepdim=True) + 1e-6),
    "a tensor for eps": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + w),
    "alpha": lambda x, w: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 1e-6, alpha=2)),
    "dims that are not last": lambda x, w: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
    "no dim kept": lambda x, w: x.reshape(4, 4) * torch.rsqrt(x.reshape(4, 4).pow(2).mean(-1) + 1e-6),
    "rounded between": lambda x, w: x.half() * torch.rsqrt(x.half().pow(2).mean(-1, keepdim=True) + 1e-6),
}


@pytest.mark.parametrize("name", JOINED)
def test_joined(name: str) -> None:
    function, calls = JOINED[name]
    assert joined(function, randn(2, 2, 4), randn(4)) == calls


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is(name: str) -> None:
    assert "mean_square_norm" not in joined(LEFT[name], randn(2, 2, 4), randn(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_one_kernel_has_the_bits_of_two(dtype: torch.dtype) -> None:
    for n in (5, 515, 2001):  # rows that are made together, and alone
        x, w = randn(37, n, dtype=dtype), randn(n, dtype=dtype, seed=1)
        result, code = compiled(norm, x, w)
        assert "mean_square_norm" in code and pointwise_kernels(code) == 0
        (expected, _), code = compiled(norm_with_root, x, w)
        assert "mean_square_norm" not in code
        assert_same_bits(result, expected, n)
    # The control: squares with no rounding of their own are another norm.
    x, ops = randn(37, 515), torch.ops.bi_inductor
    assert differences(ops.mean_square_norm(x, 1, None, 1e-6), ops.rms_norm(x, 1, None, 1e-6)) > 0


def test_rows_in_any_batch_on_any_number_of_threads() -> None:
    torch.compiler.reset()
    call = torch.compile(norm, backend="batch_invariant", dynamic=True)
    for n in (60, 515, 300_001):  # the last is shared by threads where there are few rows
        x, w = randn(33 if n < 1000 else 3, n), randn(n, seed=1)
        with torch.no_grad(), thread_count(1):
            whole = call(x, w)
        for rows in (1, 3, 16, 17)[: len(x)]:
            for threads in (1, 2, 5):
                with torch.no_grad(), thread_count(threads):
                    assert_same_bits(call(x[-rows:], w), whole[-rows:], f"{rows} rows of {n}, {threads} threads")


def test_training_and_inference_agree() -> None:
    x, w = randn(7, 130), randn(130, seed=1)
    call = torch.compile(norm, backend="batch_invariant")
    with torch.no_grad():
        inference = call(x, w)
    trained = call(x.requires_grad_(), w.requires_grad_())
    assert trained.requires_grad
    assert_same_bits(trained.detach(), inference)
