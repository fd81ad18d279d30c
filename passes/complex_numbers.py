"""Arithmetic on complex numbers as arithmetic on their real and imaginary parts: torch's kernels have a vector body and a tail that differ.

Numerics (docs/numerics.md section 10): each operation on a part is the op of that name on real numbers, rounded on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node

from bi_inductor.passes.rewriter import Rewriter, Rule, rule, values_of

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
    """Emits operations on parts in the real dtype of the result of the node being replaced."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.dtype: torch.dtype = rewriter.node.meta["val"].dtype.to_real()

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
def _div(rewriter: Rewriter, a: Any, b: Any) -> Node | None:
    """By a real number; a complex divisor is left."""
    arithmetic = Arithmetic(rewriter)
    divisor = arithmetic.parts(b)
    if divisor.imaginary is not None:
        return None
    parts = arithmetic.parts(a)
    return arithmetic.joined(Parts(*(rewriter.emit(aten.div.Tensor, part, divisor.real) for part in parts)))


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


@complex_rule(aten.sum.dim_IntList)
def _sum(
    rewriter: Rewriter, x: Node, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node | None:
    if not x.meta["val"].is_complex() or dtype not in (None, x.meta["val"].dtype):
        return None
    arithmetic = Arithmetic(rewriter)
    parts = (rewriter.emit(ops.sum.default, part, list(dims or []), keepdim) for part in arithmetic.parts(x))
    return arithmetic.joined(Parts(*parts))
