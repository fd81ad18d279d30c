"""Antialiased resizing and sampling of volumes: gathers, weights and sums of a fixed order; backwards are scatters.

Numerics (docs/numerics.md section 4): along one dim after the other, the last one first, an output is the lane sum over its window of
weight times element, in the accumulation type; the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bi_inductor.templates.library import DTYPES, accumulation_dtype

aten = torch.ops.aten


def _triangle(x: torch.Tensor) -> torch.Tensor:
    """The filter of bilinear resizing."""
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """The filter of bicubic resizing with antialiasing: Keys' with a = -0.5."""
    a, x = -0.5, x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


# A filter, and how far it reaches.
Filter = tuple[Callable[[torch.Tensor], torch.Tensor], float]
LINEAR: Filter = (_triangle, 1.0)
CUBIC: Filter = (_cubic, 2.0)


def _windows(
    size: Any, outputs: Any, filter: Filter, align_corners: bool, scale: float | None, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places [outputs, window] in a dim of ``size`` that each output reads, and their weights: 0 where the window is shorter."""
    function, reach = filter
    # The window's length follows from them, so a graph is for one size of image.
    size, outputs = int(size), int(outputs)
    if align_corners:
        ratio = (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        ratio = 1.0 / scale if scale else size / outputs
    support = reach * ratio if ratio >= 1 else reach
    center = (torch.arange(outputs, device=like.device, dtype=torch.float64) + 0.5) * ratio
    first = (center - support + 0.5).to(torch.int64).clamp(min=0)
    end = (center + support + 0.5).to(torch.int64).clamp(max=size)
    offset = torch.arange(int(support) * 2 + 3, device=like.device)
    place = first.unsqueeze(1) + offset
    weight = function((place - center.unsqueeze(1) + 0.5) * (1 / ratio if ratio >= 1 else 1.0))
    weight = torch.where(place < end.unsqueeze(1), weight, 0)
    return place.clamp(max=size - 1), (weight / weight.sum(1, keepdim=True)).to(like.dtype)


def _resized(x: torch.Tensor, dim: int, place: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gathered = x.index_select(dim, place.flatten()).unflatten(dim, list(place.shape))
    result: torch.Tensor = (gathered * weight.reshape([*place.shape, *[1] * (x.dim() - dim - 1)])).sum(dim + 1)
    return result


def summed_at(values: torch.Tensor, dim: int, size: Any, places: torch.Tensor) -> torch.Tensor:
    """Along ``dim``, which becomes of ``size``: at each place the sum, in order, of the ``values`` that go there, from +0."""
    zeros = values.new_zeros([*values.shape[:dim], size, *values.shape[dim + 1 :]])
    return zeros.index_add(dim, places, values)


def _spread(grad: torch.Tensor, dim: int, size: Any, place: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What each element of the input gets from the outputs that read it, in their order."""
    parts = grad.unsqueeze(dim + 1) * weight.reshape([*place.shape, *[1] * (grad.dim() - dim - 1)])
    return summed_at(parts.flatten(dim, dim + 1), dim, size, place.flatten())


def _antialiased(filter: Filter) -> Callable[..., Any]:
    def forward(
        x: torch.Tensor, output_size: Sequence[Any], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Any:
        if x.dtype not in DTYPES:
            return NotImplemented
        out = x.to(accumulation_dtype(x.dtype))
        for dim, scale in ((3, scales_w), (2, scales_h)):
            out = _resized(out, dim, *_windows(x.shape[dim], output_size[dim - 2], filter, align_corners, scale, out))
        return out.to(x.dtype)

    return forward


def _antialiased_backward(filter: Filter) -> Callable[..., Any]:
    def backward(
        grad: torch.Tensor,
        output_size: Sequence[Any],
        input_size: Sequence[Any],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Any:
        if grad.dtype not in DTYPES:
            return NotImplemented
        out = grad.to(accumulation_dtype(grad.dtype))
        for dim, scale in ((2, scales_h), (3, scales_w)):
            windows = _windows(input_size[dim], output_size[dim - 2], filter, align_corners, scale, out)
            out = _spread(out, dim, input_size[dim], *windows)
        return out.to(grad.dtype)

    return backward


DECOMPOSITIONS: dict[Any, Any] = {
    aten._upsample_bilinear2d_aa.default: _antialiased(LINEAR),
    aten._upsample_bicubic2d_aa.default: _antialiased(CUBIC),
    aten._upsample_bilinear2d_aa_backward.default: _antialiased_backward(LINEAR),
    aten._upsample_bicubic2d_aa_backward.default: _antialiased_backward(CUBIC),
}


def grid_sampler_3d(x: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> torch.Tensor:
    """Sampling of volumes [batch, channels, depth, height, width] at ``grid`` [batch, *outputs, 3], each place (width, height, depth).

    Numerics: each corner's element times its weight, a product of three; the corners are added in the order in which torch names them, and
    those outside of the volume are +0.
    """
    wide = accumulation_dtype(x.dtype)
    sizes = x.shape[:1:-1]
    places = [_place(grid[..., d].to(wide), sizes[d], padding_mode, align_corners) for d in range(3)]
    if interpolation_mode == NEAREST:
        return _corner(x, [place.round() for place in places])
    low = [place.floor() for place in places]
    out: torch.Tensor | None = None
    for corner in range(8):
        # Bit d says whether the corner is the upper one along dim d.
        upper = [corner >> d & 1 for d in range(3)]
        at = [low[d] + upper[d] for d in range(3)]
        weights = [places[d] - low[d] if upper[d] else (low[d] + 1) - places[d] for d in range(3)]
        term = _corner(x, at).to(wide) * (weights[0] * weights[1] * weights[2]).unsqueeze(1)
        out = term if out is None else out + term
    assert out is not None
    return out.to(x.dtype)


NEAREST = 1
BORDER, REFLECTION = 1, 2


def _place(coordinate: torch.Tensor, size: Any, padding_mode: int, align_corners: bool) -> torch.Tensor:
    """Coordinates from -1 to 1 as places along a dim of ``size``."""
    if align_corners:
        place: torch.Tensor = (coordinate + 1) / 2 * (size - 1)
    else:
        place = ((coordinate + 1) * size - 1) / 2
    if padding_mode == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        distance = (place - low).abs()
        rest = torch.remainder(distance, span) if span else torch.zeros_like(distance)
        flips = (distance / span).floor() if span else torch.zeros_like(distance)
        place = torch.where(torch.remainder(flips, 2) == 0, rest + low, span - rest + low)
    return place.clamp(0, size - 1) if padding_mode in (BORDER, REFLECTION) else place


def _corner(x: torch.Tensor, at: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements [batch, channels, *outputs] at places (width, height, depth), +0 outside."""
    sizes = x.shape[:1:-1]
    inside = torch.ones_like(at[0], dtype=torch.bool)
    index = []
    for place, size in zip(at, sizes, strict=True):
        inside = inside & (place >= 0) & (place < size)
        index.append(torch.where((place >= 0) & (place < size), place, 0).to(torch.int64))
    flat = (index[2] * sizes[1] + index[1]) * sizes[0] + index[0]
    gathered = x.flatten(2).gather(2, flat.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1))
    return torch.where(inside.unsqueeze(1), gathered.reshape([*x.shape[:2], *flat.shape[1:]]), 0)
