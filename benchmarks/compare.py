"""`python -m benchmarks.compare BEFORE.json AFTER.json`: rows that became slower against stock between two runs of one table.

A row is worse when the lower quartile of its ours/stock ratio lies above the upper quartile of the earlier run, and better the other way
round; intervals that overlap are noise. Only the ratio is compared, since times move with whatever else a machine does.

Exit code: 0 no row is worse, 1 a row is worse, 2 the files cannot be compared.
"""

from __future__ import annotations

import argparse
import enum
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.measurement import AGAINST_STOCK
from benchmarks.record import Record, RecordError, read

Quartiles = tuple[float, float, float]
# Rows of one file alone that are named; the others are counted.
NAMED = 4


class Verdict(enum.Enum):
    """What became of a row."""

    WORSE = "worse"
    BETTER = "better"
    SAME = ""


class Change(NamedTuple):
    """The ours/stock ratio of one row, before and after, as quartiles."""

    name: str
    before: Quartiles
    after: Quartiles

    @property
    def verdict(self) -> Verdict:
        if self.after[0] > self.before[2]:
            return Verdict.WORSE
        if self.after[2] < self.before[0]:
            return Verdict.BETTER
        return Verdict.SAME


def changes(before: Record, after: Record) -> list[Change]:
    """The rows that both have, in the order of ``after``.

    Raises:
        RecordError: two tables that differ, or no row in common.
    """
    if before.table != after.table:
        raise RecordError(f"the files hold two tables, {before.table!r} and {after.table!r}, whose rows do not compare")
    common = [name for name in after.rows if name in before.rows]
    found = []
    for name in common:
        ratios = [record.rows[name].ratios.get(AGAINST_STOCK) for record in (before, after)]
        if ratios[0] is not None and ratios[1] is not None:
            found.append(Change(name, ratios[0], ratios[1]))
    if not found:
        raise RecordError(f"the files have no row with a ratio {AGAINST_STOCK} in common")
    return found


def _remarks(before: Record, after: Record) -> Iterator[str]:
    for key in sorted({*before.environment, *after.environment}):
        old, new = before.environment.get(key), after.environment.get(key)
        if old != new:
            yield f"note: {key} was {old}, is {new}"
    for label, one, other in (("before", before, after), ("after", after, before)):
        alone = [name for name in one.rows if name not in other.rows]
        if alone:
            more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
            yield f"note: only {label}: {'; '.join(alone[:NAMED])}{more}"


def _quartiles(value: Quartiles) -> str:
    return f"{value[1]:.2f} ({value[0]:.2f} to {value[2]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, metavar="BEFORE.json")
    parser.add_argument("after", type=Path, metavar="AFTER.json")
    arguments = parser.parse_args()
    try:
        before, after = read(arguments.before), read(arguments.after)
        found = changes(before, after)
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for remark in _remarks(before, after):
        print(remark)
    print(f"{AGAINST_STOCK + ', median (quartiles)':42}{'before':>24}{'after':>24}{'after/before':>14}")
    for change in found:
        ratio = change.after[1] / change.before[1]
        line = f"{change.name:42}{_quartiles(change.before):>24}{_quartiles(change.after):>24}{ratio:>14.2f}  {change.verdict.value}"
        print(line.rstrip())
    counts = {verdict: sum(change.verdict is verdict for change in found) for verdict in Verdict}
    print(f"{counts[Verdict.WORSE]} of {len(found)} rows worse, {counts[Verdict.BETTER]} better")
    sys.exit(1 if counts[Verdict.WORSE] else 0)


if __name__ == "__main__":
    main()
