"""Finds where compiled variants part: compiles the graph up to a node, compares what is alive there, and narrows the place down.

A compiled graph has no nodes to look at, so each question is a compile. Positions after ops that are not pointwise are tried first, from
the front in growing steps and then by halves: the parts that are compiled stay small when the difference starts early.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph

from ..settings import compiled, thread_count
from .capture import Captured
from .execution import Execution, compare, layout_of, replace_rows, steps
from .nodes import is_view
from .result import Measured
from .variants import Samples, Setting

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from .batch_of_one import OtherWay

# Called with what comes next, how many steps are done, and how many there are where that is known.
Progress = Callable[[str, int, int | None], None]
# A growing step multiplies the position by this.
_GROWTH = 4
# After the first difference, how many later nodes are measured.
LANDMARKS = 24


def part(captured: Captured, nodes: Sequence[Node], outputs: Sequence[Node]) -> tuple[GraphModule, list[Node]]:
    """A graph of ``nodes`` that returns ``outputs``, and the nodes whose values it takes as inputs."""
    inside = set(nodes)
    inputs = list(dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside))
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in list(inputs):
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
            inputs.remove(node)
        else:
            copies[node] = graph.placeholder(node.name)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return torch.fx.GraphModule(captured.module, graph), inputs


@dataclass
class Runs:
    """What a graph gave in several variants.

    Attributes:
        outputs: the outputs of each.
        kernels: the last kernel of each, "" where the backend does not tell.
        compiles: how many graphs were compiled.
    """

    outputs: list[tuple[Any, ...]]
    kernels: list[str]
    compiles: int


def run_variants(
    module: GraphModule, arguments: Sequence[Sequence[Any]], settings: Sequence[Setting], options: Mapping[str, Any] | None
) -> Runs:
    """Runs a graph under the backend of each variant; variants of one shape share a fresh compile."""
    outputs: dict[int, tuple[Any, ...]] = {}
    kernels: dict[int, str] = {}
    groups: dict[Any, list[int]] = {}
    for index, setting in enumerate(settings):
        groups.setdefault((setting.extent[:2], setting.threads, setting.dynamic, setting.backend), []).append(index)
    for members in groups.values():
        setting = settings[members[0]]
        with torch.no_grad(), thread_count(setting.threads), compiled(module, setting.backend, setting.dynamic, options, 1) as call:
            for index in members:
                # Random numbers are the same ones in every run.
                torch.manual_seed(torch.initial_seed())
                outputs[index], kernels[index] = _run(call, arguments[index], setting)
                kernels[index] = kernels[index] or kernels[members[0]]
    in_order = range(len(settings))
    return Runs([outputs[i] for i in in_order], [kernels[i] for i in in_order], sum(not settings[m[0]].eager for m in groups.values()))


def _run(call: Callable[..., Any], arguments: Sequence[Any], setting: Setting) -> tuple[tuple[Any, ...], str]:
    """The outputs, and the last kernel if the call compiled one."""
    if setting.eager:
        return call(*arguments), ""
    from torch._inductor.utils import run_and_get_code

    outputs, sources = run_and_get_code(call, *arguments)
    kernels = [kernel for source in sources for kernel in _kernels(source)]
    return outputs, kernels[-1] if kernels else ""


def _kernels(source: str) -> list[str]:
    """The kernels that a wrapper of Inductor's calls, in order."""
    body = source[source.rfind("def call(") :] if "def call(" in source else ""
    return re.findall(r"\b((?:cpp|triton)_[a-z]+_\w+|extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\(", body)


def run_nodes(
    captured: Captured,
    samples: Samples,
    settings: Sequence[Setting],
    nodes: Sequence[Node],
    outputs: Sequence[Node],
    options: Mapping[str, Any] | None,
) -> Runs:
    """`run_variants` of the graph of ``nodes``, which needs nothing but the model's inputs and parameters."""
    module, inputs = part(captured, nodes, outputs)
    executions = [Execution(captured, samples, setting) for setting in settings]
    return run_variants(module, [[execution.values[node] for node in inputs] for execution in executions], settings, options)


def run_outputs(
    captured: Captured,
    samples: Samples,
    settings: Sequence[Setting],
    outputs: Sequence[Node],
    options: Mapping[str, Any] | None,
    way: OtherWay | None,
) -> Runs:
    """`run_variants` of the whole graph; variants of one sample run the graph of ``way``, an output that it lacks is None for them."""
    others = [index for index, setting in enumerate(settings) if way is None or setting.extent.batch > 1]
    runs = run_nodes(captured, samples, [settings[index] for index in others], captured.kept, outputs, options)
    if way is None or len(others) == len(settings):
        return runs
    alone = [index for index in range(len(settings)) if index not in others]
    own = dict(way.outputs(captured))
    single = run_nodes(way.single, samples, [settings[index] for index in alone], way.single.kept, list(own.values()), options)
    found: dict[int, tuple[Any, ...]] = dict(zip(others, runs.outputs, strict=True))
    for index, values in zip(alone, single.outputs, strict=True):
        by_node = dict(zip(own, values, strict=True))
        found[index] = tuple(by_node.get(node) for node in outputs)
    return Runs([found[index] for index in range(len(settings))], [""] * len(settings), runs.compiles + single.compiles)


