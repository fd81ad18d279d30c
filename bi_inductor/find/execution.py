"""Runs a captured graph node by node: once for the digests of all rows, and two variants in step to measure where they part."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from bi_inductor.passes.layout import Layout

from ..settings import thread_count
from ..ulp import bits_differ, ulp_distance
from .capture import Captured
from .digest import Store, row_digests
from .nodes import written_arguments
from .result import Measured
from .variants import Samples, Setting, shared_places

if TYPE_CHECKING:
    from torch.fx import Node

    from .batch_of_one import OtherWay

# A value's digests, its shape without the samples, its dtype.
Digest = tuple[Sequence[int], tuple[int, ...], torch.dtype]


class Execution:
    """The values of a graph during one run; a value is dropped after its last use."""

    def __init__(self, captured: Captured, samples: Samples, setting: Setting) -> None:
        self.captured = captured
        self.setting = setting
        leaves = samples.leaves(setting)
        self.values: dict[Node, Any] = {}
        for node in captured.module.graph.find_nodes(op="placeholder"):
            self.values[node] = leaves[captured.inputs[node.name]] if node.name in captured.inputs else captured.constants.get(node.name)

    def arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The running values of a node's arguments."""
        return torch.fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)

    def step(self, node: Node) -> Any:
        """Runs one node and returns its value."""
        if node.op == "get_attr":
            value: Any = operator.attrgetter(str(node.target))(self.captured.module)
        else:
            arguments, named = self.arguments(node)
            value = node.target(*arguments, **named)  # type: ignore[operator]  # a call_function node
        self.values[node] = value
        return value

    def release(self, node: Node) -> None:
        """Drops what nobody needs after ``node``."""
        for source in self.captured.last_uses[node]:
            self.values.pop(source, None)


def steps(captured: Captured, end: Node | None = None) -> Iterator[Node]:
    """The nodes to run, in order, those before ``end`` if it is given."""
    before = itertools.takewhile(lambda node: node is not end, captured.module.graph.nodes)
    return (node for node in before if node.op in ("call_function", "get_attr"))


def layout_of(captured: Captured, node: Node, padded: bool) -> Layout | None:
    """Where the rows of a node's value are; None when they cannot be compared."""
    layout = captured.layouts[node]
    if not isinstance(layout, Layout) or not layout.comparable(padded):
        return None
    return None if node not in captured.of_samples and layout.follows_sizes(padded) else layout


def digests(
    captured: Captured,
    samples: Samples,
    settings: Sequence[Setting],
    padded: bool,
    way: OtherWay | None = None,
    wanted: Collection[int] | None = None,
) -> list[dict[Node, Digest]]:
    """Runs the whole graph; the digests of every value that an op wrote (views of an earlier value are left out).

    Args:
        settings: one run, in as many ways as its positions are compared in; there is one result for each.
        way: run this graph of a batch of one; the digests are those of the values that the other graph has too, under its nodes.
        wanted: the places of the batch that are compared, by default all.
    """
    found: list[dict[Node, Digest]] = [{} for _ in settings]
    store = Store()
    runs = captured if way is None else way.single
    with torch.no_grad(), thread_count(settings[0].threads):
        execution = Execution(runs, samples, settings[0])
        for own in steps(runs):
            value = execution.step(own)
            node = own if way is None else way.counterparts.get(own)
            layout = None if node is None else layout_of(captured, node, padded)
            if node is not None and layout is not None and isinstance(value, torch.Tensor) and not is_seen(own, value, execution):
                for setting, results in zip(settings, found, strict=True):
                    results[node] = _digest(layout, value, setting, wanted, store)
            # Before the next op makes its result.
            del value
            execution.release(own)
    return found


def _digest(layout: Layout, value: torch.Tensor, setting: Setting, wanted: Collection[int] | None, store: Store) -> Digest:
    if value.dim() != len(layout.dims):
        # Without its batch dim a value is another one whatever its bits: no row has a negative size.
        return [0], (-1,), value.dtype
    rows = layout.rows(value, setting.extent)
    return store.keep(row_digests(rows, wanted if layout.batches else None)), tuple(rows.shape[1:]), rows.dtype


