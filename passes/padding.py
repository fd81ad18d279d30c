"""The gradient of padding with the nearest element: a scatter along each dim.

Numerics (docs/numerics.md section 9): along one dim after the other, the first one first, every element gets the sum, in order, of the
gradients of the places that hold it, in the accumulation type; the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bi_inductor.passes.resizing import summed_at
from bi_inductor.templates.library import DTYPES, accumulation_dtype

aten = torch.ops.aten


def replication_pad_backward(grad: torch.Tensor, x: torch.Tensor, padding: Sequence[Any]) -> Any:
    """What ``x`` [batch?, channels, *sizes] gets from ``grad``, which is longer by ``padding`` (of the last dim first, either side)."""
    if grad.dtype not in DTYPES:
        return NotImplemented
    out = grad.to(accumulation_dtype(grad.dtype))
    for i in reversed(range(len(padding) // 2)):
        dim = x.dim() - 1 - i
        held = (torch.arange(out.shape[dim], device=grad.device) - padding[2 * i]).clamp(0, x.shape[dim] - 1)
        out = summed_at(out, dim, x.shape[dim], held)
    return out.to(grad.dtype)


DECOMPOSITIONS: dict[Any, Any] = dict.fromkeys(
    (aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default),
    replication_pad_backward,
)
