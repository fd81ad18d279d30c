"""Every entry of torch's operator table has its bits in every batch and eager's values, or is reported, as the committed record says.

Table: docs/coverage.md.

The suite checks a fixed tenth of the float32 entries, `make test-full` all of them. Calls are compiled many at a time; only those whose
verdict is a report are traced one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.opinfo import coverage, record
from tests.opinfo.batches import batch_of, mixes
from tests.opinfo.entries import Entry, Sample, entries, in_tenth, samples, without_seeds
from tests.opinfo.values import difference
from tests.opinfo.verdicts import BY_BITS, Case, Group, Verdict, check_bits, trace

pytestmark = pytest.mark.filterwarnings("ignore")

RECORD = record.read()
# The entries that run one sample at a time and those that are unsupported, at most so many of a hundred.
MOST_ONE_SAMPLE, MOST_UNSUPPORTED = 10, 3
GROUP = 16

# Calls that the harness takes for mixing and that have no report: diagflat places the elements of one dim in two; of the others it changes
# rows of weights, labels or an index too, which are no samples.
SILENT_MIXING = {
    "diagflat bfloat16",
    "diagflat float32",
    "index_reduce.prod bfloat16",
    "native_group_norm bfloat16",
    "native_group_norm float32",
    "nn.functional.bilinear bfloat16",
    "nn.functional.bilinear float32",
    "nn.functional.linear_cross_entropy.chunked bfloat16",
    "nn.functional.linear_cross_entropy.chunked float32",
    "nn.functional.linear_cross_entropy.chunked_none bfloat16",
    "nn.functional.linear_cross_entropy.chunked_none float32",
}


def recorded_cases(entry: Entry) -> Iterator[tuple[Case, Verdict]]:
    """The calls of the record, and the verdict each has there."""
    calls = {call["sample"]: call for call in RECORD[entry.key]}
    for sample in samples(entry) if calls else ():
        if sample.number in calls:
            call = calls[sample.number]
            yield case_of(entry, sample, call), Verdict(call["verdict"])


def case_of(entry: Entry, sample: Sample, call: dict[str, Any]) -> Case:
    with torch.no_grad():
        batch = None if call["form"] == "none" else batch_of(entry.name, entry.function, sample)
    return Case(entry, sample, batch, Verdict(call["verdict"]))


def checked(some: Sequence[Entry]) -> list[str]:
    """What differs from the record, in words."""
    found = [pair for entry in some for pair in recorded_cases(entry)]
    # An entry whose samples have other numbers now would be checked for nothing.
    assert len(found) == sum(len(RECORD[entry.key]) for entry in some)
    expected = {case.name: verdict for case, verdict in found}
    for case, verdict in found:
        if verdict not in BY_BITS:
            case.verdict = Verdict.MIXING if case.batch is None and mixes(case.entry.function, case.sample) else None
            trace(case)
    check_bits([case for case, verdict in found if verdict in BY_BITS], GROUP)
    # What the record says does not compile may still be traced; one such call would fail the compile of a whole group.
    check_bits([case for case, verdict in found if verdict not in BY_BITS and case.verdict in BY_BITS], 1)
    return [f"{case.name}: {case.verdict}, {case.note}" for case, _ in found if case.verdict is not expected[case.name]]


RECORDED = [entry for entry in entries() if entry.key in RECORD]
TENTH = [entry for entry in RECORDED if in_tenth(entry) and entry.dtype is not torch.bfloat16]
REST = [entry for entry in RECORDED if entry not in TENTH]


def chunks(some: Sequence[Entry], size: int = 32) -> list[Sequence[Entry]]:
    return [some[i : i + size] for i in range(0, len(some), size)]


@pytest.mark.parametrize("some", chunks(TENTH), ids=lambda some: some[0].key)
def test_the_tenth(some: Sequence[Entry]) -> None:
    assert checked(some) == []


@pytest.mark.full
@pytest.mark.parametrize("some", chunks(REST), ids=lambda some: some[0].key)
def test_the_rest(some: Sequence[Entry]) -> None:
    assert checked(some) == []


def test_stock_inductor_varies() -> None:
    """The same comparison finds batches in what stock Inductor compiles; else it could find nothing."""
    names = ("addmm", "matmul", "nn.functional.conv2d", "logsumexp", "erf")
    some = [entry for entry in RECORDED if entry.name in names and entry.dtype is torch.float32]
    assert len(some) == len(names)
    cases = [case for entry in some for case, verdict in recorded_cases(entry) if verdict is Verdict.INVARIANT]
    with without_seeds():
        assert list(Group(cases, "inductor").check())


def test_stock_inductor_differs_from_eager() -> None:
    """The comparison of values can fail: over no dims eager's any reduces nothing, and stock's every dim."""
    (entry,) = (entry for entry in RECORDED if entry.key == "any float32")
    ((case, _),) = recorded_cases(entry)
    shape, wrong = case.leaves[0].shape, torch.tensor(True)
    assert difference(entry, case.sample.spec, case.leaves, [wrong]) == f"result 0 is bool[], eager's bool{list(shape)}"
    assert difference(entry, case.sample.spec, case.leaves, [torch.zeros(shape, dtype=torch.bool)]) == "values of results [0]"
    assert difference(entry, case.sample.spec, case.leaves, [case.leaves[0] != 0]) == ""
    with without_seeds():
        stock = Group([case], "inductor")
        stock._compile()
        assert difference(entry, case.sample.spec, case.leaves, stock.run(lambda case: case.leaves)[0])


@pytest.mark.full
def test_every_entry_is_recorded() -> None:
    """What is missing, or what a new torch adds, has to be run: python -m tests.opinfo --continue"""
    assert sorted(entry.key for entry in entries() if entry.key not in RECORD) == []


def test_nothing_varies_and_little_is_unsupported_or_slow() -> None:
    counts, _ = coverage.counted()
    assert counts[Verdict.VARIES] == counts[Verdict.DIFFERS] == 0
    assert 100 * counts[Verdict.UNSUPPORTED] <= MOST_UNSUPPORTED * len(RECORDED)
    # The record may be of a part of the entries, and linear algebra comes early in the alphabet: the share is of all of them.
    total = len([entry for entry in entries() if entry.dtype is not torch.bfloat16])
    assert 100 * counts[Verdict.ONE_SAMPLE] <= MOST_ONE_SAMPLE * total


def test_the_page_is_up_to_date() -> None:
    """`make coverage` writes it."""
    assert coverage.PAGE.read_text() == coverage.page()


def test_the_record_is_sorted_json() -> None:
    text = record.RECORD.read_text()
    assert list(json.loads(text)) == sorted(RECORD)


def test_mixing_is_reported_where_changed_neighbours_change_a_sample() -> None:
    """The static pass says so for every call that the harness found to mix samples, but for the listed ones."""
    silent = {key for key, calls in RECORD.items() for call in calls if call["verdict"] == Verdict.MIXING.value and not call["reported"]}
    assert silent == SILENT_MIXING