def differences(
    captured: Captured, outputs: Sequence[Node], settings: Sequence[Setting], values: Sequence[tuple[Any, ...]], padded: bool
) -> dict[Node, Measured]:
    """The outputs whose shared rows differ between two variants."""
    found = {}
    for index, node in enumerate(outputs):
        layout = layout_of(captured, node, padded)
        pairs = [(value[index], setting) for value, setting in zip(values, settings, strict=True)]
        known = layout is not None and all(isinstance(value, torch.Tensor) for value, _ in pairs)
        if known and layout is not None and (measured := compare(layout, pairs[0], pairs[1])) is not None:
            found[node] = measured
    return found


@dataclass
class Parting:
    """Where compiled variants part.

    Attributes:
        node: the first node whose value differs when the graph is compiled up to it.
        measured: how far that value is apart.
        kernels: the kernel that writes it in the reference and in the other variant, where the backend tells.
        alone: whether the op still differs when it is compiled alone, on the same rows.
        eager: whether it differs in eager, on the same rows.
        landmarks: later nodes and how far they are apart; None for the same bits.
        compiles: how many graphs were compiled for it.
    """

    node: Node
    measured: Measured
    kernels: tuple[str, str]
    alone: bool
    eager: bool
    landmarks: list[tuple[Node, Measured | None]] = field(default_factory=list)
    compiles: int = 0

    @property
    def cause(self) -> str:
        """In a sentence, whether the op or the kernel it was fused into is to blame."""
        if self.alone:
            return "the op itself: compiled alone, on the same rows, it gives other bits" + (
                "; in eager too" if self.eager else "; not in eager"
            )
        return "the kernel it was fused into: compiled alone, on the same rows, it gives the same bits" + (
            "; in eager it does not" if self.eager else ", in eager too"
        )


