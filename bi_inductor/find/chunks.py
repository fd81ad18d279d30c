"""A sequence in chunks that carry a cache, node by node against the same sequence whole.

The user's `in_chunks` is captured twice: called with one chunk that is the whole sequence, and with the chunks of a variant. Both graphs
hold the calls of one model, so a node of a chunk's call has its counterpart where the whole's call has the same op at the same line and
module. A chunk's value is compared with the positions of the whole that the chunk holds; of keys that grow with the cache, with those
that the chunk added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.passes.layout import BATCH, SEQUENCE, Layout

from ..settings import thread_count
from ..ulp import bits_differ
from .capture import Captured, Cut, capture
from .digest import Store, row_digests
from .execution import Call, Digest, Execution, Step, described, is_seen, layout_of, measure_rows, producer_of, steps
from .result import Measured
from .variants import Samples, Setting, shared_places

if TYPE_CHECKING:
    from torch.fx import Node

    from ..check.chunks import InChunks


@dataclass
class ChunkedRun:
    """How a model runs in chunks.

    Attributes:
        captured: the graph of all calls.
        counterparts: for the nodes of each call, and under None for what is outside of any, the nodes of the whole's graph.
    """

    captured: Captured
    counterparts: dict[int | None, dict[Node, Node]]


def chunked_run(whole: Captured, model: Any, samples: Samples, in_chunks: InChunks, setting: Setting) -> ChunkedRun:
    """The run of ``setting``. Raises ValueError when `in_chunks` does not call the model once for each chunk, CaptureError as `capture`."""
    cut = Cut(in_chunks, setting.pieces)
    captured = capture(model, samples.inputs, samples.sequence, one_sample=setting.extent.batch == 1, cut=cut)
    for graph, chunks in ((whole, 1), (captured, len(setting.pieces))):
        calls = set(graph.calls.values())
        if calls != set(range(chunks)):
            raise ValueError(
                f"in_chunks: it has to call the model once for each chunk; given {chunks} chunk{'s' if chunks > 1 else ''}, it made "
                f"{len(calls)} calls that compute something"
            )
    counterparts: dict[int | None, dict[Node, Node]] = {}
    in_whole = _by_meaning(whole)
    for (call, meaning), nodes in _by_meaning(captured).items():
        others = in_whole.get((None if call is None else 0, meaning), [])
        # Another number of them is another way through the code: which is which cannot be told.
        if len(nodes) == len(others):
            counterparts.setdefault(call, {}).update(zip(nodes, others, strict=True))
    return ChunkedRun(captured, counterparts)


def _by_meaning(captured: Captured) -> dict[tuple[int | None, Any], list[Node]]:
    """The calls of a graph, in order, by the call of the model that made them and by op, module and line."""
    from ..passes.classify import source_line

    found: dict[tuple[int | None, Any], list[Node]] = defaultdict(list)
    for node in captured.nodes:
        if isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            continue
        stack = list(node.meta.get("nn_module_stack", {}).values())
        place = node.args[1] if node.target is operator.getitem else None
        found[captured.calls.get(node), (node.target, place, stack[-1][0] if stack else "", source_line(node))].append(node)
    return found


def _positions(setting: Setting) -> tuple[int, int]:
    return setting.positions or (0, setting.extent.length)


def _lengths(layout: Layout, value: torch.Tensor, setting: Setting) -> list[int] | None:
    """For each dim of a chunk's value the length along it: the chunk's, or that of all positions up to its end. None for another shape."""
    start, count = _positions(setting)
    if value.dim() != len(layout.dims):
        return None
    found = []
    for size, dim in zip(value.shape, layout.dims, strict=True):
        fitting = (n for n in (count, start + count) if math.prod(factor.size(setting.extent.batch, n) for factor in dim) == size)
        length = next(fitting, None)
        if length is None:
            return None
        found.append(length)
    return found


def _in_factors(layout: Layout, value: torch.Tensor, batch: int, lengths: list[int]) -> torch.Tensor:
    """A view with one dim a factor."""
    return value.view([factor.size(batch, length) for dim, length in zip(layout.dims, lengths, strict=True) for factor in dim])


def chunk_rows(layout: Layout, value: torch.Tensor, setting: Setting) -> torch.Tensor | None:
    """The rows of a chunk's value at the chunk's positions; None where it has none, or they cannot be told."""
    lengths = _lengths(layout, value, setting)
    if lengths is None or (setting.call is not None and not any(factor == SEQUENCE for dim in layout.dims for factor in dim)):
        return None
    count = _positions(setting)[1]
    value = _in_factors(layout, value, setting.extent.batch, lengths)
    factors = [(factor, length) for dim, length in zip(layout.dims, lengths, strict=True) for factor in dim]
    for dim, (factor, length) in enumerate(factors):
        if factor == SEQUENCE:
            value = value.narrow(dim, length - count, count)
    batches = [dim for dim, (factor, _) in enumerate(factors) if factor == BATCH]
    return value.movedim(batches[0], 0) if batches else value.unsqueeze(0)


def chunk_digests(
    whole: Captured, run: ChunkedRun, samples: Samples, settings: list[Setting], padded: bool
) -> dict[int | None, dict[Node, Digest]]:
    """Runs all chunks; for each call the digests of the values that it has in common with the whole, under the whole's nodes."""
    found: dict[int | None, dict[Node, Digest]] = {setting.call: {} for setting in settings}
    by_call = {setting.call: setting for setting in settings}
    store = Store()
    with torch.no_grad(), thread_count(settings[-1].threads):
        execution = Execution(run.captured, samples, settings[-1])
        for own in steps(run.captured):
            value = execution.step(own)
            call = run.captured.calls.get(own)
            node = run.counterparts.get(call, {}).get(own)
            layout = None if node is None else layout_of(whole, node, padded)
            if node is not None and layout is not None and isinstance(value, torch.Tensor) and not is_seen(own, value, execution):
                rows = chunk_rows(layout, value, by_call[call])
                if rows is not None:
                    found[call][node] = store.keep(row_digests(rows)), tuple(rows.shape[1:]), rows.dtype
            del value
            execution.release(own)
    return found


