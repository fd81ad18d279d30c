"""The convolution on Triton in the interpreter: patches and a matmul in one graph, bits of the definition, rows in any batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.process import InterpretationError, Interpreter
from tests.templates.batches import DTYPES
from tests.templates.rows import assert_same_bits, differences, randn
from tests.templates.test_triton_matmul import reference

pytestmark = pytest.mark.xdist_group("interpreter")
BATCHES = (1, 3, 17)
Tensors = tuple[torch.Tensor, ...]


def network(x: torch.Tensor, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A convolution with stride and padding, ReLU, and one in two groups with dilation."""
    return F.conv2d(F.relu(F.conv2d(x, first, bias, stride=2, padding=1)), second, groups=2, dilation=2)


def parameters(dtype: torch.dtype = torch.float32) -> Tensors:
    # 297 products in the first, more than a run of 256.
    return randn(4, 33, 3, 3, dtype=dtype, seed=1), randn(4, dtype=dtype, seed=2), randn(6, 2, 2, 2, dtype=dtype, seed=3)


def defined(x: torch.Tensor, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """``network`` of one sample by docs/numerics.md section 15: products of weights with the patches, which torch lays out."""
    hidden = reference(first.flatten(1), F.unfold(x, 3, padding=1, stride=2)[0]) + bias[:, None]
    hidden = hidden.to(x.dtype).relu().unflatten(1, (5, 5))
    groups = zip(second.flatten(1).chunk(2), hidden.chunk(2), strict=True)
    results = [reference(weight, F.unfold(part[None], 2, dilation=2)[0]) for weight, part in groups]
    return torch.cat(results).unflatten(1, (3, 3)).to(x.dtype)


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), *((dtype, None) for dtype in DTYPES)],
    ids=lambda value: {None: "symbolic batch", False: "static"}.get(value, str(value)),
)
def test_bits_of_the_definition_in_every_batch(interpreter: Interpreter, dtype: torch.dtype, dynamic: bool | None) -> None:
    """In float32, bfloat16 and float16; more batches, and errors, are in test_triton_batches.py."""
    x, rest = randn(17, 33, 9, 9, dtype=dtype), parameters(dtype)
    *parts, turned = interpreter.run(run_batches, network, [*((x[:m], *rest) for m in BATCHES), (x[:3].flip(0), *rest)], dynamic)
    whole = parts[-1]
    for m, part in zip(BATCHES, parts, strict=True):
        assert_same_bits(part, whole[:m], f"{m} samples")
    assert_same_bits(turned, whole[:3].flip(0), "another order")
    expected = torch.stack([defined(sample[None], *rest) for sample in x[:3]])
    assert_same_bits(whole[:3], expected)
    # Control: float64, rounded once, is something else, and so is another sample.
    assert differences(whole[:3], network(*(t.double() for t in (x[:3], *rest))).to(dtype)) > 0
    assert differences(whole[:1], whole[1:2]) > 0


def of_a_parameter(x: torch.Tensor) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 108).view(4, 3, 3, 3), requires_grad=False)
    return F.conv2d(x, weight, stride=2, padding=1)


def test_sizes_of_the_input_may_be_symbolic(interpreter: Interpreter) -> None:
    x = randn(3, 3, 9, 11)
    large, *parts, small = interpreter.run(run_batches, of_a_parameter, [(x,), (x[:2],), (x[2:],), (x[..., :8, :8],)], True)
    assert_same_bits(torch.cat(parts), large)
    # All but the last column and row, beside which the smaller input has padding.
    assert_same_bits(small[..., :3, :3], large[..., :3, :3])


def test_a_symbolic_kernel_is_refused(interpreter: Interpreter) -> None:
    with pytest.raises(InterpretationError, match="takes a kernel of known sizes; given"):
        interpreter.run(run_compiled, F.conv2d, randn(3, 3, 9, 11), randn(4, 3, 3, 3), dynamic=True)


def test_the_graph_is_made_of_templates_and_exact_sums_are_the_cpus(interpreter: Interpreter) -> None:
    x, rest = randn(2, 33, 9, 9), parameters()
    _, codes = interpreter.run(code_of, network, x, *rest)
    assert "extern_kernels." not in codes[0] and "cpp_fused" not in codes[0] and codes[0].count("@triton_heuristics.template") == 2
    # Where no sum is rounded, no order shows, and runs of 256 have the bits of the CPU's lanes.
    whole_numbers = [t.mul(2).round() for t in (x, *rest)]
    expected = torch.compile(network, backend="batch_invariant")(*whole_numbers)
    assert_same_bits(interpreter.run(run_compiled, network, *whole_numbers), expected)
