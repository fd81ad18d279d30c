"""Pooling: the graph it becomes, torch's values for every parameter, and bits that do not follow the batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
import torch._inductor.lowering  # what max_pool3d decomposes into is defined there
from torch import Tensor
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from bi_inductor.passes.pooling import DECOMPOSITIONS
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import f32, rewritten
from tests.templates.rows import assert_same_bits, randn, relative_error

aten = torch.ops.aten


def test_average_pooling_is_the_sum_of_windows() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x: functional.avg_pool2d(x, 3, 2, 1), f32(2, 3, 5, 6)),
        """\
inference
  arg0_1: float32[2, 3, 5, 6]
  constant_pad_nd = aten.constant_pad_nd.default(arg0_1, [1, 1, 1, 1], 0.0) -> float32[2, 3, 7, 8]
  unfold = aten.unfold.default(constant_pad_nd, 2, 3, 2) -> float32[2, 3, 3, 8, 3]
  unfold_1 = aten.unfold.default(unfold, 3, 3, 2) -> float32[2, 3, 3, 3, 3, 3]
- sum_1 = aten.sum.dim_IntList(unfold_1, [-2, -1]) -> float32[2, 3, 3, 3]
+ sum_default = bi_inductor.sum.default(unfold_1, [-2, -1], False) -> float32[2, 3, 3, 3]
  iota = prims.iota.default(3, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[3]
  mul = aten.mul.Tensor(iota, 2) -> int64[3]
  sub = aten.sub.Tensor(mul, 1) -> int64[3]
  add_1 = aten.add.Tensor(sub, 3) -> int64[3]
  clamp_max = aten.clamp_max.default(add_1, 6) -> int64[3]
  sub_1 = aten.sub.Tensor(clamp_max, sub) -> int64[3]
  iota_2 = prims.iota.default(3, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[3]
  mul_1 = aten.mul.Tensor(iota_2, 2) -> int64[3]
  sub_2 = aten.sub.Tensor(mul_1, 1) -> int64[3]
  add_3 = aten.add.Tensor(sub_2, 3) -> int64[3]
  clamp_max_2 = aten.clamp_max.default(add_3, 7) -> int64[3]
  sub_3 = aten.sub.Tensor(clamp_max_2, sub_2) -> int64[3]
  unsqueeze_2 = aten.unsqueeze.default(sub_1, -1) -> int64[3, 1]
  mul_2 = aten.mul.Tensor(unsqueeze_2, sub_3) -> int64[3, 3]
  convert_element_type = prims.convert_element_type.default(mul_2, torch.float32) -> float32[3, 3]
- div = aten.div.Tensor(sum_1, convert_element_type) -> float32[2, 3, 3, 3]
+ div = aten.div.Tensor(sum_default, convert_element_type) -> float32[2, 3, 3, 3]
  return (div,)""",
    )


def test_uneven_adaptive_windows_are_gathered() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x: functional.adaptive_avg_pool1d(x, 3), f32(2, 3, 5)),
        """\
inference
  arg0_1: float32[2, 3, 5]
  unsqueeze = aten.unsqueeze.default(arg0_1, -2) -> float32[2, 3, 1, 5]
  iota = prims.iota.default(1, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[1]
  mul = aten.mul.Tensor(iota, 1) -> int64[1]
  div = aten.div.Tensor_mode(mul, 1, rounding_mode=floor) -> int64[1]
  add = aten.add.Tensor(iota, 1) -> int64[1]
  mul_1 = aten.mul.Tensor(add, 1) -> int64[1]
  add_1 = aten.add.Tensor(mul_1, 1) -> int64[1]
  sub = aten.sub.Tensor(add_1, 1) -> int64[1]
  div_1 = aten.div.Tensor_mode(sub, 1, rounding_mode=floor) -> int64[1]
  unsqueeze_1 = aten.unsqueeze.default(div, 1) -> int64[1, 1]
  iota_1 = prims.iota.default(1, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[1]
  add_2 = aten.add.Tensor(unsqueeze_1, iota_1) -> int64[1, 1]
  clamp_max = aten.clamp_max.default(add_2, 0) -> int64[1, 1]
  unsqueeze_2 = aten.unsqueeze.default(div_1, 1) -> int64[1, 1]
  lt = aten.lt.Tensor(add_2, unsqueeze_2) -> bool[1, 1]
  sub_1 = aten.sub.Tensor(div_1, div) -> int64[1]
  iota_2 = prims.iota.default(3, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[3]
  mul_2 = aten.mul.Tensor(iota_2, 5) -> int64[3]
  div_2 = aten.div.Tensor_mode(mul_2, 3, rounding_mode=floor) -> int64[3]
  add_3 = aten.add.Tensor(iota_2, 1) -> int64[3]
  mul_3 = aten.mul.Tensor(add_3, 5) -> int64[3]
  add_4 = aten.add.Tensor(mul_3, 3) -> int64[3]
  sub_2 = aten.sub.Tensor(add_4, 1) -> int64[3]
  div_3 = aten.div.Tensor_mode(sub_2, 3, rounding_mode=floor) -> int64[3]
  unsqueeze_3 = aten.unsqueeze.default(div_2, 1) -> int64[3, 1]
  iota_3 = prims.iota.default(3, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[3]
  add_5 = aten.add.Tensor(unsqueeze_3, iota_3) -> int64[3, 3]
  clamp_max_1 = aten.clamp_max.default(add_5, 4) -> int64[3, 3]
  unsqueeze_4 = aten.unsqueeze.default(div_3, 1) -> int64[3, 1]
  lt_1 = aten.lt.Tensor(add_5, unsqueeze_4) -> bool[3, 3]
  sub_3 = aten.sub.Tensor(div_3, div_2) -> int64[3]
  view = aten.view.default(unsqueeze, [2, 3, 5]) -> float32[2, 3, 5]
  unsqueeze_5 = aten.unsqueeze.default(clamp_max, 2) -> int64[1, 1, 1]
  unsqueeze_6 = aten.unsqueeze.default(unsqueeze_5, 3) -> int64[1, 1, 1, 1]
  mul_4 = aten.mul.Tensor(unsqueeze_6, 5) -> int64[1, 1, 1, 1]
  add_6 = aten.add.Tensor(mul_4, clamp_max_1) -> int64[1, 1, 3, 3]
  view_1 = aten.view.default(add_6, [9]) -> int64[9]
  index = aten.index.Tensor(view, [None, None, view_1]) -> float32[2, 3, 9]
  unsqueeze_7 = aten.unsqueeze.default(lt, 2) -> bool[1, 1, 1]
  unsqueeze_8 = aten.unsqueeze.default(unsqueeze_7, 3) -> bool[1, 1, 1, 1]
  bitwise_and = aten.bitwise_and.Tensor(unsqueeze_8, lt_1) -> bool[1, 1, 3, 3]
  view_2 = aten.view.default(index, [2, 3, 1, 1, 3, 3]) -> float32[2, 3, 1, 1, 3, 3]
  scalar_tensor = aten.scalar_tensor.default(0, dtype=torch.float32, layout=torch.strided, device=cpu) -> float32[]
  where = aten.where.self(bitwise_and, view_2, scalar_tensor) -> float32[2, 3, 1, 1, 3, 3]
- sum_1 = aten.sum.dim_IntList(where, [-3, -1]) -> float32[2, 3, 1, 3]
+ sum_default = bi_inductor.sum.default(where, [-3, -1], False) -> float32[2, 3, 1, 3]
  unsqueeze_9 = aten.unsqueeze.default(sub_1, -1) -> int64[1, 1]
  mul_5 = aten.mul.Tensor(unsqueeze_9, sub_3) -> int64[1, 3]
  convert_element_type = prims.convert_element_type.default(mul_5, torch.float32) -> float32[1, 3]
- div_4 = aten.div.Tensor(sum_1, convert_element_type) -> float32[2, 3, 1, 3]
+ div_4 = aten.div.Tensor(sum_default, convert_element_type) -> float32[2, 3, 1, 3]
  squeeze = aten.squeeze.dim(div_4, -2) -> float32[2, 3, 3]
  return (squeeze,)""",
    )


def test_the_backward_is_a_scatter() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x: functional.avg_pool1d(x, 2), f32(2, 3, 6).requires_grad_(), training=True, shown=("backward",)),
        """\
backward
  tangents_1: float32[2, 3, 3]
  unsqueeze_3 = aten.unsqueeze.default(tangents_1, 2) -> float32[2, 3, 1, 3]
  iota_4 = prims.iota.default(1, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[1]
  mul_2 = aten.mul.Tensor(iota_4, 1) -> int64[1]
  sub_4 = aten.sub.Tensor(mul_2, 0) -> int64[1]
  unsqueeze_4 = aten.unsqueeze.default(sub_4, 1) -> int64[1, 1]
  iota_5 = prims.iota.default(1, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[1]
  add_4 = aten.add.Tensor(unsqueeze_4, iota_5) -> int64[1, 1]
  clamp_min_2 = aten.clamp_min.default(add_4, 0) -> int64[1, 1]
  clamp_max_5 = aten.clamp_max.default(clamp_min_2, 0) -> int64[1, 1]
  ge_2 = aten.ge.Scalar(add_4, 0) -> bool[1, 1]
  lt_2 = aten.lt.Scalar(add_4, 1) -> bool[1, 1]
  bitwise_and_2 = aten.bitwise_and.Tensor(ge_2, lt_2) -> bool[1, 1]
  iota_6 = prims.iota.default(3, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[3]
  mul_3 = aten.mul.Tensor(iota_6, 2) -> int64[3]
  sub_6 = aten.sub.Tensor(mul_3, 0) -> int64[3]
  unsqueeze_5 = aten.unsqueeze.default(sub_6, 1) -> int64[3, 1]
  iota_7 = prims.iota.default(2, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[2]
  add_6 = aten.add.Tensor(unsqueeze_5, iota_7) -> int64[3, 2]
  clamp_min_3 = aten.clamp_min.default(add_6, 0) -> int64[3, 2]
  clamp_max_7 = aten.clamp_max.default(clamp_min_3, 5) -> int64[3, 2]
  ge_3 = aten.ge.Scalar(add_6, 0) -> bool[3, 2]
  lt_3 = aten.lt.Scalar(add_6, 6) -> bool[3, 2]
  bitwise_and_3 = aten.bitwise_and.Tensor(ge_3, lt_3) -> bool[3, 2]
  div_1 = aten.div.Tensor(unsqueeze_3, 2) -> float32[2, 3, 1, 3]
  unsqueeze_6 = aten.unsqueeze.default(bitwise_and_2, 2) -> bool[1, 1, 1]
  unsqueeze_7 = aten.unsqueeze.default(unsqueeze_6, 3) -> bool[1, 1, 1, 1]
  bitwise_and_4 = aten.bitwise_and.Tensor(unsqueeze_7, bitwise_and_3) -> bool[1, 1, 3, 2]
  unsqueeze_8 = aten.unsqueeze.default(div_1, 4) -> float32[2, 3, 1, 3, 1]
  unsqueeze_9 = aten.unsqueeze.default(unsqueeze_8, 3) -> float32[2, 3, 1, 1, 3, 1]
  scalar_tensor = aten.scalar_tensor.default(0, dtype=torch.float32, layout=torch.strided, device=cpu) -> float32[]
  where = aten.where.self(bitwise_and_4, unsqueeze_9, scalar_tensor) -> float32[2, 3, 1, 1, 3, 2]
  full = aten.full.default([2, 3, 6], 0, dtype=torch.float32, layout=torch.strided, device=cpu, pin_memory=False) -> float32[2, 3, 6]
  unsqueeze_10 = aten.unsqueeze.default(clamp_max_5, 2) -> int64[1, 1, 1]
  unsqueeze_11 = aten.unsqueeze.default(unsqueeze_10, 3) -> int64[1, 1, 1, 1]
  mul_4 = aten.mul.Tensor(unsqueeze_11, 6) -> int64[1, 1, 1, 1]
  add_8 = aten.add.Tensor(mul_4, clamp_max_7) -> int64[1, 1, 3, 2]
  view = aten.view.default(add_8, [6]) -> int64[6]
  view_1 = aten.view.default(where, [2, 3, 6]) -> float32[2, 3, 6]
- index_put = aten.index_put.default(full, [None, None, view], view_1, True) -> float32[2, 3, 6]
+ lt_scalar = aten.lt.Scalar(view, 0) -> bool[6]
+ add_tensor = aten.add.Tensor(view, 6) -> int64[6]
+ where_self = aten.where.self(lt_scalar, add_tensor, view) -> int64[6]
+ expand_default = aten.expand.default(view_1, [2, 3, 6]) -> float32[2, 3, 6]
+ reshape_default = aten.reshape.default(expand_default, [2, 3, 6]) -> float32[2, 3, 6]
+ reshape_default_1 = aten.reshape.default(full, [2, 3, 6]) -> float32[2, 3, 6]
+ reshape_default_2 = aten.reshape.default(where_self, [6]) -> int64[6]
+ scatter_default = bi_inductor.scatter.default(reshape_default_1, 2, reshape_default_2, reshape_default, sum, True) -> float32[2, 3, 6]
+ reshape_default_3 = aten.reshape.default(scatter_default, [2, 3, 6]) -> float32[2, 3, 6]
- view_2 = aten.view.default(index_put, [2, 3, 1, 6]) -> float32[2, 3, 1, 6]
+ view_2 = aten.view.default(reshape_default_3, [2, 3, 1, 6]) -> float32[2, 3, 1, 6]
  squeeze_1 = aten.squeeze.dim(view_2, -2) -> float32[2, 3, 6]
  return (squeeze_1,)""",
    )


def size_of(dims: int) -> tuple[int, ...]:
    return (7, 9, 8)[:dims]


def assert_as_torch(op: Any, *args: Any) -> Any:
    """The decomposition of ``op`` gives the values of torch's kernel; returns the first of them."""
    expected, given = op(*args), DECOMPOSITIONS[op](*args)
    torch.testing.assert_close(given, expected)
    return expected


@pytest.mark.parametrize("dims", [2, 3])
def test_average_pooling_has_torchs_values(dims: int) -> None:
    forward, backward = getattr(aten, f"avg_pool{dims}d").default, getattr(aten, f"avg_pool{dims}d_backward").default
    x = randn(3, *size_of(dims))
    for size, stride, padding, ceil_mode, include, divisor in itertools.product((2, 3), (1, 2, 3), (0, 1), *[(False, True)] * 2, (None, 5)):
        arguments = [size, size + 1, size][:dims], [stride] * dims, [padding] * dims, ceil_mode, include, divisor
        out = assert_as_torch(forward, x, *arguments)
        assert_as_torch(backward, torch.randn_like(out), x, *arguments)
    assert_as_torch(forward, x, [2])


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("outputs", [(3, 4, 5), (7, 3, 4), (10, 2, 16), (1, 9, 3)])
def test_adaptive_pooling_has_torchs_values(dims: int, outputs: tuple[int, ...]) -> None:
    x = randn(2, 3, *size_of(dims))
    averaged = assert_as_torch(getattr(aten, f"_adaptive_avg_pool{dims}d").default, x, list(outputs[:dims]))
    assert_as_torch(getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default, torch.randn_like(averaged), x)
    _, indices = getattr(aten, f"adaptive_max_pool{dims}d").default(x, list(outputs[:dims]))
    assert_as_torch(getattr(aten, f"adaptive_max_pool{dims}d").default, x, list(outputs[:dims]))
    assert_as_torch(getattr(aten, f"adaptive_max_pool{dims}d_backward").default, torch.randn_like(averaged), x, indices)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "average": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, (3, 4)),
    "even": lambda x: functional.adaptive_avg_pool2d(x, (3, 5)),
    "maximum of volumes": lambda x: functional.max_pool3d(x.unsqueeze(1), 3, 2, 1),
    "maximum of fractions": lambda x: functional.fractional_max_pool2d(x, 3, (4, 5), _random_samples=torch.full((len(x), 4, 2), 0.3)),
    "maximum": lambda x: functional.adaptive_max_pool2d(x, (4, 4)),
    "power": lambda x: functional.lp_pool2d(x, 2.0, 2),
    "response norm": lambda x: functional.local_response_norm(x, 3),
    "area": lambda x: functional.interpolate(x, size=(4, 7), mode="area"),
}


@pytest.mark.parametrize("pool", POOLS)
def test_a_sample_has_its_bits_in_every_batch(pool: str) -> None:
    x = randn(5, 4, 9, 10).requires_grad_()
    whole = ours(POOLS[pool], x)
    for out, expected in zip(whole, stock(POOLS[pool], x), strict=True):
        torch.testing.assert_close(out, expected)
    for batch in (slice(0, 1), slice(3, 5)):
        for out, expected in zip(ours(POOLS[pool], x[batch].detach().requires_grad_()), whole, strict=True):
            assert_same_bits(out, expected[batch])


def test_low_precision_rounds_once() -> None:
    x = randn(2, 3, 12, 12, dtype=torch.bfloat16)
    for pool in (lambda x: functional.avg_pool2d(x, 4), lambda x: functional.adaptive_avg_pool2d(x, 5)):
        exact = pool(x.double())
        (out,) = ours(pool, x)
        assert relative_error(out, exact) <= 1.5 * relative_error(exact.bfloat16(), exact)
