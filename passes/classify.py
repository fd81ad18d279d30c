"""The classification pass: every node gets one class, and nothing that may vary with the batch passes unseen."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.fx import Graph, Node

from bi_inductor.errors import OpaqueOpError, OpaqueOpWarning, UnsupportedOpError
from bi_inductor.options import Options
from bi_inductor.passes.op_classes import OpClass, classify, op_name
from bi_inductor.passes.rewrite import RULES


def class_of(node: Node) -> OpClass | None:
    """The class of a node; None for inputs, outputs and attributes."""
    if node.op != "call_function":
        return None
    flat: list[Any] = []
    for value in [n.meta.get("val") for n in node.all_input_nodes] + [node.meta.get("val")]:
        flat.extend(value if isinstance(value, (tuple, list)) else [value])
    return classify(node.target, flat, node.target in RULES)


def classify_graph(graph: Graph, options: Options) -> dict[Node, OpClass]:
    """The class of every call in the graph.

    Raises:
        UnsupportedOpError: ops without a template that may vary, all of them in one message.
        OpaqueOpError: a custom op under ``strict``.

    Warns:
        OpaqueOpWarning: a custom op otherwise, once for each source line.
    """
    classes = {node: op_class for node in graph.nodes if (op_class := class_of(node)) is not None}
    unsupported = [n for n, c in classes.items() if c is OpClass.UNSUPPORTED and op_name(n.target) not in options.allow]
    if unsupported:
        raise UnsupportedOpError(
            "these ops may give a sample other bits in another batch, and have no batch-invariant template:\n"
            + "\n".join(describe(node) for node in unsupported)
            + "\nRewrite them, keep them out of the compiled region (torch.compiler.disable), or let them through as they are with "
            f"options={{'allow': {tuple(sorted({op_name(node.target) for node in unsupported}))}}} (their results may then vary)."
        )
    for node, op_class in classes.items():
        if op_class is OpClass.OPAQUE and op_name(node.target) not in options.allow:
            message = f"the numerics of this custom op are unknown to bi_inductor, it is called as it is:\n{describe(node)}"
            if options.strict:
                raise OpaqueOpError(f"{message}\nName it in options={{'allow': ({op_name(node.target)!r},)}} if it is batch-invariant.")
            warnings.warn(message, OpaqueOpWarning, stacklevel=2)
    return classes


def describe(node: Node) -> str:
    """Op, shapes and the user's source line, as one line of a message."""
    shapes = ", ".join(_shape(n.meta.get("val")) for n in node.all_input_nodes)
    return f"  {op_name(node.target)}({shapes}) at {source_line(node)}"


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__ if isinstance(value, (tuple, list)) else str(value)


def source_line(node: Node) -> str:
    """The innermost line of the user's code that led to the node, "unknown" when torch recorded none."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return "an unknown source line"
    lines = [line.strip() for line in str(trace).strip().splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not places:
        return lines[-1]
    last = places[-1]
    code = lines[last + 1] if last + 1 < len(lines) else ""
    return f"{lines[last].removeprefix('File ')}: {code}"
