"""Ops with a fault: one whose result for a sample follows the batch size, one that is not deterministic."""

from __future__ import annotations

import torch


@torch.library.custom_op("planted::by_batch", mutates_args=())
def by_batch(x: torch.Tensor) -> torch.Tensor:
    """``x``; for a batch of one, its first element is the next larger number."""
    result = x.clone()
    if len(x) == 1:
        first = result.view(-1)[:1]
        first.copy_(torch.nextafter(first, torch.full_like(first, float("inf"))))
    return result


calls: list[int] = []


@torch.library.custom_op("planted::once", mutates_args=())
def once(x: torch.Tensor) -> torch.Tensor:
    """``x``, and in the second call of the process twice that: an op that is not deterministic."""
    calls.append(len(x))
    return x * (2 if len(calls) == 2 else 1)


def _shape(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


by_batch.register_fake(_shape)
once.register_fake(_shape)
