"""What `find` found: the first node whose bits part, why, and what becomes of the difference along the graph."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Rows of the table that text() prints; `table` holds all.
_PRINTED = 24


@dataclass(frozen=True)
class Operand:
    """A value in both variants.

    Attributes:
        name: the name of the node that made it.
        reference, other: dtype, shape and strides in each.
    """

    name: str
    reference: str
    other: str

    def __str__(self) -> str:
        return self.reference if self.reference == self.other else f"{self.reference} | {self.other}"


@dataclass(frozen=True)
class Measured:
    """How far the shared rows of a value are apart.

    Attributes:
        rows, rows_different: how many rows were compared, how many of them differ.
        elements, elements_different: the same for their elements.
        max_ulp: the largest distance in units in the last place.
        place: of the first element that differs, in the reference; row first for values that hold samples.
        values: that element in the reference and in the other variant.
    """

    rows: int
    rows_different: int
    elements: int
    elements_different: int
    max_ulp: float
    place: tuple[int, ...]
    values: tuple[Any, Any]


@dataclass(frozen=True)
class _Place:
    """What a node is: the fields of a `FoundNode` before its numbers."""

    name: str
    position: int
    nodes: int
    op: str
    module: str
    line: str
    operands: tuple[Operand, ...]
    output: Operand
    kernels: tuple[str, ...]
    cause: str


@dataclass(frozen=True)
class FoundNode(Measured, _Place):
    """The first node whose bits part. Its numbers are those of a `Measured`.

    Attributes:
        name: in the captured graph.
        position, nodes: it is the ``position``-th of ``nodes`` calls (from 1).
        op: what it calls.
        module: path and class of the nearest module.
        line: the user's source line.
        operands: what it reads.
        output: what it writes.
        kernels: the kernels that write it under a compiler, in the reference and the other variant; empty in eager.
        cause: one sentence.
    """

    def facts(self) -> list[tuple[str, str]]:
        """What a report says of it: name and text."""
        kernels = " | ".join(dict.fromkeys(self.kernels)) if any(self.kernels) else ""
        place = f"[{', '.join(map(str, self.place))}]"
        return [
            ("op", self.op),
            ("line", self.line),
            ("module", self.module),
            *([("kernel", kernels)] if kernels else []),
            *((operand.name, str(operand)) for operand in self.operands),
            ("result", str(self.output)),
            (
                "bits",
                f"{self.elements_different} of {self.elements} elements differ, in {self.rows_different} of {self.rows} shared rows, "
                f"by up to {ulp_text(self.max_ulp)} ulp",
            ),
            ("first", f"at {place}: {self.values[0]!r} | {self.values[1]!r}"),
            ("cause", self.cause),
        ]


@dataclass(frozen=True)
class TableRow:
    """One node along the graph.

    Attributes:
        node, op, module, line: as in `FoundNode`.
        max_ulp: how far the node's value is apart; None for the same bits.
        elements_different: how many elements differ.
        effect: "differs by itself", "amplifies", "passes on", "reduces" or "hides"; empty where it is not known.
        is_output: whether the model returns it.
        position: of the op among the calls of the graph, from 1.
    """

    node: str
    op: str
    module: str
    line: str
    max_ulp: float | None
    elements_different: int
    effect: str
    is_output: bool
    position: int


@dataclass(frozen=True)
class VariantRow:
    """What one variant gave.

    Attributes:
        name: in words.
        first: name of the first node that differs from the reference; None when no bit does. Under a compiler it is searched for one
            variant only, the others say "the outputs".
        differing: how many nodes (under a compiler: outputs) differ.
        way: what to know about the way it took, "" for that of the reference.
    """

    name: str
    first: str | None
    differing: int
    way: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        text = "same bits"
        if self.first is not None:
            text = f"differs from {self.first} on, at {self.differing} values" if self.differing else f"differs at {self.first}"
        return f"{text}, {self.way}" if self.way else text


@dataclass(frozen=True)
class FindResult:
    """The result of `bi_inductor.find`: true when no bit differs; `print` shows `text()`.

    Attributes:
        backend: what ran the model.
        reference: the variant that the others were compared with.
        variants: one row for each of them.
        nodes, compared: calls in the graph, and how many values were compared.
        node: the first node whose bits part, in the variant ``variant``; None when none does.
        variant: name of that variant.
        table: what the nodes from there on do with the difference.
        notes: what was not compared and what to know.
    """

    backend: str
    reference: str
    variants: tuple[VariantRow, ...]
    nodes: int
    compared: int
    node: FoundNode | None = None
    variant: str | None = None
    table: tuple[TableRow, ...] = ()
    notes: tuple[str, ...] = ()
    reproduce: Callable[[Path], None] | None = field(default=None, repr=False, compare=False)

    @property
    def invariant(self) -> bool:
        """Whether all compared rows had the same bits in all variants."""
        return self.node is None

    def __bool__(self) -> bool:
        return self.invariant

    def __str__(self) -> str:
        return self.text()

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        if self.node is None:
            return f"{self.backend}: batch-invariant, the same bits at all {self.compared} compared values of {self.nodes} nodes"
        return f"{self.backend}: not batch-invariant, first at {self.node.name} (node {self.node.position} of {self.node.nodes})"

    @property
    def compared_with(self) -> str:
        """The heading above the variants."""
        return f"compared with the {self.reference}" if not self.reference.startswith("sample") else f"compared with {self.reference}"

    def text(self) -> str:
        """The report in plain text."""
        lines = [self.verdict]
        if self.node is not None:
            lines += _columns([[f"  {name}", value] for name, value in self.node.facts()])
        lines += ["", f"{self.compared_with}:"]
        lines += _columns([[f"  {row.name}", row.verdict] for row in self.variants])
        if self.table:
            lines += ["", f"along the graph ({self.variant}):", *self._table_lines()]
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])

    def _table_lines(self) -> list[str]:
        shown = _most_telling(self.table)
        cells = [["  node", "op", "module", "max ulp", "", "effect"]]
        for row in shown:
            ulp = "same" if row.max_ulp is None else ulp_text(row.max_ulp)
            effect = ", ".join(part for part in (row.effect, "output" if row.is_output else "") if part)
            cells.append([f"  {row.node}", row.op, row.module.split(" ")[0] or "-", ulp, _bar(row.max_ulp), effect])
        lines = _columns(cells, right={3})
        if len(shown) < len(self.table):
            lines.append(f"  {len(self.table) - len(shown)} more nodes are in .table")
        origins = Counter(row.op for row in self.table if row.effect == "differs by itself")
        if origins.total() > 1:
            counts = ", ".join(f"{op} {count}" for op, count in origins.most_common())
            lines.append(f"  {origins.total()} nodes differ by themselves, on the same rows: {counts}")
        return lines

    def json(self) -> str:
        """All attributes as JSON; numbers that JSON lacks (infinity, NaN) are strings."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "reproduce"}
        return json.dumps({"invariant": self.invariant, **_plain(fields)}, indent=2)

    def html(self, path: str | Path) -> None:
        """Writes the report as one HTML page that loads nothing: the node, the variants, a plot of ulp along the graph, every row of the
        table with a search."""
        from ..reports.find_page import render_find

        Path(path).write_text(render_find(self), encoding="utf-8")

    def write_reproduction(self, path: str | Path) -> tuple[Path, Path]:
        """Writes a script that shows the difference by itself, and its tensors beside it.

        Args:
            path: of the script; the tensors get the same name with ".pt".

        Returns:
            Both paths.

        Raises:
            ValueError: nothing differs, or no part smaller than the whole model shows it.
        """
        if self.reproduce is None:
            raise ValueError("there is no difference to reproduce: no bits part" if self.invariant else "this difference cannot be cut out")
        script = Path(path)
        self.reproduce(script)
        return script, script.with_suffix(".pt")


