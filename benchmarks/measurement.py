"""What was measured of one row. No torch here: files of results are compared without it."""

from __future__ import annotations

from dataclasses import dataclass

STOCK, OURS = "stock", "ours"
AGAINST_STOCK = f"{OURS}/{STOCK}"


@dataclass(frozen=True)
class Measurement:
    """Times of one row.

    Attributes:
        milliseconds: median time of a call, by variant.
        ratios: "ours/stock" and so on -> lower quartile, median, upper quartile of the ratios taken within each round.
    """

    milliseconds: dict[str, float]
    ratios: dict[str, tuple[float, float, float]]
