"""The committed record of the last full run: for every entry the verdicts of its calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.opinfo.verdicts import BY_BITS, Case

RECORD = Path(__file__).with_name("verdicts.json")


def described(case: Case, compiled: bool) -> dict[str, Any]:
    """One call as it stands in the record; ``compiled`` tells whether bits were compared or the graph alone was looked at."""
    assert case.verdict is not None
    found = {"sample": case.sample.number, "form": case.form, "verdict": case.verdict.value, "note": case.note}
    return {**found, "reported": list(case.reported), "bits": compiled and case.verdict in BY_BITS}


def read() -> dict[str, list[dict[str, Any]]]:
    """The calls of each entry by its key ("add float32")."""
    if not RECORD.exists():
        return {}
    record: dict[str, list[dict[str, Any]]] = json.loads(RECORD.read_text())
    return record


def write(cases: Iterable[Case], keys: Iterable[str], compiled: bool) -> None:
    """Replaces the record of the entries ``keys`` by ``cases``; an entry without a call that runs has an empty list."""
    record = {**read(), **{key: [] for key in keys}}
    for case in cases:
        record[case.entry.key].append(described(case, compiled))
    lines = [f"{json.dumps(key)}: {json.dumps(record[key])}" for key in sorted(record)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
