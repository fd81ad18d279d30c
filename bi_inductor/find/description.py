"""What `find` says of a node: its place, its operands, why its bits differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from bi_inductor.passes.layout import BATCH, Layout

from .capture import Captured
from .execution import Step, producer_of
from .result import FoundNode, Measured, Operand, TableRow
from .variants import Setting

if TYPE_CHECKING:
    from torch.fx import Node


class Description:
    """Describes the nodes of a captured graph that was run in several ways, the first of which is the reference."""

    def __init__(self, captured: Captured, settings: Sequence[Setting]) -> None:
        self.captured = captured
        self.settings = settings
        self.order = {node: index for index, node in enumerate(captured.nodes)}

    def node(
        self,
        node: Node,
        measured: Measured,
        setting: Setting,
        kernels: tuple[str, ...],
        cause: str,
        others: Mapping[Node, str] | None = None,
    ) -> FoundNode:
        """The report on a node; ``others``: what its values are in ``setting``, where the sizes of the graph do not tell."""
        others = others or {}
        from ..passes.classify import source_line

        call = producer_of(node)
        return FoundNode(
            name=name_of(node),
            position=1 + self.order[call],
            nodes=len(self.order),
            op=str(call.target),
            module=module_of(call),
            line=source_line(call),
            operands=tuple(self.operand(source, setting, others) for source in call.all_input_nodes if source.op != "get_attr"),
            output=self.operand(node, setting, others),
            kernels=kernels,
            cause=cause,
            **dataclasses.asdict(measured),
        )

    def eager_cause(self, step: Step) -> str:
        """One sentence."""
        if not step.repeatable:
            return "the op gives other bits each time it is called: it is random or not deterministic, so this is not due to the batch"
        by_meaning = "so no kernel can make it independent of the batch"
        layouts = [self.captured.layouts[node] for node in (step.node, *producer_of(step.node).all_input_nodes)]
        batches = [layout.batches if isinstance(layout, Layout) else 0 for layout in layouts]
        if not batches[0] and any(batches[1:]):
            return f"the op mixes samples by its meaning: its result has no batch dim, {by_meaning}"
        if self.works_along_the_batch(producer_of(step.node)):
            return f"the op mixes samples by its meaning: it works along the dim that holds them, {by_meaning}"
        if step.moved:
            names = ", ".join(name_of(node) for node in step.moved)
            if any(setting.positions is not None for setting in self.settings):
                return f"{names} counts positions from the start of each chunk; give the positions as an input"
            return f"{names} counts positions from the start of the padding, so a sample's positions move with it; make them from the mask"
        if step.by_itself:
            return "the op itself: on the same rows it gives other bits"
        return "its operands have the same bits where they can be compared; samples cannot be told apart in the others"

    def works_along_the_batch(self, call: Node) -> bool:
        """Whether the op's ``dim``, as that of a sort or a running sum, holds the samples of its first operand."""
        source = call.args[0] if call.args else None
        layout = self.captured.layouts.get(source) if isinstance(source, torch.fx.Node) else None
        if not isinstance(layout, Layout) or not isinstance(call.target, torch._ops.OpOverload):
            return False
        for index, argument in enumerate(call.target._schema.arguments):
            if argument.name == "dim":
                dim = call.args[index] if index < len(call.args) else call.kwargs.get("dim", argument.default_value)
                return isinstance(dim, int) and -len(layout.dims) <= dim < len(layout.dims) and BATCH in layout.dims[dim]
        return False

    def row(self, node: Node, measured: Measured | None, effect: str) -> TableRow:
        from ..passes.classify import source_line

        call = producer_of(node)
        count = measured.elements_different if measured else 0
        is_output = node in self.captured.outputs
        position = 1 + self.order[call]
        return TableRow(
            name_of(node), str(call.target), module_of(call), source_line(call), ulp_of(measured), count, effect, is_output, position
        )

    def operand(self, node: Node, setting: Setting, others: Mapping[Node, str]) -> Operand:
        """A value's dtype, shape and strides in the reference and in ``setting``."""
        texts = []
        for extent in (self.settings[0].extent, setting.extent):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                shape, strides = (
                    [self.captured.symbols.number(size, extent.batch, extent.length) for size in sizes]
                    for sizes in (value.shape, value.stride())
                )
                texts.append(f"{str(value.dtype).removeprefix('torch.')}{shape} strides {tuple(strides)}")
            elif isinstance(value, (tuple, list)):
                texts.append(f"{len(value)} tensors")
            else:
                texts.append(str(self.captured.symbols.number(value, extent.batch, extent.length)))
        return Operand(name_of(node), texts[0], others.get(node, texts[1]))


def name_of(node: Node) -> str:
    """The node's name; "split[1]" for one of several results."""
    producer = producer_of(node)
    return producer.name if producer is node else f"{producer.name}[{node.args[1]}]"


def module_of(node: Node) -> str:
    """Path and class of the nearest module, "" for a function."""
    stack = [entry for entry in node.meta.get("nn_module_stack", {}).values() if not str(entry[0]).startswith("_empty")]
    if not stack:
        return ""
    kinds = [(kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2] for _, kind in stack]
    path = str(stack[-1][0])
    if kinds[0] in ("_Function", "_InChunks"):
        # The capture wrapped the user's function or module.
        path = path.removeprefix("function").removeprefix(".")
        kinds[0] = ""
    return f"{path} ({kinds[-1]})" if path else kinds[-1]


def ulp_of(measured: Measured | None) -> float | None:
    return None if measured is None else measured.max_ulp
