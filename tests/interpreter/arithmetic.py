"""Elementwise arithmetic of the repaired interpreter, on numpy arrays: bfloat16 and float8 as torch rounds them, one rounding an operation.

numpy has no bfloat16 and no float8; triton keeps their bits in uint16 and uint8 arrays.
"""

import ctypes
import ctypes.util

import numpy as np
import torch
import triton.language as tl

FLOAT8 = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b8: torch.float8_e4m3fnuz,
    tl.float8e5: torch.float8_e5m2,
    tl.float8e5b16: torch.float8_e5m2fnuz,
}


def is_stored_as_bits(dtype: tl.dtype) -> bool:
    """Whether numpy holds elements of this dtype as integers."""
    return dtype == tl.bfloat16 or dtype in FLOAT8


def widened(data: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """The values of bfloat16 or float8 bits as float32, exactly; other arrays as they are."""
    if dtype == tl.bfloat16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    if dtype in FLOAT8:
        return torch.from_numpy(np.ascontiguousarray(data)).view(FLOAT8[dtype]).float().numpy().reshape(data.shape)
    return data


def narrowed(values: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """float32 values as bits of bfloat16 or float8: to the nearest, ties to even; float8 saturates, as the instructions of GPUs do."""
    tensor = torch.from_numpy(np.array(values, dtype=np.float32))
    if dtype == tl.bfloat16:
        return tensor.to(torch.bfloat16).view(torch.uint16).numpy()
    largest = torch.finfo(FLOAT8[dtype]).max
    return tensor.clamp(-largest, largest).to(FLOAT8[dtype]).view(torch.uint8).numpy()


def multiply_add(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` in one rounding to their dtype: float16, float32 or float64.

    Up to float32 the product is exact in float64. The sum is rounded there to odd (its last bit set where it is inexact), so that rounding
    it to the narrow dtype afterwards cannot round twice.
    """
    if z.dtype == np.float64:
        return _fma64(x, y, z)
    product, addend = np.broadcast_arrays(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    bits = total.view(np.int64)
    # One step in the direction of the error: magnitudes grow with their bits.
    step = np.where((error > 0) == (total > 0), 1, -1)
    even_and_inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    return np.where(even_and_inexact, bits + step, bits).view(np.float64).astype(z.dtype)


_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype, _libm.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_fma64 = np.vectorize(_libm.fma, otypes=[np.float64])


def larger(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The larger of two, NaN where either is, 0.0 of the two zeros: ``max.NaN`` of PTX."""
    return _ordered(np.maximum(x, y), x, y, np.bitwise_and)


def smaller(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The smaller of two, NaN where either is, -0.0 of the two zeros: ``min.NaN`` of PTX."""
    return _ordered(np.minimum(x, y), x, y, np.bitwise_or)


def larger_number(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The larger of two, the other one where one is NaN: ``max`` of PTX."""
    return _ordered(np.fmax(x, y), x, y, np.bitwise_and)


def smaller_number(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The smaller of two, the other one where one is NaN: ``min`` of PTX."""
    return _ordered(np.fmin(x, y), x, y, np.bitwise_or)


def _ordered(chosen: np.ndarray, x: np.ndarray, y: np.ndarray, of_equal_bits: np.ufunc) -> np.ndarray:
    """``chosen``, but of two zeros the one that the bitwise operation gives; other equal values have equal bits."""
    if chosen.dtype.kind != "f":
        return chosen
    integers = {2: np.uint16, 4: np.uint32, 8: np.uint64}[chosen.itemsize]
    x, y = np.broadcast_arrays(x, y)
    bits = of_equal_bits(np.ascontiguousarray(x).view(integers), np.ascontiguousarray(y).view(integers))
    return np.where(x == y, bits.view(chosen.dtype), chosen)
