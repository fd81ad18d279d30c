"""`python -m benchmarks.compare` as a process: verdicts, exit codes, and one sentence for files that do not compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record import RecordError, read

REPOSITORY = Path(__file__).resolve().parents[2]

Quartiles = tuple[float, float, float]


def record(rows: dict[str, Quartiles], table: str = "models", threads: int = 2) -> dict[str, Any]:
    return {
        "table": table,
        "environment": {"cpu": "a CPU", "threads": threads},
        "rows": {
            name: {"milliseconds": {"stock": 2.0, "ours": 1.0}, "ratios": {"ours/stock": list(quartiles)}}
            for name, quartiles in rows.items()
        },
        "compile": {},
    }


def compare(folder: Path, before: object, after: object) -> subprocess.CompletedProcess[str]:
    """Compares two contents; a string is written as it is, None not at all."""
    command = [sys.executable, "-m", "benchmarks.compare"]
    for name, content in (("before.json", before), ("after.json", after)):
        if content is not None:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        command.append(str(folder / name))
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def verdicts(output: str) -> dict[str, str]:
    lines = [line for line in output.splitlines() if line.startswith("row ")]
    return {" ".join(line.split()[:2]): line.split()[-1] for line in lines if line.split()[-1].isalpha()}


def test_a_row_is_worse_only_when_the_quartiles_part(tmp_path: Path) -> None:
    before = {"row overlap": (0.7, 0.8, 0.9), "row touch": (0.7, 0.8, 0.9), "row slower": (0.7, 0.8, 0.9), "row faster": (0.7, 0.8, 0.9)}
    after = {"row overlap": (0.89, 1.2, 1.5), "row touch": (0.9, 1.0, 1.1), "row slower": (0.91, 1.0, 1.1), "row faster": (0.5, 0.6, 0.69)}
    done = compare(tmp_path, record(before), record(after))
    assert done.returncode == 1, done.stderr
    assert verdicts(done.stdout) == {"row slower": "worse", "row faster": "better"}
    assert "1 of 4 rows worse, 1 better" in done.stdout
    # The control: without that row nothing is worse.
    del after["row slower"]
    done = compare(tmp_path, record(before), record(after))
    assert done.returncode == 0, done.stderr
    assert "0 of 3 rows worse" in done.stdout
    assert "only before: row slower" in done.stdout


def test_another_machine_is_named(tmp_path: Path) -> None:
    rows: dict[str, Quartiles] = {"row a": (0.7, 0.8, 0.9)}
    done = compare(tmp_path, record(rows, threads=2), record(rows, threads=1))
    assert done.returncode == 0
    assert "threads was 2, is 1" in done.stdout


GOOD = record({"row a": (0.7, 0.8, 0.9)})


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (None, GOOD, "before.json cannot be read: No such file"),
        (GOOD, "{", "after.json is no JSON"),
        (GOOD, "[]", "after.json is no result of"),
        (GOOD, "null", "after.json is no result of"),
        (GOOD, {**GOOD, "rows": {"row a": {}}}, "KeyError('ratios')"),
        (GOOD, record({"row a": (0.9, 0.8, 0.7)}), "not in order"),
        (GOOD, record({"row a": (0.7, float("nan"), 0.9)}), "not in order"),
        (GOOD, record({"row a": (0.7, 0.8, 0.9)}, table="ops float32"), "two tables, 'models' and 'ops float32'"),
        (GOOD, record({"row b": (0.7, 0.8, 0.9)}), "no row with a ratio ours/stock in common"),
    ],
)
def test_files_that_do_not_compare(tmp_path: Path, before: object, after: object, sentence: str) -> None:
    done = compare(tmp_path, before, after)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == ""


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "results" / "models.json"
    path.parent.mkdir()
    path.write_text(json.dumps(GOOD))
    before = read(path)
    again = tmp_path / "another" / "models.json"
    before.write(again)
    assert read(again) == before
    with pytest.raises(RecordError, match="cannot be read: Is a directory"):
        read(tmp_path)
