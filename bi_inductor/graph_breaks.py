"""Where Dynamo ends a graph before the function ends: what it could not capture runs in eager, outside of every pass.

torch internals, checked in 2.13.0: ``gm.compile_subgraph_reason`` (torch._dynamo.output_graph.GraphCompileReason: ``reason``,
``user_stack``, ``graph_break``), which Dynamo sets on the graph before it calls the backend.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import TYPE_CHECKING

from bi_inductor.errors import GraphBreakWarning

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclasses.dataclass(frozen=True)
class GraphBreak:
    """One place where Dynamo split the function.

    Attributes:
        reason: Dynamo's, in one line.
        source: file, line and text of the user's code, "" where Dynamo did not record it.
    """

    reason: str
    source: str = ""


def graph_break(gm: GraphModule) -> GraphBreak | None:
    """The break that ended ``gm``, a graph of Dynamo's; None when the function ended there."""
    why = getattr(gm, "compile_subgraph_reason", None)
    if why is None or not why.graph_break:
        return None
    frame = why.user_stack[-1] if why.user_stack else None
    source = f'"{frame.filename}", line {frame.lineno}, in {frame.name}: {frame.line}' if frame else ""
    return GraphBreak(one_line(why.reason), source)


def one_line(reason: str) -> str:
    """What happened and why, in one line, without Dynamo's hints and debugging context."""
    if reason.startswith("generic_jump"):
        return "a branch on the value of a tensor"
    text = " ".join(re.split(r"\n\s*(?:Hint:|Developer debug context:)", reason)[0].split())
    # Addresses of objects would make every process's text another.
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace(" Explanation:", ":", 1)


def warn_of_graph_break(gm: GraphModule) -> None:
    """A GraphBreakWarning where Dynamo ended ``gm`` by a break.

    None can be given where Dynamo calls no backend: for a break before the first op, and for a function that it gives up as a whole.
    """
    found = graph_break(gm)
    if found is not None:
        warnings.warn(
            "Dynamo ended a graph here; what it could not capture runs in eager, where bits may follow the batch:\n"
            f"  {found.reason}\n  at {found.source or 'an unknown source line'}\nfullgraph=True turns such places into errors.",
            GraphBreakWarning,
            stacklevel=2,
        )
