"""Plots of `benchmarks.scaling` with matplotlib, which only this file imports and only when it draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = 3
# Colours and marks that stay apart in grey.
STYLES = {
    "stock": {"color": "tab:orange", "marker": "s"},
    "one-by-one": {"color": "tab:gray", "marker": "^"},
    "ours": {"color": "tab:blue", "marker": "o"},
}


class PlotError(Exception):
    """A plot cannot be drawn; the message says what to do."""


def check_plotting(path: Path) -> None:
    """Raises PlotError where matplotlib is missing or ``path`` has another suffix than .svg or .png."""
    if path.suffix not in (".svg", ".png"):
        raise PlotError(f"a plot is a .svg or a .png; given {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotError("the plot needs matplotlib, which the extra 'bench' installs: pip install 'bi-inductor[bench]'") from error


def plot(curves: Sequence[Mapping[str, Any]], headline: str, path: Path) -> None:
    """Two plots for each curve of benchmarks/scaling.py, time and memory over its size, on logarithmic axes.

    Raises:
        PlotError: see check_plotting.
    """
    check_plotting(path)
    from matplotlib.figure import Figure

    rows = -(-len(curves) // COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 3.4 * 2 * rows), layout="constrained")
    grid = figure.subplots(2 * rows, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for index, curve in enumerate(curves):
        for part, (key, label) in enumerate((("milliseconds", "ms"), ("megabytes", "MB"))):
            axes = grid[2 * (index // COLUMNS) + part, index % COLUMNS]
            axes.set_visible(True)
            for name, values in curve[key].items():
                # A logarithm has no zero: a call that adds less than a page is left out.
                found = [(x, y) for x, y in zip(curve["points"], values, strict=True) if y is not None and y > 0]
                if found:
                    slope = curve["exponents"].get(name) if key == "milliseconds" else None
                    text = name if slope is None else f"{name} (exponent {slope:.2f})"
                    axes.plot(*zip(*found, strict=True), label=text, linewidth=1, markersize=4, **STYLES.get(name, {}))
            axes.set(xscale="log", yscale="log", xlabel=curve["axis"], ylabel=label, title=curve["name"])
            axes.grid(visible=True, linewidth=0.3)
            if axes.lines:
                axes.legend(fontsize="small")
    figure.suptitle(headline, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
