"""Does a model run the same graph for a batch of exactly one as for bigger batches?

Capture takes a symbolic batch size to be two or more, as torch.compile does. So `if x.shape[0] == 1`, a library that squeezes, and
everything else that looks at a size of one is not in that graph. Here the model is captured once more for one sample, the two graphs are
compared call by call, and where they part the variants of one sample run their own graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from ..check.batches import Inputs
from ..errors import CaptureError
from .capture import Captured, Cut, capture

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass
class OtherWay:
    """The graph of a batch of one, when it is not the graph of bigger batches.

    Attributes:
        single: that graph.
        counterparts: for its nodes before the graphs part, and for its outputs, the nodes of the other graph that hold the same values.
        shared: the calls of the other graph before they part.
        node: the first node of the other graph that a batch of one does not run, or runs on other sizes; None when it only adds some.
        own: the first node of `single` that has no counterpart; None when it only leaves some out.
        not_compared: how many outputs of `single` have none in the other graph to be compared with.
    """

    single: Captured
    counterparts: dict[Node, Node]
    shared: list[Node]
    node: Node | None
    own: Node | None
    not_compared: int = 0

    def outputs(self, captured: Captured) -> list[tuple[Node, Node]]:
        """The outputs that are computed: in the graph of bigger batches, and in that of one."""
        wanted = {node for node in captured.outputs if node.op == "call_function"}
        return [(node, single) for single, node in self.counterparts.items() if node in wanted]

    @property
    def difference(self) -> str:
        """What a batch of one does instead, in words."""
        if self.own is None:
            return f"leaves out {self.node.target}" if self.node is not None else "returns something else"
        if self.node is None:
            return f"calls {self.own.target} too"
        if self.own.target is self.node.target:
            return f"calls {self.own.target} in another way"
        return f"calls {self.own.target} where bigger batches call {self.node.target}"

    @property
    def remark(self) -> str:
        """One sentence, with the user's line."""
        from ..passes.classify import source_line

        place = self.own or self.node
        where = f"at {source_line(place)}, it" if place is not None else "it"
        return f"a batch of one takes another way than bigger ones: {where} {self.difference}"

    @property
    def verdict(self) -> str:
        """A few words for the table of variants."""
        return "by another way, not all outputs compared" if self.not_compared else "by another way"


aten = torch.ops.aten
# What keeps all elements in their order when the shape stays: a capture records it or leaves it out, depending on what it knows of a size.
_MAY_CHANGE_NOTHING = frozenset(
    {
        aten.alias.default,
        aten.contiguous.default,
        aten.detach.default,
        aten.expand.default,
        aten.flatten.using_ints,
        aten.reshape.default,
        aten.slice.Tensor,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.view.default,
    }
)

# The size that each symbol stands for.
Values = dict[frozenset[Any], int]


def other_way(
    captured: Captured, model: Any, inputs: Inputs, sequence: list[int | None], length: int, cut: Cut | None = None
) -> OtherWay | str | None:
    """How ``model`` runs a batch of one.

    Args:
        captured: its graph for bigger batches.
        model, inputs, sequence, cut: as `capture` was given them.
        length: of the samples, for sizes that follow it.

    Returns:
        None when it runs the same graph, as a saved program always does; a sentence when it cannot be captured for one sample.
    """
    from torch.export import ExportedProgram

    if isinstance(model, ExportedProgram):
        return None
    try:
        single = capture(model, inputs, sequence, one_sample=True, cut=cut)
    except CaptureError as error:
        return f"the model cannot be captured for a batch of one, so variants of one sample ran the graph of bigger batches: {error}"
    return _compare(captured, single, length)


