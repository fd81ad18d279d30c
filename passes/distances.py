"""cdist: distances between all pairs of two sets of points, and their backward.

Numerics (docs/numerics.md section 4): the norm of the difference, whatever the number of points; only "use_mm_for_euclid_dist" takes a
matmul. torch takes one from 25 points on.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bi_inductor.templates.library import DTYPES

aten = torch.ops.aten

# The number of "use_mm_for_euclid_dist" in torch; 0 lets torch choose by the number of points, 2 forbids it.
USE_MM = 1


def cdist(x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, compute_mode: int | None = None) -> torch.Tensor:
    """Distances [..., P, R] of the points ``x1`` [..., P, M] and ``x2`` [..., R, M], the kernel chosen by the mode alone."""
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    x1, x2 = (x.expand([*batch, *x.shape[-2:]]) for x in (x1, x2))
    result: torch.Tensor = aten._cdist_forward.default(x1, x2, p, USE_MM if compute_mode == USE_MM else 2)
    return result


def _forward(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> Any:
    if x1.dtype not in DTYPES:
        return NotImplemented
    if p == 2.0 and compute_mode == USE_MM:
        square1, square2 = (x.square().sum(-1, keepdim=True) for x in (x1, x2))
        one1, one2 = torch.ones_like(square1), torch.ones_like(square2)
        left, right = torch.cat([-2 * x1, square1, one1], -1), torch.cat([x2, one2, square2], -1)
        return torch.matmul(left, right.mT).clamp_min(0).sqrt()
    size = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 0.0:
        return (size != 0).sum(-1).to(x1.dtype)
    if p == math.inf:
        return size.amax(-1) if size.shape[-1] else size.sum(-1)
    if p == 1.0:
        return size.sum(-1)
    if p == 2.0:
        return (size * size).sum(-1).sqrt()
    return size.pow(p).sum(-1).pow(1 / p)


def _backward(grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, p: float, distances: torch.Tensor) -> Any:
    """The gradient of ``x1``: a sum over the points of ``x2``."""
    if x1.dtype not in DTYPES:
        return NotImplemented
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    grad, distances = grad.unsqueeze(-1), distances.unsqueeze(-1)
    if p == 0.0:
        return torch.zeros_like(x1)
    if p == 1.0:
        parts = grad * difference.sign()
    elif p == math.inf:
        parts = torch.where(difference.abs() == distances, grad * difference.sign(), 0)
    elif p == 2.0:
        parts = torch.where(distances == 0, 0, grad * difference / distances)
    else:
        powers = difference.sign() * difference.abs().pow(p - 1)
        parts = torch.where((distances == 0) | (difference == 0), 0, powers * grad / distances.pow(p - 1))
    return parts.sum(-2)


DECOMPOSITIONS: dict[Any, Any] = {aten._cdist_forward.default: _forward, aten._cdist_backward.default: _backward}
