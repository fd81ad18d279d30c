"""Triton templates over rows: the bits of the C++ kernels in the interpreter, whatever the batch, the strides and the way of compiling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.interpreter import run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor


def reductions(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every reduction of ``x`` [batch, 2, n], over one dim, two, and one that is not the last."""
    results = {op: getattr(ops, op)(x, [2]) for op in ("sum", "mean", "prod", "var", "std")}
    return {
        **results,
        "over two dims": ops.sum(x, [1, 2]),
        "over the middle": ops.mean(x[..., :3], [1], True),
        "of transposed storage": ops.var(x.mT, [1], False, 0.0),
        "too few for the correction": ops.var(x[..., :1], [2]),
    }


def softmaxes(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """softmax and its logarithm of ``x`` [batch, 2, n] along two dims."""
    return {
        "last": ops.softmax(x, 2),
        "middle": ops.softmax(x[..., :3], 1),
        "logarithm": ops.log_softmax(x, 2),
        "strided": ops.softmax(x[..., ::2], 2),
    }


def norms(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every norm of ``x`` [batch, 4, n] with every choice of weight and bias, and the statistics."""
    return {
        "layer": ops.layer_norm(x, 1, weight, bias, 1e-5),
        "layer, no bias": ops.layer_norm(x, 1, weight, None, 1e-5),
        "layer, no weight": ops.layer_norm(x, 1, None, bias, 1e-5),
        "layer over two dims": ops.layer_norm(x, 2, None, None, 1e-5),
        "layer, statistics": ops.layer_norm_statistics(x, 1, 1e-5),
        "rms": ops.rms_norm(x, 1, weight, 1e-6),
        "rms of transposed storage": ops.rms_norm(x.transpose(0, 1), 1, None, 1e-6),
        "rms, statistics": ops.rms_norm_statistics(x, 1, 1e-6),
        "group": ops.group_norm(x, 2, weight[:4], bias[:4], 1e-5),
        "group, statistics": ops.group_norm_statistics(x, 2, 1e-5),
    }


def logarithm_differs(name: str) -> bool:
    """The logarithm is a library's: the C one here, the device's on a GPU, a rounded float64 one in the interpreter."""
    return name == "logarithm"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_cpp_kernels(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x = randn(2, 4, 150, dtype=dtype) + 1
    hostile = x[:, :2].clone()
    hostile[0, 0, 7], hostile[0, 1, 140], hostile[1, 1] = float("nan"), float("inf"), float("-inf")
    parameters = randn(150, dtype=dtype, seed=1), randn(150, dtype=dtype, seed=2)
    calls: list[tuple[Callable[..., dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]] = [
        (reductions, (hostile,)),
        (softmaxes, (hostile,)),
        (norms, (x, *parameters)),
    ]
    for function, arguments in calls:
        found = interpreter.run(run_compiled, function, *arguments)
        for name, expected in function(*arguments).items():
            if not logarithm_differs(name):
                assert_same_bits(found[name], expected, f"{function.__name__}: {name}")


def long_rows(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"sum": ops.sum(x, [1]), "softmax": ops.softmax(x, 1), "rms": ops.rms_norm(x, 1, None, 1e-6)}


def test_rows_longer_than_a_step_of_the_loop(interpreter: Interpreter) -> None:
    x = randn(2, 1300, seed=3)
    found = interpreter.run(run_compiled, long_rows, x)
    for name, expected in long_rows(x).items():
        assert_same_bits(found[name], expected, name)
    # Control: added in another order, these rows have other sums.
    assert differences(x.sum(1), found["sum"]) > 0


def every_row_op(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ops.sum(x, [1]), ops.var(x, [1]), ops.log_softmax(x, 1), ops.layer_norm(x, 1, weight, None, 1e-5)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_are_the_same_in_every_batch(interpreter: Interpreter, dynamic: bool) -> None:
    x, weight = randn(17, 131, dtype=torch.bfloat16), randn(131, dtype=torch.bfloat16, seed=1)
    transposed = x.t().contiguous().t()
    batches = [x, x[:1], x[3:6], x.flip(0), x[:16], transposed]
    whole, *parts = interpreter.run(run_batches, every_row_op, [(batch, weight) for batch in batches], dynamic)
    expected = [slice(0, 1), slice(3, 6), slice(None, None), slice(0, 16), slice(None)]
    for rows, part, batch in zip(expected, parts, batches[1:], strict=True):
        for left, right in zip(part, whole, strict=True):
            assert_same_bits(left, right.flip(0) if batch is batches[3] else right[rows], str(rows))


def normalised(x: torch.Tensor) -> torch.Tensor:
    return ops.rms_norm(x, 1, None, 1e-6)


def normalised_and_added(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(ops.rms_norm(x, 1, None, 1e-6) + residual)


def added(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + residual)


def test_an_epilogue_reads_rounded_results(interpreter: Interpreter) -> None:
    x, residual = randn(3, 200, dtype=torch.bfloat16), randn(3, 200, dtype=torch.bfloat16, seed=1)
    alone = interpreter.run(run_compiled, normalised, x)
    fused = interpreter.run(run_compiled, normalised_and_added, x, residual)
    assert_same_bits(fused, interpreter.run(run_compiled, added, alone, residual))
