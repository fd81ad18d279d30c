"""The matmul that reads its operands by descriptors: the bits of the one that reads by pointers, and what each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bi_inductor import UnsupportedOpError
from bi_inductor.targets.compile import compile_programs
from bi_inductor.templates.matmul.descriptors import OPTION, TARGETS
from tests.interpreter import code_of, run_batches
from tests.interpreter.process import Interpreter
from tests.templates.rows import assert_same_bits, randn

pytest.importorskip("triton")

ops = torch.ops.bi_inductor
BATCHES = (1, 17, 130)
# How the environment turns the option on, for a process that compiles.
VARIABLE = "ENABLE_PERSISTENT_TMA_MATMUL"


def operands(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """x [136, 72], weight [144, 72] and bias [144]: several tiles for each of the interpreter's two programs, the last ones not full."""
    return tuple(randn(*size, dtype=dtype, seed=i) for i, size in enumerate([(136, 72), (144, 72), (144,)]))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


def described(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """With an epilogue; scaled; A in transposed storage and B a view that begins 16 bytes into its storage."""
    scaled = ops.matmul(x, weight.t(), bias, 0.5, 3.0)
    return linear(x, weight, bias), scaled, ops.matmul(x.t().contiguous().t(), weight.t().contiguous()[:, 8:])


def not_described(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """B begins 4 bytes into its storage; rows of 142 bytes; every second column; batches; float32."""
    offset = ops.matmul(x, weight.flatten()[2 : 2 + 143 * 72].view(143, 72).t())
    odd = ops.matmul(x[:, 1:].contiguous(), weight[:, 1:].t().contiguous())
    strided = ops.matmul(x[:, ::2], weight.t()[::2])
    return offset, odd, strided, ops.matmul(x[None], weight.t()[None]), ops.matmul(x.float(), weight.t().float())


@pytest.mark.xdist_group("interpreter")
@pytest.mark.parametrize(("function", "count"), [(described, 3), (not_described, 0)])
def test_bits_are_those_of_pointers(interpreter: Interpreter, function: Callable[..., tuple[torch.Tensor, ...]], count: int) -> None:
    given = operands()
    expected, (by_pointers,) = interpreter.run(code_of, function, *given, timeout=600)
    found, (by_descriptors,) = interpreter.run(code_of, function, *given, options={OPTION: True}, timeout=600)
    assert "make_tensor_descriptor" not in by_pointers and by_pointers.count("tl.load(a + first") == len(expected)
    # Two of each kernel; where none is described the kernels are those without the option.
    assert (
        by_descriptors.count("make_tensor_descriptor") == 2 * count and by_descriptors.count("tl.load(a + first") == len(expected) - count
    )
    for place, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(left, right, place)


@pytest.mark.xdist_group("interpreter")
def test_rows_are_the_same_in_every_batch(interpreter: Interpreter) -> None:
    x, weight, bias = operands()
    hostile = torch.full_like(x, float("nan"))
    hostile[7] = x[7]
    calls = [(batch, weight, bias) for batch in (x, *(x[:m] for m in BATCHES), hostile)]
    whole, *parts = interpreter.run(run_batches, linear, calls, True, options={OPTION: True}, timeout=600)
    for m, part in zip(BATCHES, parts[:-1], strict=True):
        assert_same_bits(part, whole[:m], f"{m} rows")
    assert_same_bits(parts[-1][7], whole[7], "beside NaN")


PROGRAMS = [f"tests.bi_inductor.targets.programs:products_{columns}" for columns in (256, 4096, 16384)]


def compiled_with_the_option(target: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv(VARIABLE, "1")
    return compile_programs(PROGRAMS, target)


@pytest.mark.xdist_group("targets")
@pytest.mark.parametrize("target", ["sm_90", pytest.param("sm_100", marks=pytest.mark.full)])
def test_the_accelerator_reads_for_the_same_instructions(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pointers = compile_programs(PROGRAMS, target)
    assert target in TARGETS
    for report, other in zip(compiled_with_the_option(target, monkeypatch), pointers, strict=True):
        # A linear with an epilogue and a product of transposed operands; then batches and groups, which are read by pointers.
        for place, (kernel, by_pointers) in enumerate(zip(report.kernels, other.kernels, strict=True)):
            described = place < 2
            assert kernel.spilled == 0 and kernel.occupancy > 0, kernel.name
            assert bool(kernel.instructions(r"cp\.async\.bulk\.tensor\.2d\.shared")) is described, kernel.name
            assert not by_pointers.instructions(r"cp\.async\.bulk\.tensor"), kernel.name
            assert ("PROGRAMS=" in kernel.configuration) is described, kernel.configuration
            products = r"wgmma\.mma_async|tcgen05\.mma|mma\.sync"
            assert set(kernel.instructions(products)) == set(by_pointers.instructions(products)) != set(), kernel.name


@pytest.mark.xdist_group("targets")
def test_a_gpu_without_the_accelerator_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    (found, *_) = compiled_with_the_option("sm_80", monkeypatch)
    assert isinstance(found, UnsupportedOpError)
    assert OPTION in str(found) and "sm_90 and sm_100" in str(found) and "given sm_80" in str(found)
