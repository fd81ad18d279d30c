"""One value for every elementwise function, whatever loop Inductor's C++ backend puts around it.

Inductor writes each elementwise kernel up to three times: a vector body (``at::vec::Vectorized``), a masked tail, and a
scalar loop (one element, strides it will not vectorise, dtypes it cannot). The scalar loop calls the C library, the
vector ones call SLEEF or a polynomial of their own, and the two differ by a few units in the last place, or by a
different algorithm altogether (``remainder``, ``expm1``, ``erf``). Which loop computes an element follows from the
shape and the strides, so the value of an element would follow from the batch around it.

Two repairs, both in the text Inductor writes and both active only inside :func:`pinned_scalar_functions`:

* scalar code evaluates the *vector* text on a broadcast value and keeps one lane, so it cannot disagree;
* where the vector function itself looks at its neighbours (SLEEF picks one range reduction for all lanes of a vector,
  from the largest of them), the lanes are split by range first.

:data:`POINTWISE_PINS` lists the settings that go with it. Values are defined in docs/numerics.md, section 10.

Inductor internals touched (read and tested with torch 2.13.0):

* ``torch._inductor.codegen.cpp.CppKernel.overrides``, ``CppVecKernel.overrides``, ``CppTile2DKernel.overrides``: class
  attributes naming the table of op texts. A descriptor stands in for them while at least one pinned compile runs; it
  answers with the stock table in every thread that is not inside the context.
* ``CppOverrides``, ``CppVecOverrides``, ``CppTile2DOverrides``: subclassed, never modified. ``CppVecOverrides.__new__``
  sends ops whose operands are all scalars to ``super(CppVecOverrides, self)``, so a class that inherits from
  ``CppVecOverrides`` first and from the pinned scalar table second also repairs the scalar part of vector kernels.
* ``CppCSEVariable.dtype`` and ``BracesBuffer`` to write the texts.
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

_active: ContextVar[bool] = ContextVar("bi_inductor_pinned_scalar_functions", default=False)
_lock = threading.Lock()
_users = 0

# Each entry: Inductor setting -> (value, what would vary without it).
POINTWISE_PINS: dict[str, tuple[object, str]] = {
    "emulate_precision_casts": (
        True,
        "bfloat16/float16: without it a result is rounded where a kernel ends, so its bits follow the fusion around it",
    ),
    "cpp.enable_floating_point_contract_flag": (
        "off -fsigned-zeros",
        "a*b + c would become one fma in one loop and two roundings in another. The value is pasted into the compiler's "
        "command line after Inductor's own -fno-signed-zeros, which lets a compiler drop x + 0 and turn -(a - b) into "
        "b - a",
    ),
    "cpp.enable_unsafe_math_opt_flag": (
        False,
        "reassociation and reciprocals at the compiler's choice, different for vector and scalar code",
    ),
    "joint_graph_constant_folding": (
        False,
        "x + 0 and x * 1 are dropped inside a graph and kept across a graph break: the sign of zero",
    ),
    "pattern_matcher": (False, "algebra across ops that a graph break between them prevents"),
    "cpp.inject_relu_bug_TESTING_ONLY": (None, "replaces relu by something else"),
    "cpp.inject_log1p_bug_TESTING_ONLY": (None, "replaces log1p by something else"),
}

# Ops of the vector table whose scalar text has the same value for every input, by definition of the operation: IEEE
# arithmetic, comparisons and logic, selection, exact rounding to an integer, integer work. Any other op the vector
# table implements for floating point gets its scalar text from there; an op that a later torch adds is therefore pinned
# without anybody listing it.
_SAME_BY_DEFINITION = frozenset(
    (
        "abs add and_ bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil eq "
        "floor frexp ge gt index_expr le load_seed logical_and logical_not logical_or logical_xor lt masked mul ne neg "
        "rand randint64 randn round round_to_int sign sqrt square sub to_dtype trunc truediv truncdiv value_expr where"
    ).split()
)

# SLEEF chooses the range reduction of these for a whole vector, from the lane with the largest magnitude, and the
# choices differ in the last bits (AVX2: sin and cos in float, cos and tan in double change by their neighbours). Below
# the bound every lane takes the first choice whatever its neighbours are.
_LANES_COUPLED_ABOVE: dict[str, tuple[float, float]] = {
    # name: (bound for float, bound for double)
    "sin": (125.0, 15.0),
    "cos": (125.0, 15.0),
    "tan": (125.0, 15.0),
}


class _Operand(str):
    """The name of a C++ vector variable, with the dtype that the op texts of ``CppVecOverrides`` ask for."""

    dtype: torch.dtype

    def __new__(cls, name: str, dtype: torch.dtype) -> _Operand:
        self = super().__new__(cls, name)
        self.dtype = dtype
        return self


def _as_text(expression: object) -> str:
    """Op texts are strings or buffers of lines."""
    getvalue = getattr(expression, "getvalue", None)
    return str(getvalue() if getvalue is not None else expression)


def _floating_operands(operands: tuple[Any, ...]) -> torch.dtype | None:
    """The promoted dtype of the operands if it is float32 or float64 and all are floating point, else None."""
    from torch._inductor.codegen.cpp_utils import CppCSEVariable

    dtypes = [operand.dtype for operand in operands if isinstance(operand, CppCSEVariable)]
    if not dtypes or any(dtype is None or not dtype.is_floating_point for dtype in dtypes):
        return None
    return functools.reduce(torch.promote_types, dtypes)


def _scalar_from_vector(vector_op: Callable[..., Any], operands: tuple[Any, ...], dtype: torch.dtype) -> BracesBuffer:
    """C++ expression: the vector op on broadcast operands, one lane of it. Value and type are those of one lane."""
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
        code.writeline(f"{vector}({_as_text(vector_op(*broadcast))}).store(lanes);")
        code.writeline("return lanes[0];")
    code.writeline("()")
    return code


def _uncoupled_lanes(vector_op: Callable[..., Any], operand: Any, bounds: tuple[float, float]) -> BracesBuffer:
    """C++ expression: the vector op, each lane's value independent of the other lanes.

    Lanes at or above the bound (NaN among them) are evaluated alone, on a broadcast value; the rest together, with
    those lanes set to zero. A vector without such lanes costs one comparison more than stock.
    """
    from torch._inductor.codegen.common import BracesBuffer
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

    bound = bounds[operand.dtype == torch.float64]
    element = DTYPE_TO_CPP[operand.dtype]
    vector = f"std::decay_t<decltype({operand})>"
    near, alone = _Operand("near", operand.dtype), _Operand("alone", operand.dtype)
    code = BracesBuffer()
    code.writeline("[&]()")
    with code.indent():
        code.writeline(f"using vector_t = {vector};")
        code.writeline(f"const vector_t bound({bound!r});")
        code.writeline(f"const vector_t is_near = {operand}.abs() < bound;")
        code.writeline(f"const vector_t near = {operand} & is_near;")
        code.writeline(f"const vector_t together = {_as_text(vector_op(near))};")
        code.writeline(f"__at_align__ {element} inputs[vector_t::size()];")
        code.writeline(f"__at_align__ {element} results[vector_t::size()];")
        code.writeline(f"{operand}.store(inputs);")
        code.writeline("bool all_near = true;")
        code.writeline("for (int lane = 0; lane < vector_t::size(); ++lane)")
        with code.indent():
            code.writeline(f"all_near = all_near && std::abs(inputs[lane]) < {element}({bound!r});")
        code.writeline("if (C10_LIKELY(all_near)) return together;")
        code.writeline("together.store(results);")
        code.writeline("for (int lane = 0; lane < vector_t::size(); ++lane)")
        with code.indent():
            code.writeline(f"if (std::abs(inputs[lane]) < {element}({bound!r})) continue;")
            code.writeline(f"const at::vec::Vectorized<{element}> alone(inputs[lane]);")
            code.writeline(f"__at_align__ {element} one[at::vec::Vectorized<{element}>::size()];")
            code.writeline(f"at::vec::Vectorized<{element}>({_as_text(vector_op(alone))}).store(one);")
            code.writeline("results[lane] = one[0];")
        code.writeline("return vector_t::loadu(results);")
    code.writeline("()")
    return code


def pinned_op_names() -> list[str]:
    """Names of the ops whose scalar text is taken from the vector table, sorted."""
    from torch._inductor.codegen.cpp import CppVecOverrides

    return sorted(
        name
        for name, method in vars(CppVecOverrides).items()
        if isinstance(method, staticmethod)
        and name not in _SAME_BY_DEFINITION
        and not name.startswith("__")
        # Ops without a vector version run the scalar text in a loop over the lanes: the same function on both sides.
        and not method.__func__.__qualname__.startswith("CppVecOverrides._scalarize")
    )


@functools.cache
def _pinned_tables() -> dict[type, type]:
    """Stock table of op texts -> the pinned one that stands in for it."""
    from torch._inductor.codegen.cpp import CppOverrides, CppTile2DOverrides, CppVecOverrides

    def pinned_scalar(name: str) -> staticmethod[..., Any]:
        vector_op = getattr(CppVecOverrides, name)
        scalar_op = getattr(CppOverrides, name)

        @functools.wraps(vector_op)
        def op(*operands: Any, **kwargs: Any) -> Any:
            dtype = _floating_operands(operands)
            if dtype is None or kwargs:
                return scalar_op(*operands, **kwargs)
            return _scalar_from_vector(vector_op, operands, dtype)

        return staticmethod(op)

    def uncoupled(name: str, bounds: tuple[float, float]) -> Callable[[Any], Any]:
        vector_op = getattr(CppVecOverrides, name)

        @functools.wraps(vector_op)
        def op(operand: Any) -> Any:
            return _uncoupled_lanes(vector_op, operand, bounds)

        return op

    scalar = type("PinnedScalarOverrides", (CppOverrides,), {name: pinned_scalar(name) for name in pinned_op_names()})

    class PinnedVectorOverrides(CppVecOverrides, scalar):  # type: ignore[misc, valid-type]
        """Vector texts; operands that are all scalars reach the pinned scalar table through the method order."""

        def __new__(cls, *args: Any, **kwargs: Any) -> PinnedVectorOverrides:
            self = super().__new__(cls, *args, **kwargs)
            for name, bounds in _LANES_COUPLED_ABOVE.items():
                stock, vector_op = getattr(self, name), uncoupled(name, bounds)
                setattr(self, name, lambda x, stock=stock, op=vector_op: op(x) if getattr(x, "is_vec", False) else stock(x))
            return self

    class PinnedTile2DOverrides(CppTile2DOverrides, PinnedVectorOverrides):
        pass

    return {CppOverrides: scalar, CppVecOverrides: PinnedVectorOverrides, CppTile2DOverrides: PinnedTile2DOverrides}


class _TableOfThisThread:
    """Descriptor for a kernel class's ``overrides``: the pinned table inside the context, the stock one elsewhere."""

    def __init__(self, stock: type) -> None:
        self.stock = stock
        self.pinned = _pinned_tables()[stock]

    def __get__(self, kernel: object, owner: type) -> type:
        return self.pinned if _active.get() else self.stock


def _kernel_classes() -> tuple[type, ...]:
    from torch._inductor.codegen.cpp import CppKernel, CppTile2DKernel, CppVecKernel

    return (CppKernel, CppVecKernel, CppTile2DKernel)


@contextlib.contextmanager
def pinned_scalar_functions() -> Iterator[None]:
    """While active in this thread, C++ kernels compute an element the same way in vector, tail and scalar code.

    Enter it around every ``compile_fx`` and every inner compile (the backward is compiled later, on its own). Compiles
    in other threads are not affected, contexts may nest and overlap, and after the last one Inductor's classes are as
    they were.
    """
    global _users
    with _lock:
        if _users == 0:
            for kernel_class in _kernel_classes():
                kernel_class.overrides = _TableOfThisThread(kernel_class.__dict__["overrides"])  # type: ignore[attr-defined]
        _users += 1
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
        with _lock:
            _users -= 1
            if _users == 0:
                for kernel_class in _kernel_classes():
                    table = kernel_class.__dict__["overrides"]
                    if isinstance(table, _TableOfThisThread):
                        kernel_class.overrides = table.stock  # type: ignore[attr-defined]
