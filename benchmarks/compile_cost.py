"""Compile time and memory of stock and ours, each in a process of its own with an empty cache, and a second start with the full one.

`python -m benchmarks.compile_cost ROW ROW BACKEND` is that process: it prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.competitors import COMPETITORS
from benchmarks.measurement import OURS, STOCK
from benchmarks.memory import status_megabytes
from benchmarks.rows import FEW_ROWS

# The first graph that a process compiles, and another one after it, for which kernel libraries are already built.
PAIRS = (("MiniLM, batch 1", "MiniLM, batch 8"), ("Llama float32, prefill", "Llama float32, decode, batch 8"))


def _resident_megabytes() -> float:
    gc.collect()
    return status_megabytes("VmRSS")


def measure_here(names: tuple[str, str], competitor: str) -> dict[str, float]:
    """In a fresh process: seconds of the first calls of two rows less a later call, and memory that stays afterwards."""
    compiled = COMPETITORS[competitor].compiled
    # Imports and initialisations that every backend pays once are not its compile time.
    compiled(lambda x: x + 1)(torch.ones(4))
    seconds = []
    with torch.no_grad():
        found = [FEW_ROWS[name]() for name in names]
        for row in found:
            row.model(*row.arguments)
        before = _resident_megabytes()
        for row in found:
            model = compiled(row.model)
            times = []
            for _ in range(3):
                start = time.perf_counter()
                model(*row.arguments)
                times.append(time.perf_counter() - start)
            seconds.append(times[0] - times[-1])
    return {"first": seconds[0], "next": seconds[1], "megabytes": _resident_megabytes() - before}


def print_table() -> dict[str, dict[str, dict[str, float]]]:
    """Measures and prints every pair; returns it by the first row's name and the competitor."""
    print(f"\n{'compile seconds, cold cache':48}{'stock':>9}{'ours':>9}{'ours/stock':>12}")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for pair in PAIRS:
        found: dict[str, dict[str, float]] = {}
        for name in (STOCK, OURS):
            with tempfile.TemporaryDirectory() as cache:
                command = [sys.executable, "-m", "benchmarks.compile_cost", *pair, name]
                settings = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
                cold, warm = (
                    json.loads(subprocess.run(command, env=settings, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
                    for _ in range(2)
                )
                found[name] = {**cold, "warm first": warm["first"], "warm next": warm["next"]}
        results[pair[0]] = found
        labels = ((pair[0], "first"), (f"{pair[1]} (after it)", "next"))
        for label, key in (*labels, *((f"{label}, warm start", f"warm {key}") for label, key in labels)):
            stock, ours = found[STOCK][key], found[OURS][key]
            print(f"{label:48}{stock:>9.1f}{ours:>9.1f}{ours / stock:>12.2f}", flush=True)
        stock, ours = found[STOCK]["megabytes"], found[OURS]["megabytes"]
        print(f"{'  MB that stay after compiling and running them':48}{stock:>9.0f}{ours:>9.0f}")
    return results


if __name__ == "__main__":
    first, second, competitor = sys.argv[1:]
    print(json.dumps(measure_here((first, second), competitor)))
