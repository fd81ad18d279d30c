"""`make bench`: time of ours against stock Inductor and eager on models; compile time and memory beside it.

Each row is one process-wide interleaved run (benchmarks/timing.py). Ratios below 1 mean that ours is faster.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.models import Llama, LlamaShape, SentenceEncoder
from benchmarks.timing import Measurement, environment, geometric_mean, headline, measure

BACKENDS: dict[str, str | None] = {"eager": None, "stock": "inductor", "ours": "batch_invariant"}
RESULTS = Path(__file__).parent / "results"
CACHE_LENGTH = 128
# The first graph that a process compiles, and another one after it, for which kernel libraries are already built.
COMPILE_PAIRS = (("MiniLM, batch 1", "MiniLM, batch 8"), ("Llama float32, prefill", "Llama float32, decode, batch 8"))


class Row(NamedTuple):
    """A model with the arguments it is called with."""

    model: torch.nn.Module
    arguments: tuple[Any, ...]


@functools.cache
def _sentence_encoder() -> SentenceEncoder:
    return SentenceEncoder().eval()


@functools.cache
def _llama(dtype: torch.dtype) -> Llama:
    return Llama(LlamaShape(), CACHE_LENGTH).eval().to(dtype)


def _minilm_row(batch: int) -> Row:
    ids = torch.randint(1000, 30000, (batch, 64))
    return Row(_sentence_encoder(), (ids, torch.ones_like(ids)))


def _llama_row(dtype: torch.dtype, batch: int, tokens: int) -> Row:
    """The last `tokens` tokens of the cache: all of them are a prefill, one is a step of decoding."""
    model = _llama(dtype)
    ids = torch.randint(0, model.shape.vocabulary, (batch, tokens))
    return Row(model, (ids, CACHE_LENGTH - tokens, model.empty_cache(batch)))


ROWS: dict[str, Callable[[], Row]] = {f"MiniLM, batch {batch}": partial(_minilm_row, batch) for batch in (1, 8, 64)}
for _dtype in (torch.float32, torch.bfloat16):
    _name = f"Llama {str(_dtype).removeprefix('torch.')}"
    ROWS[f"{_name}, prefill"] = partial(_llama_row, _dtype, 1, CACHE_LENGTH)
    for _batch in (1, 8, 64):
        ROWS[f"{_name}, decode, batch {_batch}"] = partial(_llama_row, _dtype, _batch, 1)


def compiled(function: Callable[..., Any], backend: str | None) -> Callable[..., Any]:
    return function if backend is None else torch.compile(function, backend=backend, dynamic=False)


def print_header() -> None:
    print(f"{'milliseconds':36}{'eager':>9}{'stock':>9}{'ours':>9}{'ours/eager':>12}{'ours/stock':>12}  quartiles")


def print_row(name: str, result: Measurement) -> None:
    low, ratio, high = result.ratios["ours/stock"]
    times = "".join(f"{result.milliseconds[backend]:>9.3f}" for backend in BACKENDS)
    print(f"{name:36}{times}{result.ratios['ours/eager'][1]:>12.2f}{ratio:>12.2f}  {low:.2f} to {high:.2f}", flush=True)


def print_means(results: Mapping[str, Measurement]) -> None:
    means = [geometric_mean([result.ratios[ratio][1] for result in results.values()]) for ratio in ("ours/eager", "ours/stock")]
    print(f"{'geometric mean':63}{means[0]:>12.2f}{means[1]:>12.2f}")


def model_table(wanted: str, rounds: int, seconds_per_block: float) -> dict[str, Measurement]:
    """Times every row under every backend and prints the table as it grows."""
    print_header()
    results: dict[str, Measurement] = {}
    for name in (name for name in ROWS if wanted in name):
        row = ROWS[name]()
        torch.compiler.reset()
        models = {backend_name: compiled(row.model, backend) for backend_name, backend in BACKENDS.items()}
        calls = {backend_name: lambda model=model, arguments=row.arguments: model(*arguments) for backend_name, model in models.items()}
        results[name] = measure(calls, rounds=rounds, seconds_per_block=seconds_per_block)
        print_row(name, results[name])
    if results:
        print_means(results)
    return results


# --- Compile time and memory, each in a process of its own with an empty cache ---------------------------------------


def _resident_megabytes() -> float:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def _measure_compile(names: tuple[str, str], backend: str) -> dict[str, float]:
    """In a fresh process: seconds of the first calls of two rows less a later call, and memory that stays afterwards."""
    # Imports and initialisations that every backend pays once are not its compile time.
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(4))
    seconds = []
    with torch.no_grad():
        found = [ROWS[name]() for name in names]
        for row in found:
            row.model(*row.arguments)
        before = _resident_megabytes()
        for row in found:
            model = compiled(row.model, backend)
            times = []
            for _ in range(3):
                start = time.perf_counter()
                model(*row.arguments)
                times.append(time.perf_counter() - start)
            seconds.append(times[0] - times[-1])
    return {"first": seconds[0], "next": seconds[1], "megabytes": _resident_megabytes() - before}


def compile_table() -> dict[str, dict[str, dict[str, float]]]:
    """Compile time and resident memory of stock and ours, from an empty cache."""
    print(f"\n{'compile seconds, cold cache':48}{'stock':>9}{'ours':>9}{'ours/stock':>12}")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for pair in COMPILE_PAIRS:
        found: dict[str, dict[str, float]] = {}
        for name in ("stock", "ours"):
            with tempfile.TemporaryDirectory() as cache:
                command = [sys.executable, "-m", "benchmarks.bench", "--measure-compile", *pair, BACKENDS[name] or ""]
                settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
                output = subprocess.run(command, env=settings, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[name] = json.loads(output.splitlines()[-1])
        results[pair[0]] = found
        for label, key in ((pair[0], "first"), (f"{pair[1]} (after it)", "next")):
            stock, ours = found["stock"][key], found["ours"][key]
            print(f"{label:48}{stock:>9.1f}{ours:>9.1f}{ours / stock:>12.2f}", flush=True)
        stock, ours = found["stock"]["megabytes"], found["ours"]["megabytes"]
        print(f"{'  MB that stay after compiling and running them':48}{stock:>9.0f}{ours:>9.0f}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only rows whose name contains TEXT")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds per row (default 15)")
    parser.add_argument("--block", type=float, default=0.1, metavar="SECONDS", help="length of one variant's turn")
    parser.add_argument("--no-compile-time", action="store_true", help="leave out the table of compile time and memory")
    parser.add_argument("--json", nargs="?", const=str(RESULTS / "models.json"), metavar="FILE", help="also write JSON")
    parser.add_argument("--measure-compile", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_compile:
        first, second, backend = arguments.measure_compile
        print(json.dumps(_measure_compile((first, second), backend)))
        return
    if arguments.rounds < 2:
        parser.error(f"--rounds is {arguments.rounds}; at least 2 are needed for a median and quartiles")
    print(headline())
    with torch.no_grad():
        models = model_table(arguments.only, arguments.rounds, arguments.block)
    if not models:
        parser.error(f"--only {arguments.only!r} matches no row")
    record: dict[str, Any] = {"environment": environment(), "models": {name: asdict(m) for name, m in models.items()}}
    if not arguments.no_compile_time:
        record["compile"] = compile_table()
    if arguments.json:
        path = Path(arguments.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
