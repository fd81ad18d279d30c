"""The reduction templates: bits of the reference over dims and layouts, rows in any batch, accuracy, trees."""

from __future__ import annotations

import itertools

import pytest
import torch

from bi_inductor.testing import accumulation_tree, expected_tree
from bi_inductor.testing.adapters import of_mean
from tests import reference
from tests.templates.rows import DTYPES, assert_rows_invariant, assert_same_bits, randn, relative_error

ops = torch.ops.bi_inductor
SIZES = [1, 2, 7, 8, 9, 16, 17, 31, 33, 40, 63, 64, 65, 96, 100, 127, 128, 129, 255, 1000, 4097]
# Two groups of rows that are folded together, and a part of one.
ROWS = 19


def reduce(op: str, x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
    return getattr(ops, op)(x, dims, keepdim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["sum", "mean", "prod", "var", "std"])
def test_bits_of_the_reference(op: str, dtype: torch.dtype) -> None:
    for n in SIZES:
        x = randn(ROWS, n, dtype=dtype) * (0.5 if op == "prod" else 1)
        expected = reference.reduce(op, x, [1])
        assert_same_bits(reduce(op, x, [1]), expected, f"rows of {n}")
        assert_same_bits(reduce(op, x.t().contiguous(), [0]), expected, f"columns of {n}")
        wide = torch.zeros(ROWS, 2 * n + 1, dtype=dtype)
        wide[:, 1::2] = x
        assert_same_bits(reduce(op, wide[:, 1::2], [1]), expected, f"strided rows of {n}")


@pytest.mark.parametrize("op", ["sum", "mean", "prod", "var", "std"])
def test_every_set_of_dims_in_every_layout(op: str) -> None:
    x = randn(3, 5, 9, 7)
    for count in range(1, 5):
        for dims in itertools.combinations(range(4), count):
            expected = reference.reduce(op, x, list(dims))
            for order in [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (0, 2, 3, 1)]:
                stored = x.permute(order).contiguous().permute([order.index(i) for i in range(4)])
                assert_same_bits(reduce(op, stored, list(dims)), expected, (dims, order))
            assert_same_bits(reduce(op, x, list(dims), True).reshape(expected.shape), expected, "keepdim")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["sum", "mean", "var"])
def test_rows_are_invariant(op: str, dtype: torch.dtype) -> None:
    for n in (24, 515, 1030):
        assert_rows_invariant(lambda x: reduce(op, x, [1]), randn(256, n, dtype=dtype))


def test_columns_do_not_see_each_other() -> None:
    x = randn(130, 256)
    whole = ops.sum(x, [0])
    for m in (1, 2, 3, 5, 8, 16, 17, 32, 64, 100):
        assert_same_bits(ops.sum(x[:, :m], [0]), whole[:m], m)


def test_stock_varies() -> None:
    # One row is summed by all threads, many rows by one each.
    x = randn(64, 32769)
    torch.set_num_threads(2)
    assert int((torch.sum(x[:1], 1) != torch.sum(x, 1)[:1]).sum()) or int((torch.sum(x[:, :17], 0) != torch.sum(x, 0)[:17]).sum())


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_tree(layout: str) -> None:
    def total(terms: torch.Tensor) -> torch.Tensor:
        if layout == "rows":
            return ops.sum(torch.stack([torch.ones_like(terms), terms]), [1])[1]
        if layout == "columns":
            return ops.sum(torch.stack([torch.ones_like(terms)] * 9 + [terms], 1), [0])[9]
        return ops.sum(torch.stack([terms, terms], 1)[:, 0], [0])

    assert accumulation_tree(total, 300) == expected_tree(128, 300)


def test_tree_of_mean() -> None:
    assert accumulation_tree(of_mean(lambda x: ops.mean(x, [0])), 256) == expected_tree(128, 256)


def test_another_order_is_caught() -> None:
    def in_order(terms: torch.Tensor) -> torch.Tensor:
        return ops.cumsum(terms, 0)[-1]

    assert accumulation_tree(in_order, 140, dtype=torch.float64) != expected_tree(128, 140)


@pytest.mark.parametrize("left", [1, 3, 16, 37, 130])
def test_zeros_on_either_side_change_nothing(left: int) -> None:
    x = randn(5, 700)
    padded = torch.nn.functional.pad(x, (left, 11))
    assert_same_bits(ops.sum(padded, [1]), ops.sum(x, [1]))
    assert_same_bits(ops.sum(padded.t().contiguous(), [0]), ops.sum(x, [1]))


@pytest.mark.parametrize("op", ["sum", "mean", "var", "std", "prod"])
@pytest.mark.parametrize("n", [100, 4096, 32768])
def test_accuracy_is_that_of_stock(op: str, n: int) -> None:
    x = randn(16, n) + 0.5
    x = x.abs() ** (4 / n) if op == "prod" else x
    exact = getattr(torch, op)(x.double(), 1)
    stock = relative_error(getattr(torch, op)(x, 1), exact)
    # 1e-8: where stock happens to be exact to the last bit.
    assert relative_error(reduce(op, x, [1]), exact) <= max(1.5 * stock, 6e-8)


@pytest.mark.parametrize("n", [8, 24, 96, 1000])
def test_variances_lose_nothing_to_stock(n: int) -> None:
    x = randn(1000, n) + 0.5
    for op in ("var", "std"):
        exact = getattr(torch, op)(x.double(), 1)
        assert relative_error(reduce(op, x, [1]), exact) <= 1.05 * relative_error(getattr(torch, op)(x, 1), exact), op


def test_empty() -> None:
    x = torch.ones(3, 0)
    assert_same_bits(ops.sum(x, [1]), torch.zeros(3))
    assert_same_bits(ops.prod(x, [1]), torch.ones(3))
    assert ops.mean(x, [1]).isnan().all()
    assert ops.var(x, [1]).isnan().all()
    assert ops.sum(torch.ones(0, 3), [1]).shape == (0,)
    assert_same_bits(ops.sum(torch.tensor(-0.0), []), torch.tensor(0.0))


CUMULATIONS = {"cumsum": reference.cumsum, "cumprod": reference.cumprod, "logcumsumexp": reference.logcumsumexp}


@pytest.mark.parametrize("op", CUMULATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cumulations(dtype: torch.dtype, op: str) -> None:
    kernel, expected = getattr(ops, op), CUMULATIONS[op]
    x = randn(4, 33, 6, dtype=dtype)
    x[0, 3, :4] = torch.tensor([-torch.inf, torch.inf, torch.nan, -0.0])
    x[1, :2] = -torch.inf
    for dim in (0, 1, 2):
        assert_same_bits(kernel(x, dim), expected(x, dim), dim)
        stored = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        assert_same_bits(kernel(stored, dim), expected(x, dim), dim)
    wide = randn(3, 17, 19, dtype=dtype)
    assert_same_bits(kernel(wide, 1), expected(wide, 1), "columns side by side")
    assert_rows_invariant(lambda rows: kernel(rows, 1), randn(256, 77, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [100, 4096])
def test_accuracy_of_cumsum_is_that_of_stock(n: int, dtype: torch.dtype) -> None:
    x = randn(16, n, dtype=dtype)
    exact = x.double().cumsum(1)
    assert relative_error(ops.cumsum(x, 1), exact) <= 1.5 * relative_error(x.cumsum(1), exact)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        ops.sum(torch.ones(3, dtype=torch.int64), [0])
    with pytest.raises(IndexError, match="out of range"):
        ops.sum(torch.ones(3), [1])
    with pytest.raises(IndexError, match="twice"):
        ops.sum(torch.ones(3, 3), [0, -2])
