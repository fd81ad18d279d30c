"""The JSON of a run: what was measured where. Written by the tables, read by `benchmarks.compare`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement

RESULTS = Path(__file__).parent / "results"


class RecordError(Exception):
    """A file that is no record; the message is one sentence that names the file."""


@dataclass(frozen=True)
class Record:
    """One run of a table.

    Attributes:
        table: "models", or "ops" and a dtype; only rows of one table compare.
        environment: see benchmarks/timing.py.
        rows: measurements by the row's name.
        compile: compile time and memory (benchmarks/compile_cost.py), empty if left out.
    """

    table: str
    environment: dict[str, str | int]
    rows: dict[str, Measurement]
    compile: dict[str, Any]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def read(path: Path) -> Record:
    """The record in ``path``.

    Raises:
        RecordError: no such file, no JSON, or JSON of something else.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is no JSON: {error}") from error
    try:
        rows = {name: _measurement(row) for name, row in content["rows"].items()}
        return Record(str(content["table"]), dict(content["environment"]), rows, dict(content["compile"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is no result of `python -m benchmarks --json` or of a single table: {error!r}") from error


def _measurement(row: dict[str, Any]) -> Measurement:
    ratios = {}
    for name, (low, middle, high) in row["ratios"].items():
        if not low <= middle <= high:
            raise ValueError(f"quartiles {low}, {middle}, {high} are not in order")
        ratios[name] = (float(low), float(middle), float(high))
    return Measurement({name: float(time) for name, time in row["milliseconds"].items()}, ratios)
