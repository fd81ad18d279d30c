"""Elementwise functions: one value for an element in every loop, layout and neighbourhood, in one graph or in many."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass

import bi_inductor.pointwise
from bi_inductor.pointwise import (
    FUNCTORCH_PINS,
    POINTWISE_PINS,
    pinned_op_names,
    pinned_scalar_functions,
    round_low_precision,
)
from bi_inductor.ulp import bits_differ

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALVES = (torch.bfloat16, torch.float16)


class RoundLowPrecision(CustomGraphPass):
    """The graph rewriting as Inductor takes it; the source is in the cache key because it writes the kernels' texts."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        round_low_precision(graph)

    def uuid(self) -> str:
        return hashlib.sha256(Path(str(bi_inductor.pointwise.__file__)).read_bytes()).hexdigest()


def pinned(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Inductor with what bi_inductor.pointwise offers, and nothing else of the project."""
    from torch._functorch import config as functorch_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    patches = {name: value for name, (value, _) in POINTWISE_PINS.items()}
    patches["post_grad_custom_pre_pass"] = RoundLowPrecision()

    @functools.wraps(compile_fx_inner)
    def inner_compile(*args: Any, **kwargs: Any) -> Any:
        with pinned_scalar_functions():
            return compile_fx_inner(*args, **kwargs)

    functorch = {name: value for name, (value, _) in FUNCTORCH_PINS.items()}
    with pinned_scalar_functions(), functorch_config.patch(functorch):
        compiled: Callable[..., Any] = compile_fx(gm, inputs, inner_compile=inner_compile, config_patches=patches)
    return compiled


def compiled(function: Callable[..., Any], backend: Any = pinned, dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


Function = Callable[[Tensor, Tensor], Tensor]
special = torch.special

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "celu": F.celu,
    "clamp": lambda x: torch.clamp(x, -1.5, 2.5),
    "clamp_min": lambda x: torch.clamp(x, min=0.0),
    "cos": torch.cos,
    "cosh": torch.cosh,
    "digamma": torch.digamma,
    "elu": F.elu,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "fmod_scalar": lambda x: torch.fmod(x, 0.7),
    "frac": torch.frac,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "i0": torch.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "leaky_relu": F.leaky_relu,
    "lgamma": torch.lgamma,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "logit": lambda x: torch.logit(x, 1e-6),
    "log_ndtr": special.log_ndtr,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "nan_to_num": torch.nan_to_num,
    "ndtr": special.ndtr,
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_minus_half": lambda x: x**-0.5,
    "pow_2.7": lambda x: x**2.7,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "remainder_scalar": lambda x: torch.remainder(x, 0.7),
    "round": torch.round,
    "rpow": lambda x: 1.7**x,
    "rsqrt": torch.rsqrt,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinc": torch.sinc,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "sqrt": torch.sqrt,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "to_bfloat16": lambda x: x.to(torch.bfloat16),
    "to_float16": lambda x: x.to(torch.float16),
    "to_int8": lambda x: x.to(torch.int8),
    "to_int32": lambda x: x.to(torch.int32),
    "to_int64": lambda x: x.to(torch.int64),
    "to_uint8": lambda x: x.to(torch.uint8),
    "trunc": torch.trunc,
}
BINARY: dict[str, Function] = {
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "div": torch.div,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "fmax": torch.fmax,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "logaddexp": torch.logaddexp,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "remainder": torch.remainder,
    "swiglu": lambda x, y: F.silu(x) * y,
    "where": lambda x, y: torch.where(x > y, x, y),
    "xlog1py": special.xlog1py,
}
FUNCTIONS: dict[str, Function] = {
    **{name: functools.partial(lambda function, x, y: function(x), function) for name, function in UNARY.items()},
    **BINARY,
}
FUNCTIONS["add"] = torch.add
# What is left to show where the texts are those already shown: conversions around them, vectors of two registers.
FEW = ("add", "addcmul", "erf", "exp", "gelu", "lerp", "minimum", "pow_3", "remainder", "sigmoid", "sin", "tanh", "to_int8")


def names(dtype: torch.dtype, layout: str) -> tuple[str, ...]:
    """Every function in every layout in float32, where all texts are; fewer elsewhere, because compiling is slow."""
    every = dtype == torch.float32 or (dtype == torch.float64 and layout in ("whole", "permuted"))
    return tuple(FUNCTIONS) if every else FEW


@functools.cache
def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors of 64: normal numbers with zeros of both signs, infinities, NaN, subnormal, huge and halfway values."""
    generator = torch.Generator().manual_seed(7)
    inf, nan = float("inf"), float("nan")
    odd = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-40, -1e-45, 3e38, -3e38, 130.0, -1e3, 0.5, 1e6, 3e9, -3e9, 300.0, 4e4, 2.5]
    vectors = []
    for scale in (3.0, 2.0):
        vector = torch.randn(64, generator=generator, dtype=torch.float64) * scale
        vector[torch.randperm(64, generator=generator)[: len(odd)]] = torch.tensor(odd, dtype=torch.float64)
        vectors.append(vector)
    vectors[0][:2] = torch.tensor([0.0, -0.0])
    vectors[1][:2] = torch.tensor([-0.0, 0.0])
    return vectors[0].to(dtype), vectors[1].to(dtype)


