"""The classification pass: every node gets one class, and nothing that may vary with the batch passes unseen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

import bi_inductor.passes.rewrite  # noqa: F401  # registers the rules
from bi_inductor.errors import FallbackWarning, OpaqueOpError, OpaqueOpWarning, RandomOpWarning, SampleMixingError, UnsupportedOpError
from bi_inductor.options import Options
from bi_inductor.passes.op_classes import ONE_SAMPLE, OpClass, classify, op_name, why_unsupported
from bi_inductor.passes.op_tables.exact import COUNTS
from bi_inductor.passes.op_tables.movement import OVERWRITES
from bi_inductor.passes.op_tables.random import SEEDS
from bi_inductor.passes.op_tables.unsupported import UNSUPPORTED
from bi_inductor.passes.rewriter import rule_of, values_of

# Namespaces of vLLM's own kernels. A server that runs them has lost what makes its answers invariant, and nobody reads its warnings.
OF_VLLM = ("vllm", "vllm_ir", "_C", "_C_cache_ops", "_moe_C")
TORCH_FOLDER = os.path.join(os.path.dirname(torch.__file__), "")


def class_of(node: Node) -> OpClass | None:
    """The class of a node; None for inputs, outputs and attributes."""
    if node.op != "call_function":
        return None
    op = called_op(node)
    if op_name(op) in OVERWRITES:
        accumulates = bool(node.args[3]) if len(node.args) > 3 else bool(node.kwargs.get("accumulate"))
        if not accumulates:
            return OpClass.MOVEMENT
    if op_name(op) in COUNTS:
        return OpClass.UNSUPPORTED if _is_weighted(node, op) else OpClass.EXACT
    return classify(op, values_of(node), rule_of(op) is not None)


def _is_weighted(node: Node, op: torch._ops.OpOverload) -> bool:
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return given.get("weight") is not None or given.get("weights") is not None


def called_op(node: Node) -> Any:
    """The op that a node calls; inside torch's wrappers of ops that mutate arguments or have side effects, the op they wrap."""
    wrapper = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
    position = {"auto_functionalized": 0, "auto_functionalized_v2": 0, "with_effects": 1}.get(wrapper)
    return node.target if position is None else node.args[position]


def classify_graph(graph: Graph, options: Options) -> dict[Node, OpClass]:
    """The class of every call in the graph.

    Raises:
        UnsupportedOpError: ops without a template that may vary, all of them in one message.
        OpaqueOpError: a custom op under ``strict``, one of vLLM's own in any case.

    Warns:
        OpaqueOpWarning: a custom op otherwise, once for each source line.
        FallbackWarning: an op that runs one sample at a time, once for each op and source line.
        RandomOpWarning: an op that draws random numbers, once for each source line; under ``strict`` SampleMixingError is raised.
    """
    classes = classes_of(graph)
    require_allowed(classes, options)
    return classes


def classes_of(graph: Graph) -> dict[Node, OpClass]:
    """The class of every call in the graph, whatever the options let through."""
    return {node: op_class for node in graph.nodes if (op_class := class_of(node)) is not None}


def require_allowed(classes: Mapping[Node, OpClass], options: Options) -> int:
    """Raises and warns as ``classify_graph`` says. Returns the number of warnings."""
    require_supported([node for node, op_class in classes.items() if op_class is OpClass.UNSUPPORTED], options)
    warned = 0
    for node, op_class in classes.items():
        if op_class is OpClass.OPAQUE and op_name(called_op(node)) not in options.allow:
            message = f"the numerics of this custom op are unknown to bi_inductor, it is called as it is:\n{describe(node)}"
            if op_name(called_op(node)).partition(".")[0] in OF_VLLM:
                raise OpaqueOpError(
                    f"{message}\nvLLM runs a kernel of its own in this graph. Allowed is what bi_inductor.vllm_config() gives, with the "
                    "plugin batch_invariant loaded (VLLM_PLUGINS, if it is set, has to name it)."
                )
            if options.strict:
                raise OpaqueOpError(f"{message}\nName it in options={{'allow': ({op_name(called_op(node))!r},)}} if it is batch-invariant.")
            warnings.warn(message, OpaqueOpWarning, stacklevel=2)
            warned += 1
    warned += warn_of_random_ops([node for node, op_class in classes.items() if op_class is OpClass.RANDOM], options)
    return warned + warn_of_fallbacks([node for node, op_class in classes.items() if op_class is OpClass.ONE_SAMPLE], options)