class CompiledPair:
    """Two variants of which at least one is compiled.

    Args:
        captured: the model.
        samples: its inputs.
        reference, other: the variants.
        options: of the backend.
        padded: whether the variants have other lengths.
        end: the node from which on the other variant runs another graph; only what is before it is compared.
        tell: called before each question with what it compiles and how many graphs were compiled.
    """

    def __init__(
        self,
        captured: Captured,
        samples: Samples,
        reference: Setting,
        other: Setting,
        options: Mapping[str, Any] | None,
        padded: bool,
        end: Node | None = None,
        tell: Progress | None = None,
    ) -> None:
        self.captured = captured
        self.samples = samples
        self.reference = reference
        self.other = other
        self.options = options
        self.padded = padded
        before = set(steps(captured, end))
        self.units = [unit for unit in _units(captured) if before.issuperset(unit)]
        self.compiles = 0
        self.tell = tell
        self.answers: dict[Any, tuple[dict[Node, Measured], tuple[str, str]]] = {}

    def compare_outputs(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> tuple[dict[Node, Measured], tuple[str, str]]:
        """Compiles ``nodes`` for both variants; the outputs that differ, and the last kernel of each."""
        asked = (tuple(nodes), tuple(outputs))
        if asked not in self.answers:
            settings = (self.reference, self.other)
            if self.tell is not None:
                self.tell(f"compile up to {nodes[-1].name}", self.compiles, None)
            runs = run_nodes(self.captured, self.samples, settings, nodes, outputs, self.options)
            self.compiles += runs.compiles
            differing = differences(self.captured, outputs, settings, runs.outputs, self.padded)
            self.answers[asked] = differing, (runs.kernels[0], runs.kernels[1])
        return self.answers[asked]

    def up_to(self, position: int) -> dict[Node, Measured]:
        """What differs among the values that are alive after a unit, when the graph ends there."""
        nodes = [node for unit in self.units[: position + 1] for node in unit]
        inside = set(nodes)
        alive = [node for node in nodes if node in self.units[position] or any(user not in inside for user in node.users)]
        outputs = [node for node in alive if isinstance(node.meta.get("val"), torch.Tensor)]
        return self.compare_outputs(nodes, outputs)[0] if outputs else {}

    @property
    def whole(self) -> list[Node]:
        """All nodes."""
        return [node for unit in self.units for node in unit]

    def at_end(self) -> dict[Node, Measured]:
        """What differs after the last unit."""
        return self.up_to(len(self.units) - 1) if self.units else {}

    def find(self, at_end: dict[Node, Measured]) -> Parting:
        """The first node at which the variants part, when their outputs ``at_end`` do."""
        # What is no pointwise op is suspected first: most often a few questions tell which one, and that nothing parts before it.
        suspects = [index for index, unit in enumerate(self.units[:-1]) if not all(_is_harmless(node) for node in unit)]
        same, differs, found = self.narrow(suspects, -1, len(self.units) - 1)
        if differs - same > 1 and not self.up_to(differs - 1):
            same = differs - 1
        same, differs, earlier = self.narrow(range(same + 1, differs), same, differs)
        found = earlier or found
        found = found or self.up_to(differs) or at_end
        node = next((node for node in self.units[differs] if node in found), next(iter(found)))
        # The value as the only output of its graph: the last kernel is the one that writes it.
        only, kernels = self.compare_outputs(self.needed_for(node), [node])
        parting = Parting(node, only.get(node, found[node]), kernels, *self.alone(node))
        parting.landmarks = self.landmarks(differs)
        parting.compiles = self.compiles
        return parting

    def narrow(self, positions: Sequence[int], same: int, differs: int) -> tuple[int, int, dict[Node, Measured]]:
        """The last of ``positions`` without a difference, the first with one, and what differs there.

        Without such a position ``same`` or ``differs`` takes its place, the positions before and after them all.
        """
        low, high, step = -1, len(positions), _GROWTH
        found: dict[Node, Measured] = {}
        while high - low > 1:
            middle = low + step if step and low + step < (low + high) // 2 else (low + high) // 2
            if here := self.up_to(positions[middle]):
                high, found, step = middle, here, 0
            else:
                low, step = middle, step * _GROWTH
        return positions[low] if low >= 0 else same, positions[high] if high < len(positions) else differs, found

    def needed_for(self, node: Node) -> list[Node]:
        """The nodes that ``node`` depends on, and itself, in order."""
        needed = {node}
        nodes = self.whole
        for inner in reversed(nodes[: nodes.index(node) + 1]):
            if inner in needed:
                needed.update(inner.all_input_nodes)
        return [inner for inner in nodes if inner in needed]

    def alone(self, node: Node) -> tuple[bool, bool]:
        """Whether the op of ``node`` differs by itself on the same rows: compiled, and in eager."""
        producer: Any = node.args[0] if node.target is operator.getitem else node
        nodes = [producer] if producer is node else [producer, node]
        return self.differs_on_same_rows(nodes, node, compile=True), self.differs_on_same_rows(nodes, node, compile=False)

    def differs_on_same_rows(self, nodes: Sequence[Node], output: Node, compile: bool) -> bool:
        """Whether ``output`` differs when only ``nodes`` are run, on operands with the same rows."""
        module, inputs = part(self.captured, nodes, [output])
        settings = (self.reference, self.other)
        under = settings if compile else tuple(dataclasses.replace(setting, backend="eager") for setting in settings)
        runs = run_variants(module, self.arguments(inputs), under, self.options)
        self.compiles += runs.compiles
        return bool(differences(self.captured, [output], settings, runs.outputs, self.padded))

    def arguments(self, inputs: Sequence[Node]) -> tuple[list[Any], list[Any]]:
        """Eager values of ``inputs`` in both variants, with the reference's rows in both."""
        wanted = set(inputs)
        left, right = (Execution(self.captured, self.samples, setting) for setting in (self.reference, self.other))
        found: dict[Node, tuple[Any, Any]] = {node: (left.values[node], right.values[node]) for node in inputs if node.op == "placeholder"}
        with torch.no_grad():
            for node in steps(self.captured):
                if len(found) == len(wanted):
                    break
                left.step(node)
                right.step(node)
                if node in wanted:
                    found[node] = (left.values[node], replace_rows(self.captured, node, left, right))
                left.release(node)
                right.release(node)
        return [found[node][0] for node in inputs], [found[node][1] for node in inputs]

    def landmarks(self, first: int) -> list[tuple[Node, Measured | None]]:
        """Later nodes, evenly spaced up to the outputs, and how far they are apart when their values are stored too."""
        compared = [node for unit in self.units[first:] for node in unit if layout_of(self.captured, node, self.padded) is not None]
        later = [node for node in compared if node.target is operator.getitem or not is_view(node)]
        if len(later) > LANDMARKS:
            later = [later[index * (len(later) - 1) // (LANDMARKS - 1)] for index in range(LANDMARKS)]
        chosen = [*later, *(node for node in self.captured.outputs if node in compared and node not in later)]
        differing, _ = self.compare_outputs(self.whole, chosen)
        return [(node, differing.get(node)) for node in chosen]


def _is_harmless(node: Node) -> bool:
    """Whether an element of the result follows from single elements of the operands, in whatever batch."""
    return is_view(node) or (isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags)


def _units(captured: Captured) -> list[list[Node]]:
    """The nodes that the outputs need, in order; an op of several results together with its results."""
    units: list[list[Node]] = []
    unit_of: dict[Node, list[Node]] = {}
    for node in captured.kept:
        if node.target is operator.getitem and node.args[0] in unit_of:
            unit = unit_of[node.args[0]]  # type: ignore[index]  # checked in the line above
            unit.append(node)
        else:
            unit = [node]
            units.append(unit)
        unit_of[node] = unit
    return units
