"""The matmul family by the CPU's own products of bfloat16: bits of the reference, bits of a row in any batch, accuracy, edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.library import opcheck

from bi_inductor.native_bfloat16 import missing
from bi_inductor.settings import thread_count
from tests import reference
from tests.templates.rows import assert_rows_invariant, assert_same_bits, differences, randn, relative_error

ops = torch.ops.bi_inductor
native_matmul = ops.native_matmul
BF16 = torch.bfloat16
ROWS = (1, 3, 16, 17, 33, 200)

needs_instruction = pytest.mark.skipif(missing() != "", reason=f"no VDPBF16PS here: {missing()}")


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """A matrix in row-major order, in column-major order, with gaps between rows and between elements, and one element off alignment."""
    rows, columns = x.shape
    gaps = torch.zeros(rows, 2 * columns + 3, dtype=x.dtype)
    gaps[:, 3::2] = x
    moved = torch.zeros(rows, columns + 1, dtype=x.dtype)
    moved[:, 1:] = x
    return [x, x.t().contiguous().t(), gaps[:, 3::2], moved[:, 1:]]


def residual(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor, matmul: Callable[..., torch.Tensor] = native_matmul) -> torch.Tensor:
    """What ``product``, a rounded sum, leaves of the sum: eight bits more of it."""
    return matmul(a, b, -product)


@needs_instruction
@pytest.mark.parametrize(
    ("k", "n"), [(0, 5), (1, 7), (2, 6), (31, 13), (32, 16), (33, 1), (67, 3), (257, 50), (1000, 67), (6210, 21)], ids=str
)
def test_bits_of_the_reference(k: int, n: int) -> None:
    a, b = randn(200, k, dtype=BF16), randn(k, n, dtype=BF16, seed=1)
    expected = reference.native_matmul(a, b)
    rest = residual(a, b, expected, reference.native_matmul)
    for rows in ROWS:
        for i, left in enumerate(layouts(a[:rows])):
            for j, right in enumerate(layouts(b)):
                for threads in (1, 2):
                    with thread_count(threads):
                        assert_same_bits(native_matmul(left, right), expected[:rows], (rows, i, j, threads))
                assert_same_bits(residual(left, right, expected[:rows]), rest[:rows], (rows, i, j, "residual"))
    if k >= 257:
        assert differences(residual(a, b, expected, ops.matmul), rest) > 0, "the order of matmul cannot be told from the native one"


@needs_instruction
def test_rows_are_invariant() -> None:
    x, weight, bias = randn(256, 257, dtype=BF16), randn(45, 257, dtype=BF16, seed=1), randn(45, dtype=BF16, seed=2)
    assert_rows_invariant(lambda rows: native_matmul(rows, weight.t(), bias), x)
    stored = weight.t().contiguous()
    assert_rows_invariant(lambda rows: native_matmul(rows, stored), x)


@needs_instruction
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.3, 1.0), (-2.5, 0.1), (0.5, 0.0)])
def test_bias_alpha_beta_round_as_the_reference(alpha: float, beta: float) -> None:
    a, b = randn(9, 71, dtype=BF16), randn(71, 37, dtype=BF16, seed=1)
    for shape in [(37,), (9, 37), (9, 1), (1, 37), ()]:
        bias = randn(*shape, dtype=BF16, seed=2)
        assert_same_bits(native_matmul(a, b, bias, alpha, beta), reference.native_matmul(a, b, bias, alpha, beta), shape)
    assert_same_bits(native_matmul(a, b, torch.full((37,), math.nan, dtype=BF16), 1.0, 0.0), native_matmul(a, b))


@needs_instruction
def test_batched_matrices_are_invariant() -> None:
    a, b = randn(12, 17, 41, dtype=BF16), randn(12, 41, 23, dtype=BF16, seed=1)
    whole = native_matmul(a, b)
    assert_same_bits(whole, reference.native_matmul(a, b))
    for batch in (1, 2, 5):
        assert_same_bits(native_matmul(a[:batch], b.mT.contiguous().mT[:batch]), whole[:batch], batch)
    assert_same_bits(native_matmul(a[7], b[7]), whole[7], "mm equals bmm")
    assert_same_bits(native_matmul(a[3:4, 5:6], b[3:4])[0], whole[3, 5:6], "one row")
    assert_same_bits(native_matmul(a, b[:1].expand(12, -1, -1))[7], native_matmul(a[7], b[0]), "expanded")


@needs_instruction
def test_groups_have_the_bits_of_their_matmul() -> None:
    ends = torch.tensor([0, 3, 3, 20, 21, 21])
    rows, weight = randn(21, 37, dtype=BF16), randn(6, 18, 37, dtype=BF16, seed=1).mT
    parts = [slice(first, last) for first, last in zip((0, *ends.tolist()), ends.tolist(), strict=False)]
    by_rows = torch.cat([native_matmul(rows[part], weight[g]) for g, part in enumerate(parts)])
    assert_same_bits(ops.native_grouped_matmul(rows, weight, ends), by_rows)
    terms = randn(21, 18, dtype=BF16, seed=3)
    by_terms = torch.stack([native_matmul(rows.mT[:, part], terms[part]) for part in parts])
    assert_same_bits(ops.native_grouped_matmul(rows.mT, terms, ends), by_terms)


@needs_instruction
def test_zeros_around_k_change_nothing_where_pairs_stay_together() -> None:
    a, b = randn(20, 2011, dtype=BF16), randn(2011, 30, dtype=BF16, seed=1)
    product = native_matmul(a, b)
    rest = residual(a, b, product)

    def padded(left: int, right: int) -> torch.Tensor:
        return residual(torch.nn.functional.pad(a, (left, right)), torch.nn.functional.pad(b, (0, 0, left, right)), product)

    for left, right in ((0, 1), (0, 9), (0, 21), (2, 0), (6, 5), (32, 7)):
        assert_same_bits(padded(left, right), rest, (left, right))
    assert differences(padded(1, 0), rest) > 0, "an odd number of zeros in front makes other pairs"


@needs_instruction
def test_special_values() -> None:
    inf, nan = math.inf, math.nan
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 3e38, -3e38, 1e-39, -1e-39, 2.0**-126, 2.0**-75, -(2.0**-76)], dtype=BF16)
    left = torch.cartesian_prod(values, values)
    assert_same_bits(native_matmul(left, left.t()), reference.native_matmul(left, left.t()))


@needs_instruction
def test_subnormals_are_zero() -> None:
    one = torch.ones(1, 1, dtype=BF16)
    subnormal = torch.tensor([[2.0**-130]], dtype=BF16)
    assert native_matmul(subnormal, one).item() == 0.0 < ops.matmul(subnormal, one).item()
    # A sum that is subnormal on the way: the odd elements come first.
    a, b = torch.tensor([[2.0**-70, 2.0**-70]], dtype=BF16), torch.tensor([[2.0**-56], [2.0**-60]], dtype=BF16)
    assert native_matmul(a, b).item() == 2.0**-126 < ops.matmul(a, b).item()
    # Below the smallest normal number once it has 24 bits, although no subnormal lies between.
    a, b = torch.tensor([[2.0**-75, 2.0**-63]], dtype=BF16), torch.tensor([[-(2.0**-75)], [2.0**-63]], dtype=BF16)
    assert native_matmul(a, b).item() == reference.native_matmul(a, b).item() == 0.0
    b = torch.tensor([[-(2.0**-76)], [2.0**-63]], dtype=BF16)
    assert native_matmul(a, b).item() == reference.native_matmul(a, b).item() == 2.0**-126


@needs_instruction
def test_small_numbers_have_the_bits_of_the_reference() -> None:
    scale = 2.0 ** torch.arange(-71, -55).repeat(9)
    a, b = (randn(150, 144) * scale).to(BF16), (randn(144, 40, seed=1) * scale[:, None]).to(BF16)
    expected = reference.native_matmul(a, b)
    assert_same_bits(native_matmul(a, b), expected)
    assert_same_bits(residual(a, b, expected), residual(a, b, expected, reference.native_matmul))
    assert differences(ops.matmul(a, b), expected) > 0


@needs_instruction
@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_accuracy_is_that_of_stock(k: int) -> None:
    a, b = randn(8, k, dtype=BF16), randn(k, 256, dtype=BF16, seed=1)
    exact = a.double() @ b.double()
    assert relative_error(native_matmul(a, b), exact) <= 1.5 * relative_error(torch.mm(a, b), exact)


@needs_instruction
def test_opcheck() -> None:
    def t(*shape: int) -> torch.Tensor:
        return randn(*shape, dtype=BF16)

    with_bias, empty = (t(3, 4), t(4, 5), t(5), 0.5, 2.0), (t(3, 0), t(0, 5))
    for arguments in ((t(3, 4), t(4, 5)), with_bias, (t(2, 3, 4), t(2, 4, 5)), (t(0, 4), t(4, 5)), empty):
        opcheck(native_matmul.default, arguments, test_utils=("test_schema", "test_faketensor"))
    grouped = (t(4, 5), randn(3, 5, 6, dtype=BF16), torch.tensor([1, 1, 4]))
    opcheck(ops.native_grouped_matmul.default, grouped, test_utils=("test_schema", "test_faketensor"))
    out = native_matmul(t(3, 4).requires_grad_(), t(4, 5))
    with pytest.raises(NotImplementedError, match="bi_inductor::native_matmul has no gradient"):
        out.sum().backward()


def test_other_operands_are_refused() -> None:
    with pytest.raises(TypeError, match=r"native_matmul takes tensors of torch.bfloat16; given torch.float16"):
        native_matmul(torch.ones(2, 3, dtype=torch.float16), torch.ones(3, 2, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"native_grouped_matmul takes tensors of torch.bfloat16"):
        ops.native_grouped_matmul(torch.ones(2, 3), torch.ones(1, 3, 2), torch.tensor([2]))