def measure_chunk(
    whole: Captured, run: ChunkedRun, samples: Samples, reference: Setting, setting: Setting, differing: set[Node], padded: bool
) -> tuple[list[Step], Call | None]:
    """Runs the whole beside the chunks, up to the call of ``setting``, and measures the nodes of it in ``differing``.

    Args:
        reference: the whole, its compared positions those of the chunk.

    Returns:
        As `execution.in_step`, with nodes of the whole's graph; the call only where a script can hold it.
    """
    found: list[Step] = []
    first: Call | None = None
    pairs = _Pairs(whole, run, samples, reference, setting, padded)
    with torch.no_grad():
        for own in steps(run.captured):
            if run.captured.calls.get(own) != setting.call:
                pairs.step(own)
                continue
            node = pairs.counterpart(own)
            if node is None:
                pairs.step(own)
                pairs.distances[own] = pairs.distance_of_operands(own)
                continue
            results = {node, *(user for user in node.users if user.target is operator.getitem)}
            if node.target is not operator.getitem and not differing.isdisjoint(results):
                pairs.call_with_rows_of_the_whole(own, node)
            operands = pairs.distance_of_operands(own)
            if node in differing:
                step, call = pairs.measure(own, node, operands)
                first = first or call
                found.append(step)
                pairs.distances[own] = step.measured.max_ulp if step.measured else 0.0
            elif pairs.step_both(own, node) and operands:
                found.append(Step(node, None, operands))
            else:
                # A view, or a value that is not compared, carries what its operands have.
                pairs.distances[own] = operands
            pairs.release(own, node)
    return found, first


