"""The Triton matmul of float8 and int8 in the interpreter: bits of the definition, rows in any batch, layouts, epilogues, accuracy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bi_inductor.templates.library import FLOAT8
from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn, relative_error
from tests.templates.test_triton_matmul import BATCHES, reference

pytest.importorskip("triton")
from tests.interpreter.test_arithmetic import launch
from tests.templates.conversions import float16_of

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor
E4M3FN, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Results = dict[str, torch.Tensor]


def int8(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def float8(*shape: int, dtype: torch.dtype = E4M3FN, seed: int = 0) -> torch.Tensor:
    """Normal numbers, large and small by the row, so that some are subnormal."""
    return (randn(*shape, seed=seed) * torch.logspace(-2, 1, shape[0])[:, None]).to(dtype)


def scale(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.01 + 0.001


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_every_float8_is_converted_exactly(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """The integer operations that stand in for an instruction: NaN, infinities, subnormals and zeros of both signs too."""
    codes, name = torch.arange(256, dtype=torch.uint8).view(dtype), str(dtype).removeprefix("torch.float8_")
    found = interpreter.run(launch, float16_of, torch.empty(16, 16, dtype=torch.float16), codes.view(16, 16), FORMAT=name)
    assert_same_bits(found.flatten(), codes.half())
    assert_same_bits(found.flatten().float(), codes.float(), "float16 holds each of them")
    # Control: bits are compared, so the sign of a zero counts.
    assert differences(found.abs().flatten(), codes.half()) > 120


def forms(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> Results:
    one = columns[0, 0]
    return {
        "rows": ops.scaled_matmul(a, b, dtype, rows, columns),
        "bias": ops.scaled_matmul(a, b, dtype, rows, columns, bias),
        "tensor": ops.scaled_matmul(a, b, dtype, one, one.reshape(1, 1), bias),
        "transposed b": ops.scaled_matmul(a, b.t().contiguous().t(), dtype, rows, columns),
        "strided": ops.scaled_matmul(a, b, dtype, rows.repeat(1, 3)[:, 1:2], columns.expand(3, -1).t().contiguous().t()[1:2]),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("formats", [(E4M3FN, E4M3FN), (E5M2, E4M3FN), FLOAT8[2:]], ids=["e4m3fn", "e5m2", "fnuz"])
def test_bits_of_the_definition(interpreter: Interpreter, formats: tuple[torch.dtype, torch.dtype], dtype: torch.dtype) -> None:
    a, b = float8(5, 300, dtype=formats[0]), float8(300, 40, dtype=formats[1], seed=1)
    rows, columns, bias = scale(5, 1), scale(1, 40, seed=3), randn(40, dtype=dtype, seed=4)
    found = interpreter.run(run_compiled, forms, a, b, rows, columns, bias, dtype)
    # A chain for results of 16 bits, runs of 256 products for wider ones.
    total = reference(a.half(), b.half()) if dtype.itemsize == 2 else reference(a.float(), b.float())
    one = columns[0, 0]
    scaled = total * rows * columns
    for name in ("rows", "transposed b", "strided"):
        assert_same_bits(found[name], scaled.to(dtype), name)
    assert_same_bits(found["bias"], (scaled + bias.float()).to(dtype), "bias")
    assert_same_bits(found["tensor"], (total * one * one + bias.float()).to(dtype), "tensor")
    # Control: scales of rows and columns in the other order are other bits before they are rounded to 16.
    assert dtype != torch.float32 or differences(found["rows"], total * columns * rows) > 0


def into_float8(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b, rows[0], rows[0])


def test_results_of_float8(interpreter: Interpreter) -> None:
    a, b, rows = float8(5, 300), float8(300, 40, seed=1), scale(5, 1) * 10
    found = interpreter.run(run_compiled, into_float8, a, b, rows)
    assert found.dtype == E4M3FN
    expected = (reference(a.float(), b.float()) * rows[0] * rows[0]).to(E4M3FN)
    assert_same_bits(found.float(), expected.float())
    assert len(expected.float().unique()) > 50


def weights(x: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.scaled_matmul(x, weight.t(), x.dtype, None, columns)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_int8_weights_are_multiplied_as_the_dtype_beside_them(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x, weight, columns = randn(5, 300, dtype=dtype), int8(40, 300), scale(40).to(dtype)
    found = interpreter.run(run_compiled, weights, x, weight, columns)
    total = reference(x, weight.t().to(dtype))
    assert_same_bits(found, (total * columns.to(total.dtype)).to(dtype))


def integers(a: torch.Tensor, b: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = torch._int_mm(a, b)
    return product, product * columns


def test_products_of_int8_are_exact(interpreter: Interpreter) -> None:
    # The largest and the smallest sums; one row, which torch's own kernel for GPUs refuses.
    a, b = torch.cat([int8(4, 200), torch.full([1, 200], -128, dtype=torch.int8)]), int8(200, 24, seed=2)
    b[:, 0] = -128
    for rows in (5, 1):
        product, scaled = interpreter.run(run_compiled, integers, a[-rows:], b, scale(24))
        assert torch.equal(product, torch._int_mm(a[-rows:], b))
        assert_same_bits(scaled, product * scale(24))


def quantised(x: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """float8 with a scale of each row's own."""
    rows = x.float().abs().amax(1, keepdim=True) / 448
    return torch._scaled_mm((x.float() / rows).to(E4M3FN), weight.t(), rows, columns, out_dtype=x.dtype)


