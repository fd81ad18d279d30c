"""Which node of a model is the first to give a sample other bits in another batch?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..leaves import BatchDim
from ..settings import backend_name
from .batch_of_one import OtherWay, other_way
from .capture import Captured, Cut, capture
from .chunks import ChunkedRun, chunk_digests, chunked_run, measure_chunk
from .compiled import CompiledPair, Progress, differences, run_outputs
from .description import Description, module_of, name_of, ulp_of
from .execution import Digest, digests, first_difference, in_step, layout_of, measure_outputs, producer_of
from .reproduction import write_call, write_part
from .result import FindResult, FoundNode, Measured, TableRow, VariantRow, effect_of
from .variants import Samples, Setting, Variant, default_variants, resolve, shared_places

if TYPE_CHECKING:
    from torch.fx import Node

    from ..check.chunks import InChunks


def find(
    model: Any,
    inputs: Any,
    *,
    backend: str | Callable[..., Any] = "eager",
    variants: Sequence[Variant] | None = None,
    batch_dim: BatchDim = 0,
    sequence_dim: BatchDim = None,
    padding_values: float | Mapping[Any, float] = 0,
    threads: int | None = None,
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    in_chunks: InChunks | None = None,
    progress: Progress | None = None,
) -> FindResult:
    """Runs a model several ways, compares the samples that runs share, and names the first node whose bits part.

    The model is captured as one graph with a symbolic batch size, ops as its source calls them. In eager, every value that an op
    writes is compared, by a digest of each row, so memory stays that of a run; then the variant that parts first runs beside the
    reference once more to measure by how much. Under a compiler the outputs are compared; where they differ the graph is compiled up
    to a node, again and again, until the place is found.

    Args:
        model: a module in eval mode, a function, or a program loaded by ``torch.export.load`` that has a dynamic batch size.
        inputs: a tensor (`model(inputs)`), a tuple or list (`model(*inputs)`) or a dict (`model(**inputs)`), possibly nested, with at least
            two samples. They are never written to.
        backend: what runs the model: "eager", "inductor", "batch_invariant" or any other backend of `torch.compile`.
        variants: the ways to run it, two or more; the first is what the others are compared with. By default the whole batch against its
            first sample alone, its last sample alone, and its second half in reverse order.
        batch_dim: the dim that holds the samples: one number for all tensors, or a sequence or mapping with one entry per top-level
            argument; None for a tensor without samples, such as a table.
        sequence_dim: the dim along which variants pad, in the same forms; entries that a mapping lacks are None.
        padding_values: what the padding holds: one number, or one per top-level argument (0 for those a mapping lacks).
        threads: number of threads; default the current one.
        dynamic: compile with symbolic shapes instead of once for each shape.
        options: passed to `torch.compile`.
        seed: of the global random state during every run, which is put back afterwards.
        in_chunks: a function of (fn, chunks) that calls ``fn`` once for each chunk, in order, carries a cache from call to call, and
            returns the outputs of the whole sequence, as `check` takes it. Every variant runs by it: with one chunk that is the whole,
            or with those of `sequence_chunk`, whose values are compared with the whole's at their positions. In eager only.
        progress: called with what comes next, how many steps are done, and how many there are (None under a compiler, where each compile
            is a step and only the search tells how many it takes).

    Returns:
        A `FindResult`: true when no bits part; `text()`, `json()`, `write_reproduction(path)`.

    Raises:
        CaptureError: the model is not one graph (a graph break, a choice by value), fixes the batch size, writes to its inputs or state, or
            needs a device that is not there.
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
    """
    name = backend_name(backend)
    samples = Samples(inputs, batch_dim, sequence_dim, padding_values)
    chosen = default_variants(samples.inputs.samples) if variants is None else variants
    settings = resolve(chosen, samples, backend, dynamic, threads, carries=in_chunks is not None)
    if in_chunks is not None:
        _check_in_chunks(in_chunks, model, settings)

    tell = progress or _silent
    tell("capture", 0, None)
    cut = None if in_chunks is None else Cut(in_chunks)
    lengths = {setting.extent.length for setting in settings if not setting.pieces}
    captured = capture(model, samples.inputs, samples.sequence, lengths=lengths, cut=cut)
    alone = any(setting.extent.batch == 1 and not setting.pieces for setting in settings)
    way = other_way(captured, model, samples.inputs, samples.sequence, samples.length, cut) if alone else None
    chunked: dict[Any, ChunkedRun] = {}
    for setting in settings:
        if in_chunks is not None and setting.pieces and _graph_of(setting) not in chunked:
            chunked[_graph_of(setting)] = chunked_run(captured, model, samples, in_chunks, setting)
    search = _Search(name, captured, samples, settings, options, seed, way, chunked, tell)
    return search.eager() if all(setting.eager for setting in settings) else search.under_a_compiler()


def _names(names: Sequence[str]) -> str:
    """The first few."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _not_in_chunks(nodes: list[Node]) -> tuple[str, ...]:
    if not nodes:
        return ()
    names = _names([name_of(node) for node in nodes])
    return (f"not compared in chunks, since they hold no positions or a chunk calls other ops there: {len(nodes)} values ({names})",)


