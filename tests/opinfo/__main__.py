"""Runs every entry (or those named on the command line) and rewrites the record: python -m tests.opinfo [float32|bfloat16|name ...]

An interrupted run is taken up where it ended with ``--continue``; ``--trace-only`` classifies the graphs and compares no bits.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence

import torch

from tests.opinfo import record
from tests.opinfo.entries import Entry, entries, in_tenth
from tests.opinfo.verdicts import BY_BITS, Case, cases_of, check_bits, trace

# So many entries are recorded at a time.
CHUNK = 16


def chosen(words: Sequence[str]) -> list[Entry]:
    """The entries that the words name, by dtype or by name; all without a word."""
    every = entries()
    known = record.read() if "--continue" in words else {}
    names = [word for word in words if not word.startswith("--")]
    named = [entry for entry in every if not names or entry.name in names or entry.key.endswith(tuple(f" {name}" for name in names))]
    left = [entry for entry in named if entry.key not in known]
    # The tenth that the suite checks comes first, so that an interrupted run has it.
    return sorted(left, key=lambda entry: (not in_tenth(entry), entry.dtype is torch.bfloat16))


def run(some: Sequence[Entry], compiled: bool) -> list[Case]:
    """The verdicts of some entries: traced one by one, then compiled together where ``compiled``."""
    cases = [case for entry in some for case in cases_of(entry)]
    for case in cases:
        trace(case)
    if compiled:
        check_bits([case for case in cases if case.verdict in BY_BITS])
    return cases


def main() -> None:
    warnings.simplefilter("ignore")
    some, compiled = chosen(sys.argv[1:]), "--trace-only" not in sys.argv
    start = time.monotonic()
    for i in range(0, len(some), CHUNK):
        chunk = some[i : i + CHUNK]
        record.write(run(chunk, compiled), [entry.key for entry in chunk], compiled)
        print(f"{i + len(chunk)} of {len(some)} entries, {time.monotonic() - start:.0f} s, last {chunk[-1].key}", flush=True)


if __name__ == "__main__":
    main()