def of_tensors(x: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """float8 with one scale, a bias and float32 results."""
    one = columns[0, 0]
    return torch._scaled_mm((x * 8).to(E5M2), weight.t(), one, one, bias=columns[0].to(x.dtype), out_dtype=torch.float32)


LINEARS = {"rows": quantised, "tensor": of_tensors, "int8": lambda x, weight, columns: weights(x, weight, columns[0].to(x.dtype))}


def linear(x: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor, name: str) -> torch.Tensor:
    return LINEARS[name](x, weight, columns)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", LINEARS)
def test_rows_are_the_same_in_every_batch(interpreter: Interpreter, name: str, dynamic: bool) -> None:
    x, columns = randn(33, 96, dtype=torch.bfloat16), scale(1, 32)
    weight = int8(32, 96) if name == "int8" else float8(32, 96, seed=1)
    hostile = torch.full_like(x, float("nan"))
    hostile[7] = x[7]
    strided = x.repeat_interleave(2, 1)[:, ::2]
    calls = [(batch, weight, columns, name) for batch in (x, *(x[:m] for m in BATCHES), x.flip(0), hostile, strided)]
    whole, *parts = interpreter.run(run_batches, linear, calls, dynamic)
    for m, part in zip(BATCHES, parts[:-3], strict=True):
        assert_same_bits(part, whole[:m], f"{m} rows")
    assert_same_bits(parts[-3], whole.flip(0), "another order")
    assert_same_bits(parts[-2][7], whole[7], "beside NaN")
    assert_same_bits(parts[-1], whole, "strided")
    # Control: other rows have other bits, and NaN reaches its own row.
    assert differences(whole[:1], whole[1:2]) > 0 and bool(parts[-2][6].isnan().any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_error_is_that_of_torch(interpreter: Interpreter, dtype: torch.dtype) -> None:
    a, b, rows, columns = float8(4, 704), float8(704, 16, dtype=E5M2, seed=1), scale(4, 1), scale(1, 16, seed=3)
    exact = (a.double() @ b.double()) * rows.double() * columns.double()
    found = interpreter.run(run_compiled, forms, a, b, rows, columns, torch.zeros(16, dtype=dtype), dtype)["rows"]
    stock = torch._scaled_mm(a, b, rows, columns, out_dtype=dtype)
    assert relative_error(found, exact) <= 1.5 * max(relative_error(stock, exact), 2.5e-7)


def gelu_of_linear(*args: Any) -> torch.Tensor:
    return torch.nn.functional.gelu(ops.scaled_matmul(*args))


def test_one_kernel_reads_the_elements_as_they_are_stored(interpreter: Interpreter) -> None:
    """Nothing widens the operands before it, and a fused epilogue reads rounded results."""
    a, b, rows, columns = float8(5, 64), float8(64, 40, seed=1), scale(5, 1) * 100, scale(1, 40, seed=3) * 100
    fused, codes = interpreter.run(code_of, gelu_of_linear, a, b, torch.bfloat16, rows, columns)
    assert codes[0].count("@triton.jit") == 1 and "'arg_A': '*fp8e4nv'" in codes[0] and "'arg_B': '*fp8e4nv'" in codes[0]
    unrounded = reference(a.half(), b.half()) * rows * columns
    alone = unrounded.to(torch.bfloat16)
    assert_same_bits(fused, interpreter.run(run_compiled, torch.nn.functional.gelu, alone))
    # Control: gelu of what had not been rounded yet is something else.
    assert differences(fused, torch.nn.functional.gelu(unrounded).to(torch.bfloat16)) > 0