def _graph_of(setting: Setting) -> Any:
    """What variants in chunks that run the same graph have in common."""
    return setting.pieces, setting.extent.batch == 1


def _check_in_chunks(in_chunks: Any, model: Any, settings: list[Setting]) -> None:
    from torch.export import ExportedProgram

    if not callable(in_chunks):
        raise ValueError(
            f"in_chunks: got {in_chunks!r}; allowed is a function of (fn, chunks) that returns the outputs of the whole sequence"
        )
    if not any(setting.pieces for setting in settings):
        raise ValueError("in_chunks needs a variant with sequence_chunk, the number of positions of a chunk")
    if isinstance(model, ExportedProgram):
        raise ValueError("in_chunks needs the model itself: a saved program is one call and cannot be captured together with its cache")
    if not all(setting.eager for setting in settings):
        raise ValueError("in_chunks runs in eager only: compiled calls have no values in between; bi_inductor.check compares their outputs")


def _silent(what: str, done: int, total: int | None) -> None:
    """Tells nobody."""


class _Search:
    """One call of `find`, after the capture."""

    def __init__(
        self,
        backend: str,
        captured: Captured,
        samples: Samples,
        settings: list[Setting],
        options: Mapping[str, Any] | None,
        seed: int,
        way: OtherWay | str | None,
        chunked: dict[Any, ChunkedRun],
        tell: Progress,
    ) -> None:
        self.backend = backend
        self.tell = tell
        self.captured = captured
        self.samples = samples
        self.settings = settings
        self.options = options
        self.seed = seed
        self.description = Description(captured, settings)
        self.order = self.description.order
        self.padded = len({setting.extent[1:] for setting in settings}) > 1
        self.way = way if isinstance(way, OtherWay) else None
        self.chunked = chunked
        # What was compared in some chunk.
        self.in_chunks: set[Node] = set()
        self.remarks: tuple[str, ...] = (way,) if isinstance(way, str) else (way.remark,) if way is not None else ()

    def way_of(self, setting: Setting) -> OtherWay | None:
        """The graph of its own that a variant runs, if it is of one sample and there is one."""
        return self.way if setting.extent.batch == 1 and not setting.pieces else None

    def digested(self, settings: list[Setting], wanted: Collection[int] | None = None) -> list[dict[Node, Digest]]:
        """The digests of one run, compared in the ways of ``settings``; ``wanted``: of these places of the batch only."""
        with torch.random.fork_rng(devices=_gpus()):
            torch.manual_seed(self.seed)
            return digests(self.captured, self.samples, settings, self.padded, self.way_of(settings[0]), wanted)

    def digested_in_chunks(self, setting: Setting) -> dict[int | None, dict[Node, Digest]]:
        """The digests of a run by `in_chunks`, for each of its chunks and for what is made of them."""
        settings = [
            other for other in self.settings if (other.run, other.threads, other.pieces) == (setting.run, setting.threads, setting.pieces)
        ]
        with torch.random.fork_rng(devices=_gpus()):
            torch.manual_seed(self.seed)
            return chunk_digests(self.captured, self.chunked[_graph_of(setting)], self.samples, settings, self.padded)

    def variant_row(self, setting: Setting, first: str | None, differing: int) -> VariantRow:
        text = ""
        if setting.extent.batch == 1 and self.remarks and not setting.pieces:
            text = "by the graph of bigger batches" if self.way is None else self.way.verdict
        return VariantRow(setting.name, first, differing, text)

    def eager(self) -> FindResult:
        """Every value of every variant by digests, then the first difference by its values."""
        reference, *others = self.settings
        self.tell(reference.name, 0, len(self.settings) + 1)
        # The reference as each variant compares it: all its positions, or those of a chunk.
        references = {other.positions: reference.compared_with(other) for other in (reference, *others)}
        # Samples that no variant holds need no digest: by default about half of them.
        wanted = {place for other in others for place in shared_places(reference, other)[0]}
        in_reference = dict(zip(references, self.digested(list(references.values()), wanted), strict=True))
        rows, candidates = [], []
        in_chunks: dict[int | None, dict[Node, Digest]] = {}
        for index, setting in enumerate(others, 1):
            self.tell(setting.name, index, len(self.settings) + 1)
            if setting.pieces:
                # One run gives the digests of all its chunks.
                in_chunks = self.digested_in_chunks(setting) if setting.call == 0 else in_chunks
                found = in_chunks[setting.call]
                self.in_chunks |= found.keys()
            else:
                (found,) = self.digested([setting])
            pair = (references[setting.positions], in_reference[setting.positions])
            first, differing = first_difference(self.order, pair, (setting, found))
            rows.append(self.variant_row(setting, None if first is None else name_of(first), len(differing)))
            if first is not None:
                candidates.append((self.order[first], len(setting.run.samples), setting, differing))
        compared = len(in_reference[None])
        if self.chunked:
            self.remarks += _not_in_chunks(
                [node for node in in_reference[None] if node in self.captured.calls and node not in self.in_chunks]
            )
        if not candidates:
            return self.result(rows, compared)
        self.tell("measure", len(self.settings), len(self.settings) + 1)
        # The first node; where several variants part there, the smallest batch shows it.
        index, _, setting, differing = min(candidates, key=lambda candidate: candidate[:2])
        reference = references[setting.positions]
        way = self.way_of(setting) or self.way_of(reference)
        if way is not None and self.captured.nodes[index] not in way.shared:
            with torch.random.fork_rng(devices=_gpus()):
                torch.manual_seed(self.seed)
                measured = measure_outputs(self.captured, self.samples, reference, setting, way, self.padded)
            if measured:
                return self.parted_ways(rows, compared, way, measured, setting)
        end = None if way is None else way.node
        with torch.random.fork_rng(devices=_gpus()):
            torch.manual_seed(self.seed)
            if setting.pieces:
                run = self.chunked[_graph_of(setting)]
                steps, call = measure_chunk(self.captured, run, self.samples, reference, setting, differing, self.padded)
            else:
                steps, call = in_step(self.captured, self.samples, reference, setting, differing, self.padded, end)
        first_step = next((step for step in steps if step.measured is not None), None)
        if first_step is None or first_step.measured is None:
            cause = "its bits differed in one run and not in the next: the op is not deterministic, so this is not due to the batch"
            node = self.description.node(self.captured.nodes[index], Measured(0, 0, 0, 0, 0.0, (), (None, None)), setting, (), cause)
            return self.result(rows, compared, node, setting.name)
        node = self.description.node(
            first_step.node, first_step.measured, setting, (), self.description.eager_cause(first_step), first_step.others
        )
        table = tuple(
            self.description.row(step.node, step.measured, effect_of(step.operands, ulp_of(step.measured), step.by_itself))
            for step in steps
        )

        if call is None or call.node is not producer_of(first_step.node):
            return self.result(rows, compared, node, setting.name, table)

        def reproduce(path: Path) -> None:
            write_call(path, self.captured, call, first_step.node, (reference, setting))

        return self.result(rows, compared, node, setting.name, table, reproduce)

    def under_a_compiler(self) -> FindResult:
        """The outputs of every variant, then the graph compiled up to a node, for the smallest variant that differs."""
        reference, *others = self.settings
        outputs = [node for node in self.captured.outputs if node.op == "call_function"]
        if not outputs:
            return self.result([self.variant_row(setting, None, 0) for setting in others], 0)
        rows, candidates = [], []
        self.tell("compile the whole graph", 0, None)
        with torch.random.fork_rng(devices=_gpus()):
            torch.manual_seed(self.seed)
            runs = run_outputs(self.captured, self.samples, self.settings, outputs, self.options, self.way)
            for setting, values in zip(others, runs.outputs[1:], strict=True):
                pair_of_settings = (reference.compared_with(setting), setting)
                at_end = differences(self.captured, outputs, pair_of_settings, (runs.outputs[0], values), self.padded)
                rows.append(self.variant_row(setting, "the outputs" if at_end else None, 0))
                if at_end:
                    candidates.append((len(setting.run.samples), setting, at_end))
            if not candidates:
                return self.result(rows, len(outputs))
            _, setting, at_end = min(candidates, key=lambda candidate: candidate[0])
            reference = reference.compared_with(setting)
            way = self.way_of(setting) or self.way_of(reference)
            end = None if way is None else way.node
            pair = CompiledPair(self.captured, self.samples, reference, setting, self.options, self.padded, end, self.tell)
            if way is not None:
                before = pair.at_end()
                if not before:
                    return self.parted_ways(rows, len(outputs), way, at_end, setting)
                at_end = before
            parting = pair.find(at_end)
        node = self.description.node(parting.node, parting.measured, setting, parting.kernels, parting.cause)
        rows = [row if row.name != setting.name else dataclasses.replace(row, first=node.name) for row in rows]
        table: list[TableRow] = []
        distances: dict[Node, float] = {}
        for landmark, measured in parting.landmarks:
            # What a node does with the distance of its operands is known where they are in the table too.
            operands = max((distances.get(source, 0.0) for source in landmark.all_input_nodes), default=0.0)
            effect = effect_of(operands, ulp_of(measured), False) if operands else ""
            table.append(self.description.row(landmark, measured, effect))
            distances[landmark] = ulp_of(measured) or 0.0

        def reproduce(path: Path) -> None:
            with torch.random.fork_rng(devices=_gpus()):
                write_part(path, pair, parting.node)

        compiles = runs.compiles + parting.compiles
        notes = (f"{compiles} graphs were compiled to find it; the table stores later values too, which can change what is fused",)
        return self.result(rows, len(outputs), node, setting.name, tuple(table), reproduce, notes)

    def parted_ways(
        self, rows: list[VariantRow], compared: int, way: OtherWay, differing: dict[Node, Measured], setting: Setting
    ) -> FindResult:
        """The result when a batch of one has other outputs because it runs another graph: the node where the graphs part is to blame."""
        from ..passes.classify import source_line

        output, measured = min(differing.items(), key=lambda entry: self.order[entry[0]])
        node = way.node if way.node is not None and way.node.op == "call_function" else output
        cause = f"a batch of one {way.difference}; the bits above are those of the output {name_of(output)}"
        found = self.description.node(node, measured, setting, (), cause)
        if way.own is not None:
            found = dataclasses.replace(found, line=source_line(way.own), module=module_of(way.own))
        rows = [row if row.name != setting.name else dataclasses.replace(row, first=name_of(output)) for row in rows]
        return self.result(rows, compared, found, setting.name, (self.description.row(output, measured, ""),))

    def result(
        self,
        rows: list[VariantRow],
        compared: int,
        node: FoundNode | None = None,
        variant: str | None = None,
        table: tuple[TableRow, ...] = (),
        reproduce: Callable[[Path], None] | None = None,
        notes: tuple[str, ...] = (),
    ) -> FindResult:
        return FindResult(
            backend=self.backend,
            reference=self.settings[0].name,
            variants=tuple(rows),
            nodes=len(self.order),
            compared=compared,
            node=node,
            variant=variant,
            table=table,
            notes=(*self.remarks, *self.not_compared(), *notes),
            reproduce=reproduce,
        )

    def not_compared(self) -> tuple[str, ...]:
        """A note on the values in which samples cannot be told apart."""
        # Under a compiler only the outputs are looked at in every variant.
        looked_at = self.captured.nodes if all(setting.eager for setting in self.settings) else self.captured.outputs
        nodes = [node for node in looked_at if node in self.captured.of_samples]
        tensors = [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        left_out = [name_of(node) for node in tensors if layout_of(self.captured, node, self.padded) is None]
        if not left_out:
            return ()
        return (f"not compared, since the samples cannot be told apart in them: {len(left_out)} values ({_names(left_out)})",)


def _gpus() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
