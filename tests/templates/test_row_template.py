"""Pointwise consumers of norms and softmax that run on the rows where they are made: fused, with the bits of two kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from bi_inductor.settings import thread_count
from tests.templates.rows import assert_same_bits, randn
from tests.templates.test_prologue import compiled, pointwise_kernels

pytestmark = pytest.mark.filterwarnings("ignore::bi_inductor.SampleMixingWarning")

MAKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1:]),
}
# Consumers of the rows r of x, with a weight for each column.
CONSUMERS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cast": lambda r, x, w: r.to(torch.bfloat16 if r.dtype == torch.float32 else torch.float32),
    "scale, shift and gelu": lambda r, x, w: functional.gelu(r * w + x),
    "comparison": lambda r, x, w: r > w,
    "view of other rows": lambda r, x, w: r.view(-1, r.shape[-1] // 5).relu() + 1,
    "transposition": lambda r, x, w: (r * w).transpose(0, 1).contiguous(),
}
PAIRS = [(maker, "scale, shift and gelu") for maker in MAKERS] + [("softmax", name) for name in CONSUMERS if "gelu" not in name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("maker", "consumer"), PAIRS)
def test_bits_of_two_kernels(maker: str, consumer: str, dtype: torch.dtype) -> None:
    make, consume = MAKERS[maker], CONSUMERS[consumer]
    x, w = randn(3, 7, 515, dtype=dtype), randn(515, dtype=dtype, seed=1)
    result, code = compiled(lambda x, w: consume(make(x), x, w), x, w)
    if consumer != "transposition":  # Inductor copies those
        assert "auto epilogue" in code and pointwise_kernels(code) == 0
    rows, _ = compiled(make, x)
    expected, code = compiled(consume, rows, x, w)
    assert "auto epilogue" not in code
    assert_same_bits(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_rows_in_any_batch_on_any_number_of_threads(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = torch.softmax(x, -1)
        both = functional.rms_norm(x * 2 - w, w.shape)  # a producer and a consumer
        return kept, kept * x, functional.layer_norm(x, w.shape, w) + x, both.sigmoid()

    torch.compiler.reset()
    call = torch.compile(function, backend="batch_invariant", dynamic=True)
    for n in (60, 515, 2001):  # rows of a softmax and a norm that are made together, and alone
        x, w = randn(33, n, dtype=dtype), randn(n, dtype=dtype, seed=1)
        with torch.no_grad(), thread_count(1):
            whole = call(x, w)
        for rows in (1, 3, 16, 17):
            for threads in (1, 2, 5):
                with torch.no_grad(), thread_count(threads):
                    for result, expected in zip(call(x[-rows:], w), whole, strict=True):
                        assert_same_bits(result, expected[-rows:], f"{rows} rows of {n}, {threads} threads")


@pytest.mark.parametrize("threads", [2, 9])
def test_a_long_row_by_all_threads(threads: int) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = torch.log_softmax(x, -1)
        return kept, kept * 2 + x, torch.softmax(x - w, -1).to(torch.float16), functional.layer_norm(x, w.shape) * w + x

    x, w = randn(2, 300_001), randn(300_001, seed=1)
    with thread_count(1):
        whole, _ = compiled(function, x, w)
    with thread_count(threads):
        alone, code = compiled(function, x[1:], w)
    assert pointwise_kernels(code) == 0
    for result, expected in zip(alone, whole, strict=True):
        assert_same_bits(result, expected[1:])


def test_a_row_of_another_place_is_no_epilogue() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        rows = torch.softmax(x, -1)
        return rows + rows.flip(0)

    x = randn(37, 515)
    result, code = compiled(function, x)
    assert "auto epilogue" not in code
    rows, _ = compiled(MAKERS["softmax"], x)
    assert_same_bits(result, rows + rows.flip(0))


def test_an_input_may_give_its_memory_to_the_result() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        residual = torch.sin(x) * w  # of this graph alone, so what comes last may be written over it
        h = functional.layer_norm(torch.cos(x).sin() + residual, w.shape)
        return torch.softmax(h * 3, -1) + residual

    x, w = randn(37, 515), randn(515, seed=1)
    result, _ = compiled(function, x, w)
    torch.testing.assert_close(result.double(), function(x.double(), w.double()), rtol=1e-5, atol=1e-6)
