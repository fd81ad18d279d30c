"""Writes what each compile did: into the folder of option ``trace``, and into torch's structured trace (TORCH_TRACE), which tlparse shows.

A folder of its own for every forward and backward:

    0000_forward/report.txt, .json, .html        classes, rewrites, kernels with their numerics
    0000_forward/0_dynamo.txt, 1_captured.txt    the graph at each stage
    0000_forward/1_captured.diff                 what changed since the stage before
    0000_forward/generated_code.py               what Inductor wrote, when the compile went through

torch internals, checked in 2.13.0 to 2.15.0: torch._logging._internal's trace_log and trace_structured_artifact,
CompiledFxGraph.source_code.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.errors import OptionError
from bi_inductor.reports.explanation import Explanation

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from bi_inductor.options import Options
    from bi_inductor.reports.records import GraphRecord


def is_wanted(options: Options) -> bool:
    """Whether anyone reads what ``traced`` writes."""
    from torch._logging._internal import trace_log

    return bool(options.trace or trace_log.handlers)


def traced(compile_one: Callable[..., Any], gm: GraphModule, options: Options) -> Callable[..., Any]:
    """``compile_one`` (Inductor's compile_fx_inner), which also writes the report of each graph, also of one that it refuses.

    Args:
        gm: the graph that Dynamo captured.
        options: the options of the compile.
    """
    from bi_inductor.passes.observe import observed_by
    from bi_inductor.reports.capture import Recorder
    from bi_inductor.reports.records import record_graph

    dynamo = record_graph("dynamo", gm.graph)

    @functools.wraps(compile_one)
    def compile_and_write(*args: Any, **kwargs: Any) -> Any:
        kind = "inference" if kwargs.get("is_inference") else "backward" if kwargs.get("is_backward") else "forward"
        recorder = Recorder(options, tolerant=False)
        code = ""
        try:
            with observed_by(recorder):
                result = compile_one(*args, **kwargs)
            code = getattr(result, "source_code", "")
        finally:
            recorder.finish()
            graphs = recorder.captured(kind, None if kind == "backward" else dynamo)
            # A graph that came from a cache passed no pass: with option trace there is no such graph.
            if graphs:
                _write(Explanation("compiled graph", "batch_invariant", str(torch.__version__), tuple(graphs)), code, kind, options.trace)
        return result

    return compile_and_write


def _write(explanation: Explanation, code: str, kind: str, folder: str) -> None:
    from torch._logging._internal import trace_structured_artifact

    from bi_inductor.reports.html import render_explanation

    files = _files(explanation, code)
    for name, write in files.items():
        trace_structured_artifact(f"bi_inductor_{name}", "json" if name.endswith(".json") else "string", write)
    if folder:
        files["report.html"] = functools.partial(render_explanation, explanation)
        own = _new_folder(Path(folder), kind)
        for name, write in files.items():
            (own / name).write_text(write(), encoding="utf-8")


def _files(explanation: Explanation, code: str) -> dict[str, Callable[[], str]]:
    """Every file by its name, written when it is wanted."""
    files: dict[str, Callable[[], str]] = {
        "report.txt": explanation.text,
        "report.json": lambda: json.dumps(explanation.json(), indent=1),
    }
    for number, graph in enumerate(explanation.graphs):
        # Bodies of higher-order ops come first, the graph itself last.
        inner = "" if number == len(explanation.graphs) - 1 else f"inner_{number}_"
        for i, record in enumerate(graph.stages):
            files[f"{inner}{i}_{record.stage}.txt"] = functools.partial("{}\n".format, record.text())
        for i, (before, after) in enumerate(itertools.pairwise(graph.stages), 1):
            title = f"{graph.name}: {before.stage} to {after.stage}"
            files[f"{inner}{i}_{after.stage}.diff"] = functools.partial(_diff_text, before, after, title)
    if code:
        files["generated_code.py"] = lambda: code
    return files


def _diff_text(before: GraphRecord, after: GraphRecord, title: str) -> str:
    from bi_inductor.reports.graph_diff import compare

    return compare(before, after, title).text() + "\n"


def _new_folder(parent: Path, kind: str) -> Path:
    """A folder that nobody had before, this process or another: creating it is what claims the number."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(len(list(parent.iterdir()))):
            folder = parent / f"{number:04d}_{kind}"
            if any(parent.glob(f"{number:04d}_*")):
                continue
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise OptionError(f"option 'trace' (BI_INDUCTOR_TRACE) names a folder that cannot be written: {error}") from error
    raise AssertionError("itertools.count ends")
