"""The matmul template: bits of the reference, bits of a row in any batch, accuracy, edges."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.testing import accumulation_tree, expected_tree
from tests import reference
from tests.templates.rows import BATCHES, DTYPES, assert_rows_invariant, assert_same_bits, randn, relative_error, varying_batches

matmul = torch.ops.bi_inductor.matmul

SHAPES = [
    (1, 1, 1),
    (1, 7, 3),
    (3, 17, 5),
    (2, 16, 16),
    (5, 33, 31),
    (6, 64, 48),
    (7, 100, 129),
    (17, 130, 67),
    (64, 257, 40),
    (1, 300, 513),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_reference(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, k, n = shape
    a, b = randn(m, k, dtype=dtype), randn(k, n, dtype=dtype, seed=1)
    expected = reference.matmul(a, b)
    assert_same_bits(matmul(a, b), expected, "b [k, n]")
    assert_same_bits(matmul(a, b.t().contiguous().t()), expected, "b stored [n, k]")
    assert_same_bits(matmul(a.t().contiguous().t(), b), expected, "a stored [k, m]")
    assert_same_bits(matmul(torch.stack([a, a])[:, :, :], torch.stack([b, b]))[1], expected, "batched")
    wide = torch.zeros(m, 2 * k + 1, dtype=dtype)
    wide[:, 1::2] = a
    assert_same_bits(matmul(wide[:, 1::2], b), expected, "strided a")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1.0), (1.0, 0.7), (-2.5, 0.1), (0.5, 0.0)])
def test_bias_alpha_beta_round_as_the_reference(alpha: float, beta: float, dtype: torch.dtype) -> None:
    a, b = randn(9, 70, dtype=dtype), randn(70, 37, dtype=dtype, seed=1)
    for shape in [(37,), (9, 37), (9, 1), (1, 37), ()]:
        bias = randn(*shape, dtype=dtype, seed=2)
        assert_same_bits(matmul(a, b, bias, alpha, beta), reference.matmul(a, b, bias, alpha, beta), shape)


def test_rows_of_a_long_k_are_invariant() -> None:
    """Few rows take vectors along K, many take panels of a part of K."""
    x, weight = randn(65, 16389), randn(23, 16389, seed=1)
    whole = matmul(x, weight.t())
    assert_same_bits(matmul(x[7:12], weight.t()), reference.matmul(x[7:12], weight.t()))
    for rows in (1, 8, 32, 33, 64):
        assert_same_bits(matmul(x[-rows:], weight.t()), whole[-rows:], rows)
    assert_same_bits(matmul(x[7:12], weight.t()), whole[7:12])


def test_a_bias_that_is_not_read_reaches_nothing() -> None:
    a, b = randn(3, 5), randn(5, 4, seed=1)
    assert_same_bits(matmul(a, b, torch.full((4,), float("nan")), 1.0, 0.0), matmul(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("k", "n"), [(90, 128), (257, 33), (64, 16)])
def test_rows_are_invariant(k: int, n: int, dtype: torch.dtype) -> None:
    x = randn(256, k, dtype=dtype)
    weight, bias = randn(n, k, dtype=dtype, seed=1), randn(n, dtype=dtype, seed=2)
    assert_rows_invariant(lambda rows: matmul(rows, weight.t(), bias), x)
    stored = weight.t().contiguous()
    assert_rows_invariant(lambda rows: matmul(rows, stored), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [300, 2048, 3080, 6200])
def test_every_tile_has_the_bits_of_one_row(k: int, dtype: torch.dtype) -> None:
    """Tiles of one to seven rows, both sides of the sizes at which another schedule takes over, a K that is cut into blocks, more columns
    than come between two epilogues."""
    x, weight = randn(97, k, dtype=dtype), randn(133, k, dtype=dtype, seed=1)
    alone = torch.cat([matmul(row[None], weight.t()) for row in x])
    for rows in (9, 13, 15, 25, 33, 48, 63, 64, 65, 66, 71, 97):
        assert_same_bits(matmul(x[:rows], weight.t()), alone[:rows], rows)
        assert_same_bits(matmul(x[:rows], weight.t().contiguous()), alone[:rows], (rows, "weight stored [k, n]"))


def test_stock_rows_vary() -> None:
    weight = randn(512, 512, seed=1)
    assert varying_batches(lambda rows: torch.mm(rows, weight.t()), randn(256, 512)) != []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batched_matrices_are_invariant(dtype: torch.dtype) -> None:
    a, b = randn(48, 17, 40, dtype=dtype), randn(48, 40, 23, dtype=dtype, seed=1)
    whole = matmul(a, b)
    for batch in (1, 2, 3, 5, 17, 48):
        assert_same_bits(matmul(a[:batch], b[:batch]), whole[:batch], f"batch {batch}")
    for i in (0, 11, 47):
        assert_same_bits(matmul(a[i], b[i]), whole[i], "mm equals bmm")
        assert_same_bits(matmul(a[i : i + 1, 3:4], b[i : i + 1])[0], whole[i, 3:4], "one row")
    expanded = b[:1].expand(48, -1, -1)
    assert_same_bits(matmul(a, expanded)[7], matmul(a[7], b[0]), "expanded")


@pytest.mark.parametrize("left", [1, 3, 5, 16, 37])
def test_zeros_on_either_side_of_k_change_nothing(left: int) -> None:
    a, b = randn(20, 211), randn(211, 30, seed=1)
    wide_a = torch.nn.functional.pad(a, (left, 9))
    wide_b = torch.nn.functional.pad(b, (0, 0, left, 9))
    assert_same_bits(matmul(wide_a, wide_b), matmul(a, b))


@pytest.mark.parametrize("m", [1, 4, 16, 64])
@pytest.mark.parametrize("stored", ["nk", "kn"])
@pytest.mark.parametrize("n", [15, 16, 50])
def test_tree(m: int, n: int, stored: str) -> None:
    def dot(terms: torch.Tensor) -> torch.Tensor:
        b = torch.ones(len(terms), n, dtype=terms.dtype)
        b[:, n // 2] = terms
        b = b.t().contiguous().t() if stored == "nk" else b
        return matmul(torch.ones(m, len(terms), dtype=terms.dtype), b)[m - 1, n // 2]

    assert accumulation_tree(dot, 67) == expected_tree(16, 67)


def test_another_order_is_caught() -> None:
    assert accumulation_tree(lambda terms: terms.sum(), 67) != expected_tree(16, 67)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_accuracy_is_that_of_stock(k: int, dtype: torch.dtype) -> None:
    a, b = randn(8, k, dtype=dtype), randn(k, 256, dtype=dtype, seed=1)
    if dtype == torch.float64:
        # Nothing wider to compare with: within a few roundings of the other order.
        assert relative_error(matmul(a, b), torch.mm(a, b)) < 1e-16 * k**0.5
        return
    exact = a.double() @ b.double()
    assert relative_error(matmul(a, b), exact) <= 1.5 * relative_error(torch.mm(a, b), exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_sizes(dtype: torch.dtype) -> None:
    for m, k, n in [(0, 3, 4), (3, 0, 4), (3, 4, 0)]:
        assert_same_bits(matmul(torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)), torch.zeros(m, n, dtype=dtype))
    assert_same_bits(
        matmul(torch.ones(2, 0, dtype=dtype), torch.ones(0, 3, dtype=dtype), torch.ones(3, dtype=dtype)), torch.ones(2, 3, dtype=dtype)
    )


def test_bad_operands_are_refused() -> None:
    with pytest.raises(TypeError, match="one dtype"):
        matmul(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match="int64"):
        matmul(torch.ones(2, 3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises((ValueError, RuntimeError), match="do not fit"):
        matmul(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(ValueError, match="2-D"):
        matmul(torch.ones(3), torch.ones(3, 2))


def test_batches_cover_what_the_contract_names() -> None:
    assert set(BATCHES) >= {1, 2, 3, 5, 8, 16, 17, 32, 64, 100, 256}
