"""What `bi_inductor.find` found as one self-contained HTML page, with a plot of the distance in ulp along the graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bi_inductor.reports.html import fill_page

if TYPE_CHECKING:
    from bi_inductor.find.result import FindResult, TableRow

WIDTH, HEIGHT = 1000, 220
# Around the plot: room for the labels of both axes.
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 24
# For each effect its colour; where the effect is not known, the last.
COLOURS = {
    "differs by itself": "#d6322b",
    "amplifies": "#f08c00",
    "passes on": "#7aa6e8",
    "reduces": "#2b8a3e",
    "hides": "#8a94a3",
    "": "#5b6474",
}


def render_find(result: FindResult) -> str:
    """The page."""
    return fill_page("find.html.jinja", plot_data(result), **plot_values(result))


def plot_data(result: FindResult) -> dict[str, Any]:
    """What the script of a page with the plot reads."""
    return {"rows": [_row(row) for row in result.table], "colours": COLOURS, "left": LEFT, "right": WIDTH - RIGHT, **_range(result)}


def plot_values(result: FindResult) -> dict[str, Any]:
    """What the template "found.html.jinja" shows."""
    return {
        "title": result.verdict,
        "facts": result.node.facts() if result.node is not None else [],
        "compared_with": result.compared_with,
        "variants": [(row.name, row.verdict) for row in result.variants],
        "variant": result.variant or "",
        "notes": result.notes,
        "plot": _plot(result) if result.table else None,
        "colours": COLOURS,
    }


def _row(row: TableRow) -> list[Any]:
    ulp = None if row.max_ulp is None else str(row.max_ulp) if math.isinf(row.max_ulp) else row.max_ulp
    return [row.node, row.op, row.module, row.line, ulp, row.elements_different, row.effect, row.is_output, row.position]


def _range(result: FindResult) -> dict[str, int]:
    """The first and the last position on the axis: from the first node whose bits part to the last one of the graph."""
    first = min((row.position for row in result.table), default=1)
    return {"first": first, "last": max(result.nodes, first + 1)}


def _plot(result: FindResult) -> dict[str, Any]:
    """The picture: a stroke up from the axis for each node, one path for all of an effect, so its size follows no number of elements.

    The height of a stroke is the logarithm of the distance; infinity stands at the top, the same bits are a dot on the axis.
    """
    first, last = _range(result).values()
    finite = [row.max_ulp for row in result.table if row.max_ulp is not None and math.isfinite(row.max_ulp)]
    # A whole number of steps of a factor of 16, and one more for what is infinite.
    steps = max(1, math.ceil(math.log2(1 + max(finite, default=1.0)) / 4))
    infinite = any(row.max_ulp is not None and math.isinf(row.max_ulp) for row in result.table)
    top = 4 * (steps + infinite)
    ground = HEIGHT - BOTTOM

    def across(position: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (position - first) / (last - first), 1)

    def up(ulp: float) -> float:
        level = top if math.isinf(ulp) else math.log2(1 + ulp)
        return round(ground - (ground - TOP) * level / top, 1)

    paths: dict[str, list[str]] = {}
    for row in result.table:
        height = "v2" if row.max_ulp is None else f"V{up(row.max_ulp)}"
        paths.setdefault(row.effect if row.effect in COLOURS else "", []).append(f"M{across(row.position)} {ground}{height}")
    # Marks between the steps would run into each other.
    every = max(1, math.ceil(steps / 6))
    ticks = [(up(2.0 ** (4 * step) - 1), _tick(step)) for step in range(0, steps + 1, every)]
    if infinite:
        ticks.append((TOP, "inf"))
    middle = [first + (last - first) * part // 4 for part in range(5)]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "ground": ground,
        "ticks": ticks,
        "numbers": [(across(position), str(position)) for position in dict.fromkeys(middle)],
        # Where there are more nodes than pixels, what tells most is drawn last.
        "paths": [(COLOURS[effect], "".join(paths[effect])) for effect in reversed(COLOURS) if effect in paths],
        "thickness": max(1, min(8, round(0.6 * (WIDTH - LEFT - RIGHT) / (last - first + 1)))),
        "outputs": [(across(row.position), ground if row.max_ulp is None else up(row.max_ulp)) for row in result.table if row.is_output],
    }


def _tick(step: int) -> str:
    return "0" if step == 0 else f"{16**step}" if step < 5 else f"2^{4 * step}"
