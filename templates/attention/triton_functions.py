"""What the Triton attentions do with a chunk of keys: its weights, and the merge of its sums (docs/numerics.md section 15).

One source, so that prefill, decode, blocks of a cache and sums that are merged by a kernel of their own have one arithmetic.
"""

# mypy: ignore-errors
# Device functions are compiled by Triton, whose types are no types of Python.

from __future__ import annotations

import triton
import triton.language as tl

import bi_inductor.templates.common.triton_functions as bi


@triton.jit
def weights(score, allowed, element: tl.constexpr):
    """Of a chunk's scores [rows, keys], -inf where not allowed: the maximum, the exponentials rounded to ``element``, the sum of these."""
    maximum = tl.max(score, 1)
    center = tl.where(maximum == float("-inf"), 0.0, maximum)
    probability = tl.where(allowed, bi.exp_nonpositive(score - center[:, None]), 0.0).to(element)
    ones = tl.full([score.shape[1], 16], 1.0, tl.float32).to(element)
    # The columns of the product are equal.
    normalizer = tl.max(tl.dot(probability, ones, input_precision="ieee", out_dtype=score.dtype), 1)
    return maximum, probability, normalizer


@triton.jit
def factors(maximum, chunk_maximum):
    """Of the maximum so far and a chunk's: the larger, and what scales the sums of each to it.

    A chunk of masked keys has the maximum -inf and leaves everything as it is: its factor is exp(-inf), the other exp(0).
    """
    larger = tl.maximum(maximum, chunk_maximum)
    center = tl.where(larger == float("-inf"), 0.0, larger)
    return larger, bi.exp_nonpositive(maximum - center), bi.exp_nonpositive(chunk_maximum - center)


@triton.jit
def statistics(maximum, normalizer, allowed, column):
    """What is stored of a chunk [rows, 4] beside its sums: the maximum, the sum of weights, 1 where a key is allowed, and 0."""
    attended = tl.max(allowed.to(normalizer.dtype), 1)
    found = tl.where(column == 0, maximum[:, None], normalizer[:, None])
    return tl.where(column < 2, found, tl.where(column == 2, attended[:, None], 0.0))


@triton.jit
def merged(total, factor, chunk_total, chunk_factor):
    """The sums so far [rows, dim] with those of a chunk."""
    return tl.fma(total, tl.broadcast_to(factor[:, None], total.shape), chunk_total * chunk_factor[:, None])


@triton.jit
def attended_rows(total, normalizer, attended):
    """The sums divided by their normalizer; +0 in rows that see no key."""
    # A masked chunk turns a -0, which underflow can leave, into +0. The addition makes that invisible.
    row = bi.divide(total + 0.0, tl.broadcast_to(normalizer[:, None], total.shape))
    return tl.where(attended[:, None], row, 0.0)
