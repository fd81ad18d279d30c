"""One graph or two: a graph break after any op in turn changes no bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tests.templates.rows import assert_same_bits, differences, randn

WIDTH = 24


def steps(dtype: torch.dtype) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """A chain of ops of every class, each [rows, WIDTH] to [rows, WIDTH]."""
    weight, bias = randn(WIDTH, WIDTH, dtype=dtype, seed=1), randn(WIDTH, dtype=dtype, seed=2)
    return [
        lambda x: x * 1.25 + 0.0,
        lambda x: functional.linear(x, weight, bias),
        lambda x: -(x - bias),
        lambda x: functional.gelu(x),
        lambda x: functional.layer_norm(x, [WIDTH], weight[0], bias),
        lambda x: x * torch.sigmoid(x) - x.mean(-1, keepdim=True),
        lambda x: (x @ weight).relu() * -0.0 + x / 3,
        lambda x: torch.softmax(x, -1) + x.pow(2).sum(-1, keepdim=True).rsqrt(),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_break_after_any_op(dtype: torch.dtype) -> None:
    chain = steps(dtype)
    x = randn(6, WIDTH, dtype=dtype)
    x[1, 3], x[2, 4], x[3] = -0.0, float("nan"), -0.0

    def run(x: torch.Tensor, breaks: tuple[int, ...]) -> torch.Tensor:
        for i, step in enumerate(chain):
            x = step(x)
            if i in breaks:
                torch._dynamo.graph_break()
        return x

    with torch._dynamo.config.patch(recompile_limit=64), torch.no_grad():
        fn = torch.compile(run, backend="batch_invariant", dynamic=False)
        fused = fn(x, ())
        for i in range(len(chain) - 1):
            assert_same_bits(fn(x, (i,)), fused, f"break after op {i}")
        assert_same_bits(fn(x, tuple(range(len(chain)))), fused, "a break after every op")


def test_stock_differs_in_bfloat16() -> None:
    chain = steps(torch.bfloat16)[2:6]
    x = randn(6, WIDTH, dtype=torch.bfloat16)

    def fused(x: torch.Tensor) -> torch.Tensor:
        for step in chain:
            x = step(x)
        return x

    whole = torch.compile(fused, backend="inductor")(x)
    for step in chain:
        x = torch.compile(step, backend="inductor")(x)
    assert differences(x, whole) > 0
