"""Runs one architecture through `bi_inductor.check` and counts what its graphs were made of."""

from __future__ import annotations

import math
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node

import bi_inductor
from bi_inductor.passes.classify import called_op, source_line
from bi_inductor.passes.observe import Observer, observed_by
from bi_inductor.passes.op_classes import OpClass, op_name
from bi_inductor.settings import thread_count

from .architectures import Architecture
from .architectures.architecture import Compared, Inputs

BATCH_SIZES = (1, 2, 3, 8)
# Sequences are made longer by so many places.
PADDING = 3

# Calls of torch's kernels, one sample at a time, that are known: architecture -> ops.
FALLBACKS: dict[str, set[str]] = {"qwen3_next": {"aten.linalg_solve_triangular"}}

# From eager's values, in float32 through all layers of a model.
MOST_DISTANT = 1e-4

PARTS = ("dynamic", "static")


@dataclass
class Examination:
    """What was found out about one architecture in one part.

    Attributes:
        name, part: the architecture, and which graphs: "dynamic" (one for every batch size, one for a batch of one; padding), "static"
            (one for each batch size) or "default" (those that torch.compile makes when nothing is said).
        invariant: every row had its bits.
        rows, different: how many rows were compared, and how many of them differ.
        eager_rows, eager_different: the same in eager, the control.
        distance: the largest difference from eager's values, relative to the largest of their output.
        graphs: how many graphs were compiled.
        graph_breaks: reasons of Dynamo's for splitting the model.
        classes: how many calls of the graphs had each class.
        fallbacks, reported: ops that run one sample at a time; ops that are random or opaque, and calls that mix samples.
        reached: samples that a NaN in their neighbours reached, in eager.
        error: why there is no result, "" when there is one.
        seconds: of CPU time, compilers included that this process ran itself (TORCHINDUCTOR_COMPILE_THREADS=1).
    """

    name: str
    part: str
    invariant: bool = False
    rows: int = 0
    different: int = 0
    eager_rows: int = 0
    eager_different: int = 0
    distance: float = 0.0
    graphs: int = 0
    graph_breaks: list[str] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    reached: int = 0
    error: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Invariant as one graph per shape, with eager's values, nothing reported, and no fallback that is not known."""
        return (
            self.invariant
            and self.distance <= MOST_DISTANT
            and not self.error
            and not self.graph_breaks
            and not self.reported
            and not self.reached
            and set(self.fallbacks) <= FALLBACKS.get(self.name, set())
        )


class Contents(Observer):
    """Counts the graphs that are compiled, and their calls by class."""

    def __init__(self) -> None:
        self.graphs = 0
        self.classes: Counter[str] = Counter()
        self.ops: dict[OpClass, set[str]] = {}
        self.mixed: set[str] = set()

    def mixing(self, reasons: Mapping[Node, str]) -> None:
        self.mixed |= {f"{op_name(called_op(node))} at {source_line(node)}: {reason}" for node, reason in reasons.items()}

    def classified(self, classes: Mapping[Node, OpClass]) -> None:
        self.graphs += 1
        for node, op_class in classes.items():
            self.classes[op_class.value] += 1
            self.ops.setdefault(op_class, set()).add(op_name(called_op(node)))

    def names(self, *of: OpClass) -> list[str]:
        return sorted(set().union(*(self.ops.get(op_class, set()) for op_class in of)))