def is_seen(node: Node, value: torch.Tensor, execution: Execution) -> bool:
    """Whether the value is a view of one that came before; the results of an op that has several are looked at one by one."""
    if node.target is operator.getitem or written_arguments(node):
        return False
    storage = value.untyped_storage().data_ptr()
    sources = [source for argument in node.all_input_nodes for source in pytree.tree_leaves(execution.values[argument])]
    return any(isinstance(source, torch.Tensor) and source.untyped_storage().data_ptr() == storage for source in sources)


def first_difference(
    order: dict[Node, int], reference: tuple[Setting, dict[Node, Digest]], other: tuple[Setting, dict[Node, Digest]]
) -> tuple[Node | None, set[Node]]:
    """The first node whose shared rows have other digests, and all such nodes."""
    places, other_places = shared_places(reference[0], other[0])
    differing = set()
    for node in reference[1].keys() & other[1].keys():
        left, right = reference[1][node], other[1][node]
        rows, other_rows = (places, other_places) if _has_samples(left, right, reference[0], other[0]) else ([0], [0])
        if left[1:] != right[1:]:
            # Another shape of a value without samples is no difference of bits: it follows the padding.
            if _has_samples(left, right, reference[0], other[0]) or reference[0].extent[1:] == other[0].extent[1:]:
                differing.add(node)
        elif any(left[0][row] != right[0][other_row] for row, other_row in zip(rows, other_rows, strict=True)):
            differing.add(node)
    return min(differing, key=order.__getitem__, default=None), differing


def _has_samples(left: Digest, right: Digest, reference: Setting, other: Setting) -> bool:
    return (len(left[0]), len(right[0])) == (reference.extent.batch, other.extent.batch)


# Elements compared at a time: what a comparison needs beside the values stays small.
_BLOCK = 1 << 20


