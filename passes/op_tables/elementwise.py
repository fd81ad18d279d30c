"""Elementwise: each element of the result follows from that element of the operands alone.

An op is listed only when Inductor has a lowering for it on CPU that writes C++ code, or ATen's kernel is a loop over scalars: other
kernels of ATen have a vector body and a tail, which round differently.
"""

from __future__ import annotations

from bi_inductor.passes.op_tables.names import names

ARITHMETIC = names(
    "aten",
    """
        abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh deg2rad digamma div elu elu_backward eq erf erfc
        erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac frexp ge gelu gelu_backward glu gt hardsigmoid hardsigmoid_backward
        hardswish hardswish_backward hardtanh hardtanh_backward heaviside hypot i0 isfinite isinf isnan ldexp le leaky_relu
        leaky_relu_backward lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt
        masked_fill maximum minimum mish mul nan_to_num ne neg nextafter polygamma pow rad2deg reciprocal relu remainder round rsqrt rsub
        sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinh softplus softplus_backward softshrink sqrt square sub tan
        tanh tanh_backward threshold threshold_backward true_divide trunc where xlogy
        """,
)

SPECIAL_FUNCTIONS = names(
    "aten",
    """
        special_bessel_j0 special_bessel_j1 special_erf special_erfcx special_i0e special_i1 special_i1e special_modified_bessel_i0
        special_modified_bessel_i1 special_ndtri
        """,
)

# Inductor calls ATen, whose kernel is one loop over scalars with the same function in every place of it.
SCALAR_LOOPS = names(
    "aten",
    """
        igammac special_airy_ai special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
        special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_k0
        special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_zeta
        """,
)

# What torch's own decompositions (torch._refs) are made of.
PRIMITIVES = names(
    "prims",
    """
        abs acos acosh add asin asinh atan atan2 atanh bessel_j0 bessel_j1 bitwise_and bitwise_not bitwise_or bitwise_xor ceil
        convert_element_type cos cosh digamma div eq erf erfc erfcx exp exp2 expm1 fma fmod frexp ge gt hypot le
        lgamma log log10 log1p log2 lt maximum minimum ndtri ne neg nextafter reciprocal remainder rsqrt sign sin sinh spherical_bessel_j0
        sqrt sub tan tanh zeta
        """,
)

ELEMENTWISE = ARITHMETIC | SPECIAL_FUNCTIONS | SCALAR_LOOPS | PRIMITIVES
