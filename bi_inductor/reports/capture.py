"""Captures the graphs that a compile of a function would go through, without generating code.

The function runs once, through Dynamo, with real inputs; each graph is traced by AOTAutograd and taken through the post-grad passes as in
a compile, recorded on the way, and then runs uncompiled. So this needs no C++ compiler, and an op that a compile would refuse is recorded
like any other.

torch internals, checked in 2.13.0 to 2.15.0: compile_fx_inner's arguments, compile_fx._recursive_post_grad_passes,
torch._dynamo.utils.counters["graph_break"], torch._functorch.config.force_non_lazy_backward_lowering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.graph_breaks import GraphBreak, graph_break, one_line
from bi_inductor.passes.observe import Observer, observed_by
from bi_inductor.reports.records import GraphRecord, NodeRecord, record_graph

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule, Node

    from bi_inductor.options import Options
    from bi_inductor.passes.op_classes import OpClass

BACKENDS = ("batch_invariant", "inductor")


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One op that became others: the call that was, the ops that are, and the user's line."""

    op: str
    into: tuple[str, ...]
    node: str
    source: str


@dataclasses.dataclass(frozen=True)
class CapturedGraph:
    """One graph on its way through a compile.

    Attributes:
        name: "graph 0 inference", "graph 1 forward", "graph 1 backward", "graph 0 inference, inner 0" for a body of a higher-order op.
        stages: its records: "captured" from AOTAutograd, then after each step of our pass, then "inductor" after Inductor's own passes.
        rewrites: what the rewriting step replaced.
        refused: nodes of the captured graph for which a compile would raise.
    """

    name: str
    stages: tuple[GraphRecord, ...]
    rewrites: tuple[Rewrite, ...] = ()
    refused: tuple[NodeRecord, ...] = ()

    def stage(self, name: str) -> GraphRecord:
        """The record of that stage. Raises ValueError for a name that the graph has not."""
        for record in self.stages:
            if record.stage == name:
                return record
        raise ValueError(f"stage: got {name!r}; {self.name} has {', '.join(repr(record.stage) for record in self.stages)}")


@dataclasses.dataclass
class Capture:
    """What one call of a function was compiled to."""

    backend: str
    graphs: list[CapturedGraph] = dataclasses.field(default_factory=list)
    breaks: list[GraphBreak] = dataclasses.field(default_factory=list)


