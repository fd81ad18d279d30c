"""The interpreter's operations done right: what triton 3.7's builder computes otherwise is overridden here.

Unrepaired, it adds, multiplies and compares bfloat16 as integers, truncates float32 to bfloat16, multiplies matrices by BLAS (so that a
row's bits follow its place in the tile), takes the product and the sum of ``tl.fma`` in two roundings and drops NaN from maxima.

Masked-off elements of a load without ``other`` are undefined on a GPU. Here they are NaN, so that a kernel that uses them shows it.
"""

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as _interpreter
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from tests.interpreter.arithmetic import (
    FLOAT8,
    is_stored_as_bits,
    larger,
    larger_number,
    multiply_add,
    narrowed,
    smaller,
    smaller_number,
    widened,
)


def values(handle: TensorHandle) -> np.ndarray:
    """The values of a handle; bfloat16 and float8 as float32."""
    return widened(handle.data, handle.dtype.scalar)


def handle_of(data: np.ndarray, dtype: tl.dtype) -> TensorHandle:
    """A handle of ``dtype`` with these values, rounded to it once."""
    data = np.asarray(data)
    if is_stored_as_bits(dtype):
        # As compilers do it, by float32.
        return TensorHandle(narrowed(data, dtype), dtype)
    return TensorHandle(data.astype(_get_np_dtype(dtype), copy=False), dtype)


class RepairedBuilder(InterpreterBuilder):
    """The interpreter's builder with bfloat16, float8, dot, fma, extrema and transcendental functions right."""

    def get_bf16(self, value):
        return handle_of(np.array([value], dtype=np.float32), tl.bfloat16)

    # ---- conversions

    def cast_impl(self, src, dst_type):
        if src.dtype.scalar == dst_type.scalar:
            return TensorHandle(src.data, src.dtype.scalar)
        return handle_of(values(src), dst_type.scalar)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        if rounding_mode == ir.ROUNDING_MODE.RTZ:
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        return self.cast_impl(src, dst_type)

    # ---- elementwise

    def binary_op(self, lhs, rhs, op):
        dtype = lhs.dtype.scalar
        if not is_stored_as_bits(dtype):
            output = op(lhs.data, rhs.data)
        elif dtype in FLOAT8:
            raise NotImplementedError(f"arithmetic on {dtype}: GPUs have none")
        else:
            output = op(values(lhs), values(rhs))
        if output.dtype == np.bool_:
            return TensorHandle(output, tl.int1)
        return handle_of(output, dtype)

    def unary_op(self, arg, op):
        """``op`` in float64, rounded once; numpy's own float32 functions are up to 4 units in the last place off."""
        if not arg.dtype.scalar.is_floating():
            return super().unary_op(arg, op)
        return handle_of(op(values(arg).astype(np.float64)), arg.dtype.scalar)

    def create_erf(self, arg):
        return self.unary_op(arg, lambda x: torch.special.erf(torch.from_numpy(x)).numpy())

    def create_rsqrt(self, arg):
        return self.unary_op(arg, lambda x: 1.0 / np.sqrt(x))

    def create_maximumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, larger)

    def create_minimumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, smaller)

    def create_maxnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, larger_number)

    def create_minnumf(self, lhs, rhs):
        return self.binary_op(lhs, rhs, smaller_number)

    def create_clampf(self, arg, lo, hi, propagate_nans):
        whole = propagate_nans == ir.PROPAGATE_NAN.ALL
        lower = self.create_maximumf(arg, lo) if whole else self.create_maxnumf(arg, lo)
        return self.create_minimumf(lower, hi) if whole else self.create_minnumf(lower, hi)

    def create_fma(self, x, y, z):
        dtype = z.dtype.scalar
        if is_stored_as_bits(dtype):
            raise NotImplementedError(f"tl.fma on {dtype}")
        return TensorHandle(multiply_add(x.data, y.data, z.data) if dtype.is_floating() else x.data * y.data + z.data, dtype)

    # ---- matrices

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        """Sums over k in order, each product added by one FMA: ``fma.rn`` for ``input_precision="ieee"`` in float32 (sm_80 to sm_100; with
        fp fusion on or off). Products of bfloat16, float16 and float8 are exact in float32. How the tensor cores of a GPU group and round
        such sums is not modelled; that they do it alike for every row is what a GPU's tests have to show.
        """
        x, y = values(a), values(b)
        out = d.data.copy()
        if a.dtype.scalar == tl.float32 and input_precision != ir.INPUT_PRECISION.IEEE:
            raise NotImplementedError(f"tl.dot of float32 with input_precision {input_precision}: only ieee has its 24 bits")
        if out.dtype == np.float16:
            raise NotImplementedError("tl.dot that accumulates in float16")
        exact = x.dtype.itemsize < out.itemsize or x.dtype.kind == "i" or is_stored_as_bits(a.dtype.scalar)
        x, y = x.astype(out.dtype, copy=False), y.astype(out.dtype, copy=False)
        for k in range(x.shape[-1]):
            column, row = x[..., :, k : k + 1], y[..., k : k + 1, :]
            out = out + column * row if exact else multiply_add(column, row, out)
        return TensorHandle(out, d.dtype.scalar)

    # ---- memory

    def create_masked_load(self, ptrs, mask, other, cache_modifier, eviction_policy, is_volatile):
        dtype = ptrs.get_element_ty()
        if other is None and dtype.is_floating():
            other = handle_of(np.full(ptrs.data.shape, np.nan, dtype=np.float32), dtype)
        if other is None:
            other = TensorHandle(np.zeros_like(ptrs.data, dtype=_get_np_dtype(dtype)), dtype)
        return TensorHandle(_interpreter.load(ptrs.data, mask.data, other.data, _get_np_dtype(dtype)), dtype)
