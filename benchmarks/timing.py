"""Timing that survives a busy machine: the variants take turns, and ratios are taken within each turn."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Measurement:
    """Times of one row.

    Attributes:
        milliseconds: median time of a call, by variant.
        ratios: "ours/stock" and so on -> lower quartile, median, upper quartile of the ratios taken within each round.
    """

    milliseconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]


def measure(calls: Mapping[str, Callable[[], Any]], *, rounds: int, seconds_per_block: float, against: str = "ours") -> Measurement:
    """Times each call in rounds A B C A B C ...; a block of one variant is as many calls as fill `seconds_per_block`.

    The order within a round rotates, so that no variant always runs right after the same other one.
    """
    names = list(calls)
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, math.ceil(seconds_per_block / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            call = calls[name]
            # The first call after another variant finds cold caches; it is not what a running model sees.
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
        "instruction set": torch.backends.cpu.get_cpu_capability(),
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
