"""Elementwise functions: one value for an element in every loop, layout and neighbourhood, in one graph or in many."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
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
    "to_bfloat16": lambda x: x.to(torch.bfloat16).view(torch.int16),
    "to_float16": lambda x: x.to(torch.float16).view(torch.int16),
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
    """Other neighbours in the vector, and places in body and tail: 61 of the 64, three repeated at the end."""
    run = compiled(function, backend)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    back = torch.argsort(order)
    return [result[back] for result in run(x[order], y[order])]


def nine(backend: Any, function: Callable[..., Any], x: Tensor, y: Tensor) -> list[Tensor]:
    """A vector and a tail of one."""
    run = compiled(function, backend)
    starts = [*range(0, 55, 9), 55]
    parts = [run(x[i : i + 9].clone(), y[i : i + 9].clone()) for i in starts]
    joined = [torch.cat([part[:9] for part in results[:-1]] + [results[-1][8:]]) for results in zip(*parts, strict=True)]
    return joined


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_value_in_every_loop(dtype: torch.dtype, layout: str) -> None:
    chosen = names(dtype, layout)
    results = LAYOUTS[layout](pinned, together(chosen), *operands(dtype))
    assert different(chosen, results, [reference(dtype)[name] for name in chosen]) == {}
