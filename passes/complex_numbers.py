"""Arithmetic on complex numbers as arithmetic on their real and imaginary parts: torch's kernels have a vector body and a tail that differ.

Numerics (docs/numerics.md section 10): each operation on a part is the op of that name on real numbers, rounded on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node

from bi_inductor.passes.rewriter import Rewriter, Rule, rule, rule_of, values_of

aten = torch.ops.aten
ops = torch.ops.bi_inductor

# Tensors or numbers; None is a part that is zero because the number is real.
Part = Any

COMPLEX_RULES: dict[Any, Rule] = {}

# Views that torch resolves when somebody reads them.
LAZY = (aten._conj.default, aten._neg_view.default)


class Parts(NamedTuple):
    """A number as its real and imaginary part."""

    real: Part
    imaginary: Part


def touches_complex(node: Node) -> bool:
    """Whether a call reads or gives complex tensors."""
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values_of(node))


def complex_rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers the rewriting of ``targets`` where they touch complex tensors."""

    def register(function: Rule) -> Rule:
        COMPLEX_RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def resolve_bits(node: Node) -> None:
    """Takes conjugate and negative bits from the fake values of what reads a conjugate: its replacement is no such view any more."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()) and node.target not in LAZY:
        mode = detect_fake_mode([value])
        assert mode is not None
        with mode:
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


class Arithmetic:
    """Emits operations on parts in the real dtype of ``dtype``, that of the result of the node being replaced if None."""

    def __init__(self, rewriter: Rewriter, dtype: torch.dtype | None = None) -> None:
        self.rewriter = rewriter
        self.dtype: torch.dtype = (dtype or rewriter.node.meta["val"].dtype).to_real()

    def parts(self, x: Any) -> Parts:
        """The parts of a tensor or a number."""
        if not isinstance(x, Node):
            return Parts(x.real, x.imag) if isinstance(x, complex) else Parts(x, None)
        if not x.meta["val"].is_complex():
            return Parts(self.rewriter.cast(x, self.dtype), None)
        pairs = self.rewriter.emit(aten.view_as_real.default, x)
        real, imaginary = (self.rewriter.cast(self.rewriter.emit(aten.select.int, pairs, -1, i), self.dtype) for i in (0, 1))
        return Parts(real, imaginary)

    def joined(self, parts: Parts) -> Node:
        return self.rewriter.emit(aten.complex.default, *(self.tensor(0.0 if part is None else part) for part in parts))

    def tensor(self, x: Part) -> Node:
        """A part as a tensor."""
        if isinstance(x, Node):
            return x
        return self.rewriter.emit(aten.full.default, [], x, dtype=self.dtype, device=self.rewriter.node.meta["val"].device)

    def of(self, op: Any, a: Part, b: Part) -> Part:
        """``op`` of two parts; of numbers alone it is taken at once."""
        if not isinstance(a, Node) and not isinstance(b, Node):
            return {aten.mul.Tensor: lambda: a * b, aten.add.Tensor: lambda: a + b, aten.sub.Tensor: lambda: a - b}[op]()
        return self.rewriter.emit(op, self.tensor(a), b)

    def mul(self, a: Part, b: Part) -> Part:
        return None if a is None or b is None else self.of(aten.mul.Tensor, a, b)

    def add(self, a: Part, b: Part) -> Part:
        return b if a is None else a if b is None else self.of(aten.add.Tensor, a, b)

    def sub(self, a: Part, b: Part) -> Part:
        if b is None:
            return a
        return self.neg(b) if a is None else self.of(aten.sub.Tensor, a, b)

    def neg(self, a: Part) -> Part:
        return a if a is None else self.rewriter.emit(aten.neg.default, a) if isinstance(a, Node) else -a

    def quotient(self, a: Parts, b: Parts) -> Parts:
        """By a real number part by part, by a complex one as Smith does: nothing is squared, so nothing overflows on the way."""
        emit = self.rewriter.emit
        if b.imaginary is None:
            return Parts(*(None if part is None else emit(aten.div.Tensor, self.tensor(part), b.real) for part in a))
        real, imaginary = self.tensor(b.real), self.tensor(b.imaginary)
        swapped = emit(aten.lt.Tensor, emit(aten.abs.default, real), emit(aten.abs.default, imaginary))
        larger, smaller = (emit(aten.where.self, swapped, *pair) for pair in ((imaginary, real), (real, imaginary)))
        zero = self.tensor(0.0)
        ratio = emit(aten.where.self, emit(aten.eq.Scalar, larger, 0.0), zero, emit(aten.div.Tensor, smaller, larger))
        divisor = emit(aten.add.Tensor, larger, emit(aten.mul.Tensor, smaller, ratio))
        of_real, of_imaginary = self.mul(a.real, ratio), self.mul(a.imaginary, ratio)
        parts = (
            (self.add(of_real, a.imaginary), self.add(a.real, of_imaginary)),
            (self.sub(of_imaginary, a.real), self.sub(a.imaginary, of_real)),
        )
        choices = ([zero if part is None else self.tensor(part) for part in pair] for pair in parts)
        return Parts(*(emit(aten.div.Tensor, emit(aten.where.self, swapped, *pair), divisor) for pair in choices))

    def product(self, a: Parts, b: Parts, mul: Callable[[Part, Part], Part]) -> Parts:
        real = self.sub(mul(a.real, b.real), mul(a.imaginary, b.imaginary))
        return Parts(real, self.add(mul(a.real, b.imaginary), mul(a.imaginary, b.real)))


@complex_rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(rewriter: Rewriter, a: Any, b: Any) -> Node:
    arithmetic = Arithmetic(rewriter)
    return arithmetic.joined(arithmetic.product(arithmetic.parts(a), arithmetic.parts(b), arithmetic.mul))


def _sum_of(rewriter: Rewriter, a: Any, b: Any, alpha: Any, subtract: bool) -> Node | None:
    if alpha != 1:
        return None
    arithmetic = Arithmetic(rewriter)
    combine = arithmetic.sub if subtract else arithmetic.add
    left, right = arithmetic.parts(a), arithmetic.parts(b)
    return arithmetic.joined(Parts(combine(left.real, right.real), combine(left.imaginary, right.imaginary)))


@complex_rule(aten.add.Tensor, aten.add.Scalar)
def _add(rewriter: Rewriter, a: Any, b: Any, *, alpha: Any = 1) -> Node | None:
    return _sum_of(rewriter, a, b, alpha, False)


@complex_rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(rewriter: Rewriter, a: Any, b: Any, *, alpha: Any = 1) -> Node | None:
    return _sum_of(rewriter, a, b, alpha, True)


@complex_rule(aten.neg.default)
def _neg(rewriter: Rewriter, a: Node) -> Node:
    arithmetic = Arithmetic(rewriter)
    return arithmetic.joined(Parts(*map(arithmetic.neg, arithmetic.parts(a))))


@complex_rule(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def _conj(rewriter: Rewriter, a: Node) -> Node:
    arithmetic = Arithmetic(rewriter)
    parts = arithmetic.parts(a)
    return arithmetic.joined(Parts(parts.real, arithmetic.neg(parts.imaginary)))


@rule(aten._neg_view.default)
def _neg_view(rewriter: Rewriter, a: Node) -> Node:
    """What torch gives for the imaginary part of a conjugate."""
    return rewriter.emit(aten.neg.default, a)


@complex_rule(aten.div.Tensor, aten.div.Scalar)
def _div(rewriter: Rewriter, a: Any, b: Any) -> Node:
    arithmetic = Arithmetic(rewriter)
    return arithmetic.joined(arithmetic.quotient(arithmetic.parts(a), arithmetic.parts(b)))


@complex_rule(aten.reciprocal.default)
def _reciprocal(rewriter: Rewriter, a: Node) -> Node:
    arithmetic = Arithmetic(rewriter)
    return arithmetic.joined(arithmetic.quotient(Parts(arithmetic.tensor(1.0), None), arithmetic.parts(a)))


@complex_rule(torch.ops.prims.convert_element_type.default)
def _convert(rewriter: Rewriter, x: Node, dtype: torch.dtype) -> Node:
    """To complex numbers, of another precision, or to real ones, which drops the imaginary part."""
    if not dtype.is_complex:
        real = rewriter.emit(aten.select.int, rewriter.emit(aten.view_as_real.default, x), -1, 0)
        result: Node = rewriter.cast(real, dtype)
        return result
    arithmetic = Arithmetic(rewriter)
    return arithmetic.joined(arithmetic.parts(x))


def _of_parts(op: Any, combine: Any) -> Rule:
    """A comparison or a question, true where ``combine`` of the parts' answers is."""

    def apply(rewriter: Rewriter, *args: Any) -> Node:
        arithmetic = Arithmetic(
            rewriter, next(arg.meta["val"].dtype for arg in args if isinstance(arg, Node) and arg.meta["val"].is_complex())
        )
        operands = [[arithmetic.tensor(0.0 if part is None else part) for part in arithmetic.parts(arg)] for arg in args]
        answers = [rewriter.emit(op, *parts) for parts in zip(*operands, strict=True)]
        return rewriter.emit(combine, *answers)

    return apply


