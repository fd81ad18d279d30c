"""Does a sample's result depend on what the other samples hold? Found out by running, to confirm what the compiler's analysis says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..check.batches import Inputs, Run
from ..leaves import BatchDim, leaves_with_dims
from ..ulp import bits_differ


def follows_neighbours(
    function: Callable[..., Any], inputs: Any, *, batch_dim: BatchDim = 0, out_batch_dim: int = 0, tolerance: float = 0.0
) -> tuple[str, ...]:
    """The outputs of ``function`` in which the value of a sample changes when other samples do.

    The batch always has the same size and a sample always the same place, so kernels see the same shapes. The other samples are replaced by
    copies of the sample, by each other, and, where inputs are floating point, by NaN.

    Args:
        function: called with ``inputs``; a function of values only (no random numbers).
        inputs: a tensor, tuple, list or dict as ``check`` takes it, with at least two samples, which should differ.
        batch_dim: the dim of the inputs that holds the samples; None for an input without.
        out_batch_dim: the same for the outputs. An output that has not the batch size there belongs to every sample.
        tolerance: how far values may move, relative to the larger of 1 and their size, before they count as changed; 0 compares bits. More
            than 0 is for kernels that choose an order of sums by the data, as for experts with more or fewer tokens.

    Returns:
        the names of these outputs, "output" or "output[0]".
    """
    given = Inputs(inputs, batch_dim)
    samples = given.samples
    every = tuple(range(samples))
    reference = _outputs(function, given, Run("batch", every, every))
    changed: dict[str, None] = {}
    fills = (None, float("nan")) if given.has_floats() else (None,)
    for place in sorted({0, samples // 2, samples - 1}):
        others = [sample for sample in every if sample != place]
        rotated = [*others[1:], others[0]]
        orders = [
            tuple(place for _ in every),
            tuple(rotated[others.index(sample)] if sample != place else place for sample in every),
        ]
        runs = [Run("neighbours", order, (place,)) for order in orders]
        runs += [Run("neighbours", every, (place,), fill) for fill in fills if fill is not None]
        for run in runs:
            for name, value in _outputs(function, given, run).items():
                before, after = (_row(t, place, out_batch_dim, samples) for t in (reference[name], value))
                if before.shape != after.shape or _differ(before, after, tolerance):
                    changed[name] = None
    return tuple(name for name in reference if name in changed)


def _outputs(function: Callable[..., Any], inputs: Inputs, run: Run) -> dict[str, torch.Tensor]:
    arguments, _ = inputs.gather(run, grad=False)
    with torch.no_grad():
        if isinstance(arguments, dict):
            result = function(**arguments)
        else:
            result = function(*arguments) if isinstance(arguments, (tuple, list)) else function(arguments)
    leaves = leaves_with_dims(pytree.tree_flatten_with_path(result)[0], None, "out_batch_dim", "output")
    return {leaf.name: leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}


def _row(value: torch.Tensor, place: int, dim: int, samples: int) -> torch.Tensor:
    holds_samples = -value.dim() <= dim < value.dim() and value.shape[dim] == samples
    return value.select(dim, place) if holds_samples else value


def _differ(before: torch.Tensor, after: torch.Tensor, tolerance: float) -> bool:
    if not tolerance or not before.is_floating_point():
        return bool(bits_differ(before, after).any())
    return not torch.allclose(before, after, rtol=tolerance, atol=tolerance, equal_nan=True)
