"""Few long rows, whose lanes the threads share, and few long columns: the bits of the same row or column among many."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from bi_inductor.settings import thread_count
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn

ops = torch.ops.bi_inductor

LENGTH = 600_011  # more than any op here leaves to one thread; the last lanes have a term less than the first
REDUCTIONS = ("sum", "mean", "var")
ROW_OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{op: functools.partial(getattr(ops, op), dims=[1]) for op in REDUCTIONS},
    "softmax": lambda x: ops.softmax(x, 1),
    "log_softmax": lambda x: ops.log_softmax(x, 1),
    "layer_norm": lambda x: ops.layer_norm(x, 1, None, None, 1e-5),
    "rms_norm": lambda x: ops.rms_norm(x, 1, None, 1e-6),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ROW_OPS)
def test_a_row_on_all_threads_is_the_row_of_a_batch(op: str, dtype: torch.dtype) -> None:
    x = randn(3, LENGTH, dtype=dtype)
    with thread_count(1):
        whole = ROW_OPS[op](x)
    for threads in (2, 3, 6, 8, 16):
        with thread_count(threads):
            assert_same_bits(ROW_OPS[op](x[1:2]), whole[1:2], f"{threads} threads")
            assert_same_bits(ROW_OPS[op](x), whole, f"3 rows, {threads} threads")


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_special_long_rows(op: str) -> None:
    for value, place in ((float("nan"), 3), (float("nan"), LENGTH - 1), (float("inf"), 5000), (float("-inf"), 77)):
        x = randn(1, LENGTH)
        x[0, place] = value
        with thread_count(1):
            alone = ROW_OPS[op](x)
        with thread_count(2):
            assert_same_bits(ROW_OPS[op](x), alone, value)
        assert alone.isnan().all() == (value != float("-inf"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("n", [511, 512, 700, 4099])
def test_a_column_is_that_of_any_number_of_columns(op: str, dtype: torch.dtype, n: int) -> None:
    x = randn(n, 600, dtype=dtype)
    along = functools.partial(getattr(ops, op), dims=[0])
    with thread_count(1):
        whole = along(x)
        assert_same_bits(along(x.T.contiguous().T), whole, "as rows")
    for columns in (1, 7, 8, 9, 31, 33, 64, 65, 100, 513):
        for threads in (1, 2, 5):
            with thread_count(threads):
                assert_same_bits(along(x[:, :columns]), whole[:columns], f"{columns} columns in strided storage, {threads} threads")
                assert_same_bits(along(x[:, :columns].contiguous()), whole[:columns], f"{columns} columns, {threads} threads")


def test_stock_varies() -> None:
    x = randn(3, LENGTH)
    with thread_count(1):
        whole = torch.sum(x, 1)
    with thread_count(2):
        assert differences(torch.sum(x[1:2], 1), whole[1:2])
