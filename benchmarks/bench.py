"""`make bench` and `make bench-full`: time of ours against its competitors on models; compile time and memory beside it.

Each row is one interleaved run in one process (benchmarks/timing.py). Ratios below 1 mean that ours is faster.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import compile_cost
from benchmarks.competitors import COMPETITORS, FEW, MEANING, NATIVE_BFLOAT16, calls
from benchmarks.measurement import Measurement
from benchmarks.record import RESULTS, Record
from benchmarks.rows import Row, select
from benchmarks.table import Table
from benchmarks.timing import environment, headline, measure


def model_table(
    rows: Mapping[str, Callable[[], Row]],
    competitors: Sequence[str],
    rounds: int,
    seconds_per_block: float,
    most_seconds: float,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Measurement]:
    """Times every row under every competitor, ours with ``options``, and prints the table as it grows."""
    table = Table(competitors)
    table.print_header()
    results: dict[str, Measurement] = {}
    for name, make in rows.items():
        row = make()
        torch.compiler.reset()
        timed = calls(competitors, row.model, row.arguments, row.batch, options)
        results[name] = measure(timed, rounds=rounds, seconds_per_block=seconds_per_block, most_seconds=most_seconds)
        table.print_row(name, results[name])
    table.print_means(results)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=MEANING, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all rows and all competitors (make bench-full)")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only rows whose name contains TEXT")
    parser.add_argument("--native-bfloat16", action="store_true", help=NATIVE_BFLOAT16)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds per row (default 15)")
    parser.add_argument("--block", type=float, default=0.1, metavar="SECONDS", help="length of one competitor's turn")
    parser.add_argument("--row-seconds", type=float, metavar="SECONDS", help="fewer rounds, 5 at least, where a row would take longer")
    parser.add_argument("--no-compile-time", action="store_true", help="leave out the table of compile time and memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (default benchmarks/results/)")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and measure nothing")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds is {arguments.rounds}; at least 2 are needed for a median and quartiles")
    rows = select(arguments.full, arguments.only)
    if not rows:
        parser.error(f"--only {arguments.only!r} matches no row")
    if arguments.list:
        print("\n".join(rows))
        return
    competitors = tuple(COMPETITORS) if arguments.full else FEW
    options = {"native_bfloat16": True} if arguments.native_bfloat16 else {}
    most_seconds = arguments.row_seconds or (60.0 if arguments.full else 20.0)
    print(f"{headline()}\n{textwrap.dedent(MEANING)}\n")
    with torch.no_grad():
        results = model_table(rows, competitors, arguments.rounds, arguments.block, most_seconds, options)
    compiling = {} if arguments.no_compile_time else compile_cost.print_table()
    name = " ".join(["models", *options])
    path = arguments.json or RESULTS / f"{name.replace(' ', '-')}{'-full' if arguments.full else ''}.json"
    Record(name, environment(), results, compiling).write(path)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
