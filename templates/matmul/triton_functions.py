"""Elements as another type that the matmul multiplies, in registers and exactly (docs/numerics.md section 15).

Every float8 is a float16: its exponents are within those of float16, subnormals included, and its mantissa is shorter. The formats named
fnuz are AMD's: no infinities, no negative zero, whose code is the only NaN, and exponents one step lower.
"""

# mypy: ignore-errors
# Device functions are compiled by Triton, whose types are no types of Python.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast(x, dtype: tl.constexpr):
    """By the instruction of the target. Of float8 some targets have none."""
    return x.to(dtype)


@triton.jit
def e4m3fn(x, dtype: tl.constexpr):
    """float16 of float8_e4m3fn, by integer operations and a multiplication that is exact."""
    code = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    # Sign, exponent and mantissa in their places in float16, whose bias is 8 larger: 2^-8 of the value, of a subnormal too.
    half = (((code & 128) << 8) | ((code & 127) << 7)).to(tl.float16, bitcast=True)
    half = half * tl.full([1, 1], 256.0, tl.float16)
    # There is no infinity; the largest code is NaN.
    return tl.where((code & 127) == 127, float("nan"), half).to(dtype)


@triton.jit
def e5m2(x, dtype: tl.constexpr):
    """float16 of float8_e5m2, which is its upper half."""
    code = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    return (code << 8).to(tl.float16, bitcast=True).to(dtype)


@triton.jit
def e4m3fnuz(x, dtype: tl.constexpr):
    """float16 of float8_e4m3fnuz, as ``e4m3fn``; the bias of float16 is 7 larger than its."""
    code = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    half = (((code & 128) << 8) | ((code & 127) << 7)).to(tl.float16, bitcast=True)
    half = half * tl.full([1, 1], 128.0, tl.float16)
    return tl.where(code == 128, float("nan"), half).to(dtype)


@triton.jit
def e5m2fnuz(x, dtype: tl.constexpr):
    """float16 of float8_e5m2fnuz, whose bias is that of float16 and 1."""
    code = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    # One step less of the exponent; the two smallest exponents are float16's subnormals, which have one step of their own.
    magnitude = tl.where((code & 127) < 8, (code & 7) << 7, ((code & 127) << 8) - 1024)
    half = (((code & 128) << 8) | magnitude).to(tl.uint16).to(tl.float16, bitcast=True)
    return tl.where(code == 128, float("nan"), half).to(dtype)
