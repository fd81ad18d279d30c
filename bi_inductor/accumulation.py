"""Gradients of a batch from its micro-batches, summed in the same tree as in one batch."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class GradientAccumulator:
    """Adds the gradients of micro-batches so that parameters get the bits that one batch gives them.

    For functions compiled with ``options={"sample_gradients": True}``, whose gradients are sums over samples in a fixed tree
    (docs/numerics.md section 13). PyTorch adds micro-batches one after the other, which is another order::

        accumulator = bi_inductor.GradientAccumulator(model.parameters(), samples=2)
        for ids, labels in micro_batches:
            loss(model, ids, labels).backward()
            accumulator.collect()
        accumulator.write()
        optimizer.step()
        optimizer.zero_grad()

    Gradients of as many micro-batches as the number of bits of their number are kept at a time: four for fifteen of them.

    Args:
        parameters: whose ``grad`` is collected and written.
        samples: the number of samples in every micro-batch but the last, which may have fewer.

    Raises:
        ValueError: ``samples`` is no power of two. Other micro-batches are no parts of the tree.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], samples: int) -> None:
        if samples < 1 or samples & (samples - 1):
            raise ValueError(f"samples: the number of samples in a micro-batch must be a power of two; given {samples!r}")
        self._parameters = list(parameters)
        self._count = 0
        # The sum of 2^k micro-batches, for each k that is a bit of their number; None for a parameter without gradient so far.
        self._whole: dict[int, list[torch.Tensor | None]] = {}

    def collect(self) -> None:
        """Takes the gradients of the micro-batch that went through backward; ``grad`` of each parameter is None afterwards."""
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        power = 0
        while self._count >> power & 1:
            gradients = _added(self._whole.pop(power), gradients)
            power += 1
        self._whole[power] = gradients
        self._count += 1

    def write(self) -> None:
        """Writes the sum of all micro-batches since the last call to ``grad`` of each parameter.

        Raises:
            RuntimeError: nothing was collected.
        """
        if not self._count:
            raise RuntimeError("GradientAccumulator.write: no micro-batch was collected; call collect() after each backward")
        total: list[torch.Tensor | None] | None = None
        for power in sorted(self._whole):
            total = self._whole[power] if total is None else _added(self._whole[power], total)
        assert total is not None
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._whole.clear()
        self._count = 0


def _added(left: list[torch.Tensor | None], right: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The sums; a missing gradient is one of zeros, which turns -0 into +0."""
    return [
        (a + b) if a is not None and b is not None else b + 0.0 if b is not None else a + 0.0 if a is not None else None
        for a, b in zip(left, right, strict=True)
    ]
