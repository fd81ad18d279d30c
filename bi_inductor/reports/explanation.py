"""What ``bi_inductor.explain`` returns: the graphs of a compile with classes, rewrites, kernels and numerics, as text, JSON and"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bi_inductor.graph_breaks import GraphBreak
from bi_inductor.reports.capture import CapturedGraph
from bi_inductor.reports.numerics import NUMERICS, POINTWISE
from bi_inductor.reports.records import GraphRecord, NodeRecord
from bi_inductor.reports.triton_kernels import GPU_SECTION, TritonKernel, kernel_on

if TYPE_CHECKING:
    from bi_inductor.find.result import FindResult
    from bi_inductor.reports.graph_diff import GraphDiff

# Classes that need the user's attention, in the order of the report.
ATTENTION = ("unsupported", "opaque", "mixes samples", "random")


@dataclasses.dataclass(frozen=True)
class KernelUse:
    """One call of a kernel of the template library.

    Attributes:
        node: name of the node.
        operator: of bi_inductor: "matmul".
        call: its arguments, tensors by dtype and shape.
        kernel: name of the kernel.
        symbol: C symbol of its instantiation, which names the content of its source; "" when the dtype is unknown.
        accumulates_in: the dtype of its sums.
        lanes: "products 16" and the like: number of lanes of each of its sums.
        section: of docs/numerics.md.
        numerics: the definition in a few words.
        source: the user's line.
        configuration: on a GPU, the pinned sizes of its blocks, warps and pipeline stages; "" on the CPU, where nothing is to be chosen.
    """

    node: str
    operator: str
    call: str
    kernel: str
    symbol: str
    accumulates_in: str
    lanes: str
    section: int
    numerics: str
    source: str
    configuration: str = ""


def kernel_uses(record: GraphRecord, target: str = "cpu") -> list[KernelUse]:
    """The kernel calls of a graph, in order; those of a GPU without the calls that it refuses."""
    calls = [node for node in record.nodes if node.op.startswith("bi_inductor.")]
    uses = [_kernel_use(record, node) for node in calls]
    if target == "cpu":
        return uses
    return [_on_gpu(use, found) for use, node in zip(uses, calls, strict=True) if (found := kernel_on(target, record, node)) is not None]


def _on_gpu(use: KernelUse, found: TritonKernel) -> KernelUse:
    """The use with what is another on a GPU."""
    use = dataclasses.replace(use, symbol="", configuration=found.configuration)
    # Where the definition is the CPU's, so are the lanes.
    return dataclasses.replace(use, lanes="", section=GPU_SECTION, numerics=found.quote) if found.quote else use


def _kernel_use(record: GraphRecord, node: NodeRecord) -> KernelUse:
    operator = node.op.split(".")[1]
    first = next((record.nodes[i].value for i in node.inputs if "float" in record.nodes[i].value), "")
    accumulates_in, dtype = "", first.split("[")[0]
    if dtype:
        accumulates_in = "float64" if dtype == "float64" else "float32"
    call = node.text(lambda i: record.nodes[i].value or record.nodes[i].name)
    numerics = NUMERICS.get(operator)
    if numerics is None:
        return KernelUse(node.name, operator, call, "", "", accumulates_in, "", 0, "", node.source)
    lanes = ", ".join(f"{name} {number}" for name, number in numerics.lanes) or ("one chain" if numerics.kernel else "")
    symbol = _symbol(numerics.kernel, dtype) if dtype and numerics.kernel else ""
    return KernelUse(
        node.name, operator, call, numerics.kernel, symbol, accumulates_in, lanes, numerics.section, numerics.quote, node.source
    )


@functools.cache
def _symbol(kernel: str, dtype_name: str) -> str:
    from bi_inductor.templates import register_kernels
    from bi_inductor.templates.library import DTYPES, KERNELS

    register_kernels()
    known = {names.name: dtype for dtype, names in DTYPES.items()}
    return KERNELS[kernel].symbol(known[dtype_name]) if kernel in KERNELS and dtype_name in known else ""


def pins_in_force() -> dict[str, dict[str, Any]]:
    """Every pinned setting of Inductor and AOTAutograd, for CPUs and GPUs alike: its value and the variance that it stops."""
    from bi_inductor.pins import PINS
    from bi_inductor.pointwise import FUNCTORCH_PINS

    pins = {name: {"value": pin.value, "reason": pin.reason} for name, pin in PINS.items()}
    return pins | {f"torch._functorch.config.{name}": {"value": value, "reason": why} for name, (value, why) in FUNCTORCH_PINS.items()}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a function is compiled to.

    Attributes:
        function: its name.
        backend: "batch_invariant" or "inductor".
        torch_version: of the torch that captured it.
        graphs: every graph at every stage.
        breaks: where Dynamo ended a graph, and why.
        target: "cpu", or the GPU whose kernels are meant.
    """

    function: str
    backend: str
    torch_version: str
    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[GraphBreak, ...] = ()
    target: str = "cpu"

    @property
    def refused(self) -> tuple[tuple[CapturedGraph, NodeRecord], ...]:
        """Every node for which a compile raises UnsupportedOpError, with its graph."""
        return tuple((graph, node) for graph in self.graphs for node in graph.refused)

    def nodes(self, op_class: str, stage: str = "captured") -> tuple[tuple[CapturedGraph, NodeRecord], ...]:
        """The nodes of a class ("rewritten", "opaque", ...) with their graphs."""
        return tuple((graph, node) for graph in self.graphs for node in graph.stage(stage).nodes if node.op_class == op_class)

    def kernels(self, graph: CapturedGraph) -> list[KernelUse]:
        """The kernel calls of one of the graphs."""
        return kernel_uses(graph.stages[-1], self.target)

    @property
    def verdict(self) -> str:
        """One line: whether a compile goes through, and what stays outside of the promise."""
        if not self.graphs:
            return "no graph was compiled: Dynamo left all of the function to eager"
        parts = [f"{len(self.graphs)} graph{'s' * (len(self.graphs) != 1)}"]
        if self.breaks:
            parts.append(f"{len(self.breaks)} graph break{'s' * (len(self.breaks) != 1)}")
        if self.backend != "batch_invariant":
            return ", ".join(parts)
        for op_class, said in (("opaque", "opaque"), ("mixes samples", "mixing samples"), ("random", "drawing random numbers")):
            count = len(self.nodes(op_class))
            if count:
                parts.append(f"{count} op{'s' * (count != 1)} {said}")
        count = len(self.refused)
        parts.append(f"a compile raises UnsupportedOpError for {count} op{'s' * (count != 1)}" if count else "every op is supported")
        return ", ".join(parts)

    def graph_diff(self, stage: str) -> GraphDiff:
        """What changed up to ``stage`` since the stage before it, graph by graph. Raises ValueError for a stage that no graph has."""
        from bi_inductor.reports.graph_diff import GraphDiff, compare

        sections = []
        for graph in self.graphs:
            names = [record.stage for record in graph.stages]
            if stage in names[1:]:
                at = names.index(stage)
                sections.append(compare(graph.stages[at - 1], graph.stages[at], f"{graph.name}: {names[at - 1]} to {stage}"))
        if not sections:
            known = list(dict.fromkeys(record.stage for graph in self.graphs for record in graph.stages[1:]))
            raise ValueError(f"stage: got {stage!r}; allowed are {', '.join(map(repr, known)) or 'none, there is no graph'}")
        return GraphDiff(tuple(sections))

    def text(self) -> str:
        """The whole report as plain text."""
        return "\n".join(self._lines()) + "\n"

    def __str__(self) -> str:
        return self.text()

    def _lines(self) -> Iterator[str]:
        on = "" if self.target == "cpu" else f" on {self.target}"
        yield f"{self.function} with backend {self.backend!r}{on}, torch {self.torch_version}"
        yield self.verdict
        for graph_break in self.breaks:
            yield f"graph break: {graph_break.reason}" + (f" at {graph_break.source}" if graph_break.source else "")
        if self.breaks:
            yield (
                "between graphs code runs in eager, outside of the promise: move what breaks them out of the model, choose by torch.where "
                "or torch.cond instead of a branch; fullgraph=True makes a break an error"
            )
        for graph in self.graphs:
            yield ""
            yield from self._graph_lines(graph)
        if self.backend == "batch_invariant":
            yield ""
            yield "pinned settings"
            for name, pin in pins_in_force().items():
                yield f"  {name} = {pin['value']!r}: {pin['reason']}"

    def _graph_lines(self, graph: CapturedGraph) -> Iterator[str]:
        captured = graph.stage("captured")
        counts = collections.Counter(node.op_class for node in captured.nodes if node.op_class)
        yield f"{graph.name}: {len(captured.nodes)} nodes" + "".join(f", {count} {name}" for name, count in counts.most_common())
        for node in graph.refused:
            yield f"  refused: {_call(captured, node)}: {node.reason}" + _at(node.source)
        for op_class in ATTENTION:
            for node in captured.nodes:
                if node.op_class == op_class and node not in graph.refused:
                    yield f"  {op_class}: {_call(captured, node)}: {node.reason}" + _at(node.source)
        for rewrite in graph.rewrites:
            yield f"  {rewrite.op} became {', '.join(rewrite.into)}" + _at(rewrite.source)
        kernels = self.kernels(graph)
        if kernels:
            yield "  kernels"
        for kernel in kernels:
            yield f"    {kernel.call}" + _at(kernel.source)
            if kernel.kernel:
                lanes = f", lanes: {kernel.lanes}" if kernel.lanes else ""
                yield f"      {kernel.kernel}: accumulates in {kernel.accumulates_in}{lanes}"
                if kernel.configuration:
                    yield f"      {kernel.configuration}"
                yield f"      docs/numerics.md section {kernel.section}: {kernel.numerics}"
        yield "  nodes"
        final = graph.stages[-1]
        reasons: dict[tuple[str, str], None] = {}
        for node in final.nodes:
            yield f"    {node.name} = {node.text(lambda i: final.nodes[i].name)}" + (f"  [{node.op_class}]" if node.op_class else "")
            if node.op_class:
                reasons[node.op_class, node.reason] = None
        for op_class, reason in sorted(reasons):
            section = f" (docs/numerics.md section {POINTWISE.section})" if op_class == "elementwise" else ""
            yield f"  {op_class}: {reason}{section}"

    def json(self) -> dict[str, Any]:
        """Everything as data that ``json.dumps`` takes; ``from_json`` reads it, in another version of torch too."""
        graphs = []
        for graph in self.graphs:
            graphs.append({**dataclasses.asdict(graph), "kernels": [dataclasses.asdict(kernel) for kernel in self.kernels(graph)]})
        return {
            "format": "bi_inductor explanation 1",
            "function": self.function,
            "backend": self.backend,
            "torch_version": self.torch_version,
            "target": self.target,
            "verdict": self.verdict,
            "graphs": json.loads(json.dumps(graphs)),
            "breaks": [dataclasses.asdict(graph_break) for graph_break in self.breaks],
            "pins": json.loads(json.dumps(pins_in_force())) if self.backend == "batch_invariant" else {},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Explanation:
        """The explanation that ``json`` made into ``data``. Raises ValueError when it is something else."""
        from bi_inductor.reports.capture import Rewrite

        if data.get("format") != "bi_inductor explanation 1":
            raise ValueError(f"this is no saved explanation: its 'format' is {data.get('format')!r}, not 'bi_inductor explanation 1'")
        graphs = []
        for graph in data["graphs"]:
            stages = tuple(GraphRecord.from_json(stage) for stage in graph["stages"])
            rewrites = tuple(Rewrite(**{**rewrite, "into": tuple(rewrite["into"])}) for rewrite in graph["rewrites"])
            refused = tuple(NodeRecord(**{**node, "arguments": tuple(node["arguments"])}) for node in graph["refused"])
            graphs.append(CapturedGraph(graph["name"], stages, rewrites, refused))
        breaks = tuple(GraphBreak(**graph_break) for graph_break in data["breaks"])
        return cls(data["function"], data["backend"], data["torch_version"], tuple(graphs), breaks, data.get("target", "cpu"))

    def html(self, path: str | PathLike[str], found: FindResult | None = None) -> None:
        """Writes the report as one HTML file that needs no network; ``found``, what `bi_inductor.find` found of the same model, is shown
        in it too. Raises OSError when it cannot be written."""
        from bi_inductor.reports.html import render_explanation

        Path(path).write_text(render_explanation(self, found), encoding="utf-8")


def _call(record: GraphRecord, node: NodeRecord) -> str:
    return node.text(lambda i: record.nodes[i].value or record.nodes[i].name)


def _at(source: str) -> str:
    return f" at {source}" if source else ""
