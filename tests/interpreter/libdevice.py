"""The functions of ``libdevice`` in float64, rounded once to the dtype of the kernel. Those missing here raise; none returns None.

In triton's interpreter ``triton.language.extra.libdevice`` holds stubs that return None.
"""

import inspect

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, _get_np_dtype

from tests.interpreter.arithmetic import multiply_add


def _of_torch(function):
    return lambda *arrays: function(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)).numpy()


# By name: a function of float64 arrays, exact or correctly rounded up to what float64 allows.
FUNCTIONS = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "add_rn": np.add,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "cyl_bessel_i0": _of_torch(torch.special.i0),
    "cyl_bessel_i1": _of_torch(torch.special.i1),
    "div_rn": np.divide,
    "erf": _of_torch(torch.special.erf),
    "erfc": _of_torch(torch.special.erfc),
    "erfcx": _of_torch(torch.special.erfcx),
    "erfinv": _of_torch(torch.special.erfinv),
    "exp": np.exp,
    "exp10": lambda x: np.power(10.0, x),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "j0": _of_torch(torch.special.bessel_j0),
    "j1": _of_torch(torch.special.bessel_j1),
    "lgamma": _of_torch(torch.special.gammaln),
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "mul_rn": np.multiply,
    "nearbyint": np.rint,
    "normcdf": _of_torch(torch.special.ndtr),
    "normcdfinv": _of_torch(torch.special.ndtri),
    "pow": np.power,
    "rcp_rn": lambda x: 1.0 / x,
    "rint": np.rint,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "rsqrt_rn": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt,
    "sub_rn": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "y0": _of_torch(torch.special.bessel_y0),
    "y1": _of_torch(torch.special.bessel_y1),
}

# Functions of arrays in their own dtype, and the dtype of what they return (None: that of the first operand).
OTHERS = {
    "finitef": (np.isfinite, tl.int32),
    "fma": (multiply_add, None),
    "fma_rn": (multiply_add, None),
    "ilogb": (lambda x: np.frexp(x)[1] - 1, tl.int32),
    "isfinited": (np.isfinite, tl.int32),
    "isinf": (np.isinf, tl.int1),
    "isnan": (np.isnan, tl.int1),
    "ldexp": (np.ldexp, None),
    "llrint": (np.rint, tl.int64),
    "nextafter": (np.nextafter, None),
    "signbit": (np.signbit, tl.int32),
}


def install() -> None:
    """Puts a function of this process into every place of triton's module."""
    for name, stub in list(vars(libdevice).items()):
        if inspect.isfunction(stub) and stub.__module__ == libdevice.__name__:
            setattr(libdevice, name, _function(name))


def _function(name):
    if name in FUNCTIONS:
        function = FUNCTIONS[name]
        return _elementwise(name, lambda *arrays: function(*(array.astype(np.float64) for array in arrays)), None)
    if name in OTHERS:
        return _elementwise(name, *OTHERS[name])

    def missing(*args, **kwargs):
        raise NotImplementedError(f"libdevice.{name} is not in tests/interpreter/libdevice.py")

    return missing


def _elementwise(name, function, result):
    def call(*args, _semantic=None):
        operands = [interpreter.interpreter_semantic.to_tensor(arg) for arg in args]
        dtype = operands[0].dtype.scalar
        if dtype not in (tl.float32, tl.float64):
            raise TypeError(f"libdevice.{name} takes float32 and float64; given {dtype}")
        arrays = np.broadcast_arrays(*(operand.handle.data for operand in operands))
        returned = dtype if result is None else result
        out = np.asarray(function(*arrays)).astype(_get_np_dtype(returned))
        block = next((operand.type for operand in operands if operand.type.is_block()), None)
        return tl.tensor(TensorHandle(out, returned), returned if block is None else tl.block_type(returned, list(out.shape)))

    return call
