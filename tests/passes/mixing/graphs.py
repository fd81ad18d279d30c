"""What the analysis finds in a function, without generating code, and which lines that is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bi_inductor.backend import compile_graph, split_options
from bi_inductor.passes.classify import source_line
from bi_inductor.passes.mixing import Finding, GraphInput, describe_inputs, find_mixing, mixing_reason
from bi_inductor.passes.op_classes import op_name

# Marks a line of an example that mixes samples.
MARK = "# mixes"


class Found(NamedTuple):
    """A finding as text."""

    op: str
    line: int
    reason: str
    certain: bool


def findings(fn: Callable[..., Any], *inputs: Any, dynamic: bool | None = None, options: dict[str, Any] | None = None) -> list[Found]:
    """The findings in every forward or inference graph of ``fn``; it is traced, not compiled."""
    found: list[Finding] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        given: tuple[GraphInput, ...] = describe_inputs(gm, example_inputs, split_options(None, options)[0].batch_dim)

        def inner_compile(inner: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Callable[..., Any]:
            found.extend(find_mixing(inner.graph, given))
            return lambda *values: None

        compile_graph(gm, example_inputs, inner_compile=inner_compile, options=options)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    return [Found(op_name(finding.node.target), _line(finding), mixing_reason(finding), finding.certain) for finding in found]


def _line(finding: Finding) -> int:
    match = re.search(r"line (\d+)", source_line(finding.node))
    return int(match[1]) if match else 0


def lines_of(found: Sequence[Found], fn: Callable[..., Any]) -> set[str]:
    """The text of the lines that were found, of a function of examples."""
    source, first = inspect.getsourcelines(fn)
    return {source[entry.line - first].strip() if 0 <= entry.line - first < len(source) else str(entry) for entry in found}


def marked_lines(fn: Callable[..., Any]) -> set[str]:
    """The lines that say that they mix."""
    return {line.strip() for line in inspect.getsource(fn).splitlines() if line.rstrip().endswith(MARK)}