class _Pairs:
    """The whole and its chunks side by side: pairs of values at nodes that correspond."""

    def __init__(self, whole: Captured, run: ChunkedRun, samples: Samples, reference: Setting, setting: Setting, padded: bool) -> None:
        self.whole, self.run, self.reference, self.setting, self.padded = whole, run, reference, setting, padded
        self.left = Execution(whole, samples, reference)
        self.right = Execution(run.captured, samples, _without_positions(setting))
        self.ahead: Iterator[Node] = steps(whole)
        self.passed: set[Node] = set()
        self.counterparts = run.counterparts.get(setting.call, {})
        # By nodes of the chunks: how far their values are from the whole's.
        self.distances: dict[Node, float] = {}
        # For an op of the whole: its arguments, those of the chunk with the whole's rows, and what the chunk's op makes of them.
        self.same_rows: dict[Node, tuple[Any, Any, Any]] = {}

    def step(self, own: Node) -> Any:
        """Runs a node of the chunks alone."""
        with thread_count(self.setting.threads):
            value = self.right.step(own)
        self.right.release(own)
        return value

    def counterpart(self, own: Node) -> Node | None:
        """The node of the whole, with all before it run; None when there is none, or it has passed."""
        node = self.counterparts.get(own)
        if node is None or node in self.passed:
            return None
        with thread_count(self.reference.threads):
            for before in self.ahead:
                self.passed.add(before)
                if before is node:
                    return node
                self.left.step(before)
                self.left.release(before)
        return None

    def release(self, own: Node, node: Node) -> None:
        """Drops what nobody needs after a pair."""
        for source in self.whole.last_uses[node]:
            self.same_rows.pop(source, None)
        self.left.release(node)
        self.right.release(own)

    def distance_of_operands(self, own: Node) -> float:
        return max((self.distances.get(source, 0.0) for source in own.all_input_nodes), default=0.0)

    def rows(self, node: Node, other: Any) -> torch.Tensor | None:
        """The compared rows of a chunk's value."""
        layout = layout_of(self.whole, node, self.padded)
        return chunk_rows(layout, other, self.setting) if layout is not None and isinstance(other, torch.Tensor) else None

    def compare(self, node: Node, value: torch.Tensor, other: Any) -> Measured | None:
        """How far the whole's value at the chunk's positions and the chunk's are apart."""
        layout, rows = layout_of(self.whole, node, self.padded), self.rows(node, other)
        if layout is None or rows is None:
            return None
        return measure_rows(layout, layout.rows(value, self.reference.extent), rows, self.reference, self.setting)

    def step_both(self, own: Node, node: Node) -> bool:
        """Runs a pair whose values are not measured; whether they were compared and are the same."""
        with thread_count(self.reference.threads):
            self.left.step(node)
        with thread_count(self.setting.threads):
            other = self.right.step(own)
        return isinstance(other, torch.Tensor) and not is_seen(own, other, self.right) and self.rows(node, other) is not None

    def call_with_rows_of_the_whole(self, own: Node, node: Node) -> None:
        """Calls the chunk's op on operands that hold the whole's rows, where each operand's rows can be told."""
        given, own_given = self.left.arguments(node), self.right.arguments(own)
        replaced: dict[Node, Any] = {}
        for operand, own_operand in self.operands(node, own):
            other = self.right.values[own_operand]
            if isinstance(other, torch.Tensor) and own_operand in self.run.captured.of_samples:
                rows = self.with_rows_of_the_whole(operand, other)
                if rows is None and self.distances.get(own_operand):
                    return
                replaced[own_operand] = other if rows is None else rows
        if any(self.distances.get(source) and source not in replaced for source in own.all_input_nodes):
            return
        values = {source: replaced.get(source, self.right.values[source]) for source in own.all_input_nodes}
        own_given = torch.fx.node.map_arg((own.args, own.kwargs), values.__getitem__)
        with thread_count(self.setting.threads), contextlib.suppress(IndexError, RuntimeError):
            self.same_rows[node] = given, own_given, own.target(*own_given[0], **own_given[1])  # type: ignore[operator]  # a call

    def operands(self, node: Node, own: Node) -> list[tuple[Node, Node]]:
        """The nodes in the same places among the arguments of both."""
        pairs: list[tuple[Node, Node]] = []
        _match((node.args, node.kwargs), (own.args, own.kwargs), pairs)
        return pairs

    def window(self, operand: Node, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Layout] | None:
        """The whole's value at all positions that the chunk's has, and the chunk's, both with one dim a factor."""
        layout, value = self.whole.layouts[operand], self.left.values.get(operand)
        if not isinstance(layout, Layout) or not layout.comparable(padded=True) or not isinstance(value, torch.Tensor):
            return None
        lengths = _lengths(layout, other, self.setting)
        if lengths is None or value.dim() != len(layout.dims):
            return None
        start, count = _positions(self.setting)
        whole = _in_factors(layout, value, self.reference.extent.batch, [self.reference.extent.length] * value.dim())
        factors = [(factor, length) for dim, length in zip(layout.dims, lengths, strict=True) for factor in dim]
        for dim, (factor, length) in enumerate(factors):
            if factor == SEQUENCE:
                whole = whole.narrow(dim, start + count - length, length)
        return whole, _in_factors(layout, other, self.setting.extent.batch, lengths), layout

    def with_rows_of_the_whole(self, operand: Node, other: torch.Tensor) -> torch.Tensor | None:
        """A copy of a chunk's operand that holds the whole's rows; None where they cannot be told."""
        copy = other.clone(memory_format=torch.preserve_format)
        found = self.window(operand, copy)
        if found is None:
            return None
        whole, inside, layout = found
        factors = [factor for dim in layout.dims for factor in dim]
        if BATCH in factors:
            places, other_places = shared_places(self.reference, self.setting)
            dim = factors.index(BATCH)
            inside.movedim(dim, 0)[other_places] = whole.movedim(dim, 0)[places]
        else:
            inside.copy_(whole)
        return copy

    def moved(self, node: Node, own: Node) -> tuple[Node, ...]:
        """Operands that are positions instead of values of samples, and are other ones in the chunk."""
        found = []
        for operand, own_operand in self.operands(node, own):
            other = self.right.values[own_operand]
            if operand in self.whole.of_samples or own_operand in self.run.captured.of_samples or not isinstance(other, torch.Tensor):
                continue
            windows = self.window(operand, other)
            if windows is not None and windows[0].dtype == other.dtype and bool(bits_differ(windows[0], windows[1]).any()):
                found.append(operand)
        return tuple(found)

    def measure(self, own: Node, node: Node, operands: float) -> tuple[Step, Call | None]:
        """Runs a pair that differs; the step, and the call for a script when the op differs by itself."""
        others = {operand: described(self.right.values[own_operand]) for operand, own_operand in self.operands(node, own)}
        moved = self.moved(node, own)
        with thread_count(self.reference.threads):
            value = self.left.step(node)
        with thread_count(self.setting.threads):
            other = self.right.step(own)
        step = Step(node, self.compare(node, value, other), operands, moved=moved, others={**others, node: described(other)})
        producer = producer_of(node)
        if producer not in self.same_rows:
            return step, None
        given, own_given, result = self.same_rows[producer]
        item = result[node.args[1]] if node.target is operator.getitem else result
        step.by_itself = self.compare(node, value, item) is not None
        if not step.by_itself:
            return step, None
        # A script holds one function for both: all that is no tensor has to be the same, and the result as long as the chunk.
        layout, count = self.whole.layouts[node], _positions(self.setting)[1]
        lengths = _lengths(layout, item, self.setting) if isinstance(layout, Layout) else None
        alike = lengths is not None and set(lengths) == {count} and _same_numbers(producer, producer_of(own))
        return step, Call(producer, given, own_given) if alike else None


def _without_positions(setting: Setting) -> Setting:
    """The setting of the whole run, of which ``setting`` is a chunk: its inputs are cut in the graph."""
    return dataclasses.replace(setting, positions=None)


def _match(argument: Any, other: Any, pairs: list[tuple[Node, Node]]) -> None:
    if isinstance(argument, torch.fx.Node):
        if isinstance(other, torch.fx.Node):
            pairs.append((argument, other))
    elif isinstance(argument, (tuple, list)):
        if isinstance(other, (tuple, list)):
            for entry, inner in zip(argument, other, strict=False):
                _match(entry, inner, pairs)
    elif isinstance(argument, dict) and isinstance(other, dict):
        for key, entry in argument.items():
            _match(entry, other.get(key), pairs)


def _same_numbers(node: Node, own: Node) -> bool:
    """Whether two calls have the same arguments but for the nodes in the same places."""

    def plain(value: Any) -> Any:
        return torch.fx.node.map_arg(value, lambda _: None)

    return bool(plain((node.args, node.kwargs)) == plain((own.args, own.kwargs)))
