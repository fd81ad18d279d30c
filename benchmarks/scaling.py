"""`python -m benchmarks.scaling`: time and memory of ours, of stock, and of stock called once for each sample, while one size grows.

Writes JSON and a plot (the plot needs matplotlib: pip install 'bi-inductor[bench]'), and prints for each curve the exponent p of
time ~ size**p, fitted to the larger half of its points; the smaller ones mostly time the call itself. Memory is what a call adds at its
peak to what was resident before it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.competitors import calls
from benchmarks.curves import CURVES, Curve
from benchmarks.measurement import AGAINST_STOCK, OURS, STOCK
from benchmarks.memory import peak_megabytes
from benchmarks.plot import PlotError, check_plotting, plot
from benchmarks.record import RESULTS
from benchmarks.timing import environment, headline, measure

ONE_BY_ONE = "one-by-one"
SERIES = (STOCK, ONE_BY_ONE, OURS)
# One sample at a time takes as many calls as there are samples; more than these say nothing new.
MOST_SAMPLES = 4096


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size by least squares, for the larger half of the points, three at least.

    Raises:
        ValueError: fewer than two points.
    """
    if len(sizes) < 2:
        raise ValueError(f"a slope needs two points; given {len(sizes)}")
    count = max(3, math.ceil(len(sizes) / 2))
    logs = [[math.log(value) for value in values[-count:]] for values in (sizes, times)]
    return statistics.linear_regression(*logs).slope


def measure_curve(curve: Curve, rounds: int, seconds_per_block: float, most_seconds: float) -> dict[str, Any]:
    """Measures and prints one curve.

    Returns:
        "name", "axis", "points", and for each series that has values: "milliseconds" and "megabytes" (a list over the points, None where
        not measured), "exponents", and "ratios", the quartiles of ours/stock at each point.
    """
    print(f"\n{curve.name}\n{curve.axis:>16}{''.join(f'{name:>12}' for name in SERIES)}{'ours/stock':>12}{'MB stock':>12}{'MB ours':>12}")
    milliseconds: dict[str, list[float | None]] = {name: [] for name in SERIES}
    megabytes: dict[str, list[float | None]] = {name: [] for name in SERIES}
    ratios: list[tuple[float, float, float]] = []
    for point in curve.points:
        case = curve.make(point)
        torch.compiler.reset()
        separate = 1 < case.samples <= MOST_SAMPLES
        timed = calls(SERIES if separate else (STOCK, OURS), case.function, case.arguments, case.samples)
        result = measure(timed, rounds=rounds, seconds_per_block=seconds_per_block, most_seconds=most_seconds)
        for name in SERIES:
            milliseconds[name].append(result.milliseconds.get(name))
            megabytes[name].append(peak_megabytes(timed[name]) if name in timed else None)
        ratios.append(result.ratios[AGAINST_STOCK])
        cells = "".join(_cell(milliseconds[name][-1], 3) for name in SERIES)
        memory = "".join(_cell(megabytes[name][-1], 1) for name in (STOCK, OURS))
        print(f"{point:>16}{cells}{ratios[-1][1]:>12.2f}{memory}", flush=True)
    exponents = {name: _exponent(curve.points, values) for name, values in milliseconds.items()}
    print(f"{'exponent':>16}{''.join(_cell(exponents[name], 2) for name in SERIES)}")
    return {
        "name": curve.name,
        "axis": curve.axis,
        "points": curve.points,
        "milliseconds": milliseconds,
        "megabytes": megabytes,
        "exponents": exponents,
        "ratios": ratios,
    }


def _exponent(points: Sequence[int], values: Sequence[float | None]) -> float | None:
    found = [(size, value) for size, value in zip(points, values, strict=True) if value is not None]
    return exponent([size for size, _ in found], [value for _, value in found]) if len(found) > 1 else None


def _cell(value: float | None, digits: int) -> str:
    return f"{'-':>12}" if value is None else f"{value:>12.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only curves whose name contains TEXT")
    parser.add_argument("--most", type=int, metavar="SIZE", help="leave out points beyond SIZE")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds per point (default 9)")
    parser.add_argument("--block", type=float, default=0.02, metavar="SECONDS", help="length of one competitor's turn")
    parser.add_argument("--point-seconds", type=float, default=20.0, metavar="SECONDS", help="fewer rounds, 5 at least, beyond that")
    parser.add_argument("--json", type=Path, default=RESULTS / "scaling.json", metavar="FILE", help="where the JSON goes")
    parser.add_argument("--plot", type=Path, default=RESULTS / "scaling.svg", metavar="FILE", help=".svg or .png")
    parser.add_argument("--no-plot", action="store_true", help="do without matplotlib")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds is {arguments.rounds}; at least 2 are needed for a median and quartiles")
    curves = [_shortened(curve, arguments.most) for curve in CURVES if arguments.only in curve.name]
    if not curves:
        parser.error(f"--only {arguments.only!r} matches no curve of: {'; '.join(curve.name for curve in CURVES)}")
    # Before an hour of measuring, not after it.
    if not arguments.no_plot:
        try:
            check_plotting(arguments.plot)
        except PlotError as error:
            parser.error(f"{error} (--no-plot writes the JSON alone)")
    torch.manual_seed(0)
    print(headline())
    with torch.no_grad():
        measured = [measure_curve(curve, arguments.rounds, arguments.block, arguments.point_seconds) for curve in curves]
    record: Mapping[str, Any] = {"environment": environment(), "curves": measured}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    print(f"\nwritten to {arguments.json}")
    if not arguments.no_plot:
        plot(measured, headline(), arguments.plot)
        print(f"plotted in {arguments.plot}")


def _shortened(curve: Curve, most: int | None) -> Curve:
    points = tuple(point for point in curve.points if most is None or point <= most)
    return Curve(curve.name, curve.axis, points, curve.make)


if __name__ == "__main__":
    main()
