"""Device functions that the Triton templates share: the C++ of ``common/sums.h`` and ``common/vector.h`` in Triton.

Numerics: terms go to lane ``index mod 128``, four blocks of 32 lanes that one warp holds with one element a thread, so that no layout can
choose the order; the fold by halves adds the blocks first and lets ``tl.sum`` exchange 16, 8, 4, 2 and 1 lanes inside the warp
(docs/numerics.md sections 2, 5 and 15). Kernels are compiled without contraction, so ``*`` and ``+`` round apart; fma is written out.
"""

# mypy: ignore-errors
# Device functions are compiled by Triton, whose types are no types of Python.

from __future__ import annotations

import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice


@triton.jit
def divide(x, y):
    """IEEE division; Triton's ``/`` of float32 is an approximation."""
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def square_root(x):
    """IEEE square root."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def _horner(p, r, c: tl.constexpr):
    # A bare number among tl.fma's arguments would be rounded to float32 first.
    return tl.fma(p, r, tl.full(r.shape, c, r.dtype))


@triton.jit
def _multiple(k, c: tl.constexpr, x):
    return tl.fma(k, tl.full(k.shape, c, k.dtype), x)


@triton.jit
def exp_nonpositive(x):
    """``exp32`` or ``exp64`` of docs/numerics.md section 5, for ``x <= 0`` or NaN."""
    if x.dtype == tl.float64:
        k = libdevice.rint(x * 1.4426950408889634)
        r = _multiple(k, -0.6931471805599453, x)
        r = _multiple(k, -2.3190468138462996e-17, r)
        p = tl.full(x.shape, 1 / 6227020800, tl.float64)
        p = _horner(p, r, 1 / 479001600)
        p = _horner(p, r, 1 / 39916800)
        p = _horner(p, r, 1 / 3628800)
        p = _horner(p, r, 1 / 362880)
        p = _horner(p, r, 1 / 40320)
        p = _horner(p, r, 1 / 5040)
        p = _horner(p, r, 1 / 720)
        p = _horner(p, r, 1 / 120)
        p = _horner(p, r, 1 / 24)
        p = _horner(p, r, 1 / 6)
        p = _horner(p, r, 0.5)
        p = _horner(p, r, 1.0)
        p = _horner(p, r, 1.0)
        power = ((k.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
        return tl.where(x < -708.39, 0.0, p * power)
    else:
        k = libdevice.rint(x * 1.44269504088896341)
        r = _multiple(k, -0.693359375, x)
        r = _multiple(k, 2.12194440e-4, r)
        p = tl.full(x.shape, 1.9875691500e-4, tl.float32)
        p = _horner(p, r, 1.3981999507e-3)
        p = _horner(p, r, 8.3334519073e-3)
        p = _horner(p, r, 4.1665795894e-2)
        p = _horner(p, r, 1.6666665459e-1)
        p = _horner(p, r, 5.0000001201e-1)
        p = tl.fma(p, r * r, r + 1.0)
        power = ((k.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        return tl.where(x < -87.33654, 0.0, p * power)


# Steps: an accumulator with one more term for each lane that has one. Padding is loaded as zero.


@triton.jit
def add(accumulator, x, valid):
    """A sum's step."""
    return accumulator + x


@triton.jit
def multiply(accumulator, x, valid):
    """A product's step."""
    return accumulator * tl.where(valid, x, 1.0)


@triton.jit
def add_square(accumulator, x, valid, center):
    """The step of a sum of squared differences from ``center``."""
    deviation = tl.where(valid, x - center, 0.0)
    return tl.fma(deviation, deviation, accumulator)


@triton.jit
def add_exponential(accumulator, x, valid, maximum):
    """The step of a softmax's denominator."""
    return accumulator + tl.where(valid, exp_nonpositive(x - maximum), 0.0)


@triton.jit
def add_logarithm(accumulator, x, valid):
    """The step of logcumsumexp: log(exp(accumulator) + exp(x)). Two equal infinities, which have no difference, give themselves."""
    of_numbers = tl.maximum(accumulator, x)
    difference = tl.minimum(accumulator, x) - of_numbers
    found = tl.where(difference == difference, of_numbers + libdevice.log1p(libdevice.exp(difference)), of_numbers)
    return tl.where((accumulator != accumulator) | (x != x), accumulator + x, found)


@triton.jit
def larger(accumulator, x, valid):
    """The step of a maximum. It drops NaN, whose own exponential brings it back into a softmax."""
    return tl.maximum(accumulator, tl.where(valid, x, float("-inf")))


# Folds of four blocks of 32 lanes; a result has the shape [1].


@triton.jit
def fold_sum(a, b, c, d):
    """By halves: lanes 64 apart, 32 apart, then 16 to 1 inside the warp. The last addition turns -0 into +0."""
    return tl.sum((a + c) + (b + d), 0, keep_dims=True) + 0.0


@triton.jit
def _product(x, y):
    return x * y


@triton.jit
def fold_product(a, b, c, d):
    """As ``fold_sum``, with ``*`` for ``+``."""
    return tl.reduce((a * c) * (b * d), 0, _product, keep_dims=True)


@triton.jit
def fold_maximum(a, b, c, d):
    """The maximum; its order does not matter."""
    return tl.max(tl.maximum(tl.maximum(a, c), tl.maximum(b, d)), 0, keep_dims=True)
