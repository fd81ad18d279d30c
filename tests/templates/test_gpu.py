"""Which rows of the tables a device is given, and what is refused for every device."""

from __future__ import annotations

import types
import warnings
from unittest import mock

import pytest
import torch
from torch._inductor.runtime.hints import DeviceProperties

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import configuration
from bi_inductor.templates.gpu import DEFAULT, TARGETS, target_of
from tests.interpreter import code_of, run_compiled
from tests.interpreter.process import InterpretationError, Interpreter
from tests.templates.rows import randn

ops = torch.ops.bi_inductor
DEVICE = torch.device("cuda", 0)


def target_of_architecture(architecture: int | str) -> str:
    with mock.patch.object(DeviceProperties, "create", return_value=types.SimpleNamespace(cc=architecture)):
        return target_of(DEVICE)


def test_a_device_of_the_tables_is_given_its_rows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [target_of_architecture(cc) for cc in (80, 90, 100, "gfx942", "gfx942:sramecc+:xnack-")] == [*TARGETS, "gfx942"]
        assert target_of(torch.device("cpu")) == DEFAULT


def test_another_device_is_given_the_default_ones_and_that_is_said_once() -> None:
    gpu._say_once.cache_clear()
    with pytest.warns(UserWarning, match=r"no tuned configurations for the GPU architecture 'sm_75' \(sm_80, sm_90, sm_100, gfx942 have\)"):
        assert target_of_architecture(75) == DEFAULT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert target_of_architecture(75) == DEFAULT
    # Each architecture for itself.
    with pytest.warns(UserWarning, match="'gfx90a'"):
        assert target_of_architecture("gfx90a") == DEFAULT
    assert configuration(DEFAULT, torch.bfloat16, 128).block_m > 0


def attend(q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def normalizer(q: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.attention_lse(q, q)
    return out


def paged(q: torch.Tensor) -> torch.Tensor:
    cache, number = q.new_zeros(4, 8, 1, 2 * q.shape[-1]), torch.ones(1, dtype=torch.int64)
    out: torch.Tensor = ops.paged_attention(q[0, 0, :, None], cache, number[None], torch.arange(2), number, 0.1)
    return out


@pytest.mark.xdist_group("interpreter")
@pytest.mark.parametrize("function", [attend, normalizer, paged])
def test_a_head_dim_that_no_template_covers_is_refused_by_name(interpreter: Interpreter, function: object) -> None:
    with pytest.raises(InterpretationError, match=r"UnsupportedOpError: .* on a GPU takes head dims up to 256; given 288"):
        interpreter.run(run_compiled, function, randn(1, 1, 1, 288))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def product_where_less_precision_is_allowed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    """``code_of`` with every setting of torch that lets libraries compute products of float32, or sums of 16 bits, in fewer bits."""
    settings = torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("medium")
    settings.allow_bf16_reduced_precision_reduction = settings.allow_fp16_reduced_precision_reduction = True
    settings.allow_fp16_accumulation = True
    assert settings.allow_tf32
    try:
        return code_of(product, x, weight)
    finally:
        settings.allow_fp16_accumulation = False
        torch.set_float32_matmul_precision("highest")


def precision(code: str) -> list[str]:
    """The lines of a kernel that say in how many bits it multiplies and adds."""
    return [line.strip() for line in code.splitlines() if "tl.dot(" in line or line.strip().startswith("ACCUMULATOR :")]


@pytest.mark.xdist_group("interpreter")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_settings_that_allow_less_precision_change_no_kernel(interpreter: Interpreter, dtype: torch.dtype) -> None:
    given = randn(4, 40, dtype=dtype), randn(8, 40, dtype=dtype, seed=1)
    expected, (code,) = interpreter.run(code_of, product, *given)
    found, (allowed,) = interpreter.run(product_where_less_precision_is_allowed, *given)
    assert torch.equal(found, expected)
    accumulator, *products = precision(code)
    assert accumulator == "ACCUMULATOR : tl.constexpr = tl.float32" and len(products) > 0 and precision(allowed) == precision(code)
    assert dtype != torch.float32 or all('input_precision="ieee"' in line for line in products)