def capture(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str = "batch_invariant",
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Capture:
    """Runs ``fn(*inputs, **kwargs)`` once under Dynamo and records every graph.

    Args:
        fn: a module or function.
        inputs, kwargs: its arguments; tensors among them are copied, so that ``fn`` may write to them.
        backend: "batch_invariant" or "inductor".
        dynamic, options: as torch.compile takes them; ``options`` are those of the backend.

    Raises:
        ValueError: ``backend`` is another one.
        UnsupportedVersionError, OptionError: as a compile would.

    The random state and the buffers of a module are left as found; what Dynamo compiled before is dropped.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend: got {backend!r}; graphs can be captured for {' and '.join(map(repr, BACKENDS))}")
    import torch._dynamo
    import torch.utils._pytree as pytree
    from torch._dynamo.utils import counters
    from torch._functorch import config as functorch_config

    from bi_inductor.backend import errors_for_users

    result = Capture(backend)
    breaks: dict[GraphBreak, None] = {}
    numbers = itertools.count()

    def record(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if (found_break := graph_break(gm)) is not None:
            breaks[found_break] = None
        name, dynamo = f"graph {next(numbers)}", record_graph("dynamo", gm.graph)
        with errors_for_users():
            result.graphs += _compiled_graphs(gm, example_inputs, backend, dict(options or {}), name, dynamo)
        run: Callable[..., Any] = gm.forward
        return run

    copies = pytree.tree_map_only(torch.Tensor, _copy, (tuple(inputs), dict(kwargs or {})))
    torch._dynamo.reset()
    found = dict(counters["graph_break"])
    try:
        with (
            torch.random.fork_rng(devices=[]),
            _buffers_kept(fn),
            functorch_config.patch(force_non_lazy_backward_lowering=True),
            torch._dynamo.config.patch(fail_on_recompile_limit_hit=False),
        ):
            torch.compile(fn, backend=record, dynamic=dynamic)(*copies[0], **copies[1])
        # Breaks before the first op leave no graph that could carry their reason.
        known = "\n".join(found_break.reason for found_break in breaks)
        for text, count in counters["graph_break"].items():
            reason = one_line(text)
            if count > found.get(text, 0) and reason not in known:
                breaks[GraphBreak(reason)] = None
    finally:
        torch._dynamo.reset()
    result.breaks = list(breaks)
    return result


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _buffers_kept(fn: Callable[..., Any]) -> Iterator[None]:
    """Running statistics of a module are what they were."""
    buffers = [(buffer, buffer.clone()) for buffer in fn.buffers()] if isinstance(fn, torch.nn.Module) else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _compiled_graphs(
    gm: GraphModule, example_inputs: Sequence[Any], backend: str, options: dict[str, Any], name: str, dynamo: GraphRecord
) -> list[CapturedGraph]:
    """The forward and, where there is one, the backward that AOTAutograd makes of a Dynamo graph, bodies of higher-order ops first."""
    from torch._inductor.compile_fx import _recursive_post_grad_passes, compile_fx

    from bi_inductor.backend import caches_bypassed, compile_graph, split_options

    own = split_options(None, options)[0] if backend == "batch_invariant" else None
    graphs: list[CapturedGraph] = []

    def inner_compile(inner: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        inference, backward = bool(kwargs.get("is_inference")), bool(kwargs.get("is_backward"))
        kind = "inference" if inference else "backward" if backward else "forward"
        recorder = Recorder(own)
        with observed_by(recorder):
            if own is None:
                recorder.stage("captured", inner.graph)
            _recursive_post_grad_passes(inner, inference)
        recorder.finish()
        graphs.extend(recorder.captured(f"{name} {kind}", None if backward else dynamo))
        return _not_run

    with warnings.catch_warnings(), caches_bypassed(True, options):
        warnings.simplefilter("ignore")
        if own is None:
            compile_fx(gm, list(example_inputs), inner_compile=inner_compile, config_patches=options)
        else:
            compile_graph(gm, example_inputs, options=options, inner_compile=inner_compile)
    return graphs


def _not_run(*args: Any) -> Any:
    raise AssertionError("a captured graph is not run")


class Recorder(Observer):
    """Keeps every graph of one inner compile as records.

    Args:
        options: what lets ops through; None outside of our backend, where nodes have no class.
        tolerant: as in ``Observer``.
    """

    def __init__(self, options: Options | None, tolerant: bool = True) -> None:
        self.options = options
        self.tolerant = tolerant
        self._graphs: list[_Recording] = []

    def stage(self, name: str, graph: Graph) -> None:
        if name == "captured":
            self._graphs.append(_Recording(graph))
        self._graphs[-1].stages.append((name, record_graph(name, graph, None if self.options is None else self._describe)))

    def mixing(self, reasons: Mapping[Node, str]) -> None:
        self._graphs[-1].mixing.update(reasons)

    def classified(self, classes: Mapping[Node, OpClass]) -> None:
        recording = self._graphs[-1]
        recording.classes.update(classes)
        recording.stages[-1] = ("captured", record_graph("captured", recording.graph, self._describe))

    def replaced(self, node: Node, replacement: Sequence[Node]) -> None:
        from bi_inductor.reports.records import source_text, target_text

        into = tuple(target_text(new) for new in replacement)
        self._graphs[-1].rewrites.append(Rewrite(target_text(node), into, node.name, source_text(node)))

    def refused(self, nodes: Sequence[Node]) -> None:
        recording = self._graphs[-1]
        captured = {record.name: record for record in recording.stages[0][1].nodes}
        recording.refused += [captured[node.name] for node in nodes if node.name in captured]

    def finish(self) -> None:
        """Records what Inductor's own passes left, once they have run."""
        for recording in self._graphs:
            # A compile that was refused on the way has no such stage.
            if recording.stages[-1][0] in ("captured", "round_low_precision") and self.options is not None:
                continue
            recording.stages.append(
                ("inductor", record_graph("inductor", recording.graph, None if self.options is None else self._describe))
            )

    def captured(self, name: str, dynamo: GraphRecord | None) -> list[CapturedGraph]:
        """The graphs in the order they were compiled: bodies of higher-order ops, then the graph that calls them."""
        result = []
        for i, recording in enumerate(self._graphs):
            outer = i == len(self._graphs) - 1
            stages = tuple(record for _, record in recording.stages)
            if outer and dynamo is not None:
                stages = (dynamo, *stages)
            full_name = name if outer else f"{name}, inner {i}"
            result.append(CapturedGraph(full_name, stages, tuple(recording.rewrites), tuple(recording.refused)))
        return result

    def _describe(self, node: Node) -> tuple[str, str]:
        from bi_inductor.passes.classify import class_of
        from bi_inductor.passes.op_classes import OpClass
        from bi_inductor.passes.reasons import reason

        recording = self._graphs[-1]
        op_class = recording.classes.get(node) or class_of(node)
        if node in recording.mixing and op_class is not OpClass.UNSUPPORTED:
            return OpClass.MIXING.value, recording.mixing[node]
        assert op_class is not None and self.options is not None
        return op_class.value, reason(node, op_class, self.options)


@dataclasses.dataclass
class _Recording:
    graph: Graph
    stages: list[tuple[str, GraphRecord]] = dataclasses.field(default_factory=list)
    classes: dict[Node, OpClass] = dataclasses.field(default_factory=dict)
    mixing: dict[Node, str] = dataclasses.field(default_factory=dict)
    rewrites: list[Rewrite] = dataclasses.field(default_factory=list)
    refused: list[NodeRecord] = dataclasses.field(default_factory=list)
