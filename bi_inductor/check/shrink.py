"""Makes a failing batch of `check` as small and plain as it stays failing, as hypothesis does with its examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .batches import Function, Run

# Calls of the function after which the smallest batch so far is taken.
MOST_CALLS = 100


@dataclass(frozen=True)
class SmallestBatch:
    """The smallest batch that was found to change a sample.

    Attributes:
        samples: numbers of the samples in the batch, in order.
        place: the place in it of the sample that differs from itself alone.
        neighbours: what fills the other rows, None when they hold their samples.
        padding: how the batch was padded, "" when it was not.
        chunk: positions in each chunk of the sequence, None when it was run whole.
        elements_different, max_ulp: of that sample, as in a `CheckRow`.
    """

    samples: tuple[int, ...]
    place: int
    neighbours: float | None
    padding: str
    elements_different: int
    max_ulp: float
    chunk: int | None = None

    @property
    def sample(self) -> int:
        """Number of the sample that differs."""
        return self.samples[self.place]

    def __str__(self) -> str:
        others = f", the other rows filled with {self.neighbours:g}" if self.neighbours is not None else ""
        padded = f", padded {self.padding}" if self.padding else ""
        padded += f", in chunks of {self.chunk}" if self.chunk else ""
        return (
            f"smallest failing batch: samples {list(self.samples)}{others}{padded}: sample {self.sample} at place {self.place} "
            f"differs from itself alone in {self.elements_different} elements, by up to {self.max_ulp:.4g} ulp"
        )


def shrink(function: Function, run: Run, reference: Mapping[int, list[torch.Tensor]]) -> SmallestBatch:
    """The smallest batch found by leaving out samples, putting the failing one first, and repeating it in the place of the others.

    Args:
        function: what failed, in its setting.
        run: a call in which a sample differed from `reference`, its rows alone.
    """
    calls = 0

    def fails(samples: Sequence[int], place: int) -> SmallestBatch | None:
        nonlocal calls
        calls += 1
        return _failure(function, run._replace(samples=tuple(samples), compared=(place,)), reference)

    best = next(found for place in run.compared if (found := _failure(function, run._replace(compared=(place,)), reference)) is not None)
    # Leave out ever smaller groups of the other samples.
    size = len(best.samples) // 2
    while size and calls < MOST_CALLS:
        at = 0
        while at < len(best.samples) and calls < MOST_CALLS:
            kept = [i for i in range(len(best.samples)) if not at <= i < at + size or i == best.place]
            found = None
            if len(kept) < len(best.samples):
                found = fails([best.samples[i] for i in kept], kept.index(best.place))
            if found is None:
                at += size
            else:
                best = found
        size //= 2
    sample, others = best.sample, [s for i, s in enumerate(best.samples) if i != best.place]
    # Which samples the others are does not matter when copies of the failing one do as well.
    for samples, place in (([sample, *others], 0), ([sample] * len(best.samples), 0)):
        if calls < MOST_CALLS and (tuple(samples), place) != (best.samples, best.place):
            best = fails(samples, place) or best
    return best


def _failure(function: Function, run: Run, reference: Mapping[int, list[torch.Tensor]]) -> SmallestBatch | None:
    from .batches import Tally

    tally = Tally()
    tally.compare(run, function(run), reference)
    if not tally.rows_different:
        return None
    padding = f"{run.padding.side} by {run.padding.amount}" if run.padding else ""
    return SmallestBatch(run.samples, run.compared[0], run.neighbours, padding, tally.elements_different, tally.max_ulp, run.chunk)
