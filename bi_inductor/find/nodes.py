"""Facts about the nodes of a captured graph: what they write to, what their values follow, how long these live."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Node


def written_arguments(node: Node) -> list[Any]:
    """The arguments that the node's op writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    found: list[Any] = []
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            found += value if isinstance(value, (tuple, list)) else [value]
    return found


def is_view(node: Node) -> bool:
    """Whether the value shares its bits with its first operand, or is one of several results."""
    if node.target is operator.getitem:
        return True
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else []
    return any(value.alias_info is not None for value in returns)


def nodes_of_samples(graph: torch.fx.Graph, batched: set[str]) -> set[Node]:
    found: set[Node] = set()
    for node in graph.nodes:
        reads = node.name in batched if node.op == "placeholder" else any(source in found for source in node.all_input_nodes)
        # A size is no value of a sample.
        if reads and not isinstance(node.meta.get("val"), (int, torch.SymInt)):
            found.add(node)
    return found


def last_uses(graph: torch.fx.Graph) -> dict[Node, list[Node]]:
    uses: dict[Node, list[Node]] = {}
    seen = set()
    for node in reversed(graph.nodes):
        uses[node] = [source for source in node.all_input_nodes if source not in seen]
        if node not in seen and node.op != "output":
            # A result that nobody reads.
            uses[node].append(node)
        seen.update(node.all_input_nodes)
    return uses


def kept_nodes(graph: torch.fx.Graph) -> list[Node]:
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in needed or node.op == "output" or written_arguments(node):
            needed.update({node, *node.all_input_nodes})
    return [node for node in graph.nodes if node in needed and node.op == "call_function"]
