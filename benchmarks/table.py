"""How measurements are printed: one line a row, times in milliseconds, then ratios of ours to each competitor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measurement import AGAINST_STOCK, OURS, Measurement
from benchmarks.timing import geometric_mean

NAME_WIDTH, WIDTH = 42, 11


@dataclass(frozen=True)
class Table:
    """Prints rows for the competitors ``names`` as they come; a competitor that a row lacks is a dash."""

    names: Sequence[str]

    @property
    def _ratios(self) -> list[str]:
        return [f"{OURS}/{name}" for name in self.names if name != OURS]

    def print_header(self) -> None:
        times = "".join(f"{name:>{WIDTH}}" for name in self.names)
        ratios = "".join(f"{name.removeprefix(OURS):>{WIDTH}}" for name in self._ratios)
        print(f"{'milliseconds; then ours/...':{NAME_WIDTH}}{times}{ratios}  quartiles of {AGAINST_STOCK}")

    def print_row(self, name: str, result: Measurement) -> None:
        times = "".join(_cell(result.milliseconds.get(column), 3) for column in self.names)
        ratios = "".join(_cell(result.ratios[ratio][1] if ratio in result.ratios else None, 2) for ratio in self._ratios)
        low, _, high = result.ratios[AGAINST_STOCK]
        print(f"{name:{NAME_WIDTH}}{times}{ratios}  {low:.2f} to {high:.2f}", flush=True)

    def print_means(self, results: Mapping[str, Measurement]) -> None:
        means = []
        for ratio in self._ratios:
            found = [result.ratios[ratio][1] for result in results.values() if ratio in result.ratios]
            means.append(_cell(geometric_mean(found) if found else None, 2))
        print(f"{'geometric mean':{NAME_WIDTH + WIDTH * len(self.names)}}{''.join(means)}")


def _cell(value: float | None, digits: int) -> str:
    return f"{'-':>{WIDTH}}" if value is None else f"{value:>{WIDTH}.{digits}f}"