def _measure(left: torch.Tensor, right: torch.Tensor, places: Sequence[int], other_places: Sequence[int]) -> Measured | None:
    """Compares rows bit for bit, ``left[places]`` with ``right[other_places]``; None when all are the same."""
    count = len(places)
    if left.shape[1:] != right.shape[1:] or left.dtype != right.dtype:
        elements = left[places[0]].numel() * count
        return Measured(count, count, elements, elements, float("inf"), (), (tuple(left.shape[1:]), tuple(right.shape[1:])))
    width = max(1, left[0].numel())
    rows_different = elements_different = 0
    max_ulp = 0.0
    first: tuple[tuple[int, ...], tuple[Any, Any]] | None = None
    for start in range(0, count, max(1, _BLOCK // width)):
        end = start + max(1, _BLOCK // width)
        mine, others = left[list(places[start:end])], right[list(other_places[start:end])]
        differ = bits_differ(mine, others)
        if not differ.any():
            continue
        rows_different += int(differ.flatten(1).any(1).sum()) if differ.dim() > 1 else int(differ.sum())
        elements_different += int(differ.sum())
        max_ulp = max(max_ulp, float(ulp_distance(mine[differ], others[differ]).max()))
        if first is None:
            place = tuple(differ.nonzero()[0].tolist())
            first = (start + place[0], *place[1:]), (mine[place].item(), others[place].item())
    return first and Measured(count, rows_different, count * width, elements_different, max_ulp, *first)


def compare(layout: Layout, left: tuple[Any, Setting], right: tuple[Any, Setting]) -> Measured | None:
    """The distance of a value's shared rows in two variants."""
    if left[0].dim() != right[0].dim():
        # A batch of one that lost its batch dim.
        elements = right[0].numel()
        return Measured(1, 1, elements, elements, float("inf"), (), (tuple(left[0].shape), tuple(right[0].shape)))
    rows, other_rows = (layout.rows(value, setting.extent) for value, setting in (left, right))
    if not layout.batches and rows.shape != other_rows.shape and left[1].extent[1:] != right[1].extent[1:]:
        return None
    return measure_rows(layout, rows, other_rows, left[1], right[1])


def measure_rows(layout: Layout, rows: torch.Tensor, other_rows: torch.Tensor, left: Setting, right: Setting) -> Measured | None:
    """The distance of rows [samples, ...], of those samples that both compare; of all for a value without samples, [1, ...]."""
    if layout.batches:
        return _measure(rows, other_rows, *shared_places(left, right))
    measured = _measure(rows, other_rows, [0], [0])
    return measured and dataclasses.replace(measured, place=measured.place[1:])


@dataclass
class Step:
    """What two variants did at one node whose bits differ, or that met differing bits.

    Attributes:
        node: the node.
        measured: how far its value is apart; None when the bits are the same although an operand's differ.
        operands: the largest distance among its operands, 0 when they are the same.
        by_itself: whether it differs when both variants are given the reference's rows; None when that was not tried.
        repeatable: whether the same call on the same operands gave the same bits.
        moved: operands that hold positions of the padded samples instead of values of samples, and so differ.
        others: what operands and the result are in the other variant, where its graph is another one and the sizes do not tell.
    """

    node: Node
    measured: Measured | None
    operands: float
    by_itself: bool | None = None
    repeatable: bool = True
    moved: tuple[Node, ...] = ()
    others: dict[Node, str] = dataclasses.field(default_factory=dict)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Call:
    """One node and its arguments in both variants, with the same rows in both: what a reproduction of an eager difference needs."""

    node: Node
    reference: Arguments
    other: Arguments


def measure_outputs(
    captured: Captured, samples: Samples, reference: Setting, other: Setting, way: OtherWay, padded: bool
) -> dict[Node, Measured]:
    """Runs two eager variants, the other one by its own graph; the outputs that differ."""
    pairs = way.outputs(captured)
    values: list[list[Any]] = []
    with torch.no_grad():
        for runs, setting, wanted in ((captured, reference, [pair[0] for pair in pairs]), (way.single, other, [pair[1] for pair in pairs])):
            with thread_count(setting.threads):
                execution = Execution(runs, samples, setting)
                for node in steps(runs):
                    execution.step(node)
                    # The outputs are used last by the node that returns them.
                    execution.release(node)
                values.append([execution.values[node] for node in wanted])
    found = {}
    for (node, _), value, other_value in zip(pairs, *values, strict=True):
        layout = layout_of(captured, node, padded)
        if layout is not None and (measured := compare(layout, (value, reference), (other_value, other))) is not None:
            found[node] = measured
    return found


def in_step(
    captured: Captured, samples: Samples, reference: Setting, other: Setting, differing: set[Node], padded: bool, end: Node | None = None
) -> tuple[list[Step], Call | None]:
    """Runs two eager variants side by side and measures every node in ``differing``, and those that make equal of different operands.

    The values of both are alive at a time, so memory is that of the two runs together. Nothing is run from the node ``end`` on.

    Returns:
        The steps in order, and the first call that differs although its operands are the same.
    """
    found: list[Step] = []
    first: Call | None = None
    with torch.no_grad():
        left, right = Execution(captured, samples, reference), Execution(captured, samples, other)
        # For each value that differs, its distance in ulp; for an op, its arguments with the reference's rows in both, and the result.
        distances: dict[Node, float] = {}
        same_rows: dict[Node, tuple[Arguments, Arguments, Any]] = {}
        for node in steps(captured, end):
            results = [node, *(user for user in node.users if user.target is operator.getitem)]
            if node.target is not operator.getitem and not differing.isdisjoint(results):
                mine, others = arguments_with_same_rows(captured, node, left, right, distances)
                # The reference's rows may be no operands here: numbers of rows, as sorting samples gives them, lead out of a smaller batch.
                with thread_count(other.threads), contextlib.suppress(IndexError, RuntimeError):
                    same_rows[node] = mine, others, _call(node, others)
            with thread_count(reference.threads):
                value = left.step(node)
            with thread_count(other.threads):
                other_value = right.step(node)
            operands = max((distances.get(source, 0.0) for source in node.all_input_nodes), default=0.0)
            layout = layout_of(captured, node, padded)
            if node in differing and layout is not None:
                step = Step(node, compare(layout, (value, reference), (other_value, other)), operands)
                distances[node] = step.measured.max_ulp if step.measured else 0.0
                step.moved = tuple(s for s in node.all_input_nodes if s not in captured.of_samples and s in distances)
                producer = producer_of(node)
                if producer in same_rows:
                    mine, others, result = same_rows[producer]
                    step.by_itself = compare(layout, (value, reference), (_item(node, result), other)) is not None
                    if step.by_itself and first is None:
                        first = Call(producer, mine, others)
                        with thread_count(reference.threads):
                            again = _item(node, _call(producer, mine))
                        pair = [row_digests(layout.rows(result, reference.extent)) for result in (value, again)]
                        step.repeatable = pair[0] == pair[1]
                        del again
                    del mine, others, result
                found.append(step)
            elif padded and node not in captured.of_samples and (moved := _moved(captured, node, (value, reference), (other_value, other))):
                # Positions, or what was made of them: other values at the compared positions, and no fault of the op.
                distances[node] = moved.max_ulp
            elif operands and not isinstance(value, int):
                if isinstance(value, torch.Tensor) and layout is not None and not is_seen(node, value, left):
                    found.append(Step(node, None, operands))
                else:
                    # A view, or an op of several results, carries what its operand has.
                    distances[node] = operands
            # Before the next op makes its results.
            value = other_value = None
            for source in captured.last_uses[node]:
                same_rows.pop(source, None)
            left.release(node)
            right.release(node)
    return found, first


def described(value: Any) -> str:
    """A running value's dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} strides {value.stride()}"
    return f"{len(value)} tensors" if isinstance(value, (tuple, list)) else str(value)


def producer_of(node: Node) -> Node:
    """The op that made a value; for one of several results the op itself."""
    source = node.args[0] if node.target is operator.getitem else node
    return source if isinstance(source, torch.fx.Node) else node


def _call(node: Node, arguments: Arguments) -> Any:
    return node.target(*arguments[0], **arguments[1])  # type: ignore[operator]  # a call_function node


def _item(node: Node, result: Any) -> Any:
    """What ``node`` takes from the result of its producer."""
    return result[node.args[1]] if node.target is operator.getitem else result


def _moved(captured: Captured, node: Node, left: tuple[Any, Setting], right: tuple[Any, Setting]) -> Measured | None:
    """How far a value that does not come from samples is apart at the compared positions."""
    layout = captured.layouts[node]
    known = isinstance(layout, Layout) and not layout.batches and layout.comparable(padded=True)
    return compare(layout, left, right) if known and isinstance(left[0], torch.Tensor) else None  # type: ignore[arg-type]  # known says so


def arguments_with_same_rows(
    captured: Captured, node: Node, left: Execution, right: Execution, differing: Container[Node]
) -> tuple[Arguments, Arguments]:
    """The node's arguments in both variants; where those of the other one differ, the shared rows are replaced by the reference's."""
    written = set(written_arguments(node))

    def own(source: Node) -> Any:
        value = left.values[source]
        return value.clone() if source in written else value

    def replaced(source: Node) -> Any:
        if isinstance(right.values[source], torch.Tensor) and source in differing:
            return replace_rows(captured, source, left, right)
        return right.values[source].clone() if source in written else right.values[source]

    arguments = (node.args, node.kwargs)
    return torch.fx.node.map_arg(arguments, own), torch.fx.node.map_arg(arguments, replaced)


def replace_rows(captured: Captured, node: Node, left: Execution, right: Execution) -> Any:
    """A copy of a node's value in the other variant whose shared rows are those of the reference."""
    value, other = left.values[node], right.values[node]
    if not isinstance(other, torch.Tensor):
        return other
    other = other.clone()
    layout = captured.layouts[node]
    if isinstance(layout, Layout) and layout.batches == 1:
        places, other_places = shared_places(left.setting, right.setting)
        layout.rows(other, right.setting.extent)[other_places] = layout.rows(value, left.setting.extent)[places]
    elif isinstance(layout, Layout) and layout.comparable(padded=True):
        layout.rows(other, right.setting.extent).copy_(layout.rows(value, left.setting.extent))
    elif value.shape == other.shape:
        other.copy_(value)
    return other
