"""Pointwise producers that are computed inside of row kernels: fused where they should be, with the bits of a stored producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.nn import functional

from bi_inductor.settings import thread_count
from tests.templates.rows import assert_same_bits, differences, randn

# Batches are taken apart here by what is computed, not by what the samples are.
pytestmark = pytest.mark.filterwarnings("ignore::bi_inductor.SampleMixingWarning")

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Producer (x and y of one shape) and the op that reads it. y[:1] is read by every row; exp has vectors and scalars that must agree.
PRODUCERS: dict[str, Function] = {
    "product": lambda x, y: x * y,
    "broadcast": lambda x, y: (x - y[:1]).abs(),
    "cast": lambda x, y: (x + y).to(torch.float64 if x.dtype == torch.float64 else torch.float32),
    "exp": lambda x, y: (x * 0.5).exp() + y,
}
READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda t: t.sum(-1),
    "mean of all but the first dim": lambda t: t.mean(tuple(range(1, t.dim())), keepdim=True),
    "var": lambda t: t.var(-1),
    "softmax": lambda t: torch.softmax(t, -1),
    "log_softmax": lambda t: torch.log_softmax(t, -1),
    "layer_norm": lambda t: functional.layer_norm(t, t.shape[-1:]),
    "rms_norm": lambda t: functional.rms_norm(t, t.shape[-1:]),
    "group_norm": lambda t: functional.group_norm(t, 2),
}


def compiled(function: Callable[..., Any], *tensors: torch.Tensor) -> tuple[Any, str]:
    """The result and the generated code, for these sizes."""
    torch.compiler.reset()
    with torch.no_grad():
        result, (code,) = run_and_get_code(torch.compile(function, backend="batch_invariant", dynamic=False), *tensors)
    return result, code


def pointwise_kernels(code: str) -> int:
    """How many kernels of Inductor's own loops the code has."""
    return sum("cpp_prefix.h" in part and "bi_" not in part for part in code.split("async_compile.cpp_pybinding(")[1:])


# Every reader with one producer, every producer with two readers.
PAIRS = [("product", reader) for reader in READERS] + [
    (producer, reader) for producer in PRODUCERS if producer != "product" for reader in ("sum", "softmax")
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("producer", "reader"), PAIRS)
def test_bits_of_a_stored_producer(producer: str, reader: str, dtype: torch.dtype) -> None:
    produce, read = PRODUCERS[producer], READERS[reader]
    inputs = [randn(3, 4, 515, dtype=dtype, seed=seed) for seed in (1, 2)]
    result, code = compiled(lambda x, y: read(produce(x, y)), *inputs)
    assert pointwise_kernels(code) == 0
    stored, _ = compiled(produce, *inputs)
    expected, code = compiled(read, stored)
    assert "prologue" not in code
    assert_same_bits(result, expected)


def test_a_producer_that_is_not_rounded_is_caught() -> None:
    x, y = (randn(3, 515, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    rounded, _ = compiled(lambda x, y: (x * y).float().sum(-1), x, y)
    wide, _ = compiled(lambda x, y: (x.float() * y.float()).sum(-1), x, y)
    assert differences(rounded, wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_rows_in_any_batch_on_any_number_of_threads(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * y).sum(-1), (x - y).abs().var(-1), torch.softmax(x * 3 + 1, -1), functional.rms_norm(x + y, x.shape[-1:])

    torch.compiler.reset()
    call = torch.compile(function, backend="batch_invariant", dynamic=True)
    for n in (515, 9001):  # the longer rows are computed block by block for a sum, and twice for a variance
        x, y = (randn(33, n, dtype=dtype, seed=seed) for seed in (1, 2))
        with torch.no_grad(), thread_count(1):
            whole = call(x, y)
        for rows in (1, 3, 16, 17):
            for threads in (1, 2, 5):
                with torch.no_grad(), thread_count(threads):
                    for result, expected in zip(call(x[-rows:], y[-rows:]), whole, strict=True):
                        assert_same_bits(result, expected[-rows:], f"{rows} rows of {n}, {threads} threads")


@pytest.mark.parametrize("threads", [2, 4, 9])
def test_a_long_row_by_all_threads(threads: int) -> None:
    x, y = (randn(2, 300_001, seed=seed) for seed in (1, 2))

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        t = x - y
        return (x - y).square().sum(-1), (x * y).var(-1), torch.log_softmax(x + y, -1), functional.layer_norm(x * y, t.shape[-1:])

    with thread_count(1):
        whole, _ = compiled(function, x, y)
    with thread_count(threads):
        alone, code = compiled(function, x[1:], y[1:])
    assert pointwise_kernels(code) == 0
    for result, expected in zip(alone, whole, strict=True):
        assert_same_bits(result, expected[1:])


def test_producers_that_know_their_place() -> None:
    # Padding and masks compare coordinates: dims that they look at are not joined, and a dim of size 1 has none.
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.pad(x, (3, 2)).sum((1, 2)),
            (x.tril() * 2).sum((0, 2)),
            torch.softmax(x.masked_fill(torch.ones(40, 50).triu(1).bool(), -torch.inf), -1),
            (y[:, :, None] * 2).mean((1, 2)),
            torch.softmax((x + 1).transpose(1, 2), 1),
        )

    x, y = randn(3, 40, 50), randn(3, 64)
    results, _ = compiled(function, x, y)
    for result, exact in zip(results, function(x.double(), y.double()), strict=True):
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "function"),
    {
        "columns": lambda x, y: (x * y).sum(0),
        "read at indices": lambda x, y: y[x.long().abs() % 16].sum(-1),
        "short runs": lambda x, y: (x.view(-1, 4, 8) * y[0, :4, None]).sum((1, 2)),
        "realized": lambda x, y: ((t := torch.sin(x) * torch.cos(y)), t.sum(-1)),
    }.items(),
)
def test_a_buffer_of_its_own(case: str, function: Function) -> None:
    x, y = randn(32, 32) * 10, randn(32, 32, seed=1)
    results, code = compiled(function, x, y)
    assert "prologue" not in code.replace("prologue_context", ""), case
    expected = function(x.double(), y.double())
    torch.testing.assert_close(results, torch.utils._pytree.tree_map(torch.Tensor.float, expected), rtol=1e-4, atol=1e-4)
