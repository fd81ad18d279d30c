"""A kernel around the conversions of float8 that the Triton matmul makes in registers."""

import triton
import triton.language as tl

import bi_inductor.templates.matmul.triton_functions as bi


@triton.jit
def float16_of(x, out, FORMAT: tl.constexpr):
    """float16 [16, 16] of float8 [16, 16]."""
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    block = tl.load(x + place)
    if FORMAT == "e4m3fn":
        half = bi.e4m3fn(block, tl.float16)
    elif FORMAT == "e5m2":
        half = bi.e5m2(block, tl.float16)
    elif FORMAT == "e4m3fnuz":
        half = bi.e4m3fnuz(block, tl.float16)
    else:
        half = bi.e5m2fnuz(block, tl.float16)
    tl.store(out + place, half)
