"""One value for every elementwise function, whatever loop Inductor's C++ backend puts around it.

Inductor writes each elementwise kernel up to three times: a vector body (``at::vec::Vectorized``), a masked tail, and a
scalar loop (one element, strides it will not vectorise, dtypes it cannot). The scalar loop calls the C library, the
vector ones SLEEF or formulas of their own; the two differ by a few units in the last place (``exp``, ``tanh``) or are
different algorithms (``remainder``, ``expm1``, ``erf``). Which loop computes an element follows from shapes and
strides, so its value would follow from the batch around it. Three repairs, active only inside
:func:`pinned_scalar_functions`:

* scalar code evaluates the *vector* text on a broadcast value and keeps one lane, so the two cannot disagree;
* where the vector function looks at its neighbours (SLEEF reduces the range of all lanes of a vector in the way the
  largest of them needs), the lanes that would change the others are evaluated alone;
* the symbolic evaluation that Inductor makes for indices does no floating-point arithmetic: in one graph it would fold
  ``(full(1e8) + 1) - 1e8`` exactly and carry ``arange(n).to(float32)`` unrounded, which a graph break prevents.

:data:`POINTWISE_PINS` and :data:`FUNCTORCH_PINS` are the settings that go with it, :func:`round_low_precision` is the
graph rewriting for what the setting ``emulate_precision_casts`` forgets. The values are defined in docs/numerics.md,
section 10.

Inductor internals touched (torch 2.13.0 to 2.15.0):

* ``torch._inductor.codegen.cpp``: ``CppKernel.overrides``, ``CppVecKernel.overrides``, ``CppTile2DKernel.overrides``,
  the class attributes that name a kernel's table of op texts. A descriptor stands in for them while a pinned compile
  runs anywhere in the process; it answers with the stock table in every thread that is not inside the context.
* ``CppOverrides``, ``CppVecOverrides``, ``CppTile2DOverrides``: subclassed, not modified. ``CppVecOverrides.__new__``
  sends ops whose operands are all scalars to ``super(CppVecOverrides, self)``, so a class that inherits from
  ``CppVecOverrides`` and then from the pinned scalar table repairs the scalar parts of vector kernels too.
* ``torch._inductor.index_propagation.IndexPropagation.propagate_sympy``: wrapped under the same condition.
* ``CppCSEVariable.dtype``, ``BracesBuffer`` and ``DTYPE_TO_CPP``, to write the texts.
* ``cpp_builder._get_ffast_math_flags`` pastes ``config.cpp.enable_floating_point_contract_flag`` into the compiler's
  flags, behind ``-fno-signed-zeros``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch._inductor.codegen.common import BracesBuffer

# Each entry: Inductor setting -> (value, what would vary without it).
POINTWISE_PINS: dict[str, tuple[object, str]] = {
    "emulate_precision_casts": (
        True,
        "a bfloat16 or float16 result would be rounded where a kernel ends, so its bits would follow the fusion",
    ),
    "cpp.enable_floating_point_contract_flag": (
        "off -fsigned-zeros",
        "a*b + c could be one rounding in one loop and two in another; x + 0 and -(a - b) would lose the sign of zero "
        "with compilers that honour Inductor's -fno-signed-zeros (the flag comes after it and wins)",
    ),
    "cpp.enable_unsafe_math_opt_flag": (
        False,
        "reassociation and reciprocals as the compiler likes, different in vector and scalar code",
    ),
    "cpp.enable_tiling_heuristics": (
        False,
        "for speed, not for bits: it sends short and strided loops to the scalar kernel, where a pinned function "
        "costs a whole vector's evaluation for each element",
    ),
    "cpp.inject_relu_bug_TESTING_ONLY": (None, "makes relu something else in one of the loops"),
    "cpp.inject_log1p_bug_TESTING_ONLY": (None, "makes log1p something else in one of the loops"),
    "joint_graph_constant_folding": (
        False,
        "x + 0 and x * 1 are dropped in one graph and kept across a graph break: the sign of zero moves",
    ),
    "pattern_matcher": (False, "algebra across ops, which a graph break between them prevents"),
    "constant_and_index_propagation": (
        True,
        "it keeps a Python scalar exact where emulate_precision_casts would round it to bfloat16 or float16 first",
    ),
}

# The same for torch._functorch.config.
FUNCTORCH_PINS: dict[str, tuple[object, str]] = {
    "cse": (
        False,
        "in graphs that are differentiated, scalar arguments 0.0 and -0.0 compare equal and one replaces the other",
    ),
}

# Ops of the vector table whose scalar text has the same value for every input, by definition of the operation: IEEE
# arithmetic, comparisons and logic, selection, rounding to an integer, integer work. Any other op that the vector table
# implements for floating point gets its scalar text from there, so an op that a later torch adds is pinned unlisted.
# fmt: off
_SAME_BY_DEFINITION = frozenset([
    "abs", "add", "and_", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "ceil", "eq", "floor", "frexp", "ge", "gt", "index_expr", "le", "load_seed", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "masked", "mul", "ne", "neg", "rand", "randint64", "randn",
    "round", "sign", "sqrt", "square", "sub", "trunc", "truediv", "truncdiv", "value_expr", "where",
])
# fmt: on

# Conversions have their own rule (see _converted), not one text per op.
_CONVERSIONS = ("to_dtype", "round_to_int")

# SLEEF chooses the range reduction of these for a whole vector, after the lane with the largest magnitude, and the
# choices differ in the last bits. Lanes below the first bound agree among themselves, and so do lanes between the two.
_LANES_COUPLED_ABOVE: dict[str, dict[torch.dtype, tuple[float, float]]] = {
    name: {torch.float32: (125.0, 39000.0), torch.float64: (15.0, 1e14)} for name in ("sin", "cos", "tan")
}

_active: ContextVar[bool] = ContextVar("bi_inductor_pinned_scalar_functions", default=False)
_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def pinned_scalar_functions() -> Iterator[None]:
    """While active in this thread, C++ kernels compute an element the same way in vector, tail and scalar code.

    Enter it around every ``compile_fx`` and around every inner compile (a backward is compiled later, on its own).
    Compiles in other threads are not affected; contexts may nest and overlap, and after the last one Inductor's classes
    are as they were. The texts are part of no cache key of Inductor's: the caller's key must cover this file.
    """
    global _users
    with _lock:
        if _users == 0:
            _install()
        _users += 1
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
        with _lock:
            _users -= 1
            if _users == 0:
                _uninstall()


def pinned_op_names() -> list[str]:
    """Names of the ops whose scalar text is taken from the vector table, sorted."""
    from torch._inductor.codegen.cpp import CppVecOverrides

    return sorted(
        name
        for name, method in vars(CppVecOverrides).items()
        if isinstance(method, staticmethod)
        and not name.startswith("__")
        and name not in _SAME_BY_DEFINITION
        and name not in _CONVERSIONS
        # An op without a vector version runs its scalar text in a loop over the lanes: the same function on both sides.
        and not method.__func__.__qualname__.startswith("CppVecOverrides._scalarize")
    )


def round_low_precision(graph: torch.fx.Graph) -> int:
    """Rewrites the bfloat16 and float16 nodes of an aten graph that Inductor would not round as eager does.

    ``emulate_precision_casts`` rounds the operands and the result of an op whose lowering is made by
    ``make_pointwise``. ``pow`` with a small integer exponent, ``addcmul`` and ``addcdiv`` are lowered otherwise; they
    become the same op on float32 between explicit conversions. The number that ``full`` writes, floating point or integer, is
    rounded to its dtype here, because Inductor keeps constants as Python numbers and would round them only where they are stored.

    Args:
        graph: functional aten graph after partitioning, nodes with ``meta["val"]``; changed in place.

    Returns:
        the number of nodes rewritten.
    """
    aten, convert = torch.ops.aten, torch.ops.prims.convert_element_type.default
    unrounded = (aten.pow.Tensor_Scalar, aten.addcmul.default, aten.addcdiv.default)
    changed = 0
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if node.target in (aten.full.default, aten.scalar_tensor.default):
            position = 1 if node.target is aten.full.default else 0
            scalar = node.args[position]
            if isinstance(scalar, torch.fx.Node):
                if value.dtype in (torch.bfloat16, torch.float16):
                    _written_as_float32(node, value)
                    changed += 1
            elif not isinstance(scalar, bool):
                rounded = torch.tensor(float(scalar), dtype=torch.float64).to(value.dtype).item()
                if rounded != scalar and scalar == scalar:
                    node.update_arg(position, rounded)
                    changed += 1
        elif node.target in unrounded and value.dtype in (torch.bfloat16, torch.float16):
            with graph.inserting_before(node):
                for operand in node.all_input_nodes:
                    operand_value = operand.meta.get("val")
                    if isinstance(operand_value, torch.Tensor) and operand_value.dtype == value.dtype:
                        wide = graph.call_function(convert, (operand, torch.float32))
                        wide.meta.update(operand.meta, val=operand_value.to(torch.float32))
                        node.replace_input_with(operand, wide)
            _rounded_after(node, value)
            changed += 1
    return changed


def _rounded_after(node: torch.fx.Node, value: torch.Tensor) -> None:
    """``node`` computes in float32 from here on; a conversion behind it rounds to the dtype of ``value``, its result so far."""
    with node.graph.inserting_after(node):
        narrow = node.graph.call_function(torch.ops.prims.convert_element_type.default, (node, value.dtype))
        narrow.meta.update(node.meta)
        node.replace_all_uses_with(narrow, delete_user_cb=lambda user: user is not narrow)
        node.meta["val"] = value.to(torch.float32)


def _written_as_float32(node: torch.fx.Node, value: torch.Tensor) -> None:
    """``full`` and ``scalar_tensor`` of a size, which is a number only when the kernel runs."""
    node.update_kwarg("dtype", torch.float32)
    _rounded_after(node, value)


class _Operand(str):
    """Name of a C++ vector variable, with the dtype that the texts of ``CppVecOverrides`` ask their operands for."""

    dtype: torch.dtype

    def __new__(cls, name: str, dtype: torch.dtype) -> _Operand:
        self = super().__new__(cls, name)
        self.dtype = dtype
        return self


def _text(expression: object) -> str:
    """Op texts are strings or buffers of lines."""
    getvalue = getattr(expression, "getvalue", None)
    return str(getvalue() if getvalue is not None else expression)


def _floating_dtype(operands: tuple[Any, ...]) -> torch.dtype | None:
    """The promoted dtype of the tensor operands if every one of them is floating point, else None."""
    from torch._inductor.codegen.cpp_utils import CppCSEVariable

    dtypes = [operand.dtype for operand in operands if isinstance(operand, CppCSEVariable)]
    floating = [dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point]
    return functools.reduce(torch.promote_types, floating) if floating and len(floating) == len(dtypes) else None


def _lane_of_vector_op(vector_op: Callable[..., Any], operands: tuple[Any, ...], dtype: torch.dtype) -> BracesBuffer:
    """C++ expression of one lane of the vector op on broadcast operands."""
    from torch._inductor.codegen.common import BracesBuffer
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

    element = DTYPE_TO_CPP[dtype]
    vector = f"at::vec::Vectorized<{element}>"
    broadcast = [_Operand(f"broadcast{i}", dtype) for i in range(len(operands))]
    code = BracesBuffer()
    code.writeline("[&]()")
    with code.indent():
        for name, operand in zip(broadcast, operands, strict=True):
            code.writeline(f"const {vector} {name}(static_cast<{element}>({operand}));")
        code.writeline(f"__at_align__ {element} lanes[{vector}::size()];")
        code.writeline(f"{vector}({_text(vector_op(*broadcast))}).store(lanes);")
        code.writeline("return lanes[0];")
    code.writeline("()")
    return code


def _uncoupled_lanes(vector_op: Callable[..., Any], operand: Any, bounds: tuple[float, float]) -> BracesBuffer:
    """C++ expression of the vector op with each lane's value independent of the other lanes.

    A vector below the first bound, the usual case, is evaluated as it is. Otherwise the lanes below it are evaluated
    together, those between the bounds together, with a harmless value in the place of the others, and each of the rest,
    NaN among them, on a broadcast value.
    """
    from torch._inductor.codegen.common import BracesBuffer
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP
    from torch._inductor.virtualized import V

    def evaluated(name: str) -> str:
        return _text(vector_op(_Operand(name, operand.dtype)))

    element = DTYPE_TO_CPP[operand.dtype]
    near, far = (f"vector_t({bound!r})" for bound in bounds)
    code = BracesBuffer()
    code.writeline("[&]()")
    with code.indent():
        code.writeline(f"using vector_t = std::decay_t<decltype({operand})>;")
        code.writeline(f"using mask_t = {V.kernel._get_mask_type(operand.dtype)};")
        code.writeline(f"using single_t = at::vec::Vectorized<{element}>;")
        code.writeline(f"const vector_t input = {operand};")
        code.writeline("const vector_t magnitude = input.abs();")
        code.writeline(f"const vector_t is_near = magnitude < {near};")
        code.writeline(f"if (C10_LIKELY(mask_t(is_near).all_masked())) return vector_t({evaluated('input')});")
        code.writeline("const vector_t below = input & is_near;")
        code.writeline(f"vector_t result = {evaluated('below')};")
        code.writeline(f"const vector_t is_between = (magnitude >= {near}) & (magnitude < {far});")
        code.writeline("if (!mask_t(is_between).all_zero())")
        with code.indent():
            code.writeline(f"const vector_t between = vector_t::blendv({near}, input, is_between);")
            code.writeline(f"result = vector_t::blendv(result, {evaluated('between')}, is_between);")
        code.writeline("if (C10_LIKELY(mask_t(is_near | is_between).all_masked())) return result;")
        code.writeline(f"__at_align__ {element} inputs[vector_t::size()];")
        code.writeline(f"__at_align__ {element} results[vector_t::size()];")
        code.writeline(f"__at_align__ {element} lanes[single_t::size()];")
        code.writeline("input.store(inputs);")
        code.writeline("result.store(results);")
        code.writeline("for (int lane = 0; lane < vector_t::size(); ++lane)")
        with code.indent():
            code.writeline(f"if (std::abs(inputs[lane]) < {element}({bounds[1]!r})) continue;")
            code.writeline("const single_t alone(inputs[lane]);")
            code.writeline(f"single_t({evaluated('alone')}).store(lanes);")
            code.writeline("results[lane] = lanes[0];")
        code.writeline("return vector_t::loadu(results);")
    code.writeline("()")
    return code


def _converted(source: Any, dtype: torch.dtype, rounding: bool) -> BracesBuffer | None:
    """C++ expression of a scalar's conversion with the vector conversion's value, or None where Inductor's has it.

    float to int8 saturates in vector code and wraps in scalar code; rounding to int8 goes to even in one and away from
    zero in the other; int64 to float goes through double, rounding twice, in vector code. Other conversions to integers
    agree while they are executed, but NaN and values out of range are undefined in C++, and a compiler that knows the
    value writes what it likes: the volatile keeps it from knowing.
    """
    from torch._inductor.codegen.common import BracesBuffer
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

    if source.dtype is None or dtype == torch.bool:
        # Without a dtype: an index, an exact integer in either loop.
        return None
    from_float = source.dtype.is_floating_point and not dtype.is_floating_point
    if not from_float and (source.dtype, dtype) != (torch.int64, torch.float32):
        return None
    # bfloat16 and float16 go through float, exactly.
    element = DTYPE_TO_CPP[torch.float32 if from_float and source.dtype.itemsize < 4 else source.dtype]
    result = DTYPE_TO_CPP[dtype]
    code = BracesBuffer()
    code.writeline("[&]()")
    with code.indent():
        code.writeline(f"{'volatile' if from_float else 'const'} {element} value = static_cast<{element}>({source});")
        if from_float and dtype not in (torch.int8, torch.uint8):
            code.writeline(f"return c10::convert<{result}>(static_cast<{element}>(value));")
        else:
            # As many lanes as a vector of float has. Types of eight bytes take two registers, smaller ones share one.
            registers = 2 if source.dtype.itemsize == 8 else 1
            vector = f"VectorizedN<{element}, 2>" if registers == 2 else f"Vectorized<{element}>"
            arguments = f"{result}, 1, {element}, 2" if registers == 2 else result
            convert = "round_convert" if rounding else "convert"
            code.writeline(f"__at_align__ {result} lanes[at::vec::Vectorized<{result}>::size()];")
            code.writeline(f"at::vec::{convert}<{arguments}>(at::vec::{vector}(value)).store(lanes);")
            code.writeline("return lanes[0];")
    code.writeline("()")
    return code


@functools.cache
def _pinned_tables() -> dict[type, type]:
    """Stock table of op texts -> the pinned table that stands in for it."""
    from torch._inductor.codegen.cpp import CppOverrides, CppTile2DOverrides, CppVecOverrides

    def pinned_scalar(name: str) -> staticmethod[..., Any]:
        vector_op, scalar_op = getattr(CppVecOverrides, name), getattr(CppOverrides, name)

        @functools.wraps(vector_op)
        def op(*operands: Any) -> Any:
            dtype = _floating_dtype(operands)
            return scalar_op(*operands) if dtype is None else _lane_of_vector_op(vector_op, operands, dtype)

        return staticmethod(op)

    def pinned_conversion(name: str) -> staticmethod[..., Any]:
        scalar_op = getattr(CppOverrides, name)

        @functools.wraps(scalar_op)
        def op(source: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
            text = _converted(source, dtype, rounding=name == "round_to_int")
            return scalar_op(source, dtype, *args, **kwargs) if text is None else text

        return staticmethod(op)

    texts = {name: pinned_scalar(name) for name in pinned_op_names()}
    texts.update({name: pinned_conversion(name) for name in _CONVERSIONS})
    scalar_table = type("PinnedScalarOverrides", (CppOverrides,), texts)

    def uncoupled(name: str, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
        vector_op, bounds = getattr(CppVecOverrides, name), _LANES_COUPLED_ABOVE[name]

        @functools.wraps(vector_op)
        def op(operand: Any) -> Any:
            # Scalars go on to the scalar table; a vector of any other dtype has nothing to uncouple.
            if operand.is_vec and operand.dtype in bounds:
                return _uncoupled_lanes(vector_op, operand, bounds[operand.dtype])
            return stock(operand)

        return op

    class PinnedVecOverrides(CppVecOverrides, scalar_table):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            # CppVecOverrides.__new__ has put one wrapper an op on the instance; these take their place.
            for name in _LANES_COUPLED_ABOVE:
                setattr(self, name, uncoupled(name, getattr(self, name)))

    class PinnedTile2DOverrides(CppTile2DOverrides, PinnedVecOverrides):
        pass

    return {
        CppOverrides: scalar_table,
        CppVecOverrides: PinnedVecOverrides,
        CppTile2DOverrides: PinnedTile2DOverrides,
    }


class _TableOfThisThread:
    """Stands in for a kernel class's ``overrides``: the pinned table inside the context, the stock one elsewhere."""

    def __init__(self, stock: type) -> None:
        self.stock = stock

    def __get__(self, kernel: object, owner: type) -> type:
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        # Without vector instructions there is one loop only, and no vector type to write a text with.
        return _pinned_tables()[self.stock] if _active.get() and pick_vec_isa() else self.stock