def together(chosen: Sequence[str]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """The functions of these names as one function with a tuple of results: one graph, a few kernels."""
    functions = [FUNCTIONS[name] for name in chosen]
    return lambda x, y: tuple(function(x, y) for function in functions)


Layout = Callable[[Any, Callable[..., Any], Tensor, Tensor], list[Tensor]]


def one_element(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    run = compiled(function, backend)
    return [torch.cat(parts) for parts in zip(*(run(x[i : i + 1].clone(), y[i : i + 1].clone()) for i in range(64)), strict=True)]


def whole(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    return list(compiled(function, backend)(x, y))


def permuted(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """Other neighbours in the same vectors."""
    run = compiled(function, backend)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    back = torch.argsort(order)
    return [result[back] for result in run(x[order], y[order])]


def nine(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """A vector and a tail of one; the last piece overlaps the one before it."""
    run = compiled(function, backend)
    parts = [run(x[i : i + 9].clone(), y[i : i + 9].clone()) for i in (0, 9, 18, 27, 36, 45, 54, 55)]
    return [torch.cat([*results[:-1], results[-1][8:]]) for results in zip(*parts, strict=True)]


def any_size(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """One dynamic kernel on pieces of 2, 7, 8, 9 and the rest."""
    run = compiled(function, backend, dynamic=True)
    pieces = [2, 7, 8, 9, 8, 7, 2, 21]
    parts = [run(a.clone(), b.clone()) for a, b in zip(x.split(pieces), y.split(pieces), strict=True)]
    return [torch.cat(results) for results in zip(*parts, strict=True)]


def stride_two(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    run = compiled(function, backend)
    return list(run(*(torch.stack([a, torch.full_like(a, 5)], dim=1).flatten()[::2] for a in (x, y))))


def transposed(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """One operand transposed: Inductor tiles in two dims."""
    run = compiled(function, backend)
    return [result.flatten() for result in run(x.view(8, 8).t().contiguous().t(), y.view(8, 8))]


def gathered(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    run = compiled(lambda x, y, index: function(x[index], y[index]), backend)
    index = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    return [result[torch.argsort(index)] for result in run(x, y, index)]


def expanded(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """Operands with stride 0 in the inner dim: scalar code inside a vector kernel."""
    run = compiled(function, backend)
    results = run(x[:, None].expand(64, 8), y[:, None].expand(64, 8))
    for result in results:
        assert not bits_differ(result, result[:, :1].expand(64, 8)).any()
    return [result[:, 0] for result in results]


def in_a_chain(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """Between other ops of the same kernel, ones that keep the bits."""

    def chain(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        results = function(torch.where(x == x, x.neg().neg(), x), y.neg().neg())
        return tuple(torch.stack([result, result])[1] for result in results)

    return list(compiled(chain, backend)(x, y))


LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout for layout in (whole, permuted, nine, any_size, stride_two, transposed, gathered, expanded, in_a_chain)
}


@functools.cache
def reference(dtype: torch.dtype) -> dict[str, Tensor]:
    """Every function, every element in a kernel of one element: no neighbours, scalar code."""
    chosen = names(dtype, "whole")
    return dict(zip(chosen, one_element(pinned, together(chosen), *operands(dtype)), strict=True))


def different(chosen: Sequence[str], left: Sequence[Tensor], right: Sequence[Tensor]) -> dict[str, int]:
    """How many elements of each function's results differ; functions without a difference are left out."""
    counts = {
        name: int((bits_differ(a, b) if a.is_floating_point() else a != b).sum()) for name, a, b in zip(chosen, left, right, strict=True)
    }
    return {name: count for name, count in counts.items() if count}


# Compiling is slow; what another dtype cannot change is left to float32.
CASES = [
    *((torch.float32, layout) for layout in LAYOUTS),
    *((torch.float64, layout) for layout in ("whole", "permuted", "any_size", "expanded")),
    *((torch.bfloat16, layout) for layout in ("whole", "permuted", "any_size", "expanded", "gathered")),
    *((torch.float16, layout) for layout in ("permuted", "any_size")),
]


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=lambda value: str(value).removeprefix("torch."))
def test_one_value_in_every_loop(dtype: torch.dtype, layout: str) -> None:
    chosen = names(dtype, layout)
    results = LAYOUTS[layout](pinned, together(chosen), *operands(dtype))
    assert different(chosen, results, [reference(dtype)[name] for name in chosen]) == {}


def test_control_stock_differs() -> None:
    """Stock Inductor: vector body against kernels of one element, and an element against itself among other neighbours."""
    chosen = tuple(FUNCTIONS)
    x, y = operands(torch.float32)
    vector = whole("inductor", together(chosen), x, y)
    assert len(different(chosen, vector, one_element("inductor", together(chosen), x, y))) >= 10
    coupled = different(chosen, vector, permuted("inductor", together(chosen), x, y))
    assert {"sin", "cos"} & coupled.keys() or not cpu_has_avx2()


def cpu_has_avx2() -> bool:
    return torch.cpu.get_capabilities().get("avx2", False)


INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def conversions(numbers: Tensor, floats: Tensor) -> tuple[Tensor, ...]:
    """From every integer type to every floating one, back where stock saturates or wraps, and arithmetic that converts."""
    integers = [numbers.to(dtype) for dtype in INTEGERS]
    return (
        *(integer.to(dtype) for integer in integers for dtype in FLOATS),
        *(floats.to(source).to(dtype) for source in FLOATS for dtype in INTEGERS),
        numbers / 3,
        integers[0] * 0.1,
        integers[1] / integers[0],
        torch.where(integers[4], floats, integers[0]),
        integers[2] + floats.to(torch.bfloat16),
    )


def test_conversions() -> None:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(-(2**62), 2**62, (64,), generator=generator)
    numbers[:12] = torch.tensor([0, 1, -1, 2**53 + 1, 2**24 + 1, 9007199791611905, 127, 128, 256, -129, 70000, -(2**63)])
    floats = torch.randn(64, generator=generator) * 200
    floats[:8] = torch.tensor([0.5, 1.5, -0.5, 127.5, -129.0, 3e9, float("nan"), float("-inf")])
    chosen = [str(i) for i in range(len(INTEGERS) * len(FLOATS) * 2 + 5)]
    vector = whole(pinned, conversions, numbers, floats)
    assert different(chosen, vector, one_element(pinned, conversions, numbers, floats)) == {}
    assert different(chosen, vector, any_size(pinned, conversions, numbers, floats)) == {}


def test_every_op_of_the_vector_table_is_pinned_or_exact() -> None:
    """The ops taken from the vector table, so that a new torch shows here what it added."""
    from torch._inductor.codegen.cpp import CppVecOverrides

    # A maximum that passes NaN over, for reductions; torch 2.14 and newer have it.
    newer = [name for name in ("fmaximum",) if hasattr(CppVecOverrides, name)]
    assert pinned_op_names() == sorted(
        [
            *newer,
            *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "copysign", "cos", "cosh", "digamma", "erf"),
            *("erfc", "erfinv", "exp", "exp2", "expm1", "floordiv", "fma", "fmod", "hypot", "i0", "i0e", "lgamma", "log"),
            *("log10", "log1p", "log2", "maximum", "minimum", "nextafter", "pow", "reciprocal", "relu", "remainder"),
            *("rsqrt", "sigmoid", "sin", "sinh", "tan", "tanh"),
        ]
    )


Stages = tuple[Callable[[Tensor], Tensor], ...]

# Programs in stages; a graph break may fall between any two of them. The comment says what made them differ with stock.
PROGRAMS: dict[str, Stages] = {
    # dropped by constant folding in the joint graph
    "add zero": (lambda x: x + 0, lambda x: x * 1, lambda x: x / 1, lambda x: x - 0.0),
    "add negative zero": (lambda x: x + -0.0, lambda x: x * -1, lambda x: 0 - x),
    "zeros plus": (lambda x: torch.zeros_like(x), lambda t: t + -0.0, lambda t: -t),
    "negated difference": (lambda x: x - x.flip(0), lambda t: -t),
    "zero times": (lambda x: 0 * x, lambda t: t * -1, lambda t: -t),
    "minimum of zeros": (lambda x: torch.minimum(x, -x), lambda t: torch.maximum(t, -t), lambda t: t.clamp(min=0.0)),
    "full negative zero": (lambda x: torch.full_like(x, -0.0), lambda t: t * 1, lambda t: t + -0.0),
    # folded in double precision by the symbolic evaluation of indices
    "full arithmetic": (lambda x: torch.full_like(x, 1e8), lambda t: t + 1, lambda t: t - 1e8),
    "full products": (lambda x: torch.full_like(x, 0.1), lambda t: t * 0.3, lambda t: t * 0.7, lambda t: t + 0.2),
    "integers as floats": (lambda x: torch.arange(64) + 2**24 + 1, lambda t: t.to(torch.float32), lambda t: t.long()),
    "large products": (lambda x: torch.arange(64) * 1234567891234567, lambda t: t.to(torch.float32), lambda t: t * 0.5),
    "positions": (lambda x: torch.arange(0, 64).to(x.dtype), lambda t: t * 0.1, lambda t: t * 0.3, lambda t: t + 0.7),
    # constants that Inductor keeps as Python numbers
    "full of an integer": (lambda x: torch.full_like(x, 2**24 + 1), lambda t: t - 2**24, lambda t: t.double()),
    "full to double": (lambda x: torch.full_like(x, 0.1), lambda t: t.double()),
    "full half": (lambda x: torch.full((64,), 0.1, dtype=torch.bfloat16), lambda t: t.float(), lambda t: t * 3),
    "masked fill": (lambda x: x.masked_fill(x > 0, 0.1), lambda t: t.double()),
    "pad": (lambda x: F.pad(x, (1, 1), value=0.1), lambda t: t**2, lambda t: t.double()),
    # inverse operations
    "multiply, divide": (lambda x: x * 3, lambda t: t / 3, lambda t: t / 7, lambda t: t * 7),
    "add, subtract": (lambda x: x + 1e8, lambda t: t - 1e8),
    "exp, log": (lambda x: x.exp(), lambda t: t.log(), lambda t: t.exp()),
    "reciprocals": (lambda x: 1 / x, lambda t: 1 / t),
    "multiply, add": (lambda x: x * 1.1, lambda t: t + 0.3, lambda t: t * t),
    # rounding through narrower types
    "through bfloat16": (lambda x: (x * 1.1).to(torch.bfloat16), lambda t: t.float(), lambda t: t * 1.1),
    "through float32": (lambda x: x.double() * 0.1, lambda t: t.float(), lambda t: t.double()),
    "through int8": (lambda x: (x * 100).to(torch.int8), lambda t: t.float()),
    # lowered without the rounding of emulate_precision_casts
    "powers": (lambda x: x**2, lambda t: t**3, lambda t: t**-1, lambda t: t.double()),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=0.3), lambda t: torch.addcmul(t, t, t), lambda t: t**2),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x.abs() + 1), lambda t: torch.addcdiv(t, t, t.abs() + 1, value=0.3)),
    "activations": (lambda x: F.silu(x), lambda t: F.gelu(t), lambda t: torch.sigmoid(t), lambda t: t.rsqrt()),
}


def fused_and_split(dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Results of every program, compiled in one graph, and compiled stage by stage."""
    x = operands(dtype)[0]
    programs = list(PROGRAMS.values())

    def everything(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(functools.reduce(lambda value, stage: stage(value), program, x) for program in programs)

    fused = compiled(everything)(x)
    values = [x] * len(programs)
    for depth in range(max(map(len, programs))):
        live = [i for i, program in enumerate(programs) if depth < len(program)]

        def one_stage(inputs: list[Tensor], live: list[int] = live, depth: int = depth) -> tuple[Tensor, ...]:
            return tuple(programs[i][depth](value) for i, value in zip(live, inputs, strict=True))

        for i, value in zip(live, compiled(one_stage)([values[i] for i in live]), strict=True):
            values[i] = value
    return dict(zip(PROGRAMS, fused, strict=True)), dict(zip(PROGRAMS, values, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_graph_or_many(dtype: torch.dtype) -> None:
    fused, split = fused_and_split(dtype)
    assert different(list(PROGRAMS), list(fused.values()), list(split.values())) == {}


# Ops that round as eager does. Not among them: functions that eager takes from other libraries, and sums with a scalar in
# bfloat16 or float16, where eager rounds the scalar first.
EAGER: dict[str, Function] = {
    "add": lambda x, y: ((x + y) + x) + y,
    "chain": lambda x, y: (x * y + x) * y - x,
    "divide": lambda x, y: (x / y) / 3,
    "scale": lambda x, y: (x * 0.1) * 0.3,
    "square": lambda x, y: x * x * y * y,
    "power": lambda x, y: (x**2) * y,
    "relu": lambda x, y: F.relu(x - y) * y,
    "zeros": lambda x, y: -(x - x) * -0.0 + -0.0,
    "cast": lambda x, y: (x.float() * y).to(x.dtype) + x,
    "where": lambda x, y: torch.where(x > y, x * y, x - y) * y,
    "maximum": lambda x, y: torch.maximum(x * y, y) + x,
    "silu": lambda x, y: F.silu(x) * y,
}


def test_rounds_as_eager() -> None:
    generator = torch.Generator().manual_seed(5)
    numbers = [(torch.randn(512, generator=generator) * 3).to(dtype) for dtype in HALVES for _ in range(2)]

    def everything(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(*pair) for pair in (inputs[:2], inputs[2:]) for function in EAGER.values())

    chosen = [f"{name} {dtype}" for dtype in HALVES for name in EAGER]
    eager = everything(*numbers)
    assert different(chosen, compiled(everything)(*numbers), eager) == {}
    assert len(different(chosen, compiled(everything, "inductor")(*numbers), eager)) >= 6


def signed_zeros(x: Tensor) -> tuple[Tensor, ...]:
    """Reciprocals tell the zeros apart; each pair has equal arguments as Python compares them."""
    zero, negative_zero = torch.full_like(x, 0.0), torch.full_like(x, -0.0)
    results = (x + 0.0, x + -0.0, x * 0.0, x * -0.0, torch.where(x > 5, x, 0.0), torch.where(x > 5, x, -0.0), zero, negative_zero)
    return tuple(torch.reciprocal(result) for result in results)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_zeros_of_both_signs(requires_grad: bool) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -2.0] * 4, requires_grad=requires_grad)
    chosen = [str(i) for i in range(8)]
    assert different(chosen, compiled(signed_zeros)(x), signed_zeros(x)) == {}
    if requires_grad:
        assert different(chosen, compiled(signed_zeros, "inductor")(x), signed_zeros(x)) != {}


def test_gradients_in_one_graph_or_many() -> None:
    stages: list[Callable[[Tensor], Tensor]] = [F.gelu, lambda t: t**3, lambda t: torch.addcmul(t, t, t, value=0.3)]

    def gradient(functions: list[Callable[..., Tensor]]) -> Tensor:
        x = (torch.randn(64, generator=torch.Generator().manual_seed(2)) * 2).bfloat16().requires_grad_()
        functools.reduce(lambda value, function: function(value), functions, x).sum().backward()
        assert x.grad is not None
        return x.grad

    fused = gradient([compiled(lambda x: functools.reduce(lambda value, stage: stage(value), stages, x))])
    torch._dynamo.reset()
    split = gradient([torch.compile(stage, backend=pinned, fullgraph=True) for stage in stages])
    assert not bits_differ(fused, split).any()


def test_round_low_precision_rewrites_the_graph() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.ones(4, dtype=torch.bfloat16)
    gm = make_fx(lambda x: torch.ops.aten.pow(x, 2) + torch.ops.aten.full([4], 0.1, dtype=torch.bfloat16), tracing_mode="fake")(x)
    assert round_low_precision(gm.graph) == 2
    gm.graph.lint()
    gm.recompile()
    assert torch.equal(gm(x), x**2 + torch.full([4], 0.1, dtype=torch.bfloat16))


@pytest.mark.parametrize("dynamic", [False, True])
def test_integers_and_sizes_are_rounded_to_a_half(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        size = x.shape[0] + 253
        return torch.full((4,), size, dtype=x.dtype) - 256, torch.full((4,), 4097, dtype=torch.float16).float()

    # 257 in bfloat16 and 4097 in float16 are halfway between neighbours.
    for result, expected in zip(compiled(function, dynamic=dynamic)(torch.ones(4, dtype=torch.bfloat16)), (0.0, 4096.0), strict=True):
        assert result.tolist() == [expected] * 4


@pytest.fixture
def stock_tables() -> Iterator[tuple[Any, ...]]:
    from torch._inductor.codegen.cpp import CppKernel, CppTile2DKernel, CppVecKernel
    from torch._inductor.index_propagation import IndexPropagation

    def read() -> tuple[Any, ...]:
        kernels = (CppKernel, CppVecKernel, CppTile2DKernel)
        return (*(vars(kernel)["overrides"] for kernel in kernels), IndexPropagation.propagate_sympy)

    before = read()
    yield before
    assert read() == before


def test_context_is_of_its_thread_and_leaves_nothing(stock_tables: tuple[Any, ...]) -> None:
    from torch._inductor.codegen.cpp import CppKernel

    stock = stock_tables[0]
    entered, leave = threading.Event(), threading.Event()
    seen: list[type] = []

    def other_thread() -> None:
        seen.append(CppKernel.overrides)
        with pinned_scalar_functions():
            seen.append(CppKernel.overrides)
            entered.set()
            leave.wait(10)
            seen.append(CppKernel.overrides)

    with pinned_scalar_functions():
        thread = threading.Thread(target=other_thread)
        thread.start()
        assert entered.wait(10)
        with pinned_scalar_functions():
            assert CppKernel.overrides is not stock
        assert CppKernel.overrides is not stock
    # The other thread is still inside; this one is not.
    assert CppKernel.overrides is stock
    leave.set()
    thread.join()
    assert seen[0] is stock
    assert seen[1] is seen[2] is not stock


def test_stock_compile_in_another_thread_writes_stock_code(stock_tables: tuple[Any, ...]) -> None:
    from torch._inductor.utils import run_and_get_code

    def stock_code() -> list[str]:
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True):
            code = run_and_get_code(torch.compile(lambda x: x.sin().tanh(), fullgraph=True), torch.ones(1))[1]
        # A counter of compiles is in the first line.
        return [text.split("\n", 1)[1] for text in code]

    before = stock_code()
    assert "Vectorized" not in before[0]
    inside: list[list[str]] = []
    with pinned_scalar_functions():
        thread = threading.Thread(target=lambda: inside.append(stock_code()))
        thread.start()
        thread.join()
    assert inside == [before]