def require_no_python(classes: Mapping[Node, OpClass]) -> None:
    """Raises UnsupportedOpError naming the ops that run one sample at a time, which Python does."""
    found = [node for node, op_class in classes.items() if op_class is OpClass.ONE_SAMPLE]
    if found:
        raise UnsupportedOpError(
            "these ops run torch's kernel on one sample at a time, from Python; a package of AOTInductor has none:\n"
            + "\n".join(describe(node) for node in found)
            + "\nLeave them out of the exported program, or run the model through torch.compile."
        )


def warn_of_fallbacks(nodes: list[Node], options: Options) -> int:
    """One FallbackWarning for each op and source line that ``allow`` does not name. Returns their number."""
    running = [node for node in nodes if op_name(called_op(node)) not in options.allow]
    places = {(op_name(called_op(node)), source_line(node)): node for node in reversed(running)}
    for (name, _), node in reversed(places.items()):
        warnings.warn(
            "this op has no template; torch's kernel runs on one sample at a time and on one thread, so a batch takes as long as its "
            f"samples one after the other:\n{describe(node)}\nName it in options={{'allow': ({name!r},)}} to silence this warning.",
            FallbackWarning,
            stacklevel=3,
        )
    return len(places)


def warn_of_random_ops(nodes: list[Node], options: Options) -> int:
    """One RandomOpWarning for each source line where numbers are drawn and that ``allow`` does not silence. Returns their number."""
    drawing = [node for node in nodes if (name := op_name(called_op(node))) not in SEEDS and name not in options.allow]
    places = {source_line(node): node for node in reversed(drawing)}
    for node in reversed(places.values()):
        name = op_name(called_op(node))
        message = (
            "this op draws random numbers by the place of an element, so a sample's numbers move with its place in the batch:\n"
            f"{describe(node)}\nbi_inductor.random draws by a seed for each sample; options={{'allow': ({name!r},)}} lets this one through."
        )
        if options.strict:
            raise SampleMixingError(message)
        warnings.warn(message, RandomOpWarning, stacklevel=3)
    return len(places)


def require_supported(unsupported: list[Node], options: Options) -> None:
    """Raises UnsupportedOpError naming every one of the nodes that ``allow`` does not let through."""
    refused = refused_nodes(unsupported, options)
    if refused:
        raise UnsupportedOpError(
            "these ops may give a sample other bits in another batch, and have no batch-invariant template:\n"
            + "\n".join(_with_reason(node) for node in refused)
            + "\nRewrite them, keep them out of the compiled region (torch.compiler.disable), or let them through as they are with "
            f"options={{'allow': {tuple(sorted({op_name(called_op(node)) for node in refused}))}}} (their results may then vary)."
        )


def _with_reason(node: Node) -> str:
    """The node, and under it why the table calls its op unsupported, where it names it."""
    name = op_name(called_op(node))
    named = name in ONE_SAMPLE or any(name in members for members in UNSUPPORTED.values())
    return f"{describe(node)}\n    {why_unsupported(name)}" if named else describe(node)


def refused_nodes(unsupported: Sequence[Node], options: Options) -> list[Node]:
    """Those of the nodes that ``allow`` does not let through."""
    return [node for node in unsupported if op_name(called_op(node)) not in options.allow]


def describe(node: Node) -> str:
    """Op, shapes and the user's source line, as one line of a message."""
    shapes = ", ".join(_shape(n.meta.get("val")) for n in node.all_input_nodes)
    return f"  {op_name(called_op(node))}({shapes}) at {source_line(node)}"


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__ if isinstance(value, (tuple, list)) else str(value)


def source_line(node: Node) -> str:
    """The innermost line of the user's code that led to the node: torch's own files are passed over where others are recorded."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return "an unknown source line"
    lines = [line.strip() for line in str(trace).strip().splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not places:
        return lines[-1]
    of_user = [i for i in places if not lines[i].startswith(f'File "{TORCH_FOLDER}')]
    last = (of_user or places)[-1]
    code = lines[last + 1] if last + 1 < len(lines) else ""
    return f"{lines[last].removeprefix('File ')}: {code}"
