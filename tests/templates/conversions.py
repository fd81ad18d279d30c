"""A kernel around the conversions of float8 that the Triton matmul makes in registers."""

import triton
import triton.language as tl

import bi_inductor.templates.matmul.triton_functions as bi


@triton.jit
def float16_of(x, out, E4M3FN: tl.constexpr):
    """float16 [16, 16] of float8 [16, 16]."""
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    block = tl.load(x + place)
    tl.store(out + place, bi.e4m3fn(block, tl.float16) if E4M3FN else bi.e5m2(block, tl.float16))
