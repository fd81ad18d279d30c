"""One call of the graph as the rules see it: arguments by name, states and sizes of tensors, and what a rule can answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from bi_inductor.passes.mixing.states import Dim, Order, Samples, State, States, Step, Target, Whole, covers


@dataclasses.dataclass(frozen=True)
class Finding:
    """A node where a sample's value starts to depend on another sample.

    Attributes:
        node: of the graph.
        why: what it does to the samples, in a few words.
        chain: the layouts from the input to the node, "x [batch, 16]" first.
        certain: False when no rule follows samples through the op.
    """

    node: Node
    why: str
    chain: tuple[str, ...]
    certain: bool = True


class Sizes:
    """Sizes as numbers: those of the example for symbols that have one, a large prime each for those that only the data tells."""

    _PRIMES = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079, 10091, 10093)

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        self._primes: dict[Any, int] = {}

    def __call__(self, size: Any) -> int:
        if isinstance(size, int):
            return size
        if not isinstance(size, torch.SymInt):
            return 0
        expression = size.node.expr
        if expression not in self._known:
            self._known[expression] = self._number(size, expression)
        return self._known[expression]

    def _number(self, size: torch.SymInt, expression: Any) -> int:
        if size.node.has_hint():
            return int(size.node.hint)
        # torch 2.13 calls it backed_var_to_val, and so do 2.14 and 2.15.
        known = size.node.shape_env.backed_var_to_val
        values = {}
        for symbol in expression.free_symbols:
            hint = known.get(symbol)
            values[symbol] = int(hint) if hint is not None else self._primes.setdefault(symbol, self._PRIMES[len(self._primes) % 10])
        return int(expression.subs(values))


class Call:
    """A call under analysis.

    Args:
        node: calls ``op``, with the arguments ``args`` and ``kwargs``.
        states: of the nodes before it.
        sizes: turns sizes into numbers.
        report: takes each finding.
    """

    def __init__(
        self,
        node: Node,
        op: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        states: dict[Node, States],
        sizes: Sizes,
        report: Callable[[Node, str, Step | None, bool], None],
    ) -> None:
        self.node = node
        self.op = op
        self.states = states
        self.sizes = sizes
        self._report = report
        schema = getattr(op, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else [str(i) for i in range(len(args))]
        self.arguments: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        self.positional = list(args)

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)

    def state(self, value: Any) -> State:
        found = self.states.get(value) if isinstance(value, Node) else None
        return None if isinstance(found, list) else found

    def samples(self, value: Any) -> Samples | None:
        found = self.state(value)
        return found if isinstance(found, Samples) else None

    def whole_of(self, value: Any) -> Whole | None:
        found = self.state(value)
        return found if isinstance(found, Whole) else None

    def tensors(self) -> list[Node]:
        """Every operand that is a tensor."""
        return [node for node in self.node.all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)]

    def shape(self, value: Any) -> tuple[int, ...]:
        """The sizes of a node's tensor."""
        return tuple(self.sizes(size) for size in value.meta["val"].shape)

    @property
    def results(self) -> list[Any]:
        """The fake values of the results."""
        value = self.node.meta.get("val")
        return list(value) if isinstance(value, (tuple, list)) else [value]

    def out_shape(self, index: int = 0) -> tuple[int, ...]:
        value = self.results[index]
        return tuple(self.sizes(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()

    def number(self, value: Any, default: int = 0) -> int:
        """An integer argument, which may be a node."""
        if value is None:
            return default
        if isinstance(value, Node):
            value = value.meta.get("val")
        return self.sizes(value)

    def constant(self, value: Any) -> int | None:
        """An integer argument that is known, else None."""
        if isinstance(value, Node):
            value = value.meta.get("val")
        if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt)):
            return None
        if isinstance(value, float):
            return int(value) if value.is_integer() else None
        return self.sizes(value)

    def made(
        self,
        source: Samples,
        dims: Iterable[Dim],
        order: Order | None = None,
        offset: int | None = None,
        target: Target | None = None,
    ) -> Samples:
        """The samples of ``source`` in another layout."""
        order, offset = source.order if order is None else order, source.offset if offset is None else offset
        new = tuple(dims)
        same = order is source.order and offset == source.offset and _pattern(new) == _pattern(source.dims)
        step = source.step if same else Step(self.node, new, order, offset, source.step)
        return Samples(new, order, offset, target, step)

    def mixes(self, why: str, source: Samples | Whole | None, certain: bool = True) -> None:
        """Reports that this node mixes samples."""
        self._report(self.node, why, source.step if source is not None else None, certain)

    def escapes(self, whole: Whole, how: str) -> None:
        """Reports the node that made a value of the whole batch, now that it reaches samples."""
        self._report(whole.node, f"{whole.why}, and {how}", whole.step, True)

    def whole(self, why: str, source: Samples) -> State:
        """The result depends on the whole batch: integers may still turn out to be harmless, other values are reported."""
        dtype = self.results[0].dtype
        if dtype.is_floating_point or dtype.is_complex:
            self.mixes(why, source)
            return None
        return Whole(self.node, why, source.step)


def _pattern(dims: tuple[Dim, ...]) -> tuple[Any, ...]:
    """Where samples are in the dims, whatever the sizes of the other dims."""
    return tuple((i, tuple(f if f.stride else None for f in dim)) for i, dim in enumerate(dims) if any(f.stride for f in dim))


def join(call: Call, entries: Sequence[tuple[Samples, Sequence[Dim]]], why: str = "combines values of different samples") -> Samples | None:
    """The layout of a result whose elements combine those of several operands.

    Args:
        call: reports operands whose samples do not agree.
        entries: operands, each with its dims brought to the rank of the result; dims of one step broadcast.
        why: what to say then.
    """
    if not entries:
        return None
    first, dims = entries[0][0], list(entries[0][1])
    for state, others in entries[1:]:
        agree = state.order is first.order and state.offset == first.offset
        merged: list[Dim] = []
        for own, other in zip(dims, others, strict=True):
            agree = agree and (own == other or not any(f.stride for f in (*own, *other)))
            merged.append(own or other)
        if not agree:
            call.mixes(why, first if covers(others, state.order, state.offset) else state)
            # What follows sees the samples of the operand that has all of them.
            whole = [(state, dims) for state, dims in entries if covers(dims, state.order, state.offset)]
            return call.made(*whole[0]) if whole else None
        dims = merged
    return call.made(first, dims)


def padded(dims: Sequence[Dim], rank: int) -> tuple[Dim, ...]:
    """Dims with dims of one step put in front."""
    return ((),) * (rank - len(dims)) + tuple(dims)
