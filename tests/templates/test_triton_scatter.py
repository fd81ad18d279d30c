"""Triton's scatter and embedding backward in the interpreter: the bits of the C++ kernels, whatever else is written."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.templates.scatter.kernel import REDUCTIONS
from tests.interpreter import run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.batches import BATCHES
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor


def indices(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def scatters(x: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each reduction of ``src`` into ``x`` along dim 1, with and without self, by an index for each element and for whole slices."""
    found = {}
    for reduce in REDUCTIONS:
        for include_self in (True, False):
            found[f"{reduce}, {include_self}"] = ops.scatter(x, 1, index, src, reduce, include_self)
            found[f"{reduce}, {include_self}, slices"] = ops.scatter(x, 1, index[0, :, 0], src, reduce, include_self)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_cpp_kernel(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x, src = randn(2, 5, 7, dtype=dtype), randn(2, 30, 7, dtype=dtype, seed=1)
    # Row 4 gets nothing; NaN, infinities and zeros of both signs go somewhere.
    index = indices(2, 30, 7, below=4)
    src[0, 0, 0], src[0, 1, 1], src[1, 2, 2], src[1, :, 3] = float("nan"), float("inf"), float("-inf"), -0.0
    found = interpreter.run(run_compiled, scatters, x, src, index)
    for name, expected in scatters(x, src, index).items():
        assert_same_bits(found[name], expected, name)


def other_dims(x: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "first": ops.scatter(x, 0, index, src, "sum"),
        "last": ops.scatter(x.mT, -1, index.mT, src.mT, "sum"),
        "one dim": ops.scatter(x[:, 0], 0, index[:, 0], src[:, 0], "sum"),
        "slices": ops.scatter(x, 0, index[:, 0], src, "mean"),
        "slices of one element": ops.scatter(x.mT.contiguous(), 1, index[:, 0], src.mT.contiguous(), "sum"),
    }


def test_dims_and_more_positions_than_are_looked_at_together(interpreter: Interpreter) -> None:
    x, src, index = randn(6, 3), randn(300, 3, seed=1), indices(300, 3, below=6)
    found = interpreter.run(run_compiled, other_dims, x, src, index)
    for name, expected in other_dims(x, src, index).items():
        assert_same_bits(found[name], expected, name)
    # Control: a chain over the positions in another order is another sum.
    backwards = interpreter.run(run_compiled, other_dims, x, src.flip(0), index.flip(0))
    assert differences(found["first"], backwards["first"]) > 0


def added(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return torch.relu(ops.scatter(x, 0, index, src, "sum"))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_row_keeps_its_bits_whatever_goes_to_others(interpreter: Interpreter, dynamic: bool) -> None:
    x, src = randn(6, 40, dtype=torch.bfloat16), randn(50, 40, dtype=torch.bfloat16, seed=1)
    index = indices(50, below=3)
    own = index == 1
    hostile = torch.where(own[:, None], src, float("nan"))
    calls = [(x, index, src), (x, index, hostile), (x, index[own], src[own]), (x[1:], index.clamp(1) - 1, src)]
    whole, beside, alone, moved = interpreter.run(run_batches, added, calls, dynamic)
    assert_same_bits(beside[1], whole[1], "beside NaN")
    assert_same_bits(alone[1], whole[1], "alone")
    # Control: what went to row 0 is added to the same row here.
    assert differences(moved[0], whole[1]) > 0


def gradients(grad: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "plain": ops.embedding_backward(grad, index, 9),
        "padding": ops.embedding_backward(grad, index, 9, 3),
        "of transposed storage": ops.embedding_backward(grad.transpose(0, 1), index.t(), 9),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_backward_of_embeddings(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """Of 150 positions, and of 33, 17, 16, 3 and 1 of them."""
    # Wider than a block, more positions than are looked at together; rows 7 and 8 are not looked up.
    grad, index = randn(3, 50, 150, dtype=dtype), indices(3, 50, below=7)
    calls = [(grad, index), *((grad[0, :m, None], index[0, :m, None]) for m in reversed(BATCHES))]
    for arguments, found in zip(calls, interpreter.run(run_batches, gradients, calls), strict=True):
        for name, expected in gradients(*arguments).items():
            assert_same_bits(found[name], expected, f"{name}, {arguments[1].numel()} positions")


def beyond(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.scatter(x, 0, index, src, "sum")
    return out


def test_an_index_out_of_bounds_goes_nowhere(interpreter: Interpreter) -> None:
    x, src = randn(4, 3), randn(3, 3, seed=1)
    found = interpreter.run(run_compiled, beyond, x, torch.tensor([2, 4, -1]), src)
    assert_same_bits(found, beyond(x, torch.tensor([2]), src[:1]))