complex_rule(aten.eq.Tensor, aten.eq.Scalar)(_of_parts(aten.eq.Tensor, aten.logical_and.default))
complex_rule(aten.ne.Tensor, aten.ne.Scalar)(_of_parts(aten.ne.Tensor, aten.logical_or.default))
complex_rule(aten.isnan.default)(_of_parts(aten.isnan.default, aten.logical_or.default))
complex_rule(aten.isinf.default)(_of_parts(aten.isinf.default, aten.logical_or.default))
complex_rule(aten.isfinite.default)(_of_parts(aten.isfinite.default, aten.logical_and.default))


@complex_rule(aten.abs.default)
def _abs(rewriter: Rewriter, a: Node) -> Node:
    return rewriter.emit(aten.hypot.default, *Arithmetic(rewriter).parts(a))


@complex_rule(aten.polar.default)
def _polar(rewriter: Rewriter, size: Node, angle: Node) -> Node:
    parts = (rewriter.emit(aten.mul.Tensor, size, rewriter.emit(op, angle)) for op in (aten.cos.default, aten.sin.default))
    return rewriter.emit(aten.complex.default, *parts)


@complex_rule(aten.mm.default, aten.bmm.default)
def _matmul(rewriter: Rewriter, a: Node, b: Node) -> Node:
    arithmetic = Arithmetic(rewriter)

    def matmul(left: Part, right: Part) -> Part:
        return rewriter.emit(ops.matmul.default, left, right)

    return arithmetic.joined(arithmetic.product(arithmetic.parts(a), arithmetic.parts(b), matmul))


