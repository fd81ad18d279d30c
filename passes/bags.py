"""embedding_bag as the rows of the table and a scatter: differentiable, each bag independent of the others.

Numerics (docs/numerics.md section 9): a bag is one chain over its rows in their order; a mean divides once at the end. The maximum is
exact, and the first of equal rows has the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.templates.library import accumulation_dtype

aten = torch.ops.aten
ops = torch.ops.bi_inductor

SUM, MEAN, MAX = 0, 1, 2


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
) -> Any:
    """The bags of rows of ``weight`` [rows, columns] that ``indices`` [n] name; bag b starts at ``offsets[b]``.

    Returns the bags [bags, columns], the bag of each index [n], the size of each bag, and the positions [bags, columns] of the maxima.
    """
    return embedding_bag_with_padding(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, None
    )


def embedding_bag_with_padding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Any:
    """As ``embedding_bag``; indices equal to ``padding_idx`` are in no bag."""
    if scale_grad_by_freq or sparse:
        return NotImplemented
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    n, columns = indices.shape[0], weight.shape[1]
    starts = offsets[:bags].to(torch.int64)
    bag = torch.searchsorted(starts, torch.arange(n, device=weight.device), right=True) - 1
    rows = torch.nn.functional.embedding(indices, weight)
    # Rows that are in no bag go to one behind the last.
    target = bag
    if padding_idx is not None:
        padding_idx = padding_idx if padding_idx >= 0 else padding_idx + weight.shape[0]
        target = torch.where(indices == padding_idx, bags, bag)
    count = torch.zeros(bags + 1, dtype=torch.int64, device=weight.device).index_add(0, target, torch.ones_like(target))[:bags]
    wide = accumulation_dtype(weight.dtype)
    positions = torch.zeros(bags, columns, dtype=torch.int64, device=weight.device)
    if mode == MAX:
        positions = _first_maxima(rows.detach(), target, bags)
        chosen = rows.gather(0, positions.clamp(max=max(n - 1, 0))) if n else rows.new_zeros(bags, columns)
        out = torch.where((count > 0).unsqueeze(1), chosen, 0)
    else:
        if per_sample_weights is not None:
            rows = rows.to(wide) * per_sample_weights.to(wide).unsqueeze(1)
        total = torch.zeros(bags + 1, columns, dtype=wide, device=weight.device).index_add(0, target, rows.to(wide))[:bags]
        out = (total / count.clamp(min=1).unsqueeze(1).to(wide) if mode == MEAN else total).to(weight.dtype)
    return out, bag, count, positions


def _first_maxima(rows: torch.Tensor, bag: torch.Tensor, bags: int) -> torch.Tensor:
    """The position [bags, columns] of the first largest of the ``rows`` [n, columns] of each bag; n for a bag without rows."""
    n, columns = rows.shape
    index = bag.unsqueeze(1).expand(n, columns)
    largest = rows.new_zeros(bags + 1, columns).scatter_reduce(0, index, rows, "amax", include_self=False)
    is_largest = (rows == largest.gather(0, index)) | rows.isnan()
    position = torch.where(is_largest, torch.arange(n, device=rows.device).unsqueeze(1), n)
    return torch.full_like(largest, n, dtype=torch.int64).scatter_reduce(0, index, position, "amin", include_self=True)[:bags]
