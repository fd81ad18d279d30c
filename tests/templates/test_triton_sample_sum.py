"""The Triton sum over samples in the interpreter: bits of the tree, for any number of samples."""

from __future__ import annotations

import pytest
import torch

from tests import reference
from tests.interpreter import code_of, run_batches
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")

# Less than a group of 16, groups alone, groups with a rest, and several bits in the number of groups.
SAMPLES = (1, 3, 7, 16, 17, 33, 48, 113)


def summed(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.bi_inductor.sample_sum(x)
    return out


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_reference(interpreter: Interpreter, dtype: torch.dtype, dynamic: bool) -> None:
    """And near float64, for 1, 3, 16, 17, 33 and other numbers of samples."""
    inputs = [randn(samples, 30, 13, dtype=dtype, seed=samples) for samples in SAMPLES]
    inputs.append(inputs[SAMPLES.index(7)].mT.contiguous().mT)
    for x, found in zip(inputs, interpreter.run(run_batches, summed, [(x,) for x in inputs], dynamic), strict=True):
        assert_same_bits(found, reference.sample_sum(x), f"{len(x)} samples")
        # Control: a chain is another sum.
        assert len(x) < 7 or differences(found, sum(x[1:], start=x[0])) > 0
        # Every level of the tree rounds.
        assert relative_error(found, x.double().sum(0)) <= len(x).bit_length() * torch.finfo(dtype).eps


def test_zeros_keep_their_sign_and_one_kernel_sums(interpreter: Interpreter) -> None:
    found, codes = interpreter.run(code_of, summed, torch.full((3, 2), -0.0))
    assert_same_bits(found, torch.full((2,), -0.0))
    assert codes[0].count("@triton.jit") == 1 and "cpp_fused" not in codes[0]
