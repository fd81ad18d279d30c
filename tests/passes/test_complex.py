"""Complex numbers as pairs of real ones: the graph, torch's values and gradients, and bits of a compiled filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import f32, rewritten
from tests.templates.rows import assert_same_bits, randn, relative_error

pytestmark = pytest.mark.filterwarnings("ignore::bi_inductor.FallbackWarning", "ignore:Torchinductor does not support code generation")


def test_product_with_a_conjugate() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, y: (torch.complex(x, y).conj() * torch.complex(y, x)).abs(), f32(2, 3), f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
  arg1_1: float32[2, 3]
  complex_1 = aten.complex.default(arg0_1, arg1_1) -> complex64[2, 3]
- _conj = aten._conj.default(complex_1) -> complex64[2, 3]
+ view_as_real_default = aten.view_as_real.default(complex_1) -> float32[2, 3, 2]
+ select_int = aten.select.int(view_as_real_default, -1, 0) -> float32[2, 3]
+ select_int_1 = aten.select.int(view_as_real_default, -1, 1) -> float32[2, 3]
+ neg_default = aten.neg.default(select_int_1) -> float32[2, 3]
+ complex_default = aten.complex.default(select_int, neg_default) -> complex64[2, 3]
  complex_2 = aten.complex.default(arg1_1, arg0_1) -> complex64[2, 3]
- clone = aten.clone.default(_conj) -> complex64[2, 3]
+ clone = aten.clone.default(complex_default) -> complex64[2, 3]
- mul = aten.mul.Tensor(clone, complex_2) -> complex64[2, 3]
- abs_1 = aten.abs.default(mul) -> float32[2, 3]
- return (abs_1,)
+ view_as_real_default_1 = aten.view_as_real.default(clone) -> float32[2, 3, 2]
+ select_int_2 = aten.select.int(view_as_real_default_1, -1, 0) -> float32[2, 3]
+ select_int_3 = aten.select.int(view_as_real_default_1, -1, 1) -> float32[2, 3]
+ view_as_real_default_2 = aten.view_as_real.default(complex_2) -> float32[2, 3, 2]
+ select_int_4 = aten.select.int(view_as_real_default_2, -1, 0) -> float32[2, 3]
+ select_int_5 = aten.select.int(view_as_real_default_2, -1, 1) -> float32[2, 3]
+ mul_tensor = aten.mul.Tensor(select_int_2, select_int_4) -> float32[2, 3]
+ mul_tensor_1 = aten.mul.Tensor(select_int_3, select_int_5) -> float32[2, 3]
+ sub_tensor = aten.sub.Tensor(mul_tensor, mul_tensor_1) -> float32[2, 3]
+ mul_tensor_2 = aten.mul.Tensor(select_int_2, select_int_5) -> float32[2, 3]
+ mul_tensor_3 = aten.mul.Tensor(select_int_3, select_int_4) -> float32[2, 3]
+ add_tensor = aten.add.Tensor(mul_tensor_2, mul_tensor_3) -> float32[2, 3]
+ complex_default_1 = aten.complex.default(sub_tensor, add_tensor) -> complex64[2, 3]
+ view_as_real_default_3 = aten.view_as_real.default(complex_default_1) -> float32[2, 3, 2]
+ select_int_6 = aten.select.int(view_as_real_default_3, -1, 0) -> float32[2, 3]
+ select_int_7 = aten.select.int(view_as_real_default_3, -1, 1) -> float32[2, 3]
+ hypot_default = aten.hypot.default(select_int_6, select_int_7) -> float32[2, 3]
+ return (hypot_default,)""",
    )


def test_imaginary_part_of_a_conjugate() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, y: torch.complex(x, y).conj().imag * 2, f32(2, 3), f32(2, 3)),
        """\
inference
  arg0_1: float32[2, 3]
  arg1_1: float32[2, 3]
  complex_1 = aten.complex.default(arg0_1, arg1_1) -> complex64[2, 3]
- _conj = aten._conj.default(complex_1) -> complex64[2, 3]
- _conj_1 = aten._conj.default(_conj) -> complex64[2, 3]
- view_as_real = aten.view_as_real.default(_conj_1) -> float32[2, 3, 2]
+ view_as_real_default = aten.view_as_real.default(complex_1) -> float32[2, 3, 2]
+ select_int = aten.select.int(view_as_real_default, -1, 0) -> float32[2, 3]
+ select_int_1 = aten.select.int(view_as_real_default, -1, 1) -> float32[2, 3]
+ neg_default = aten.neg.default(select_int_1) -> float32[2, 3]
+ complex_default = aten.complex.default(select_int, neg_default) -> complex64[2, 3]
+ view_as_real_default_1 = aten.view_as_real.default(complex_default) -> float32[2, 3, 2]
+ select_int_2 = aten.select.int(view_as_real_default_1, -1, 0) -> float32[2, 3]
+ select_int_3 = aten.select.int(view_as_real_default_1, -1, 1) -> float32[2, 3]
+ neg_default_1 = aten.neg.default(select_int_3) -> float32[2, 3]
+ complex_default_1 = aten.complex.default(select_int_2, neg_default_1) -> complex64[2, 3]
+ view_as_real = aten.view_as_real.default(complex_default_1) -> float32[2, 3, 2]
- _neg_view = aten._neg_view.default(view_as_real) -> float32[2, 3, 2]
+ neg_default_2 = aten.neg.default(view_as_real) -> float32[2, 3, 2]
- select = aten.select.int(_neg_view, 2, 1) -> float32[2, 3]
+ select = aten.select.int(neg_default_2, 2, 1) -> float32[2, 3]
  clone = aten.clone.default(select) -> float32[2, 3]
  mul = aten.mul.Tensor(clone, 2) -> float32[2, 3]
  return (mul,)""",
    )