@complex_rule(aten.addmm.default, aten.baddbmm.default)
def _matmul_with_bias(rewriter: Rewriter, bias: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Node | None:
    if beta != 1 or alpha != 1:
        return None
    arithmetic = Arithmetic(rewriter)
    added, product = arithmetic.parts(bias), arithmetic.parts(_matmul(rewriter, a, b))
    return arithmetic.joined(Parts(arithmetic.add(product.real, added.real), arithmetic.add(product.imaginary, added.imaginary)))


def _part_by_part(rewriter: Rewriter, *args: Any, **kwargs: Any) -> Node | None:
    """A sum, which does to each part what it does to real numbers."""
    if kwargs.get("dtype") not in (None, rewriter.node.meta["val"].dtype):
        return None
    kwargs.pop("dtype", None)
    found = rule_of(rewriter.node.target)
    assert found is not None
    arithmetic = Arithmetic(rewriter)
    operands = [arithmetic.parts(arg) if isinstance(arg, Node) and arg.meta["val"].is_complex() else Parts(arg, arg) for arg in args]
    parts = [found(rewriter, *of_part, **kwargs) for of_part in zip(*operands, strict=True)]
    return None if None in parts else arithmetic.joined(Parts(*parts))


complex_rule(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default)(_part_by_part)


@complex_rule(aten.index_put.default)
def _index_put(rewriter: Rewriter, x: Node, indices: Any, values: Node, accumulate: bool = False) -> Node | None:
    return _part_by_part(rewriter, x, indices, values, accumulate) if accumulate else None


# ---- functions


def _function(*targets: Any) -> Callable[[Callable[[Arithmetic, Node, Node], Parts]], Callable[[Arithmetic, Node, Node], Parts]]:
    """Registers a function of one complex number: of its parts, as its parts."""

    def register(function: Callable[[Arithmetic, Node, Node], Parts]) -> Callable[[Arithmetic, Node, Node], Parts]:
        def apply(rewriter: Rewriter, x: Node) -> Node:
            arithmetic = Arithmetic(rewriter)
            return arithmetic.joined(function(arithmetic, *arithmetic.parts(x)))

        complex_rule(*targets)(apply)
        return function

    return register


@_function(aten.exp.default)
def _exp(arithmetic: Arithmetic, a: Node, b: Node) -> Parts:
    emit = arithmetic.rewriter.emit
    size = emit(aten.exp.default, a)
    imaginary = emit(aten.mul.Tensor, size, emit(aten.sin.default, b))
    # exp of infinity on the real line: no infinity times zero.
    return Parts(emit(aten.mul.Tensor, size, emit(aten.cos.default, b)), emit(aten.where.self, emit(aten.eq.Scalar, b, 0.0), b, imaginary))


@_function(aten.log.default)
def _log(arithmetic: Arithmetic, a: Node, b: Node) -> Parts:
    emit = arithmetic.rewriter.emit
    return Parts(emit(aten.log.default, emit(aten.hypot.default, a, b)), emit(aten.atan2.default, b, a))


@_function(aten.sqrt.default)
def _sqrt(arithmetic: Arithmetic, a: Node, b: Node) -> Parts:
    emit = arithmetic.rewriter.emit
    twice = emit(aten.add.Tensor, emit(aten.abs.default, a), emit(aten.hypot.default, a, b))
    root = emit(aten.sqrt.default, emit(aten.mul.Tensor, twice, 0.5))
    other = emit(aten.div.Tensor, b, emit(aten.mul.Tensor, root, 2.0))
    other = emit(aten.where.self, emit(aten.eq.Scalar, root, 0.0), b, other)
    right = emit(aten.ge.Scalar, a, 0.0)
    return Parts(
        emit(aten.where.self, right, root, emit(aten.abs.default, other)),
        emit(aten.where.self, right, other, emit(aten.copysign.Tensor, root, b)),
    )


def _product_of_functions(target: Any, first: tuple[Any, Any], second: tuple[Any, Any], negated: bool = False) -> None:
    """sin, cos, sinh, cosh: each part a product of a function of ``a`` and one of ``b``."""

    @_function(target)
    def function(arithmetic: Arithmetic, a: Node, b: Node) -> Parts:
        emit = arithmetic.rewriter.emit
        parts = [emit(aten.mul.Tensor, emit(of_a, a), emit(of_b, b)) for of_a, of_b in (first, second)]
        return Parts(parts[0], arithmetic.neg(parts[1]) if negated else parts[1])


_SIN, _COS, _SINH, _COSH = aten.sin.default, aten.cos.default, aten.sinh.default, aten.cosh.default
_product_of_functions(aten.sin.default, (_SIN, _COSH), (_COS, _SINH))
_product_of_functions(aten.cos.default, (_COS, _COSH), (_SIN, _SINH), negated=True)
_product_of_functions(aten.sinh.default, (_SINH, _COS), (_COSH, _SIN))
_product_of_functions(aten.cosh.default, (_COSH, _COS), (_SINH, _SIN))


@complex_rule(aten.angle.default)
def _angle(rewriter: Rewriter, x: Node) -> Node:
    real, imaginary = Arithmetic(rewriter).parts(x)
    return rewriter.emit(aten.atan2.default, imaginary, real)


@complex_rule(aten.pow.Tensor_Scalar)
def _pow(rewriter: Rewriter, x: Node, exponent: Any) -> Node | None:
    """Powers of 1, 2 and 3 are products, 0.5 the root, 1.5 the root times the number; negative ones their reciprocals; others are left."""
    # Where there is more than one step it is taken in float64, and the power is rounded once.
    arithmetic = Arithmetic(rewriter, None if exponent in (1, 2) else torch.complex128)
    parts, size = arithmetic.parts(x), abs(exponent)
    if size in (0.5, 1.5):
        root = _sqrt(arithmetic, *parts)
        power = root if size == 0.5 else arithmetic.product(root, parts, arithmetic.mul)
    elif size in (1, 2, 3):
        power = parts
        for _ in range(int(size) - 1):
            power = arithmetic.product(power, parts, arithmetic.mul)
    else:
        return None
    if exponent < 0:
        power = arithmetic.quotient(Parts(arithmetic.tensor(1.0), None), power)
    result = Arithmetic(rewriter)
    return result.joined(Parts(*(rewriter.cast(part, result.dtype) for part in power)))
