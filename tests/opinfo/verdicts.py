"""The verdict on one call: what the backend says about it without generating code, and what its bits say."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from bi_inductor.passes.op_classes import OpClass
from bi_inductor.reports.capture import capture
from bi_inductor.settings import thread_count
from bi_inductor.ulp import bits_differ
from tests.opinfo.batches import Batch, batch_of, call, mixes, tensors_of
from tests.opinfo.entries import Entry, Sample, samples, without_seeds
from tests.opinfo.values import UNINITIALISED, difference


class Verdict(enum.Enum):
    """What becomes of a call."""

    INVARIANT = "invariant"
    ONE_SAMPLE = "invariant, one sample at a time"
    NO_BATCH = "no batch"
    MIXING = "mixes samples"
    RANDOM = "random"
    UNSUPPORTED = "unsupported"
    NOT_CAPTURED = "not captured"
    VARIES = "varies"
    DIFFERS = "differs from eager"


# Verdicts of calls that are compiled: that bits hold is compared, and that values are eager's. The others are reports.
BY_BITS = (Verdict.INVARIANT, Verdict.ONE_SAMPLE, Verdict.NO_BATCH)


@dataclasses.dataclass
class Case:
    """One call of an entry.

    Attributes:
        batch: how it is batched; None where dim 0 is no batch.
        verdict: what was found so far.
        note: the ops or the message behind the verdict.
        reported: the ops for which the static pass says that they mix samples.
    """

    entry: Entry
    sample: Sample
    batch: Batch | None
    verdict: Verdict | None = None
    note: str = ""
    reported: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        return "none" if self.batch is None else self.batch.form

    @property
    def leaves(self) -> tuple[Any, ...]:
        return self.sample.variants[0] if self.batch is None else self.batch.whole

    @property
    def name(self) -> str:
        return f"{self.entry.key}, sample {self.sample.number} ({self.form})"


# Where samples have a batch, so many are searched for one that mixes.
SAMPLES_FOR_MIXING = 5


def cases_of(entry: Entry) -> list[Case]:
    """The first sample with a batch, and the first that mixes samples; for an entry without a batch the first that does not.

    Empty tensors are passed over.
    """
    batched = mixing = alone = None
    looked_at = 0
    with torch.no_grad():
        for sample in samples(entry):
            try:
                call(entry.function, sample.spec, sample.variants[0])
            except Exception:
                continue
            tensors = tensors_of(sample.variants[0])
            if entry.name in UNINITIALISED or not all(tensor.numel() for tensor in tensors):
                alone = alone or Case(entry, sample, None)
                continue
            batch = batch_of(entry.name, entry.function, sample)
            if batch is not None:
                batched = batched or Case(entry, sample, batch)
            elif mixing is None and mixes(entry.function, sample):
                mixing = Case(entry, sample, None, Verdict.MIXING)
            elif mixing is None:
                alone = alone or Case(entry, sample, None)
            looked_at += 1
            if batched and (mixing or looked_at >= SAMPLES_FOR_MIXING):
                break
    found = [case for case in (batched, mixing) if case is not None]
    return found or ([alone] if alone is not None else [])


def trace(case: Case) -> None:
    """Takes the call through Dynamo and our passes, and sets the verdict where that decides it: random, unsupported, not captured."""
    positions = tensor_positions(case.leaves)

    def function(*tensors: torch.Tensor) -> Any:
        return filled_call(case, positions, tensors)

    settings = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    try:
        with torch.no_grad(), without_seeds(), torch._dynamo.config.patch(settings):
            captured = capture(function, [case.leaves[i].detach() for i in positions], dynamic=False)
    except Exception as error:
        case.verdict, case.note = Verdict.NOT_CAPTURED, first_line(error)
        return
    refused = sorted({record.op for graph in captured.graphs for record in graph.refused})
    nodes = [record for graph in captured.graphs for record in graph.stage("captured").nodes]
    classes = {record.op_class for record in nodes}
    case.reported = tuple(sorted({record.op for record in nodes if record.op_class == OpClass.MIXING.value}))
    if refused:
        case.verdict, case.note = Verdict.UNSUPPORTED, ", ".join(refused)
    elif captured.breaks:
        case.verdict, case.note = Verdict.NOT_CAPTURED, captured.breaks[0].reason
    elif OpClass.RANDOM.value in classes:
        case.verdict, case.note = Verdict.RANDOM, ""
    elif case.verdict is Verdict.MIXING and not case.reported and classes <= {OpClass.MOVEMENT.value, ""}:
        case.verdict, case.note = Verdict.NO_BATCH, "dim 0 becomes another dim"
    elif case.verdict is None:
        slow = sorted({record.op for record in nodes if record.op_class == OpClass.ONE_SAMPLE.value})
        case.verdict = Verdict.NO_BATCH if case.batch is None else Verdict.ONE_SAMPLE if slow else Verdict.INVARIANT
        case.note = ", ".join(slow)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def tensor_positions(leaves: Sequence[Any]) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def filled_call(case: Case, positions: Sequence[int], tensors: Sequence[torch.Tensor]) -> Any:
    leaves = list(case.leaves)
    for i, tensor in zip(positions, tensors, strict=True):
        leaves[i] = tensor
    args, kwargs = pytree.tree_unflatten(leaves, case.sample.spec)
    return case.entry.function(*args, **kwargs)


class Group:
    """Calls compiled as one graph.

    Args:
        cases: calls whose verdict is one of ``BY_BITS`` so far.
        backend: as torch.compile takes it.
    """

    def __init__(self, cases: Sequence[Case], backend: str = "batch_invariant") -> None:
        self.cases = cases
        self.positions = [tensor_positions(case.leaves) for case in cases]
        self.backend = backend
        self.whole: list[list[torch.Tensor]] = []

    def run(self, choose: Callable[[Case], Sequence[Any]]) -> list[list[torch.Tensor]]:
        """The results of every call on the leaves that ``choose`` gives it."""
        inputs = [[choose(case)[i].detach().clone() for i in places] for case, places in zip(self.cases, self.positions, strict=True)]
        with torch.no_grad():
            return [tensors_of(result) for result in self.compiled(inputs)]

    def check(self) -> Iterator[tuple[Case, str]]:
        """Calls whose bits follow the batch or the number of threads, with what differed; ``whole`` has the results of the batches then.

        Raises what a compile raises.
        """
        self._compile()
        with thread_count(2):
            whole = self.whole = self.run(lambda case: case.leaves)
        different: dict[int, str] = {}
        with thread_count(1):
            for i, results in enumerate(self.run(lambda case: case.leaves)):
                if any(map(differ, results, whole[i])):
                    different[i] = "1 thread and 2"
        with thread_count(2):
            most = max((len(case.batch.alone) for case in self.cases if case.batch is not None), default=0)
            for j in range(most):
                alone = self.run(lambda case, j=j: case.batch.alone[j % len(case.batch.alone)] if case.batch else case.leaves)
                for i, case in enumerate(self.cases):
                    if case.batch is None or j >= len(case.batch.alone):
                        continue
                    for place in (p for p, number in enumerate(case.batch.places) if number == j):
                        rows = case.batch.rows_of(whole[i], place)
                        if any(map(differ, rows, alone[i])):
                            different.setdefault(i, f"in the batch at {place} and alone")
        return iter([(self.cases[i], what) for i, what in different.items()])

    def _compile(self) -> None:
        torch._dynamo.reset()
        cases, positions = self.cases, self.positions

        def together(inputs: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
            return [filled_call(case, places, given) for case, places, given in zip(cases, positions, inputs, strict=True)]

        self.compiled = torch.compile(together, backend=self.backend, fullgraph=True, dynamic=False)


def differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape != b.shape or bool(bits_differ(a, b).any())


def check_bits(cases: Sequence[Case], size: int = 16) -> None:
    """Sets the verdict of calls whose bits vary, whose values are not eager's, and of those that do not compile.

    ``size`` calls are compiled as one graph.
    """
    settings = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True, "recompile_limit": 64}
    for start in range(0, len(cases), size):
        group = cases[start : start + size]
        try:
            with without_seeds(), torch._dynamo.config.patch(settings):
                compiled = Group(group)
                for case, what in compiled.check():
                    case.verdict, case.note = Verdict.VARIES, what
        except Exception as error:
            if len(group) == 1:
                group[0].verdict, group[0].note = Verdict.NOT_CAPTURED, first_line(error)
            else:
                check_bits(group, (len(group) + 1) // 2 if len(group) > 2 else 1)
        else:
            for case, results in zip(group, compiled.whole, strict=True):
                if what := difference(case.entry, case.sample.spec, case.leaves, results):
                    case.verdict, case.note = Verdict.DIFFERS, what