def effect_of(operands: float, max_ulp: float | None, by_itself: bool | None) -> str:
    """In a word, what a node does with the distance of its operands."""
    if max_ulp is None:
        return "hides"
    if by_itself:
        return "differs by itself"
    if max_ulp >= 2 * operands:
        return "amplifies"
    return "reduces" if 2 * max_ulp <= operands else "passes on"


def ulp_text(ulp: float) -> str:
    """A distance in few characters."""
    return f"{ulp:.0f}" if ulp < 1e7 else f"{ulp:.2g}"


def _bar(ulp: float | None) -> str:
    """A bar on a logarithmic scale, one mark for a factor of four."""
    if ulp is None:
        return ""
    return "#" * 32 if math.isinf(ulp) else "#" * (1 + int(math.log2(max(ulp, 1)) // 2))


def _columns(rows: list[list[str]], right: set[int] | None = None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in (right or ()) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _most_telling(table: tuple[TableRow, ...]) -> list[TableRow]:
    """The rows to print: the first, the outputs, and those where most changes."""
    if len(table) <= _PRINTED:
        return list(table)

    def change(index: int) -> float:
        row, before = table[index], table[index - 1]
        sizes = [0.0 if r.max_ulp is None else math.log2(1 + min(r.max_ulp, 2.0**64)) for r in (row, before)]
        return abs(sizes[0] - sizes[1])

    first = [0, *(index for index, row in enumerate(table) if row.is_output)][:_PRINTED]
    rest = sorted((index for index in range(len(table)) if index not in first), key=change, reverse=True)
    return [table[index] for index in sorted([*first, *rest[: _PRINTED - len(first)]])]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
