"""Timing that survives a busy machine: the variants take turns, and ratios are taken within each turn."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor.cpu_vec_isa import pick_vec_isa

from benchmarks.measurement import OURS, Measurement

# Quartiles of fewer ratios than these say little.
FEWEST_ROUNDS = 5


def measure(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    seconds_per_block: float,
    most_seconds: float = math.inf,
    against: str = OURS,
) -> Measurement:
    """Times each call in rounds A B C A B C ...; a block of one variant is as many calls as fill `seconds_per_block`.

    The order within a round rotates, so that no variant always runs right after the same other one. Where `rounds` rounds would take
    longer than `most_seconds`, there are fewer, but FEWEST_ROUNDS at least (or `rounds`, if that is less).
    """
    names = list(calls)
    repeats = {}
    seconds_of_round = 0.0
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        repeats[name] = max(1, math.ceil(seconds_per_block / took))
        seconds_of_round += took * (repeats[name] + (repeats[name] > 1))
    if rounds * seconds_of_round > most_seconds:
        rounds = min(rounds, max(FEWEST_ROUNDS, int(most_seconds / seconds_of_round)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            call = calls[name]
            # The first call after another variant finds cold caches; it is not what a running model sees. A call as long as a block
            # fills the caches within a small part of itself.
            if repeats[name] > 1:
                call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append(1e3 * (time.perf_counter() - start) / repeats[name])
    ratios = {}
    for name in names:
        if name != against:
            of_rounds = [ours / other for ours, other in zip(times[against], times[name], strict=True)]
            low, middle, high = statistics.quantiles(of_rounds, n=4, method="inclusive")
            ratios[f"{against}/{name}"] = (low, middle, high)
    return Measurement({name: statistics.median(times[name]) for name in names}, ratios)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def environment() -> dict[str, str | int]:
    """What a reader needs to judge the numbers."""
    return {
        "cpu": _cpu_model(),
        "instruction set of ATen": torch.backends.cpu.get_cpu_capability(),
        "of Inductor": str(pick_vec_isa()) or "none",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def headline() -> str:
    return ", ".join(f"{name} {value}" for name, value in environment().items())
