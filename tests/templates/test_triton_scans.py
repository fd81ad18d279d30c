"""Triton's cumsum, cumprod and logcumsumexp in the interpreter: the bits of the C++ kernels, whatever the batch and the strides."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor


def scans(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Running sums and products of ``x`` [batch, 5, n] along each dim."""
    factors = 1 + x / 8
    return {
        "sum along the last dim": ops.cumsum(x, 2),
        "sum along the middle": ops.cumsum(x, 1),
        "sum along the batch": ops.cumsum(x, 0),
        "sum of transposed storage": ops.cumsum(x.mT, -1),
        "product along the last dim": ops.cumprod(factors, 2),
        "product along the middle": ops.cumprod(factors, 1),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_cpp_kernels(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x = randn(9, 5, 21, dtype=dtype)
    x[0, 0, 7], x[0, 1, 3], x[1, 2, 4] = float("nan"), float("inf"), float("-inf")
    found = interpreter.run(run_compiled, scans, x)
    for name, expected in scans(x).items():
        assert_same_bits(found[name], expected, name)


def running_sum(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.cumsum(x, 1)
    return out


def running_logarithm(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.logcumsumexp(x, 1)
    return out


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [running_sum, running_logarithm])
def test_rows_are_the_same_in_every_batch(interpreter: Interpreter, function: object, dynamic: bool) -> None:
    assert callable(function)
    x = randn(40, 30, dtype=torch.bfloat16)
    hostile = torch.full_like(x, float("nan"))
    hostile[7] = x[7]
    batches = [x, x[:1], x[5:22], x.flip(0), x.t().contiguous().t(), hostile]
    whole, one, several, flipped, transposed, beside = interpreter.run(run_batches, function, [(batch,) for batch in batches], dynamic)
    assert_same_bits(one, whole[:1])
    assert_same_bits(several, whole[5:22])
    assert_same_bits(flipped, whole.flip(0))
    assert_same_bits(transposed, whole, "transposed storage")
    assert_same_bits(beside[7], whole[7], "beside NaN")


def test_a_chain_keeps_more_than_its_results(interpreter: Interpreter) -> None:
    x = randn(2, 300)
    found = interpreter.run(run_compiled, running_sum, x)
    assert_same_bits(found, x.double().cumsum(1).float())
    # Control: a chain in float32 is another sum.
    in_float32 = x.clone()
    for i in range(1, 300):
        in_float32[:, i] += in_float32[:, i - 1]
    assert differences(found, in_float32) > 0


def test_the_logarithm_of_running_sums(interpreter: Interpreter) -> None:
    """The functions are the device library's, so bits are not those of the CPU."""
    x = randn(3, 40)
    x[0, 3], x[1, :5], x[2, 2:4] = float("nan"), float("-inf"), float("inf")
    found = interpreter.run(run_compiled, running_logarithm, x)
    exact = x.double().logcumsumexp(1)
    assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isinf(), exact.isinf())
    assert relative_error(found[exact.isfinite()], exact[exact.isfinite()]) < 1e-7


def softened(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(ops.cumsum(x, 1))


def test_an_epilogue_reads_rounded_results(interpreter: Interpreter) -> None:
    x = randn(3, 50, dtype=torch.bfloat16)
    alone = interpreter.run(run_compiled, running_sum, x)
    fused = interpreter.run(run_compiled, softened, x)
    assert_same_bits(fused, interpreter.run(run_compiled, torch.nn.functional.gelu, alone))
