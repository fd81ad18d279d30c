"""Graphs run as Triton kernels in the interpreter: right values, the same rows in every batch, nothing left behind."""

import os
import sys

import pytest
import torch

from tests.interpreter import code_of, compiled, run_batches
from tests.interpreter.process import InterpretationError

pytestmark = pytest.mark.xdist_group("interpreter")


def exact(x, y):
    """Ops that round as eager does, in one kernel: a maximum over rows, then arithmetic, comparisons and movement."""
    shifted = x - x.amax(-1, keepdim=True)
    return {"sum": shifted * y + x, "choice": torch.where(x > y, shifted, y / 3), "moved": (x.flip(-1) + y).mT.contiguous()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_graph_is_triton_and_rounds_as_eager(interpreter, dtype):
    x, y = torch.randn(3, 40).to(dtype), torch.randn(3, 40).to(dtype)
    found, codes = interpreter.run(code_of, exact, x, y)
    assert len(codes) == 1 and "@triton.jit" in codes[0] and "cpp_fused" not in codes[0]
    for name, value in exact(x, y).items():
        assert torch.equal(found[name], value), name


def smooth(x):
    return torch.nn.functional.gelu(x) * torch.sigmoid(x) + x.exp()


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_rows_are_the_same_in_every_batch(interpreter, dynamic):
    x = torch.randn(17, 33).to(torch.bfloat16)
    whole, *parts = interpreter.run(run_batches, smooth, [(x,), (x[:1],), (x[5:8],), (x.flip(0),)], dynamic)
    assert torch.equal(parts[0], whole[:1]) and torch.equal(parts[1], whole[5:8]) and torch.equal(parts[2], whole.flip(0))
    reference = smooth(x.double())
    assert (whole.double() - reference).abs().max() <= 4 * (smooth(x).double() - reference).abs().max()


def fails(x):
    raise ValueError("as planned")


def compiles_what_fails(x):
    return compiled(fails)(x)


def test_errors_come_back_with_their_traceback(interpreter):
    with pytest.raises(InterpretationError, match="as planned"):
        interpreter.run(compiles_what_fails, torch.ones(2))
    assert interpreter.run(torch.add, torch.ones(2), 1.0).tolist() == [2.0, 2.0]


def test_nothing_is_left_in_this_process(interpreter):
    interpreter.run(torch.add, torch.ones(2), 1.0)
    assert "TRITON_INTERPRET" not in os.environ
    assert not any(name in sys.modules for name in ("tests.interpreter.builder", "tests.interpreter.repairs", "triton.runtime.interpreter"))