@contextmanager
def every_graph_compiled() -> Iterator[None]:
    """A graph from the cache is not classified again, so none is taken from there. Libraries of kernels are."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    with functorch_config.patch(enable_autograd_cache=False), inductor_config.patch(fx_graph_cache=False):
        yield


def examine(architecture: Architecture, part: str) -> Examination:
    """Checks one architecture in the graphs of ``part``. An error is part of the result."""
    import torch._dynamo

    result = Examination(architecture.name, part)
    begin = _cpu_seconds()
    contents = Contents()
    torch._dynamo.utils.counters.clear()
    try:
        model = architecture.build()
        inputs = architecture.inputs(model)
        function = Compared(model, architecture.outputs)
        result.reached = reached_by_neighbours(function, inputs)
        eager = bi_inductor.check(function, inputs, backend="eager", **options(architecture, inputs, "dynamic"))
        result.eager_rows, result.eager_different = _counts(eager)
        with every_graph_compiled(), observed_by(contents):
            checked = bi_inductor.check(function, inputs, eager=True, **options(architecture, inputs, part))
        result.invariant = bool(checked)
        result.rows, result.different = _counts(checked)
        result.distance = checked.eager_distance or 0.0
    except Exception as error:  # whatever goes wrong with one architecture is its result
        result.error = f"{type(error).__name__}: {error}"
    result.graphs = contents.graphs
    result.classes = dict(contents.classes)
    result.fallbacks = contents.names(OpClass.ONE_SAMPLE)
    result.reported = contents.names(OpClass.RANDOM, OpClass.OPAQUE, OpClass.UNSUPPORTED) + sorted(contents.mixed)
    result.graph_breaks = sorted(torch._dynamo.utils.counters["graph_break"])
    result.seconds = round(_cpu_seconds() - begin, 1)
    return result


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _counts(checked: bi_inductor.CheckResult) -> tuple[int, int]:
    return sum(row.rows for row in checked.rows), sum(row.rows_different for row in checked.rows)


def options(architecture: Architecture, inputs: Inputs, part: str) -> dict[str, Any]:
    """The arguments of `check` for one part."""
    arguments: dict[str, Any] = {"batch_sizes": BATCH_SIZES, "permutations": 1, "dynamic": False}
    if any(value.is_floating_point() for value in inputs.values()):
        arguments["neighbours"] = (math.nan,)
    if part == "static":
        return arguments
    arguments["dynamic"] = architecture.dynamic if part == "dynamic" else None
    if part == "dynamic" and architecture.padding:
        sequences = [name for name in ("input_ids", "attention_mask", "position_ids") if name in inputs]
        arguments.update(
            sequence_dim=dict.fromkeys(sequences, 1),
            out_sequence_dim=None if "decoder_input_ids" in inputs else dict.fromkeys(architecture.outputs, 1),
            padding=(PADDING,),
            padding_sides=architecture.padding,
        )
    return arguments


def reached_by_neighbours(function: Compared, inputs: Inputs) -> int:
    """How many samples of an eager batch change to NaN when every other sample is NaN from its first layer on."""
    floats = [name for name, value in inputs.items() if value.is_floating_point()]
    samples = len(next(iter(inputs.values())))
    poisoned_rows: list[int] = []

    def poison(module: nn.Module, arguments: object, embeddings: torch.Tensor) -> torch.Tensor:
        # Tables of positions have no samples.
        if len(embeddings) != samples:
            return embeddings
        embeddings = embeddings.clone()
        embeddings[poisoned_rows] = math.nan
        return embeddings

    hooks = [module.register_forward_hook(poison) for module in function.modules() if isinstance(module, nn.Embedding)]
    reached = 0
    try:
        with torch.no_grad(), thread_count(1):
            for sample in (0, samples // 2, samples - 1):
                poisoned_rows[:] = [other for other in range(samples) if other != sample]
                given = dict(inputs)
                for name in floats:
                    given[name] = inputs[name].clone()
                    given[name][poisoned_rows] = math.nan
                outputs = tensors(function(**given))
                reached += any(bool(output[sample].isnan().any()) for output in outputs)
                if not any(bool(output[poisoned_rows].isnan().any()) for output in outputs):
                    raise ValueError("NaN in embeddings and inputs does not reach the result: this cannot tell whether samples mix")
    finally:
        for hook in hooks:
            hook.remove()
    return reached


def tensors(outputs: Any) -> list[torch.Tensor]:
    """All tensors of a result."""
    import torch.utils._pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
