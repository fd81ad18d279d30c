"""How far compiled results lie from eager's: bits that are the same in every batch may be the bits of a wrong result."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .batches import Function


def distance_from_eager(uncompiled: Function, samples: int, reference: Mapping[int, list[torch.Tensor]]) -> float:
    """The largest difference between ``reference`` and what the uncompiled function gives each sample alone.

    Differences are relative to the largest finite magnitude of their output among the samples; infinity where one result has NaN or an
    infinity and the other does not, where a number that is no floating-point number differs, or where dtypes, shapes or the number of
    outputs do.
    """
    distances = [0.0]
    eager = [uncompiled.alone(sample, "eager") for sample in range(samples)]
    if any(_forms(reference[sample]) != _forms(eager[sample]) for sample in range(samples)):
        return float("inf")
    for number in range(len(eager[0])):
        expected = torch.stack([outputs[number] for outputs in eager])
        distances.append(_distance(torch.stack([reference[sample][number] for sample in range(samples)]), expected))
    return max(distances)


def _forms(outputs: list[torch.Tensor]) -> list[tuple[torch.dtype, torch.Size]]:
    return [(output.dtype, output.shape) for output in outputs]


def _distance(given: torch.Tensor, expected: torch.Tensor) -> float:
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0 if torch.equal(given, expected) else float("inf")
    wide = torch.complex128 if expected.is_complex() else torch.float64
    given, expected = given.to(wide), expected.to(wide)
    same = (given == expected) | (given.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    finite = expected.isfinite()
    if not bool((same | (finite & given.isfinite())).all()):
        return float("inf")
    return float(torch.where(same, 0, given - expected).abs().max() / torch.where(finite, expected, 0).abs().max())
