"""An op whose result for a sample follows the batch size: it adds one unit in the last place to the first element of a sample alone."""

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


@by_batch.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
