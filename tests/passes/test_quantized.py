"""Quantised linears and the ops around them: torch's values, accuracy, and bits that do not follow the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch._inductor.lowering  # defines torch.ops.quantized_decomposed
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph
from torch.library import opcheck

from bi_inductor import UnsupportedOpError
from bi_inductor.options import Options
from bi_inductor.passes.classify import classes_of, require_supported
from bi_inductor.passes.op_classes import OpClass
from bi_inductor.passes.quantized import INT4_BLOCKS, unpacked_int4
from bi_inductor.templates.library import FLOAT8
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import bf16, rewritten
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed

K, N = 256, 48


def int8(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def scales(*shape: int, seed: int = 2) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.01 + 0.001


def test_int8_weights() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, w, s: aten._weight_int8pack_mm(x, w, s), bf16(3, 64), int8(16, 64), scales(16).bfloat16()),
        """\
inference
  arg0_1: bfloat16[3, 64]
  arg1_1: int8[16, 64]
  arg2_1: bfloat16[16]
  permute = aten.permute.default(arg1_1, [1, 0]) -> int8[64, 16]
  scaled_matmul = bi_inductor.scaled_matmul.default(arg0_1, permute, torch.bfloat16, None, arg2_1) -> bfloat16[3, 16]
  return (scaled_matmul,)""",
    )


def int4_numbers(rows: int, columns: int) -> Tensor:
    return torch.randint(0, 16, (rows, columns), dtype=torch.int32, generator=torch.Generator().manual_seed(3))


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in INT4_BLOCKS, reason="packs int4 weights in a way of its own")
@pytest.mark.parametrize("rows", [16, 32, 48, 64, 80, 144])
def test_int4_weights_are_unpacked_as_torch_packs_them(rows: int) -> None:
    numbers = int4_numbers(rows, 64)
    packed = aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
    assert torch.equal(unpacked_int4(packed, 64, INT4_BLOCKS[torch.backends.cpu.get_cpu_capability()]).int(), numbers)


def per_token(x: Tensor) -> Tensor:
    """Rows quantised with a scale of their own, times an integer weight."""
    scale, zero = quantized.choose_qparams_per_token_asymmetric(x.float(), torch.int8)
    q = quantized.quantize_per_token(x.float(), scale, zero, -128, 127, torch.int8)
    product = torch._int_mm(q, int8(K, N)).float()
    product = product - zero.float() * int8(K, N).float().sum(0)
    return product * scale.float() * scales(N)


def symmetric(x: Tensor) -> Tensor:
    scale, zero = quantized.choose_qparams_per_token(x, torch.int8)
    q = quantized.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    return quantized.dequantize_per_token(q, scale, zero, -128, 127, torch.int8, torch.float32) @ randn(K, N)


def groups(x: Tensor) -> Tensor:
    weight = randn(N, K)
    scale, zero = scales(N, K // 32) * 4, torch.zeros(N, K // 32, dtype=torch.int32)
    q = quantized.quantize_per_channel_group(weight, scale, zero, -8, 7, torch.int8, 32)
    return torch.nn.functional.linear(x, quantized.dequantize_per_channel_group(q, scale, zero, -8, 7, torch.int8, 32, x.dtype))


def channels(x: Tensor) -> Tensor:
    weight, zero = randn(N, K), torch.arange(N) % 5
    q = quantized.quantize_per_channel(weight, scales(N), zero, 0, -128, 127, torch.int8)
    return torch.nn.functional.linear(x, quantized.dequantize_per_channel(q, scales(N), zero, 0, -128, 127, torch.int8).to(x.dtype))


def tensors(x: Tensor) -> Tensor:
    q = quantized.quantize_per_tensor(x, 0.03, 3, -128, 127, torch.int8)
    again = quantized.quantize_per_tensor(x, torch.tensor(0.03), torch.tensor(3), -128, 127, torch.int8)
    return quantized.dequantize_per_tensor(q + again, 0.03, 6, -128, 127, torch.int8) @ randn(K, N)


def int4(x: Tensor, packed: Tensor) -> Tensor:
    return aten._weight_int4pack_mm_for_cpu(x, packed, 32, scales(K // 32, N, 2).to(x.dtype))


def unpacked_by_hand(x: Tensor) -> Tensor:
    nibbles = int8(N, K // 2).view(torch.uint8)
    numbers = torch.stack([nibbles & 15, nibbles >> 4], -1).flatten(1) << 1
    return x @ (numbers.to(x.dtype) * scales(1).to(x.dtype)).t()


def float8(x: Tensor) -> Tensor:
    weight, scale = randn(N, K).to(torch.float8_e4m3fn).t(), x.float().abs().amax(1, keepdim=True) / 448
    return torch._scaled_mm((x.float() / scale).to(torch.float8_e4m3fn), weight, scale, scales(1, N), out_dtype=x.dtype)


# int4 also takes its packed weight.
LINEARS: dict[str, Callable[..., Any]] = {
    "int8": lambda x: aten._weight_int8pack_mm(x, int8(N, K), scales(N).to(x.dtype)),
    "int8 by hand": lambda x: torch.nn.functional.linear(x, int8(N, K).to(x.dtype)) * scales(N).to(x.dtype),
    "int8 dequantised": lambda x: x @ (int8(K, N).to(x.dtype) * scales(N).to(x.dtype)),
    "int8 rows": per_token,
    "int8 symmetric rows": symmetric,
    "groups": groups,
    "channels": channels,
    "tensors": tensors,
    "int4": int4,
    "int4 by hand": unpacked_by_hand,
    "float8": float8,
}


def parameters(name: str) -> tuple[Tensor, ...]:
    return (aten._convert_weight_to_int4pack_for_cpu(int4_numbers(N, K), 1),) if name == "int4" else ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LINEARS)
def test_a_row_has_torchs_values_and_its_bits_in_every_batch(name: str, dtype: torch.dtype) -> None:
    fn, rest, tolerance = LINEARS[name], parameters(name), 1e-4 if dtype == torch.float32 else 2e-2
    x = randn(17, K, dtype=dtype)
    whole = ours(fn, x, *rest)
    for out, expected in zip(whole, stock(fn, x, *rest), strict=True):
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    for batch in (slice(0, 1), slice(3, 5), slice(9, 17)):
        for out, expected in zip(ours(fn, x[batch], *rest), whole, strict=True):
            assert_same_bits(out, expected[batch])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accuracy_against_float64(dtype: torch.dtype) -> None:
    x, scale = randn(17, K, dtype=dtype), scales(N).to(dtype)
    pair = scales(K // 32, N, 2).to(dtype).double()
    centred = int4_numbers(N, K).double().reshape(N, K // 32, 32) - 8
    weights = {
        "int8": int8(N, K).double() * scale.double().unsqueeze(1),
        "int4": (centred * pair[..., 0].t().unsqueeze(-1) + pair[..., 1].t().unsqueeze(-1)).reshape(N, K),
    }
    for name, weight in weights.items():
        exact, rest = x.double() @ weight.t(), parameters(name)
        error = relative_error(ours(LINEARS[name], x, *rest)[0], exact)
        assert error <= 1.5 * relative_error(LINEARS[name](x, *rest), exact), name


EIGHTS = randn(8, 32).to(torch.float8_e4m3fn), randn(32, 16, seed=1).to(torch.float8_e4m3fn)
ONE = torch.ones(())


@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_with_one_scale(dtype: torch.dtype, out_dtype: torch.dtype | None, bias: torch.dtype | None) -> None:
    a, b = (x.float().to(dtype) for x in EIGHTS)
    added = () if bias is None else (randn(16, dtype=bias, seed=2),)
    (found,) = ours(
        lambda a, b, one, *bias: torch._scaled_mm(a, b, one / 3, one / 7, bias=bias[0] if bias else None, out_dtype=out_dtype),
        a,
        b,
        ONE,
        *added,
    )
    expected = ours(lambda a, b: a.float() @ b.float(), a, b)[0] * (ONE / 3) * (ONE / 7)
    expected = expected + added[0].float() if added else expected
    assert found.dtype == (out_dtype or a.dtype)
    assert_same_bits(found.float(), expected.to(found.dtype).float())


def test_the_operator_is_what_its_fake_says() -> None:
    a, b = EIGHTS
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2):
        for scaled in ((), (ONE, ONE), (scales(8, 1), scales(1, 16), randn(16))):
            opcheck(torch.ops.bi_inductor.scaled_matmul.default, (a, b, dtype, *scaled), test_utils=("test_faketensor",))


def scaled_result(a: Tensor, b: Tensor, one: Tensor) -> Any:
    return torch._scaled_mm(a, b, one, one, scale_result=one, out_dtype=torch.bfloat16)


def blocks(a: Tensor, b: Tensor, one: Tensor) -> Any:
    powers = one.expand(512).to(torch.float8_e8m0fnu)
    return torch._scaled_mm(a, b, powers, powers, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("fn", [scaled_result, blocks])
def test_other_forms_of_float8_are_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedOpError, match=r"_scaled_mm(?s:.)*float32 scales of one element, or of \[m, 1\] and \[1, n\]"):
        ours(fn, *EIGHTS, ONE)


def test_int4_weights_of_gpus_are_refused() -> None:
    """Packed for a GPU's kernel; those of the CPU's are rewritten."""
    graph = Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.ops.aten._weight_int4pack_mm.default, (x, x, 32, x))
    graph.output(product)
    with FakeTensorMode():
        x.meta["val"] = torch.empty(4, 64, dtype=torch.bfloat16, device="cuda")
        product.meta["val"] = torch.empty(4, 8, dtype=torch.bfloat16, device="cuda")
    assert classes_of(graph) == {product: OpClass.UNSUPPORTED}
    with pytest.raises(UnsupportedOpError, match=r"_weight_int4pack_mm\(bfloat16\[4, 64\]\)"):
        require_supported([product], Options())


def test_operands_that_do_not_fit() -> None:
    product, (a, b) = torch.ops.bi_inductor.scaled_matmul, EIGHTS
    with pytest.raises(TypeError, match=r"given a: torch.float8_e4m3fn, b: torch.int8, dtype: torch.float32"):
        product(a, int8(32, 16), torch.float32)
    with pytest.raises(TypeError, match=r"scale_b is a float beside a result that is one; given torch.float8_e4m3fn"):
        product(a, b, torch.float32, None, a[:1])
    with pytest.raises(ValueError, match=r"takes a \[m, k\] and b \[k, n\]"):
        product(a[0], b, torch.float32)
    with pytest.raises(RuntimeError, match=r"scale_a is one element or \[m, 1\]; given \(8, 32\) @ \(32, 16\), scale_a \(8,\)"):
        product(a, b, torch.float32, torch.ones(8))
    with pytest.raises(RuntimeError, match=r"bias is one element, \[n\] or \[1, n\]; given \(8, 32\) @ \(32, 16\), bias \(8, 16\)"):
        product(a, b, torch.float32, None, None, torch.ones(8, 16))


def test_compiled_in_one_graph_and_stock_varies() -> None:
    def fn(x: Tensor, packed: Tensor, weight: Tensor, scale: Tensor, pairs: Tensor) -> tuple[Tensor, ...]:
        largest = x.abs().amax(1, keepdim=True) / 448
        eights = (x / largest).to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
        return (
            aten._weight_int8pack_mm(x, weight.to(torch.int8), scale),
            aten._weight_int4pack_mm_for_cpu(x, packed, 32, pairs),
            torch._scaled_mm(*eights, largest, scale.unsqueeze(0), out_dtype=torch.float32),
        )

    x, rest = randn(17, K), (*parameters("int4"), int8(N, K).float(), scales(N), scales(K // 32, N, 2))
    compiled = torch.compile(fn, backend="batch_invariant", dynamic=True, fullgraph=True)
    whole = compiled(x, *rest)
    for out, expected in zip(whole, ours(fn, x, *rest), strict=True):
        assert_same_bits(out, expected)
    for m in (1, 2, 3, 8):
        for out, expected in zip(compiled(x[:m], *rest), whole, strict=True):
            assert_same_bits(out, expected[:m], m)
    assert any(differences(float8(x[:m]), float8(x)[:m]) for m in (1, 2, 3, 5)), "torch's kernel varies"
