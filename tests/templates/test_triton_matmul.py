"""The Triton matmul in the interpreter: bits of the definition, rows in any batch, layouts, epilogues, accuracy."""

from __future__ import annotations

from unittest import mock

import numpy
import pytest
import torch
from torch._inductor import config as inductor_config

from bi_inductor.templates.matmul import triton_lowering
from bi_inductor.templates.matmul.configurations import ANY, CONFIGURATIONS, DEFAULT, Configuration, configuration
from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.arithmetic import multiply_add
from tests.interpreter.process import Interpreter
from tests.templates.rows import DTYPES, assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor
BATCHES = (1, 3, 16, 17, 33)


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """docs/numerics.md section 15 with k in order inside a block, which is what the interpreter's tl.dot does; not yet rounded."""
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    x, y = a.to(wide).numpy(), b.to(wide).numpy()
    run = 256 if a.dtype in (torch.float32, torch.float64) else len(y)
    total = numpy.zeros((len(x), y.shape[1]), x.dtype)
    for first in range(0, len(y), run):
        # One run for 16-bit numbers; adding it to +0 changes nothing but the sign of a zero.
        partial = numpy.zeros_like(total)
        for k in range(first, min(first + run, len(y))):
            partial = multiply_add(x[:, k : k + 1], y[k : k + 1], partial)
        total = total + partial
    return torch.from_numpy(total)


def products(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "plain": ops.matmul(a, b),
        "bias": ops.matmul(a, b, bias),
        "scaled": ops.matmul(a, b, bias, 0.5, 3.0),
        "transposed b": ops.matmul(a, b.t().contiguous().t()),
        "strided a": ops.matmul(a.repeat_interleave(2, 1)[:, ::2], b),
        "batch": ops.matmul(a.expand(2, *a.shape), torch.stack([b, b.flip(1)])),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_definition(interpreter: Interpreter, dtype: torch.dtype) -> None:
    a, b, bias = randn(5, 300, dtype=dtype), randn(300, 40, dtype=dtype, seed=1), randn(40, dtype=dtype, seed=2)
    found = interpreter.run(run_compiled, products, a, b, bias)
    total = reference(a, b)
    wide = bias.to(total.dtype)
    plain = total.to(dtype)
    for name in ("plain", "transposed b", "strided a"):
        assert_same_bits(found[name], plain, name)
    assert_same_bits(found["bias"], (total + wide).to(dtype), "bias")
    assert_same_bits(found["scaled"], (total * 0.5 + wide * 3.0).to(dtype), "scaled")
    assert_same_bits(found["batch"], torch.stack([plain, reference(a, b.flip(1)).to(dtype)]), "batch")


def test_a_configuration_follows_columns_and_keeps_the_blocks_along_k() -> None:
    for target, kinds in CONFIGURATIONS.items():
        for kind, rows in kinds.items():
            assert list(rows) == sorted(rows) and list(rows)[-1] == ANY, (target, kind)
            # A tile of 64 rows at least is what wgmma takes.
            assert all(tile.block_m >= 64 for tile in rows.values()) or kind.startswith("float") or target == DEFAULT, (target, kind)
            assert len({tile.block_k for tile in rows.values()}) == 1 or kind == "8 bit", (target, kind)
    rows = CONFIGURATIONS["sm_90"]["16 bit"]
    narrow, medium, wide = rows.values()
    expected = {1: narrow, 2048: narrow, 2049: medium, 7168: medium, 7169: wide, 1 << 40: wide, None: medium}
    assert {columns: configuration("sm_90", torch.float16, columns) for columns in expected} == expected
    assert len({narrow, medium, wide}) == 3


def with_tile(tile: Configuration, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
    """``products`` with another configuration than the table's; a cache would not see that."""
    with (
        mock.patch.object(triton_lowering, "configuration", return_value=tile),
        inductor_config.patch(force_disable_caches=True),
    ):
        result, codes = code_of(products, a, b, bias)
    assert f"BLOCK_N : tl.constexpr = {tile.block_n}" in "".join(codes)
    return result


def test_every_tile_has_the_bits_of_the_definition(interpreter: Interpreter) -> None:
    """With k in order inside a block; what a GPU does there is the business of tests/gpu."""
    a, b, bias = (randn(*size, dtype=torch.bfloat16, seed=i) for i, size in enumerate([(5, 300), (300, 40), (40,)]))
    plain = reference(a, b)
    tiles = {tile for kinds in CONFIGURATIONS.values() for tile in kinds["16 bit"].values()}
    assert len({(tile.block_m, tile.block_n) for tile in tiles}) >= 4
    for tile in tiles:
        found = interpreter.run(with_tile, tile, a, b, bias)
        assert_same_bits(found["plain"], plain.to(torch.bfloat16), tile)
        assert_same_bits(found["bias"], (plain + bias.float()).to(torch.bfloat16), tile)
        assert_same_bits(found["batch"], torch.stack([plain, reference(a, b.flip(1))]).to(torch.bfloat16), tile)
    # Control: in float32, whose products are rounded, runs of another length have other bits.
    x, y = a.float() / 3, b.float() / 3
    assert differences(reference(x, y), reference(x.double(), y.double()).float()) > 0


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_the_same_in_every_batch(interpreter: Interpreter, dtype: torch.dtype, dynamic: bool) -> None:
    x, weight, bias = randn(33, 90, dtype=dtype), randn(24, 90, dtype=dtype, seed=1), randn(24, dtype=dtype, seed=2)
    hostile = torch.full_like(x, float("nan"))
    hostile[7] = x[7]
    calls = [(batch, weight, bias) for batch in (x, *(x[:m] for m in BATCHES), x.flip(0), hostile)]
    whole, *parts = interpreter.run(run_batches, linear, calls, dynamic)
    for m, part in zip(BATCHES, parts[:-2], strict=True):
        assert_same_bits(part, whole[:m], f"{m} rows")
    assert_same_bits(parts[-2], whole.flip(0), "another order")
    assert_same_bits(parts[-1][7], whole[7], "beside NaN")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_that_of_torch(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x, weight, bias = randn(4, 700, dtype=dtype), randn(16, 700, dtype=dtype, seed=1), randn(16, dtype=dtype, seed=2)
    exact = linear(x.double(), weight.double(), bias.double())
    found = interpreter.run(run_compiled, linear, x, weight, bias)
    assert relative_error(found, exact) <= 1.5 * max(relative_error(linear(x, weight, bias), exact), 2.5e-7)


def gelu_of_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(linear(x, weight, bias))


def test_an_epilogue_is_fused_and_reads_rounded_results(interpreter: Interpreter) -> None:
    x, weight, bias = (randn(*shape, dtype=torch.bfloat16, seed=i) for i, shape in enumerate([(5, 60), (40, 60), (40,)]))
    fused, codes = interpreter.run(code_of, gelu_of_linear, x, weight, bias)
    assert codes[0].count("@triton.jit") == 1
    alone = interpreter.run(run_compiled, linear, x, weight, bias)
    assert_same_bits(fused, interpreter.run(run_compiled, torch.nn.functional.gelu, alone))
    # Control: gelu of what had not been rounded yet is something else.
    unrounded = reference(x, weight.t()) + bias.float()
    assert differences(fused, torch.nn.functional.gelu(unrounded).to(torch.bfloat16)) > 0
