"""Examines every architecture and writes docs/models.md: `python -m tests.models.table` (`make models`).

Results are kept in .cache/models.jsonl as they come, so that an interrupted run goes on where it was; `make clean` forgets them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers

from bi_inductor.passes.op_classes import OpClass

from .architectures import ARCHITECTURES, Architecture
from .examination import FALLBACKS, MOST_DISTANT, PADDING, PARTS, Examination, examine

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / ".cache" / "models.jsonl"
TABLE = REPOSITORY / "docs" / "models.md"


HEADERS = ("architecture", "class", "calls", "rewritten", "eager", "dynamic", "padding", "static", "distance")

INTRODUCTION = """# Models

{total} architectures of transformers {transformers} (torch {torch}): {dynamic} pass with one graph for every batch size, {static} with a
graph for each. Each is a tiny model with random weights (`tests/models/architectures`), compiled with
`backend="batch_invariant"`. Written by

    make models

which runs `bi_inductor.check` on 8 samples: batches of 1, 2, 3 and 8, another order, three places, and for images and sound
also with NaN in all other samples. Samples of text have different lengths and are padded to one. The columns:

- calls: operations of all graphs; rewritten: how many of them a kernel of bi_inductor takes
- eager: rows that differ in the same check without a compiler, of all rows
- dynamic: rows that differ with one graph for every batch size (for text also for every length) and one for a batch of one
- padding: the sides on which the text was made {padding} tokens longer, in the same graphs, and compared with itself unpadded;
  a dash where more padding is another input by the model's meaning. Not on the right of gpt_oss, whose bits it changes: the sinks stand
  behind the last key ([numerics.md](numerics.md), section 8)
- static: rows that differ with a graph for each batch size
- distance: of the compiled values from eager's, at most, relative to the largest of their output, with one graph for every batch size

An empty cell was not run. Not in the list are architectures that Dynamo splits where they read numbers out of tensors (deberta, jetmoe,
led, clipseg, vilt, llava, paligemma): what lies between the parts runs in eager.

A model passes when no row differs, values are eager's up to {distant:g} of the largest (distance), Dynamo does not split it, nothing is
reported as random, opaque or mixing samples, NaN in the neighbours reaches no sample, and no op runs one sample at a time
({fallbacks}).
"""


def kept_results(path: Path = RESULTS) -> dict[tuple[str, str], Examination]:
    """The last result of each architecture and part."""
    results = {}
    if path.exists():
        for line in path.read_text().splitlines():
            result = Examination(**json.loads(line))
            results[result.name, result.part] = result
    return results


def keep(result: Examination, path: Path = RESULTS) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def in_turn(architectures: Sequence[Architecture]) -> list[Architecture]:
    """One of each family after the other, so that a run that is cut short has seen all kinds."""
    families: dict[str, list[Architecture]] = {}
    for architecture in architectures:
        families.setdefault(architecture.family, []).append(architecture)
    longest = max(map(len, families.values()))
    return [members[i] for i in range(longest) for members in families.values() if i < len(members)]


def markdown(results: Mapping[tuple[str, str], Examination]) -> str:
    """docs/models.md."""
    known = ", ".join(f"{name}: {', '.join(sorted(ops))}" for name, ops in FALLBACKS.items())
    families: dict[str, list[Architecture]] = {}
    for architecture in ARCHITECTURES:
        families.setdefault(architecture.family, []).append(architecture)

    def passed(members: Sequence[Architecture], part: str) -> int:
        return sum((result := results.get((architecture.name, part))) is not None and result.passed for architecture in members)

    lines = [
        INTRODUCTION.format(
            total=len(ARCHITECTURES),
            **{part: passed(ARCHITECTURES, part) for part in PARTS},
            transformers=transformers.__version__,
            torch=torch.__version__.partition("+")[0],
            padding=PADDING,
            distant=MOST_DISTANT,
            fallbacks=f"but for {known}" if known else "none does",
        ),
        _row("family", "architectures", *(f"{part}, pass" for part in PARTS)),
        _row("---", *["--:"] * (1 + len(PARTS))),
        *(_row(family, len(members), *(passed(members, part) for part in PARTS)) for family, members in families.items()),
    ]
    for family, members in families.items():
        lines += ["", f"## {family.capitalize()}", "", _row(*HEADERS), _row("---", "---", *["--:"] * 4, "---", "--:", "--:")]
        notes = []
        for architecture in members:
            of_parts = [results.get((architecture.name, part)) for part in PARTS]
            lines.append(_row(*_cells(architecture, *of_parts)))
            notes += [f"- {architecture.name}, {result.part}: {note}" for result in of_parts if result for note in _notes(result)]
        lines += ["", *notes] if notes else []
    return "\n".join(lines) + "\n"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cells(architecture: Architecture, dynamic: Examination | None, static: Examination | None) -> list[object]:
    found = [result for result in (dynamic, static) if result]
    calls = sum(sum(result.classes.values()) for result in found) or ""
    rewritten = sum(result.classes.get(OpClass.REWRITTEN.value, 0) for result in found) or ""
    eager = f"{found[0].eager_different}/{found[0].eager_rows}" if found else ""
    differ = ["" if result is None else "error" if result.error else f"{result.different}/{result.rows}" for result in (dynamic, static)]
    distance = f"{dynamic.distance:.0e}" if dynamic else ""
    sides = ", ".join(architecture.padding) or "-"
    return [architecture.name, architecture.model, calls, rewritten, eager, differ[0], sides, differ[1], distance]


def _notes(result: Examination) -> list[str]:
    """What keeps a result from passing, or is worth knowing."""
    notes = [result.error.splitlines()[0]] if result.error else []
    notes += [f"one sample at a time: {', '.join(result.fallbacks)}"] if result.fallbacks else []
    notes += [f"reported: {', '.join(result.reported)}"] if result.reported else []
    notes += [f"{result.distance:.1e} from eager's values"] if result.distance > MOST_DISTANT else []
    notes += [f"{result.reached} samples reached by NaN in their neighbours"] if result.reached else []
    notes += [f"graph break: {reason.splitlines()[0]}" for reason in result.graph_breaks]
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.models.table", description="Examines every architecture and writes docs/models.md."
    )
    parser.add_argument("names", nargs="*", help="architectures to examine again; all that have no result by default")
    parser.add_argument("--part", choices=PARTS, action="append", help="only these graphs")
    parser.add_argument("--write", action="store_true", help="only write the table, from the results that are there")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {architecture.name for architecture in ARCHITECTURES}
    if unknown:
        parser.error(f"no architecture is called {', '.join(sorted(unknown))}")
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    results = kept_results()
    for part in [] if arguments.write else arguments.part or PARTS:
        for architecture in in_turn(ARCHITECTURES):
            if architecture.name not in arguments.names if arguments.names else (architecture.name, part) in results:
                continue
            result = examine(architecture, part)
            keep(result)
            results[result.name, result.part] = result
            print(
                f"{'passes' if result.passed else 'FAILS '}  {result.name}, {part}: {result.seconds} s",
                *_notes(result),
                sep="\n    ",
                flush=True,
            )
    TABLE.write_text(markdown(results))


if __name__ == "__main__":
    main()