def _integers_only(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``IndexPropagation.propagate_sympy`` that leaves floating-point arithmetic to the compiled code.

    Floating-point constants stay symbolic, and so do their conversions: this is how a Python scalar reaches the float32
    arithmetic of a bfloat16 op unrounded.
    """
    from torch._inductor.index_propagation import IndexPropVar, TypedExpr

    @functools.wraps(stock)
    def propagate_sympy(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = [arg.value for arg in (*args, *kwargs.values()) if isinstance(arg, IndexPropVar)]
        if _active.get() and operands and name != "identity":
            floating = any(operand.dtype.is_floating_point for operand in operands)
            if name == "to_dtype":
                target = args[1] if len(args) > 1 else kwargs["dtype"]
                if target.is_floating_point and operands[0].is_constant():
                    # As SymPyOps.to_dtype does up to torch 2.14; from 2.15 on it declines the roundings of emulate_precision_casts.
                    return IndexPropVar.new_symbolic(TypedExpr(operands[0].expr, target))
                floating = floating or target.is_floating_point
                floating = floating and not operands[0].is_constant()
            if floating:
                return self.fallback(name, args, kwargs)
        return stock(self, name, args, kwargs)

    return propagate_sympy


def _kernel_classes() -> tuple[Any, ...]:
    from torch._inductor.codegen.cpp import CppKernel, CppTile2DKernel, CppVecKernel

    return (CppKernel, CppVecKernel, CppTile2DKernel)


def _install() -> None:
    from torch._inductor.index_propagation import IndexPropagation

    for kernel_class in _kernel_classes():
        kernel_class.overrides = _TableOfThisThread(kernel_class.__dict__["overrides"])
    IndexPropagation.propagate_sympy = _integers_only(IndexPropagation.propagate_sympy)  # type: ignore[method-assign]


def _uninstall() -> None:
    from torch._inductor.index_propagation import IndexPropagation

    for kernel_class in _kernel_classes():
        kernel_class.overrides = kernel_class.__dict__["overrides"].stock
    stock = IndexPropagation.propagate_sympy.__wrapped__  # type: ignore[attr-defined]
    IndexPropagation.propagate_sympy = stock  # type: ignore[method-assign]
