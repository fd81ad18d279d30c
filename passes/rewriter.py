"""How a rule rewrites a node, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node

aten = torch.ops.aten

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}

# What a replacement inherits, so that errors and debuggers still find the user's line.
INHERITED_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node", "seq_nr", "custom")


def values_of(node: Node) -> list[Any]:
    """The fake values that a call reads and gives, those of several results one by one."""
    flat: list[Any] = []
    for value in [n.meta.get("val") for n in node.all_input_nodes] + [node.meta.get("val")]:
        flat.extend(value if isinstance(value, (tuple, list)) else [value])
    return flat


class Rewriter:
    """Emits nodes before the node being replaced, with their fake values."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.graph: Graph = node.graph
        self.emitted: list[Node] = []
        self.fake_mode = detect_fake_mode([n.meta.get("val") for n in node.all_input_nodes] + [node.meta.get("val")])

    def emit(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        """Adds ``op(*args, **kwargs)`` to the graph."""
        assert self.fake_mode is not None, f"{self.node.format_node()} has no fake value"
        with self.graph.inserting_before(self.node), self.fake_mode:
            new = self.graph.call_function(op, args, kwargs)
            values, named = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
            new.meta["val"] = op(*values, **named)
        new.meta.update({key: self.node.meta[key] for key in INHERITED_META if key in self.node.meta})
        self.emitted.append(new)
        return new

    def cast(self, x: Any, dtype: torch.dtype | None) -> Any:
        """``x`` in ``dtype``; as it is when that is None or its own."""
        if x is None or dtype is None or x.meta["val"].dtype == dtype:
            return x
        return self.emit(torch.ops.prims.convert_element_type.default, x, dtype)

    def size(self, x: Node, dim: int) -> Any:
        """The size of ``x`` along ``dim``: a number, or a node where it is symbolic."""
        size = x.meta["val"].shape[dim]
        return size if isinstance(size, int) else self.emit(aten.sym_size.int, x, dim)

    def sizes(self, x: Node) -> list[Any]:
        """The sizes of ``x``, each as ``size`` gives it."""
        return [self.size(x, dim) for dim in range(x.meta["val"].dim())]


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers the rewriting of ``targets``: ops, or "namespace::name" of one that another package may define.

    It returns the replacement (a node, or a tuple of nodes for an op of several results) or None to leave the node.
    """

    def register(function: Rule) -> Rule:
        for target in targets:
            RULES[target] = function
        return function

    return register


def rule_of(target: Any) -> Rule | None:
    """The rewriting registered for ``target``, if any."""
    if isinstance(target, torch._ops.OpOverload):
        return RULES.get(target) or RULES.get(target.name())
    return RULES.get(target)
