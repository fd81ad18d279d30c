"""The command line, ``bi-inductor`` and ``python -m bi_inductor``: explain, diff, check, find, compile and doctor.

Exit codes: 0 invariant (explain: every op is supported; diff: no difference, with --batch none but sizes; compile: every kernel fits the
target), 1 variant (explain: an op is refused, opaque or mixes samples; diff: a difference; compile: a kernel spills registers or needs more
shared memory than there is), 2 it could not be found out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from bi_inductor.find.result import FindResult
    from bi_inductor.programs import Program
    from bi_inductor.reports.explanation import Explanation

INVARIANT, VARIANT, COULD_NOT_RUN = 0, 1, 2

PROGRAM = "module:callable or file.py:callable that returns (model, inputs), or a program saved by torch.export.save (.pt2)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors are one line on stderr."""
    parsed = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace, Console], int] = parsed.run
    try:
        return run(parsed, _console())
    except BrokenPipeError:
        _nobody_reads()
        return COULD_NOT_RUN
    except KeyboardInterrupt:
        return COULD_NOT_RUN
    except Exception as error:
        if parsed.traceback:
            raise
        print(f"bi-inductor: error: {_sentence(error)}", file=sys.stderr)
        return COULD_NOT_RUN


def _sentence(error: Exception) -> str:
    """What happened and what to do."""
    from bi_inductor.errors import BatchInvariantError

    text = str(error).strip() or type(error).__name__
    if isinstance(error, (BatchInvariantError, ValueError, OSError)):
        return text
    # Errors of Dynamo and of the model go on for many lines; the first says what happened.
    first = f"{type(error).__name__}: {text.splitlines()[0]}"
    if "Guard failed" in first:
        return f"{first}. The saved program allows only some sizes: export it with dynamic_shapes for the dim that holds the samples"
    return f"{first}. --traceback before the command shows where"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bi-inductor", description="Does a sample's result follow its batch, and why?")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    explain = commands.add_parser("explain", help="what a compile does to a model: classes, rewrites, kernels, numerics")
    explain.add_argument("program", help=PROGRAM)
    _add_capture_options(explain)
    explain.add_argument("--target", metavar="NAME", help="the kernels of a GPU: sm_80, sm_90, sm_100 or gfx942 (default the CPU's)")
    explain.add_argument("--stage", help="show what changed up to this stage instead: captured, round_low_precision, rewrite, inductor")
    explain.add_argument("--json", metavar="FILE", help="also write everything as JSON ('-': to the terminal, nothing else)")
    explain.add_argument("--html", metavar="FILE", help="also write everything as one HTML page")
    explain.add_argument("--find", metavar="BACKEND", help="also run find under this backend (eager, say), and show its result on the page")
    explain.set_defaults(run=_explain)

    diff = commands.add_parser("diff", help="compare the graphs of two compiles")
    diff.add_argument("before", help=f"{PROGRAM}; or JSON that explain wrote, from another version of torch, say")
    diff.add_argument("after", nargs="?", help="the same; without it, --against or --batch says what is compared")
    diff.add_argument("--against", choices=("inductor",), help="compare stock Inductor's graphs with ours")
    diff.add_argument("--batch", nargs=2, type=int, metavar=("N", "M"), help="compare a batch of N samples with one of M")
    diff.add_argument("--batch-dim", type=int, default=0, help="the dim of the inputs that holds samples (default 0)")
    diff.add_argument("--at", default="inductor", metavar="STAGE", help="stage of the graphs (default inductor, the last)")
    diff.add_argument("--html", metavar="FILE", help="also write the comparison side by side as one HTML page")
    _add_capture_options(diff)
    diff.set_defaults(run=_diff)

    check = commands.add_parser("check", help="run a model in many batches and compare bit for bit")
    check.add_argument("program", help=PROGRAM)
    check.add_argument("--backend", default="batch_invariant", help="a backend of torch.compile, or eager (default batch_invariant)")
    check.add_argument("--batch-sizes", type=_numbers(int), metavar="N,M", help="sizes to run (default 1,2,3,8 and all)")
    check.add_argument("--threads", type=_numbers(int), metavar="N,M", help="numbers of threads (default the current one)")
    check.add_argument("--neighbours", type=_numbers(float), default=(), metavar="X,Y", help="values of the other samples: nan,inf,1e30")
    check.add_argument("--dynamic", action="store_true", help="run with dynamic shapes too")
    check.add_argument("--grad", action="store_true", help="run the backward too and compare the gradients of the inputs")
    check.add_argument("--batch-dim", type=int, default=0, help="the dim of the inputs that holds samples (default 0)")
    check.add_argument("--out-batch-dim", type=int, default=0, help="the same for the outputs (default 0)")
    check.add_argument("--sequence-dim", type=int, help="the dim of all inputs that holds a sequence: run padded too")
    check.add_argument("--out-sequence-dim", type=int, help="the same for the outputs")
    check.add_argument("--padding", type=_numbers(int), default=(1, 5), metavar="N,M", help="how many places to pad (default 1,5)")
    check.add_argument("--chunks", type=_numbers(int), default=(), metavar="N,M", help="also run the sequence in chunks of N positions")
    check.add_argument("--in-chunks", metavar="FUNCTION", help="module:function or file.py:function that runs the chunks, with a KV cache")
    check.add_argument("--shrink", action="store_true", help="make a failing batch as small as it stays failing")
    check.add_argument("--eager", action="store_true", help="also tell how far the compiled values lie from eager's")
    check.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    check.add_argument("--junit", metavar="FILE", help="also write the result as JUnit XML")
    check.set_defaults(run=_check)

    find = commands.add_parser("find", help="name the first node whose bits follow the batch")
    find.add_argument("program", help=PROGRAM)
    find.add_argument("--backend", default="eager", help="eager, inductor, batch_invariant or another backend (default eager)")
    find.add_argument("--dynamic", action="store_true", help="compile with dynamic shapes")
    find.add_argument("--batch-dim", type=int, default=0, help="the dim of the inputs that holds samples (default 0)")
    find.add_argument("--sequence-dim", type=int, help="the dim of all inputs that holds a sequence, for --padding and --sequence-chunk")
    find.add_argument(
        "--padding", type=_numbers(int), default=(), metavar="N,M", help="also run padded by N positions on the left, on the right"
    )
    find.add_argument("--chunk", type=int, metavar="N", help="also run N samples at a time")
    find.add_argument("--sequence-chunk", type=int, metavar="N", help="also run N positions at a time")
    find.add_argument("--in-chunks", metavar="FUNCTION", help="module:function or file.py:function that runs these chunks, with a KV cache")
    find.add_argument("--threads", type=_numbers(int), default=(), metavar="N,M", help="also run on N threads")
    find.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    find.add_argument("--html", metavar="FILE", help="also write the result as one HTML page, with a plot along the graph")
    find.add_argument("--reproduce", metavar="FILE", help="write a script that shows the difference by itself")
    find.set_defaults(run=_find)

    compile_ = commands.add_parser("compile", help="what Triton makes of a model for a GPU that need not be there")
    compile_.add_argument("program", help=PROGRAM)
    compile_.add_argument("--target", required=True, metavar="NAME", help="the GPU: sm_80, sm_90, sm_100 or gfx942")
    compile_.add_argument("--dynamic", action="store_true", help="with dynamic shapes")
    compile_.add_argument("--json", metavar="FILE", help="also write everything as JSON, sources and assembly included")
    compile_.set_defaults(run=_compile)

    doctor = commands.add_parser("doctor", help="what this machine offers and what it means for invariance")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_capture_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dynamic", action="store_true", help="with dynamic shapes")
    parser.add_argument("--backward", action="store_true", help="the graphs of training, forward and backward, instead of inference")


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(",") if part.strip())

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def _console() -> Console:
    """Colours and the terminal's width on a terminal; in a file plain text, wide enough that tables are not folded."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """Nobody reads on (`| head`): the exit code is still the verdict. Rich would exit with 1, which means variant here."""
            self.quiet = True
            _nobody_reads()

    return Quiet(highlight=False, soft_wrap=True) if sys.stdout.isatty() else Quiet(highlight=False, soft_wrap=True, width=200)


def _nobody_reads() -> None:
    """What is still in stdout's buffer goes nowhere, so that Python's end does not fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _write(path: str, text: str) -> None:
    """Raises ValueError when the file cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from error


def _load(name: str) -> Program:
    from bi_inductor.programs import load_program

    return load_program(name)


def _explained(program: Program, arguments: argparse.Namespace, backend: str = "batch_invariant", target: str | None = None) -> Explanation:
    import torch

    from bi_inductor.explain import explain

    args, kwargs = program.arguments
    with torch.set_grad_enabled(arguments.backward):
        dynamic = True if arguments.dynamic else None
        explanation = explain(program.model, *args, target=target, kwargs=kwargs, backend=backend, dynamic=dynamic)
    return dataclasses.replace(explanation, function=program.name)


def _explain(arguments: argparse.Namespace, console: Console) -> int:
    from bi_inductor.reports.html import render_explanation

    if arguments.find and not arguments.html:
        raise ValueError("--find shows its result on the HTML page: add --html FILE, or run bi-inductor find")
    program = _load(arguments.program)
    explanation = _explained(program, arguments, target=arguments.target)
    if arguments.html:
        found = _found(program, arguments.find) if arguments.find else None
        _write(arguments.html, render_explanation(explanation, found))
    data = json.dumps(explanation.json(), indent=1)
    if arguments.json == "-":
        print(data)
    else:
        if arguments.json:
            _write(arguments.json, data + "\n")
        if arguments.stage:
            _print_diff(explanation.graph_diff(arguments.stage).text(), console)
        else:
            _print_report(explanation, console)
    doubtful = explanation.refused or explanation.nodes("opaque") or explanation.nodes("mixes samples")
    return VARIANT if doubtful or not explanation.graphs else INVARIANT


def _found(program: Program, backend: str) -> FindResult:
    from bi_inductor.find import find

    with _progress() as progress:
        return find(program.model, program.inputs, backend=backend, progress=progress)


def _print_report(explanation: Explanation, console: Console) -> None:
    colours = {"refused:": "red", "unsupported:": "red", "opaque:": "yellow", "mixes samples:": "yellow", "graph break:": "yellow"}
    for line in explanation.text().splitlines():
        style = next((colour for start, colour in colours.items() if line.strip().startswith(start)), None)
        console.print(line, style=style, markup=False)


def _print_diff(text: str, console: Console) -> None:
    for line in text.splitlines():
        console.print(line, style={"-": "red", "+": "green", "@": "dim"}.get(line[:1]), markup=False)


def _diff(arguments: argparse.Namespace, console: Console) -> int:
    from bi_inductor.reports.graph_diff import GraphDiff, compare
    from bi_inductor.reports.html import render_diff

    before, after = _sides(arguments)
    if len(before.graphs) != len(after.graphs):
        console.print(f"{len(before.graphs)} graphs before, {len(after.graphs)} after; the first of each are compared", markup=False)
    sections = []
    for left, right in zip(before.graphs, after.graphs, strict=False):
        title = f"{before.function} ({before.backend}, torch {before.torch_version}) to {after.function} ({after.backend}, torch "
        sections.append(compare(left.stage(arguments.at), right.stage(arguments.at), f"{title}{after.torch_version}), {left.name}"))
    diff = GraphDiff(tuple(sections))
    if arguments.html:
        _write(arguments.html, render_diff(diff))
    _print_diff(diff.text(), console)
    if len(before.graphs) != len(after.graphs):
        return VARIANT
    # Another batch has other sizes; other ops are the news.
    same = all(section.resized_only for section in sections) if arguments.batch else not diff
    return INVARIANT if same else VARIANT


def _sides(arguments: argparse.Namespace) -> tuple[Explanation, Explanation]:
    """The two explanations that `diff` compares."""
    ways = [arguments.after is not None, arguments.against is not None, arguments.batch is not None]
    if sum(ways) != 1:
        raise ValueError("diff takes one of: a second program, --against inductor, --batch N M")
    if arguments.after is not None:
        return _side(arguments.before, arguments), _side(arguments.after, arguments)
    program = _load(arguments.before)
    if arguments.against:
        return _explained(program, arguments, arguments.against), _explained(program, arguments)
    from bi_inductor.check.batches import Inputs, Run

    inputs = Inputs(program.inputs, arguments.batch_dim)
    sides = []
    for size in arguments.batch:
        if size < 1:
            raise ValueError(f"--batch: got {size}; allowed are numbers from 1 on")
        samples = tuple(i % inputs.samples for i in range(size))
        gathered, _ = inputs.gather(Run("batch", samples, ()), False)
        sides.append(_explained(program._replace(inputs=gathered), arguments))
    return sides[0], sides[1]


def _side(name: str, arguments: argparse.Namespace) -> Explanation:
    from bi_inductor.reports.explanation import Explanation

    if not name.endswith(".json"):
        return _explained(_load(name), arguments)
    try:
        return Explanation.from_json(json.loads(Path(name).read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as what explain --json wrote: {error}") from error


def _check(arguments: argparse.Namespace, console: Console) -> int:
    from bi_inductor.check import check
    from bi_inductor.programs import load_function

    program = _load(arguments.program)
    with _progress() as progress:
        result = check(
            program.model,
            program.inputs,
            backend=arguments.backend,
            batch_sizes=arguments.batch_sizes,
            threads=arguments.threads,
            neighbours=arguments.neighbours,
            dynamic=(None, True) if arguments.dynamic else None,
            batch_dim=arguments.batch_dim,
            out_batch_dim=arguments.out_batch_dim,
            grad=arguments.grad,
            padding=arguments.padding,
            sequence_dim=arguments.sequence_dim,
            out_sequence_dim=arguments.out_sequence_dim,
            chunks=arguments.chunks,
            in_chunks=load_function(arguments.in_chunks) if arguments.in_chunks else None,
            shrink=arguments.shrink,
            eager=arguments.eager,
            progress=progress,
        )
    if arguments.json:
        _write(arguments.json, json.dumps(result.json(), indent=1) + "\n")
    if arguments.junit:
        _write(arguments.junit, result.junit())
    console.print(result)
    return INVARIANT if result else VARIANT


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A progress bar on stderr while it is a terminal; otherwise None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _find(arguments: argparse.Namespace, console: Console) -> int:
    from bi_inductor.check.batches import Inputs
    from bi_inductor.find import Variant, find
    from bi_inductor.find.variants import default_variants
    from bi_inductor.programs import load_function
    from bi_inductor.reports.find_page import render_find

    program = _load(arguments.program)
    more = [Variant(pad_left=amount) for amount in arguments.padding] + [Variant(pad_right=amount) for amount in arguments.padding]
    more += [Variant(chunk=arguments.chunk)] if arguments.chunk is not None else []
    more += [Variant(sequence_chunk=arguments.sequence_chunk)] if arguments.sequence_chunk is not None else []
    more += [Variant(threads=count) for count in arguments.threads]
    with _progress() as progress:
        result = find(
            program.model,
            program.inputs,
            backend=arguments.backend,
            variants=[*default_variants(Inputs(program.inputs, arguments.batch_dim).samples), *more],
            dynamic=arguments.dynamic,
            batch_dim=arguments.batch_dim,
            sequence_dim=arguments.sequence_dim,
            in_chunks=load_function(arguments.in_chunks) if arguments.in_chunks else None,
            progress=progress,
        )
    console.print(result.text(), markup=False)
    if arguments.json:
        _write(arguments.json, result.json())
    if arguments.html:
        _write(arguments.html, render_find(result))
    if arguments.reproduce and not result.invariant:
        result.write_reproduction(arguments.reproduce)
    return INVARIANT if result.invariant else VARIANT


def _compile(arguments: argparse.Namespace, console: Console) -> int:
    from bi_inductor.targets import compile_program

    report = compile_program(arguments.program, arguments.target, dynamic=arguments.dynamic)
    console.print(report.table())
    console.print(report.summary(), markup=False)
    for fault in report.faults:
        console.print(fault, style="red", markup=False)
    if arguments.json:
        _write(arguments.json, json.dumps(report.json(), indent=1) + "\n")
    return VARIANT if report.faults else INVARIANT


def _doctor(arguments: argparse.Namespace, console: Console) -> int:
    from rich.table import Table

    from bi_inductor.doctor import examine

    findings = examine()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        table = Table("", "found", "", "what it means for invariance")
        for finding in findings:
            colour = {"ok": "green", "note": "yellow", "missing": "red"}[finding.status]
            table.add_row(finding.subject, finding.found, f"[{colour}]{finding.status}[/]", finding.meaning)
        console.print(table)
    return COULD_NOT_RUN if any(finding.status == "missing" for finding in findings) else INVARIANT
