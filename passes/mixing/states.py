"""What the analysis knows of a value: which sample each of its elements depends on.

A dim is a product of factors, outermost first. A step along a factor either stays with the same sample (stride 0) or goes on by ``stride``
samples. An element depends on the sample number ``offset + sum(stride * step)`` of an order, and on no other. The order is the batch as
it came in, or the one that a sort (or another routing op) put it into.

So merging and splitting dims, permuting, slicing, flipping, stacking and indexing by ``arange`` are arithmetic on factors, and a dim of
the same size as the batch is never taken for it: sizes serve only to tell where a view cuts. bi_inductor.find.layout works from sizes
instead: it has a graph with a symbolic batch, needs the place of rows only, and of sequences too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch.fx import Node


class Factor(NamedTuple):
    """``size`` steps; each goes on by ``stride`` samples (of an ``Affine``: adds ``stride`` to the value), 0 stays with the sample."""

    size: int
    stride: int = 0


Dim = tuple[Factor, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """A list of samples, compared by identity: the batch, or what the op ``node`` made of it.

    ``size`` is the number of its entries. In the order of a routing op an entry belongs to one sample, at a place that the analysis does
    not know; a sample may have several entries or none.
    """

    size: int
    node: Node | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A node that changed where the samples are, and the step before it; the first is an input."""

    node: Node
    dims: tuple[Dim, ...]
    order: Order
    offset: int
    before: Step | None


class Target(NamedTuple):
    """Integers that are positions along a dim of these factors, each one of the very sample that the integer belongs to.

    ``complete`` is set when each position occurs once.
    """

    dim: Dim
    order: Order
    offset: int
    complete: bool


@dataclasses.dataclass(frozen=True)
class Samples:
    """A tensor each of whose elements depends on one sample.

    Attributes:
        dims: its factors.
        order, offset: which sample: entry ``offset + sum(stride * step)`` of ``order``.
        target: for integers that are positions.
        step: where the layout comes from, for the report.
    """

    dims: tuple[Dim, ...]
    order: Order
    offset: int = 0
    target: Target | None = None
    step: Step | None = dataclasses.field(default=None, compare=False)

    def along(self, dim: int) -> bool:
        """Whether a step along ``dim`` leads to another sample."""
        return any(factor.stride for factor in self.dims[dim])

    @property
    def sample_dims(self) -> list[int]:
        return [dim for dim in range(len(self.dims)) if self.along(dim)]


@dataclasses.dataclass(frozen=True)
class Affine:
    """Integers that depend on no sample and are ``offset + sum(stride * step)``: an arange and what views make of it."""

    dims: tuple[Dim, ...]
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Whole:
    """Integers that depend on the whole batch, made by ``node``: counts of tokens for each expert, say. Harmless while they only say where
    rows are that a routing op has put into order.
    """

    node: Node
    why: str
    step: Step | None = dataclasses.field(default=None, compare=False)


# None: depends on no sample, or on samples in a way that has been reported.
State = Samples | Affine | Whole | None
States = State | list[State]


def canonical(factors: Iterable[Factor]) -> Dim:
    """Without factors of one step; neighbours that continue each other are one factor."""
    found: list[Factor] = []
    for factor in factors:
        if factor.size == 1:
            continue
        if found:
            before = found[-1]
            if before.stride == factor.stride * factor.size:
                found[-1] = Factor(before.size * factor.size, factor.stride)
                continue
        found.append(factor)
    return tuple(found)


def regroup(dims: Sequence[Dim], sizes: Sequence[int]) -> tuple[Dim, ...] | None:
    """The factors of a view of the given sizes; None where it would cut one unevenly."""
    pending = [factor for dim in dims for factor in dim][::-1]
    result: list[Dim] = []
    for size in sizes:
        taken: list[Factor] = []
        missing = size
        while missing != 1:
            if not pending:
                return None
            factor = pending.pop()
            if missing % factor.size == 0:
                taken.append(factor)
                missing //= factor.size
            elif factor.size % missing == 0:
                inner = factor.size // missing
                taken.append(Factor(missing, factor.stride * inner))
                pending.append(Factor(inner, factor.stride))
                missing = 1
            else:
                return None
        result.append(canonical(taken))
    return tuple(result) if not pending else None


def covers(dims: Iterable[Dim], order: Order, offset: int) -> bool:
    """Whether the elements have every sample of the batch, each at its place."""
    expected = 1
    for factor in sorted((f for dim in dims for f in dim if f.stride), key=lambda f: f.stride):
        if factor.stride != expected:
            return False
        expected *= factor.size
    return order.node is None and not offset and expected == order.size


def size_of(dim: Iterable[Factor]) -> int:
    """The number of places along a dim."""
    return math.prod(factor.size for factor in dim)


def plain(size: int) -> Dim:
    """A dim along which the sample stays the same."""
    return canonical([Factor(size)])
