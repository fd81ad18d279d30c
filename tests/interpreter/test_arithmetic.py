"""What the repaired interpreter computes, against torch's values rounded once. Without the repairs these fail (test_unrepaired)."""

import inspect
import math
import os
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

pytestmark = pytest.mark.xdist_group("interpreter")

SIZE = 1024


@triton.jit
def binary_kernel(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    x = tl.load(x_ptr + index)
    y = tl.load(y_ptr + index)
    if OP == "add":
        out = x + y
    elif OP == "sub":
        out = x - y
    elif OP == "mul":
        out = x * y
    elif OP == "div":
        out = x / y
    elif OP == "less":
        out = x < y
    elif OP == "maximum":
        out = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "fmax":
        out = tl.maximum(x, y)
    elif OP == "minimum":
        out = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "where":
        out = tl.where(x > y, x, y)
    else:
        out = tl.abs(x)
    tl.store(out_ptr + index, out)


@triton.jit
def convert_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out_ptr + index, tl.load(x_ptr + index).to(out_ptr.dtype.element_ty))


@triton.jit
def fma_kernel(x_ptr, y_ptr, z_ptr, out_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out_ptr + index, tl.fma(tl.load(x_ptr + index), tl.load(y_ptr + index), tl.load(z_ptr + index)))


@triton.jit
def dot_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + m[:, None] * K + k[None, :])
    y = tl.load(y_ptr + k[:, None] * N + n[None, :])
    tl.store(out_ptr + m[:, None] * N + n[None, :], tl.dot(x, y, input_precision=PRECISION))


@triton.jit
def reduce_kernel(x_ptr, out_ptr, OP: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, LANES)
    x = tl.load(x_ptr + row[:, None] * LANES + lane[None, :])
    if OP == "sum":
        out = tl.sum(x, 1)
    elif OP == "max":
        out = tl.max(x, 1)
    elif OP == "argmax":
        out = tl.argmax(x, 1)
    elif OP == "argmin":
        out = tl.argmin(x, 1)
    tl.store(out_ptr + row, out)


@triton.jit
def scan_kernel(x_ptr, out_ptr, REVERSE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    place = tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tl.store(out_ptr + place, tl.cumsum(tl.load(x_ptr + place), 1, reverse=REVERSE))


@triton.jit
def masked_kernel(x_ptr, n, out_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    tl.store(out_ptr + index, tl.load(x_ptr + index, mask=index < n))


def launch(kernel, out, *arguments, **constants):
    """One program of a kernel whose last pointer is ``out``."""
    kernel[(1,)](*arguments, out, **constants)
    return out


def with_special_values(dtype):
    """Magnitudes over the whole range, zeros of both signs, infinities, NaN, subnormal numbers."""
    values = torch.randn(SIZE) * torch.logspace(-30, 30, SIZE)
    values[:8] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1.0])
    return values.to(dtype)


def bits(tensor):
    """Values as integers, every NaN the same."""
    if not tensor.is_floating_point():
        return tensor
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor)
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    different = (bits(found) != bits(expected)).flatten().nonzero().flatten()
    assert not len(different), f"{len(different)} differ, the first at {different[0]}: {found.flatten()[different[0]]}"


