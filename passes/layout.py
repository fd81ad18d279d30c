"""Where the samples are in every value of a graph that was captured with a symbolic batch size.

A dim is a product of factors, outermost first. A view that merges the batch with another dim, [B, S, E] to [B * S, E], keeps the
factors (B, S); [S, B, E] to [S * B, E] keeps (S, B). So the rows of a sample can be read from every later value of that shape.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_VIEWS = frozenset(
    {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints, aten.unflatten.int},
)


class Factor(NamedTuple):
    """``number * batch ** batches * sequence ** sequences``; ``number`` 0 is a size that only the running value tells."""

    number: int
    batches: int = 0
    sequences: int = 0

    def size(self, batch: int, sequence: int) -> int:
        return int(self.number * batch**self.batches * sequence**self.sequences)

    def divided_by(self, other: Factor) -> Factor | None:
        """The quotient, or None when it is no whole factor."""
        if not self.number or not other.number or self.number % other.number:
            return None
        quotient = Factor(self.number // other.number, self.batches - other.batches, self.sequences - other.sequences)
        return quotient if min(quotient.batches, quotient.sequences) >= 0 else None


ONE, BATCH, SEQUENCE, RUNNING = Factor(1), Factor(1, 1, 0), Factor(1, 0, 1), Factor(0)


class Symbols(NamedTuple):
    """The symbols that stand for the number of samples and for the length of a sample in the captured shapes."""

    batch: frozenset[Any]
    sequence: frozenset[Any]

    def factor(self, size: int | torch.SymInt) -> Factor | None:
        """A size as one factor; None when it depends on the batch in another way than as a multiple, or on the data."""
        if isinstance(size, int):
            return Factor(size) if size else RUNNING
        expression = size.node.expr
        number, batches, sequences = 1, 0, 0
        for base, power in expression.as_powers_dict().items():
            if not (power.is_Integer and power > 0):
                break
            if base.is_Integer:
                number *= int(base) ** int(power)
            elif base in self.batch:
                batches += int(power)
            elif base in self.sequence:
                sequences += int(power)
            else:
                break
        else:
            return Factor(number, batches, sequences)
        return RUNNING if expression.free_symbols <= self.sequence else None

    def number(self, size: Any, batch: int, sequence: int) -> Any:
        """The value of a symbolic number for a batch of this size."""
        if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return size
        values = {**dict.fromkeys(self.batch, batch), **dict.fromkeys(self.sequence, sequence)}
        result = size.node.expr.subs(values)
        return {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)](result)


class Extent(NamedTuple):
    """The samples in a running value, and the part of each sample that is compared: ``kept`` positions of ``length``, from ``start`` on."""

    batch: int
    length: int = 1
    start: int = 0
    kept: int = 1


@dataclass(frozen=True)
class Layout:
    """The factors of each dim of a value, outermost first.

    Attributes:
        dims: one tuple of factors per dim.
    """

    dims: tuple[tuple[Factor, ...], ...]

    @property
    def batches(self) -> int:
        """How many factors are the batch: 0 for a value without samples, 2 or more for one that relates samples to each other."""
        return sum(factor.batches for dim in self.dims for factor in dim)

    def comparable(self, padded: bool) -> bool:
        """Whether the rows of a sample can be told; ``padded``: also when the variants have other lengths."""
        if self.batches > 1 or any(factor.batches and factor != BATCH for dim in self.dims for factor in dim):
            return False
        return not padded or all(factor == SEQUENCE or (factor.number and not factor.sequences) for dim in self.dims for factor in dim)

    def follows_sizes(self, padded: bool) -> bool:
        """Whether the batch size, or for ``padded`` the length, is in the shape."""
        return any(factor.batches or (padded and (factor.sequences or not factor.number)) for dim in self.dims for factor in dim)

    def _factors(self, value: torch.Tensor, extent: Extent) -> tuple[torch.Tensor, list[Factor]]:
        """The value with one dim a factor."""
        sizes: list[int] = []
        factors: list[Factor] = []
        for size, dim in zip(value.shape, self.dims, strict=True):
            sizes += [factor.size(extent.batch, extent.length) if factor.number else size for factor in dim]
            factors += dim
        return value.view(sizes) if len(sizes) != value.dim() else value, factors

    def rows(self, value: torch.Tensor, extent: Extent) -> torch.Tensor:
        """A view [samples, ...] of ``value``; [1, ...] when it holds no samples."""
        value, factors = self._factors(value, extent)
        if extent.kept != extent.length:
            for dim, factor in enumerate(factors):
                if factor == SEQUENCE:
                    value = value.narrow(dim, extent.start, extent.kept)
        return value.movedim(factors.index(BATCH), 0) if BATCH in factors else value.unsqueeze(0)


Layouts = Layout | None | tuple[Any, ...]


def layouts(graph: Graph, symbols: Symbols) -> dict[Node, Layouts]:
    """The layout of every tensor in the graph; None where samples cannot be followed; a tuple for an op of several results."""
    found: dict[Node, Layouts] = {}
    for node in graph.nodes:
        inputs = [layout for source in node.all_input_nodes for layout in _flat(found.get(source))]
        if node.target is operator.getitem and isinstance(found.get(node.args[0]), tuple):
            found[node] = found[node.args[0]][node.args[1]]  # type: ignore[index]  # a tuple, by the line above
        else:
            found[node] = _of_value(node, node.meta.get("val"), inputs, symbols)
    return found


def _flat(layout: Layouts | None) -> list[Layout]:
    if isinstance(layout, tuple):
        return [inner for entry in layout for inner in _flat(entry)]
    return [layout] if layout is not None else []


def _of_value(node: Node, value: Any, inputs: list[Layout], symbols: Symbols) -> Layouts:
    if isinstance(value, (tuple, list)):
        return tuple(_of_value(node, entry, inputs, symbols) for entry in value)
    if not isinstance(value, torch.Tensor):
        return None
    sizes = [symbols.factor(size) for size in value.shape]
    if any(size is None for size in sizes):
        return None
    dims: list[Factor] = [size for size in sizes if size is not None]
    if node.target in _VIEWS and len(inputs) == 1:
        regrouped = _regroup([factor for dim in inputs[0].dims for factor in dim], dims)
        if regrouped is not None:
            return Layout(regrouped)
    known: dict[Factor, tuple[Factor, ...]] = {}
    for layout in inputs:
        for factors in layout.dims:
            known.setdefault(_product(factors), factors)
    return Layout(tuple(_factors_of(node, dim, known) for dim in dims))


def _factors_of(node: Node, size: Factor, known: dict[Factor, tuple[Factor, ...]]) -> tuple[Factor, ...]:
    """The factors of a dim: those of an input's dim of the same size, else the batch first (a batch repeated whole: last)."""
    if size in known:
        return known[size]
    parts = [BATCH] * size.batches + [SEQUENCE] * size.sequences
    if size.number != 1 or not parts:
        copies = node.target in (aten.cat.default, aten.repeat.default, aten.tile.default)
        parts.insert(0 if copies else len(parts), Factor(size.number))
    return tuple(parts)


def _product(factors: Sequence[Factor]) -> Factor:
    number, batches, sequences = 1, 0, 0
    for factor in factors:
        number, batches, sequences = number * factor.number, batches + factor.batches, sequences + factor.sequences
    return Factor(number, batches, sequences)


def _regroup(factors: Sequence[Factor], sizes: Sequence[Factor]) -> tuple[tuple[Factor, ...], ...] | None:
    """Distributes the factors of a view's input over the sizes of its output; None where a factor would have to be cut unevenly."""
    pending = [factor for factor in factors if factor != ONE]
    dims = []
    for size in sizes:
        taken: list[Factor] = []
        missing = size
        while missing != ONE:
            if not pending:
                return None
            first = pending.pop(0)
            if (rest := missing.divided_by(first)) is not None:
                taken.append(first)
                missing = rest
            elif (left := first.divided_by(missing)) is not None:
                taken.append(missing)
                pending.insert(0, left)
                missing = ONE
            else:
                return None
        dims.append(tuple(taken) or (ONE,))
    return tuple(dims)
