"""Graphs as plain data: what a report shows, compares and writes to JSON after torch's graphs are gone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node


@dataclasses.dataclass(frozen=True)
class NodeRecord:
    """One node of a graph.

    Attributes:
        name: its name in that graph.
        kind: "placeholder", "get_attr", "call" or "output".
        op: what is called ("aten.mm.default"); for the other kinds the kind.
        arguments: the text of the arguments in pieces; a number is the index of the node whose result stands there.
        value: dtype and shape of the result ("float32[8, 16]"), "" without one.
        op_class: the value of its ``OpClass``, "" for nodes that call nothing.
        reason: why it has that class.
        source: file, line and text of the user's code that led to it.
        module: path of the innermost module that it comes from.
    """

    name: str
    kind: str
    op: str
    arguments: tuple[str | int, ...] = ()
    value: str = ""
    op_class: str = ""
    reason: str = ""
    source: str = ""
    module: str = ""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the nodes it reads, in the order of its arguments."""
        return tuple(piece for piece in self.arguments if isinstance(piece, int))

    def text(self, label: Callable[[int], str]) -> str:
        """The call as one line, other nodes called by ``label``."""
        arguments = "".join(piece if isinstance(piece, str) else label(piece) for piece in self.arguments)
        call = self.op if self.kind in ("placeholder", "get_attr") else f"{self.op}({arguments})"
        return f"{call} -> {self.value}" if self.value else call


@dataclasses.dataclass(frozen=True)
class GraphRecord:
    """One graph at one stage of its compile."""

    stage: str
    nodes: tuple[NodeRecord, ...]

    def text(self) -> str:
        """One line a node, with the names the graph has."""
        return "\n".join(f"{node.name} = {node.text(lambda i: self.nodes[i].name)}" for node in self.nodes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GraphRecord:
        """The graph that ``dataclasses.asdict`` made into ``data``. Raises KeyError, TypeError for other data."""
        nodes = (NodeRecord(**{**node, "arguments": tuple(node["arguments"])}) for node in data["nodes"])
        return cls(data["stage"], tuple(nodes))


def record_graph(stage: str, graph: Graph, describe: Callable[[Node], tuple[str, str]] | None = None) -> GraphRecord:
    """``graph`` as it is now.

    Args:
        stage: what the record is called.
        graph: any FX graph; fake values in ``meta["val"]`` (or Dynamo's ``meta["example_value"]``) give dtypes and shapes.
        describe: class and reason of a call.
    """
    index = {node: i for i, node in enumerate(graph.nodes)}
    nodes = []
    for node in graph.nodes:
        kind = {"placeholder": "placeholder", "get_attr": "get_attr", "output": "output"}.get(node.op, "call")
        value = value_text(node.meta.get("val", node.meta.get("example_value")))
        op_class, reason = describe(node) if describe is not None and kind == "call" else ("", "")
        arguments = () if kind in ("placeholder", "get_attr") else _arguments(node, index)
        op = target_text(node) if kind == "call" else kind
        nodes.append(NodeRecord(node.name, kind, op, arguments, value, op_class, reason, source_text(node), module_path(node)))
    return GraphRecord(stage, tuple(nodes))


def target_text(node: Node) -> str:
    """What a node calls: "aten.mm.default", "torch.nn.functional.relu", ".view", "module layers.0"."""
    target = node.target
    if isinstance(target, str):
        return f".{target}" if node.op == "call_method" else f"module {target}"
    if isinstance(target, torch._ops.OperatorBase):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", str(target))
    return name if module in ("", "_operator", "builtins", "math") else f"{module.removeprefix('_')}.{name}"


def value_text(value: Any) -> str:
    """ "float32[8, 16]" for a tensor, the elements in parentheses for several results, the expression for a size."""
    if value is None:
        return ""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(value_text(item) or 'None' for item in value)})"
    return str(value)


def _arguments(node: Node, index: dict[Node, int]) -> tuple[str | int, ...]:
    pieces: list[str | int] = []
    named: list[tuple[str, Any]] = [("", value) for value in node.args] + [(f"{name}=", value) for name, value in node.kwargs.items()]
    for i, (name, value) in enumerate(named):
        pieces += [", "] * (i > 0) + [name] * (name != "") + _pieces(value, index)
    merged: list[str | int] = []
    for piece in pieces:
        if merged and isinstance(merged[-1], str) and isinstance(piece, str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return tuple(merged)


def _pieces(value: Any, index: dict[Node, int]) -> list[str | int]:
    """The text of one argument, nodes inside it by their index."""
    if isinstance(value, Node):
        return [index[value]]
    if isinstance(value, slice):
        return _pieces([value.start, value.stop, value.step], index)
    if isinstance(value, (tuple, list, dict)):
        keys, values = (list(value), list(value.values())) if isinstance(value, dict) else (None, list(value))
        result: list[str | int] = ["{" if keys is not None else "["]
        for i, item in enumerate(values):
            result += [", "] * (i > 0) + ([f"{keys[i]!r}: "] if keys is not None else []) + _pieces(item, index)
        return [*result, "}" if keys is not None else "]"]
    if isinstance(value, torch._ops.OperatorBase):
        return [str(value)]
    # Addresses would make two equal graphs differ.
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(value))]


def source_text(node: Node) -> str:
    """The innermost line of the user's code behind a node, "" when torch recorded none."""
    from bi_inductor.passes.classify import source_line

    return source_line(node) if node.meta.get("stack_trace") else ""


def module_path(node: Node) -> str:
    """ "layers.0.mlp": the path of the innermost module that the node comes from, "" outside of every one."""
    stack = node.meta.get("nn_module_stack")
    if node.op == "placeholder" or not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    # Dynamo begins it with the variable that holds the model: L['self'].layers.0.
    return re.sub(r"^[LG]\['[^']*'\]\.?", "", path)
