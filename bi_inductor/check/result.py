"""What `bi_inductor.check` found: one row per kind of run, printable as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from .shrink import SmallestBatch

# The two kinds of run that repeat earlier ones exactly: differences there are not due to the batch.
REPEATED_ALONE = "alone, again"
REPEATED_BATCH = "same batch, again"
REPEATED = (REPEATED_ALONE, REPEATED_BATCH)

_HEADERS = ("run", "batch", "dynamic", "threads", "rows", "different", "elements", "max ulp")


@dataclass(frozen=True)
class CheckRow:
    """The comparisons of one kind of run.

    Attributes:
        run: what was run, for example "batch of 3", "permutation 1", "sample first, neighbours nan".
        batch_size: number of samples in each call.
        dynamic: the `dynamic` argument of `torch.compile` (None for its default).
        threads: `torch.get_num_threads()` during the run.
        rows: samples compared with their reference, summed over the calls.
        rows_different: how many of them differ in at least one bit of one output.
        elements_different: how many output elements differ.
        max_ulp: the largest distance of a differing element in units in the last place (integers: absolute difference);
            infinity where a number met a NaN; 0 where only the sign of a zero differs.
    """

    run: str
    batch_size: int
    dynamic: bool | None
    threads: int
    rows: int
    rows_different: int
    elements_different: int
    max_ulp: float

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the table's columns."""
        ulp = f"{self.max_ulp:.0f}" if self.max_ulp < 1e7 else f"{self.max_ulp:.2g}"
        dynamic = "default" if self.dynamic is None else str(self.dynamic)
        numbers = (self.threads, self.rows, self.rows_different, self.elements_different)
        return (self.run, str(self.batch_size), dynamic, *map(str, numbers), ulp)


@dataclass(frozen=True)
class CheckResult:
    """The result of `bi_inductor.check`: true when no bit changed; `print` shows the table.

    Attributes:
        backend: name of the backend that ran.
        samples: number of samples in the inputs.
        rows: one `CheckRow` per kind of run.
        notes: what was left out, one a line below the table.
        smallest: the smallest failing batch that `shrink=True` found.
        eager_distance: the largest difference from eager that `eager=True` found, relative to the largest magnitude of its output;
            infinity where one has NaN, an infinity, another whole number, dtype or shape and the other does not.
    """

    backend: str
    samples: int
    rows: tuple[CheckRow, ...]
    notes: tuple[str, ...] = ()
    smallest: SmallestBatch | None = None
    eager_distance: float | None = None

    @property
    def invariant(self) -> bool:
        """Whether every compared row had the bits of its reference."""
        return all(row.rows_different == 0 for row in self.rows)

    @property
    def deterministic(self) -> bool:
        """Whether repeating a call gave the same bits. If not, the other rows say nothing about the batch."""
        return all(row.rows_different == 0 for row in self.rows if row.run in REPEATED)

    def _footnotes(self) -> tuple[str, ...]:
        notes = self.notes
        if self.eager_distance is not None:
            notes = (*notes, f"largest difference from eager, of the largest value of an output: {self.eager_distance:.2g}")
        if self.deterministic:
            return notes if self.smallest is None else (*notes, str(self.smallest))
        return (
            *notes,
            "two equal calls gave different bits: the function is random or not deterministic,",
            "so the other rows say nothing about the batch",
        )

    def json(self) -> dict[str, Any]:
        """Everything as data that ``json.dumps`` takes."""
        from .files import as_json

        return as_json(self)

    def junit(self) -> str:
        """JUnit XML: one test case a row of the table, failed where rows differ."""
        from .files import as_junit

        return as_junit(self)

    def __bool__(self) -> bool:
        return self.invariant

    def _headline(self) -> str:
        compared = sum(row.rows for row in self.rows)
        different = sum(row.rows_different for row in self.rows)
        verdict = "batch-invariant" if self.invariant else "not batch-invariant"
        if not self.deterministic:
            verdict = "not deterministic"
        return f"{self.backend}: {verdict}, {different} of {compared} rows differ ({self.samples} samples)"

    def __str__(self) -> str:
        lines = [_HEADERS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADERS))]
        text = [self._headline()]
        for line in lines:
            # The description is text, everything after it is numbers.
            cells = [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
            text.append("  ".join(cells).rstrip())
        return "\n".join([*text, *self._footnotes()])

    def __rich__(self) -> Table:
        """The same table for `rich.print`, rows that differ in red."""
        from rich.table import Table

        table = Table(title=self._headline(), caption="\n".join(self._footnotes()) or None)
        for column, header in enumerate(_HEADERS):
            table.add_column(header, justify="right" if column else "left")
        for row in self.rows:
            table.add_row(*row.cells(), style="red" if row.rows_different else None)
        return table
