"""One self-contained HTML file: nodes with their classes in colour, search, side-by-side differences, kernels and pins.

All data is one JSON object in the page, which its script (report.html.jinja) only ever shows as text; the page's own policy forbids it
to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bi_inductor.reports.records import GraphRecord

if TYPE_CHECKING:
    from bi_inductor.find.result import FindResult
    from bi_inductor.reports.explanation import Explanation
    from bi_inductor.reports.graph_diff import DiffSection, GraphDiff

# Equal lines that are shown on either side of a difference.
CONTEXT = 3


def render_explanation(explanation: Explanation, found: FindResult | None = None) -> str:
    """The page of an explanation; with what `find` found of the same model, one more tab and a line at nodes that differ."""
    import dataclasses

    from bi_inductor.reports.explanation import pins_in_force
    from bi_inductor.reports.find_page import plot_data, plot_values

    texts = _Texts()
    graphs = []
    for graph in explanation.graphs:
        graphs.append(
            {
                "name": graph.name,
                "stages": [{"stage": record.stage, "nodes": _nodes(record, texts)} for record in graph.stages],
                "kernels": [dataclasses.asdict(kernel) for kernel in explanation.kernels(graph)],
            }
        )
    stages = dict.fromkeys(record.stage for graph in explanation.graphs for record in graph.stages[1:])
    changes = [_changes(section) for stage in stages for section in explanation.graph_diff(stage).sections]
    ours = explanation.backend == "batch_invariant"
    on = "" if explanation.target == "cpu" else f" on {explanation.target}"
    return _page(
        {
            "title": f"{explanation.function}: {explanation.backend}{on}, torch {explanation.torch_version}",
            "verdict": explanation.verdict,
            "breaks": [f"{graph_break.reason} {graph_break.source}".strip() for graph_break in explanation.breaks],
            "graphs": graphs,
            "texts": texts.known,
            "changes": changes,
            "pins": [[name, repr(pin["value"]), pin["reason"]] for name, pin in pins_in_force().items()] if ours else [],
            "found": None if found is None else plot_data(found),
        },
        found=None if found is None else plot_values(found),
    )


def render_diff(diff: GraphDiff) -> str:
    """The page of a comparison: its sections side by side."""
    lines = sum(section.changes for section in diff.sections)
    verdict = f"{lines} line{'s' * (lines != 1)} differ" + "s" * (lines == 1)
    changes = [_changes(section) for section in diff.sections]
    page = {"title": "Graphs compared", "verdict": verdict, "breaks": [], "graphs": [], "texts": [], "changes": changes, "pins": []}
    return _page({**page, "found": None}, found=None)


class _Texts:
    """Texts that many nodes share (classes, reasons, source lines), by number."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.known)
            self.known.append(text)
        return self._numbers[text]


def _nodes(record: GraphRecord, texts: _Texts) -> list[list[Any]]:
    """Each node as [name, op, arguments, value, class, reason, source, module], the last six but the arguments as numbers of texts."""
    return [
        [
            node.name,
            texts.number(node.op),
            list(node.arguments),
            *(texts.number(text) for text in (node.value, node.op_class, node.reason, node.source, node.module)),
        ]
        for node in record.nodes
    ]


def _changes(section: DiffSection) -> dict[str, Any]:
    """A comparison without its long runs of equal lines."""
    return {"title": section.headline(), "changed": section.changes, "rows": list(_near_changes(section))}


def _near_changes(section: DiffSection) -> Iterator[list[Any]]:
    rows = section.rows
    changed = [i for i, row in enumerate(rows) if row.kind != "same"]
    near = {j for i in changed for j in range(max(0, i - CONTEXT), min(len(rows), i + CONTEXT + 1))}
    skipped = 0
    for i, row in enumerate(rows):
        if i not in near:
            skipped += 1
            continue
        if skipped:
            yield ["skipped", skipped]
            skipped = 0
        yield [row.kind, row.before, row.after]
    if skipped:
        yield ["skipped", skipped]


def _page(data: dict[str, Any], found: dict[str, Any] | None) -> str:
    return fill_page("report.html.jinja", data, title=data["title"], verdict=data["verdict"], found=found)


def fill_page(name: str, data: dict[str, Any], **values: Any) -> str:
    """A template of this folder with ``data`` as the JSON that its script reads; ``values`` are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Inside a script element nothing ends it but "</": no text of a model can.
    escaped = json.dumps(data, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        escaped = escaped.replace(character, f"\\u{ord(character):04x}")
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(name).render(**values, data=escaped)