def number(x: Tensor, y: Tensor) -> Tensor:
    return torch.complex(x, y)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "polar": lambda x, y: torch.polar(x, y).imag,
    "product": lambda x, y: (number(x, y) * number(y, x)).real,
    "conjugate": lambda x, y: torch.view_as_real(number(x, y).conj().transpose(0, 1) * number(y, x)),
    "division": lambda x, y: (number(x, y) / y).abs(),
    "sum": lambda x, y: number(x, y).sum(1).abs(),
    "matmul": lambda x, y: torch.view_as_real(number(x, y) @ number(y, x)),
    "numbers": lambda x, y: torch.view_as_real(number(x, y) * 2 + 1 - 3j * number(y, x)),
    "quotient": lambda x, y: torch.view_as_real(number(x, y) / number(y, x)),
    "reciprocal": lambda x, y: torch.view_as_real(x / number(x, y) + number(x, y).reciprocal()),
    "exp": lambda x, y: torch.view_as_real(number(x, y).exp()),
    "log": lambda x, y: torch.view_as_real(number(x, y).log()),
    "sqrt": lambda x, y: torch.view_as_real(number(x, y).sqrt()),
    "sin": lambda x, y: torch.view_as_real(number(x, y).sin() * number(x, y).cosh()),
    "cos": lambda x, y: torch.view_as_real(number(x, y).cos() + number(x, y).sinh()),
    "powers": lambda x, y: torch.view_as_real(number(x, y) ** 3 + number(x, y) ** -0.5 + number(x, y).square() ** -1),
    "angle": lambda x, y: number(x, y).angle(),
    "mean": lambda x, y: torch.view_as_real(number(x, y).mean(1).cumsum(0) + number(x, y).sum()),
    "linear": lambda x, y: torch.view_as_real(torch.nn.functional.linear(number(x, y), number(y, x), number(x, y)[0])),
    "added rows": lambda x, y: torch.view_as_real(torch.zeros(3, 8, dtype=torch.complex64).index_add(0, torch.arange(8) % 3, number(x, y))),
    "cast": lambda x, y: (
        torch.view_as_real(x.to(torch.complex64)),
        number(x, y) == number(x, x),
        number(x, y) != number(x, x),
        number(x / 0, y).isnan() | number(x, y / 0).isinf() | number(x, y).isfinite(),
    ),
    "transform of rows and columns": lambda x, y: torch.fft.fftn(x, dim=(0, 1)).real,
    "filter": lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * number(y, x)[:, :5]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_values_and_gradients(name: str) -> None:
    operands = randn(8, 8).requires_grad_(), randn(8, 8, seed=1).requires_grad_()
    for given, expected in zip(ours(FUNCTIONS[name], *operands), stock(FUNCTIONS[name], *operands), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["quotient", "exp", "log", "sqrt", "sin", "powers"])
def test_accuracy_against_float64(name: str) -> None:
    x, y = randn(64, 64), randn(64, 64, seed=1)
    exact = FUNCTIONS[name](x.double(), y.double())
    assert relative_error(ours(FUNCTIONS[name], x, y)[0], exact) <= 1.5 * relative_error(FUNCTIONS[name](x, y), exact)


def test_quotients_neither_overflow_nor_divide_wrongly_by_zero() -> None:
    x = torch.tensor([1e30, 3e38, 1.0, 0.0, -2.0, 5.0])
    y = torch.tensor([2e30, 3e38, 0.0, 1e-30, 0.0, 1.0])
    by_zero = torch.zeros(6)

    def fn(x: Tensor, y: Tensor, zero: Tensor) -> tuple[Tensor, ...]:
        return torch.view_as_real(number(x, y) / number(y, x)), torch.view_as_real(number(x, y) / number(zero, zero))

    for given, expected in zip(ours(fn, x, y, by_zero), fn(x, y, by_zero), strict=True):
        torch.testing.assert_close(given, expected, equal_nan=True)


def test_a_compiled_filter_has_its_bits_in_every_batch() -> None:
    def spectral(x: Tensor, weight: Tensor) -> Tensor:
        mixed = torch.fft.fftn(x, dim=(1, 2)).real
        return torch.fft.irfft(torch.fft.rfft(mixed) * torch.view_as_complex(weight) / torch.view_as_complex(weight + 2).exp(), n=30)

    x, weight = randn(5, 7, 30), randn(16, 2, seed=1)
    compiled = torch.compile(spectral, backend="batch_invariant", dynamic=True)
    whole = stock(compiled, x.requires_grad_(), weight.requires_grad_())
    for out, expected in zip(whole, stock(spectral, x, weight), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)
    for batch in (slice(0, 1), slice(2, 5)):
        for out, expected in zip(stock(compiled, x[batch].detach().requires_grad_(), weight)[:2], whole, strict=False):
            assert_same_bits(out, expected[batch])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64], ids=str)
def test_conversions_keep_the_parts(dtype: torch.dtype) -> None:
    x = randn(3, 4)
    for number in (x, torch.complex(x, x.flip(0))):
        (out,) = ours(lambda number: number.to(dtype), number)
        assert out.dtype == dtype and torch.equal(out, number.to(dtype))