OPS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "less": torch.lt,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "where": lambda x, y: torch.where(x > y, x, y),
    "abs": lambda x, y: x.abs(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", sorted(OPS))
def test_elementwise(interpreter, op, dtype):
    x, y = with_special_values(dtype), with_special_values(dtype).roll(3)
    # In float32 and rounded once, as torch does on a CPU.
    expected = OPS[op](x.float(), y.float())
    expected = expected.to(dtype) if op != "less" else expected
    if op in ("maximum", "minimum", "fmax"):
        # Of two zeros torch takes one by position, a GPU by sign.
        zeros = (x == 0) & (y == 0)
        positive = torch.signbit(x) & torch.signbit(y) if op != "minimum" else torch.signbit(x) | torch.signbit(y)
        expected = torch.where(zeros, torch.where(positive, -0.0, 0.0).to(dtype), expected)
    found = interpreter.run(launch, binary_kernel, torch.empty_like(expected), x, y, OP=op, SIZE=SIZE)
    assert_same(found, expected)


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_conversions(interpreter, source, target):
    x = with_special_values(torch.float32).to(source)
    found = interpreter.run(launch, convert_kernel, torch.empty(SIZE, dtype=target), x, SIZE=SIZE)
    through = x.float() if target == torch.bfloat16 else x
    assert_same(found, through.to(target))


def test_conversions_of_integers(interpreter):
    x = torch.randint(-(2**31), 2**31 - 1, (SIZE,), dtype=torch.int32)
    found = interpreter.run(launch, convert_kernel, torch.empty(SIZE, dtype=torch.bfloat16), x, SIZE=SIZE)
    assert_same(found, x.to(torch.bfloat16))
    y = (torch.randn(SIZE) * 1000).to(torch.bfloat16)
    assert_same(interpreter.run(launch, convert_kernel, torch.empty(SIZE, dtype=torch.int32), y, SIZE=SIZE), y.to(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str)
def test_float8(interpreter, dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    found = interpreter.run(launch, convert_kernel, torch.empty(256), every, SIZE=256)
    assert_same(found, every.float())
    x = torch.randn(SIZE) * torch.logspace(-6, 3, SIZE)
    narrow = interpreter.run(launch, convert_kernel, torch.empty(SIZE, dtype=dtype), x, SIZE=SIZE)
    largest = torch.finfo(dtype).max
    assert_same(narrow.float(), x.clamp(-largest, largest).to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_fma_rounds_once(interpreter, dtype):
    import ctypes

    libm = ctypes.CDLL("libm.so.6")
    functions = {torch.float64: (libm.fma, ctypes.c_double), torch.float32: (libm.fmaf, ctypes.c_float)}
    x, y = torch.randn(SIZE, dtype=dtype), torch.randn(SIZE, dtype=dtype)
    # Products that nearly cancel: two roundings would show.
    z = (-(x.double() * y.double()) * (1 + torch.randn(SIZE).double() * 2.0 ** torch.randint(-40, 3, (SIZE,)))).to(dtype)
    found = interpreter.run(launch, fma_kernel, torch.empty_like(x), x, y, z, SIZE=SIZE)
    if dtype == torch.float16:
        from fractions import Fraction

        exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)]
        assert all(
            abs(Fraction(f) - e) <= abs(Fraction(n) - e) for f, n, e in zip(found.tolist(), _next(found).tolist(), exact, strict=True)
        )
        return
    function, number = functions[dtype]
    function.restype, function.argtypes = number, [number] * 3
    assert_same(found, torch.tensor([function(*v) for v in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)], dtype=dtype))
    assert (bits(x * y + z) != bits(found)).any()


def _next(x):
    """The float16 values above."""
    return (x.view(torch.int16) + torch.where(x < 0, -1, 1).to(torch.int16)).view(torch.float16)


def dot_in_order(x, y):
    """Sums over k in order, in float32 that rounds once for a product and its addition."""
    total = torch.zeros(len(x), y.shape[1], dtype=torch.float64)
    for k in range(x.shape[1]):
        # bfloat16 and float16 products are exact in float32, so this is one rounding; float32 is tested by the order of its sums.
        total = (x[:, k : k + 1].double() * y[k : k + 1].double() + total).float().double()
    return total.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dot(interpreter, dtype):
    x, y = torch.randn(16, 64).to(dtype), torch.randn(64, 32).to(dtype)
    found = interpreter.run(launch, dot_kernel, torch.empty(16, 32), x, y, M=16, N=32, K=64, PRECISION="ieee")
    assert_same(found, dot_in_order(x, y))
    # A row does not follow its place in the tile.
    rolled = interpreter.run(launch, dot_kernel, torch.empty(16, 32), x.roll(5, 0), y, M=16, N=32, K=64, PRECISION="ieee")
    assert_same(rolled.roll(-5, 0), found)


def test_dot_of_integers_and_float8(interpreter):
    x, y = torch.randint(-128, 127, (16, 32), dtype=torch.int8), torch.randint(-128, 127, (32, 16), dtype=torch.int8)
    found = interpreter.run(launch, dot_kernel, torch.empty(16, 16, dtype=torch.int32), x, y, M=16, N=16, K=32, PRECISION="ieee")
    assert torch.equal(found, x.int() @ y.int())
    x, y = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(32, 16).to(torch.float8_e4m3fn)
    found = interpreter.run(launch, dot_kernel, torch.empty(16, 16), x, y, M=16, N=16, K=32, PRECISION="ieee")
    assert_same(found, dot_in_order(x.float(), y.float()))


def test_tf32_is_refused(interpreter):
    x = torch.randn(16, 16)
    with pytest.raises(Exception, match="only ieee has its 24 bits"):
        interpreter.run(launch, dot_kernel, torch.empty(16, 16), x, x, M=16, N=16, K=16, PRECISION="tf32")


def sum_by_halves(x):
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sums_fold_by_halves(interpreter, dtype):
    x = torch.randn(4, 32).to(dtype)
    found = interpreter.run(launch, reduce_kernel, torch.empty(4), x, OP="sum", ROWS=4, LANES=32)
    # tl.sum adds in the dtype of its operand.
    assert_same(found, sum_by_halves(x).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extrema_and_their_places(interpreter, dtype):
    x = torch.randn(8, 16).round().to(dtype)
    assert torch.equal(interpreter.run(launch, reduce_kernel, torch.empty(8), x, OP="max", ROWS=8, LANES=16), x.amax(1).float())
    for op, extreme in (("argmax", x.amax(1)), ("argmin", x.amin(1))):
        places = interpreter.run(launch, reduce_kernel, torch.empty(8, dtype=torch.int32), x, OP=op, ROWS=8, LANES=16)
        # The first of equal ones.
        assert places.tolist() == [row.tolist().index(value) for row, value in zip(x, extreme.tolist(), strict=True)]


def test_scans(interpreter):
    x = torch.randint(-8, 8, (4, 16)).to(torch.bfloat16)
    found = interpreter.run(launch, scan_kernel, torch.empty(4, 16), x, REVERSE=False, ROWS=4, LANES=16)
    assert torch.equal(found, x.float().cumsum(1))
    found = interpreter.run(launch, scan_kernel, torch.empty(4, 16), x, REVERSE=True, ROWS=4, LANES=16)
    assert torch.equal(found, x.float().flip(1).cumsum(1).flip(1))


def test_a_load_without_other_is_undefined_where_masked(interpreter):
    found = interpreter.run(launch, masked_kernel, torch.empty(8), torch.ones(8), 5, SIZE=8)
    assert found[:5].tolist() == [1.0] * 5 and found[5:].isnan().all()


def names_of_libdevice():
    return sorted(name for name, value in vars(libdevice).items() if inspect.isfunction(value) and value.__module__ == libdevice.__name__)


def what_libdevice_returns(names):
    """By name: the type of what the function returned or raised in this process, for one, two or three operands."""
    found = {}
    for name in names:
        function = getattr(libdevice, name)
        for count in (1, 2, 3):
            operands = [0.5] * count
            if name == "ldexp":
                operands = [0.5, 2]
            try:
                found[name] = type(function(*operands)).__name__
                break
            except Exception as error:
                found[name] = type(error).__name__
    return found


def test_no_function_of_libdevice_returns_none(interpreter):
    names = names_of_libdevice()
    assert len(names) > 150
    found = interpreter.run(what_libdevice_returns, names)
    assert set(found.values()) == {"tensor", "NotImplementedError"}
    assert found["erf"] == found["ldexp"] == found["fma"] == "tensor"


@triton.jit
def logic_kernel(x_ptr, out_ptr, LOW: tl.constexpr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    x = tl.load(x_ptr + index)
    inside = x > LOW and x < 1.0
    if LOW == 0.0 and SIZE == 8:
        inside = not inside or x == 0.5
    tl.store(out_ptr + index, inside)


def test_logic_of_blocks_is_elementwise(interpreter):
    x = torch.tensor([-1.0, 0.25, 2.0, 0.5, 0.75, -2.0, 1.0, 0.0])
    found = interpreter.run(launch, logic_kernel, torch.empty(8, dtype=torch.bool), x, LOW=0.0, SIZE=8)
    assert torch.equal(found, ~((x > 0) & (x < 1)) | (x == 0.5))


@triton.jit
def libdevice_kernel(x_ptr, erf_ptr, pow_ptr, nan_ptr, SIZE: tl.constexpr):
    index = tl.arange(0, SIZE)
    x = tl.load(x_ptr + index)
    tl.store(erf_ptr + index, libdevice.erf(x))
    tl.store(pow_ptr + index, libdevice.pow(x, 3.0))
    tl.store(nan_ptr + index, libdevice.isnan(x))


def values_of_libdevice(x):
    outputs = torch.empty_like(x), torch.empty_like(x), torch.empty(len(x), dtype=torch.bool)
    libdevice_kernel[(1,)](x, *outputs, SIZE=len(x))
    return outputs


def test_values_of_libdevice(interpreter):
    x = with_special_values(torch.float32)
    erf, power, nan = interpreter.run(values_of_libdevice, x)
    assert_same(erf, torch.special.erf(x.double()).float())
    assert_same(power, x.double().pow(3).float())
    assert torch.equal(nan, x.isnan())


def test_unrepaired():
    """The control: triton's own interpreter gets bfloat16 wrong. (Once it does not, repairs can go.)"""
    code = (
        "import torch; from tests.interpreter.test_arithmetic import *\n"
        "x = torch.ones(SIZE, dtype=torch.bfloat16)\n"
        "print(launch(binary_kernel, torch.empty_like(x), x, x, OP='add', SIZE=SIZE)[0].item())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, cwd=_root()
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) != 2.0


def _root():
    import tests

    return os.path.dirname(os.path.dirname(tests.__file__))
