"""Softmax and log_softmax: bits of the reference, rows in any batch, accuracy."""

from __future__ import annotations

import pytest
import torch

from tests import reference
from tests.templates.rows import DTYPES, assert_rows_invariant, assert_same_bits, randn, relative_error

ops = torch.ops.bi_inductor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_bits_of_the_reference(op: str, dtype: torch.dtype) -> None:
    # 19 rows: two groups that are folded together, and a part of one.
    for n in (1, 2, 7, 8, 9, 24, 64, 127, 129, 256, 257, 1000, 4097):
        x = randn(19, n, dtype=dtype) * 4
        x[1, n // 2] = float("-inf")
        x[2, n // 3] = 60.0
        assert_same_bits(getattr(ops, op)(x, 1), getattr(reference, op)(x, 1), n)
    x = randn(3, 17, 5, dtype=dtype)
    for dim in range(3):
        assert_same_bits(getattr(ops, op)(x, dim), getattr(reference, op)(x, dim), f"dim {dim}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_rows_are_invariant(op: str, dtype: torch.dtype) -> None:
    for n in (24, 331, 1030):
        assert_rows_invariant(lambda x: getattr(ops, op)(x, 1), randn(256, n, dtype=dtype) * 3)


def test_special_rows() -> None:
    x = torch.zeros(4, 40)
    x[0, 3] = float("nan")
    x[1] = float("-inf")
    x[2, 5] = float("inf")
    for op in ("softmax", "log_softmax"):
        result = getattr(ops, op)(x, 1)
        assert result[:3].isnan().all(1).tolist() == torch.softmax(x, 1)[:3].isnan().all(1).tolist()
        assert not result[3].isnan().any()


@pytest.mark.parametrize("left", [1, 5, 37])
def test_masked_entries_on_either_side_change_nothing(left: int) -> None:
    x = randn(6, 200)
    for masked in (float("-inf"), torch.finfo(torch.float32).min):
        padded = torch.nn.functional.pad(x, (left, 3), value=masked)
        assert_same_bits(ops.softmax(padded, 1)[:, left:-3], ops.softmax(x, 1))


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("n", [64, 1024, 32000])
def test_accuracy_is_that_of_stock(op: str, n: int) -> None:
    x = randn(8, n) * 3
    exact = getattr(torch, op)(x.double(), 1)
    stock = relative_error(getattr(torch, op)(x, 1), exact)
    assert relative_error(getattr(ops, op)(x, 1), exact) <= 1.5 * stock