def _compare(captured: Captured, single: Captured, length: int) -> OtherWay | None:
    counterparts: dict[Node, Node] = {}
    values = {captured.symbols.batch: 1, captured.symbols.sequence: length}
    own_values = {single.symbols.sequence: length}
    placeholders = {_identity(captured, node): node for node in captured.module.graph.find_nodes(op="placeholder")}
    for own in single.module.graph.find_nodes(op="placeholder"):
        node = placeholders.get(_identity(single, own))
        if node is not None and _same_constant(captured.constants.get(node.name), single.constants.get(own.name)):
            counterparts[own] = node
    # Nodes of the graph of bigger batches stand for themselves, but for those that change nothing in a batch of one.
    itself: dict[Node, Node] = {}
    calls, own_calls = _calls(captured, itself, values), _calls(single, counterparts, own_values)
    shared: list[Node] = []
    for node, own in zip(calls, own_calls, strict=False):
        if _called(node, itself, values) != _called(own, counterparts, own_values):
            break
        counterparts[own] = node
        shared.append(node)
    else:
        if len(calls) == len(own_calls) and _results(captured, itself, values) == _results(single, counterparts, own_values):
            return None
    parted = len(shared)
    ends, own_ends = (pytree.tree_leaves(graph.module.graph.output_node().args) for graph in (captured, single))
    pairs = list(zip(ends, own_ends, strict=True)) if len(ends) == len(own_ends) else []
    for end, own_end in pairs:
        if isinstance(own_end, torch.fx.Node) and isinstance(end, torch.fx.Node) and end.op == "call_function":
            counterparts.setdefault(own_end, end)
    not_compared = sum(isinstance(end, torch.fx.Node) and end not in counterparts for end in own_ends)
    rest, own_rest = calls[parted:], own_calls[parted:]
    # An op that changes nothing has the value of its operand, where that has a counterpart.
    for own, node in list(counterparts.items()):
        while node in counterparts:
            node = counterparts[node]
        counterparts[own] = node
        if node.graph is not captured.module.graph:
            del counterparts[own]
    return OtherWay(single, counterparts, shared, rest[0] if rest else None, own_rest[0] if own_rest else None, not_compared)


def _calls(captured: Captured, counterparts: dict[Node, Node], values: Values) -> list[Node]:
    """The calls that compute more than sizes: those are numbers in one graph and nodes in the other.

    Of an op that changes nothing in a batch of one (`_MAY_CHANGE_NOTHING`) its operand goes into ``counterparts``.
    """
    found = []
    for node in captured.module.graph.nodes:
        if node.op not in ("call_function", "get_attr") or _is_number(node):
            continue
        source = node.args[0] if node.target in _MAY_CHANGE_NOTHING else None
        if isinstance(source, torch.fx.Node) and _plain(source.meta["val"], {}, values) == _plain(node.meta["val"], {}, values):
            counterparts[node] = source
        else:
            found.append(node)
    return found


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _identity(captured: Captured, node: Node) -> Any:
    return captured.inputs.get(node.name, node.name)


def _same_constant(left: Any, right: Any) -> bool:
    """Parameters are one object; a constant that the model makes is another one in each capture."""
    if left is right or not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return True
    return left.dtype == right.dtype and torch.equal(left, right)


def _called(node: Node, counterparts: dict[Node, Node], values: Values) -> Any:
    """What a node calls on what, comparable with a node of the other graph."""
    target = node.target if node.op == "call_function" else _region(node)
    return target, _plain((node.args, node.kwargs), counterparts, values), _plain(node.meta.get("val"), counterparts, values)


def _region(node: Node) -> Any:
    """The calls in a graph that an op takes as an argument (a region under autocast); the same for any other attribute."""
    region = operator.attrgetter(str(node.target))(node.graph.owning_module)
    if not isinstance(region, torch.fx.GraphModule):
        return "get_attr"
    calls = (inner for inner in region.graph.nodes if inner.op == "call_function" and not _is_number(inner))
    return tuple(str(call.target) for call in calls if "_assert" not in str(call.target))


def _results(captured: Captured, counterparts: dict[Node, Node], values: Values) -> Any:
    return _plain(captured.module.graph.output_node().args, counterparts, values)


def _plain(value: Any, counterparts: dict[Node, Node], values: Values) -> Any:
    """A value with its nodes replaced by their counterparts, and its sizes by those of a batch of one."""
    if isinstance(value, torch.fx.Node):
        if _is_number(value):
            return _plain(value.meta["val"], counterparts, values)
        while value in counterparts:
            value = counterparts[value]
        return value
    if isinstance(value, torch.Tensor):
        return value.dtype, _plain(tuple(value.shape), counterparts, values)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        known = {symbol: number for symbols, number in values.items() for symbol in symbols}
        number = value.node.expr.subs(known)
        return float(number) if number.is_number else str(number)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(entry, counterparts, values) for entry in value)
    if isinstance(value, dict):
        return {key: _plain(entry, counterparts, values) for key, entry in value.items()}
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, slice):
        return tuple(_plain(entry, counterparts, values) for entry in (value.start, value.stop, value.step))
    return value
