"""Bit comparison and ulp distances, against numpy's view of the same numbers."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bi_inductor.ulp import bits_differ, ulp_distance

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn)


def _float32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _distance(left: float, right: float, dtype: torch.dtype) -> float:
    return ulp_distance(torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype)).item()


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pattern_is_one_ulp_from_its_neighbour(dtype: torch.dtype) -> None:
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    steps = torch.arange(0, 120, dtype=integer)
    upwards = steps.view(dtype)
    assert (ulp_distance(upwards[1:], upwards[:-1]) == 1).all()
    downwards = (steps + torch.iinfo(integer).min).view(dtype)
    assert (ulp_distance(downwards, upwards) == 2 * steps.long()).all()
    one = torch.ones((), dtype=dtype)
    assert ulp_distance(one, (one.view(integer) + 5).view(dtype)).item() == 5


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_float32_distance_counts_the_patterns_between(left_bits: int, right_bits: int) -> None:
    left, right = _float32(left_bits), _float32(right_bits)

    def rank(bits: int) -> int:
        return bits if bits < 2**31 else -(bits - 2**31)

    expected: float = abs(rank(left_bits) - rank(right_bits))
    if math.isnan(left) or math.isnan(right):
        expected = 0 if math.isnan(left) and math.isnan(right) else math.inf
    patterns = torch.tensor([left_bits, right_bits]).to(torch.int32).view(torch.float32)
    assert ulp_distance(patterns[0], patterns[1]).item() == expected
    assert ulp_distance(patterns[1], patterns[0]).item() == expected
    same = left_bits == right_bits or (math.isnan(left) and math.isnan(right))
    assert bits_differ(patterns[0], patterns[1]).item() is not same


@given(st.floats(width=64), st.floats(width=64))
def test_float64_distance_is_symmetric_and_zero_only_for_equal_values(left: float, right: float) -> None:
    distance = _distance(left, right, torch.float64)
    assert distance == _distance(right, left, torch.float64)
    equal = left == right or (math.isnan(left) and math.isnan(right))
    assert (distance == 0) is equal
    assert distance >= 0


def test_distances_wider_than_int64_do_not_wrap() -> None:
    largest = torch.finfo(torch.float64).max
    distance = _distance(-largest, largest, torch.float64)
    assert distance == pytest.approx(2.0 * 0x7FEFFFFFFFFFFFFF)
    lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    assert ulp_distance(torch.tensor(lowest), torch.tensor(highest)).item() == pytest.approx(2.0**64)


def test_special_values() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert _distance(0.0, -0.0, dtype) == 0
        assert bits_differ(torch.tensor(0.0, dtype=dtype), torch.tensor(-0.0, dtype=dtype)).item()
        assert _distance(math.inf, torch.finfo(dtype).max, dtype) == 1
        assert _distance(math.nan, 1.0, dtype) == math.inf
        assert _distance(math.nan, math.inf, dtype) == math.inf
        nans = torch.tensor([math.nan, -math.nan], dtype=dtype)
        assert not bits_differ(nans, nans.flip(0)).any()
        assert (ulp_distance(nans, nans.flip(0)) == 0).all()


def test_complex_integer_and_bool() -> None:
    left = torch.tensor([1 + 1j, 1 + 1j, complex(math.nan, 0)], dtype=torch.complex64)
    right = torch.tensor([1 + 1j, 1 + 1.0000002j, complex(math.nan, 0)], dtype=torch.complex64)
    assert bits_differ(left, right).tolist() == [False, True, False]
    assert ulp_distance(left, right).tolist() == [0, 2, 0]
    assert bits_differ(left.conj(), right.conj()).tolist() == [False, True, False]
    assert ulp_distance(torch.tensor([3, -4]), torch.tensor([5, 4])).tolist() == [2, 8]
    bytes_left, bytes_right = torch.tensor([[0, 255], [255, 255]], dtype=torch.uint8)
    assert ulp_distance(bytes_left, bytes_right).tolist() == [255, 0]
    assert ulp_distance(torch.tensor([True, False]), torch.tensor([True, True])).tolist() == [0, 1]
    assert bits_differ(torch.tensor([True, False]), torch.tensor([True, True])).tolist() == [False, True]


def test_memory_layout_does_not_matter() -> None:
    base = torch.randn(6, 10, dtype=torch.float32)
    assert not bits_differ(base.t(), base.t().contiguous()).any()
    assert not bits_differ(base[:, 1::2], base[:, 1::2].clone()).any()
    assert not bits_differ(base[:1].expand(4, 10), base[:1].repeat(4, 1)).any()
    assert bits_differ(torch.empty(0, 3), torch.empty(0, 3)).shape == (0, 3)


def test_unlike_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one dtype and shape, got torch.float32 \(2,\) and torch.float64 \(2,\)"):
        bits_differ(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"torch.float32 \(2,\) and torch.float32 \(3,\)"):
        ulp_distance(torch.zeros(2), torch.zeros(3))
