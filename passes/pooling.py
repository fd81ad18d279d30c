"""Pooling over windows, average and adaptive, with backwards: decompositions into gathers, the sum of a window and a scatter.

Numerics (docs/numerics.md section 4): an average is the lane sum of the window in row-major order, then one division and one rounding. The
backward is a scatter: every element of the input adds up what its windows send, in row-major order of the windows.

Windows are described dim by dim: which place of the input an offset in the window of an output reads, and whether there is one. Both
follow from the sizes of the pooled dims alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from bi_inductor.templates.library import DTYPES

aten = torch.ops.aten


class Windows(NamedTuple):
    """The windows along one dim.

    Attributes:
        place: [outputs, window] int64, the place in the input, within bounds also where there is none.
        inside: [outputs, window] bool, whether the offset belongs to the window.
        divisor: [outputs] int64, what an average divides by along this dim.
    """

    place: torch.Tensor
    inside: torch.Tensor
    divisor: torch.Tensor


class Pooling(NamedTuple):
    """The parameters of an average pool, one number for each pooled dim."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    ceil_mode: bool
    count_include_pad: bool
    divisor: int | None

    @classmethod
    def of(
        cls,
        dims: int,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Pooling:
        """As the arguments of aten.avg_pool*d spell it: one number stands for all dims, no stride for the kernel's size."""
        kernel = _each(kernel_size, dims)
        return cls(kernel, _each(stride or kernel, dims), _each(padding, dims), ceil_mode, count_include_pad, divisor_override)

    def outputs(self, size: Any, d: int) -> Any:
        """How many windows there are along pooled dim ``d`` of ``size``; the last one starts inside the input or its left padding."""
        kernel, stride, padding = self.kernel[d], self.stride[d], self.padding[d]
        free = size + 2 * padding - kernel
        if not self.ceil_mode:
            return free // stride + 1
        count = -(-free // stride) + 1
        return count - 1 if (count - 1) * stride >= size + padding else count

    def windows(self, size: Any, d: int, device: torch.device) -> Windows:
        """The windows along pooled dim ``d`` of ``size``."""
        kernel, padding = self.kernel[d], self.padding[d]
        start = torch.arange(self.outputs(size, d), device=device) * self.stride[d] - padding
        place = start.unsqueeze(1) + torch.arange(kernel, device=device)
        end = (start + kernel).clamp(max=size + padding)
        count = end - start if self.count_include_pad else end.clamp(max=size) - start.clamp(min=0)
        return Windows(place.clamp(0, size - 1), (place >= 0) & (place < size), count)

    def divide(self, x: torch.Tensor, windows: Sequence[Windows]) -> torch.Tensor:
        """``x`` [..., *outputs] by the number of elements of each window."""
        if self.divisor is not None:
            return x / self.divisor
        if not any(self.padding) and not self.ceil_mode:
            return x / math.prod(self.kernel)
        return x / _counts(windows, x.dtype)


def _each(values: Sequence[int] | int, dims: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * dims if len(values) == 1 else values


def _counts(windows: Sequence[Windows], dtype: torch.dtype) -> torch.Tensor:
    """The sizes of the windows [*outputs]."""
    count = windows[0].divisor
    for window in windows[1:]:
        count = count.unsqueeze(-1) * window.divisor
    return count.to(dtype)


def _adaptive_windows(size: Any, outputs: Any, device: torch.device) -> Windows:
    """Windows from floor(i * size / outputs) to ceil((i + 1) * size / outputs), each as long as the longest."""
    rest = size % outputs
    longest = size // outputs + (0 if rest == 0 else 1 if outputs % rest == 0 else 2)
    i = torch.arange(outputs, device=device)
    start, end = i * size // outputs, ((i + 1) * size + outputs - 1) // outputs
    place = start.unsqueeze(1) + torch.arange(longest, device=device)
    return Windows(place.clamp(max=size - 1), place < end.unsqueeze(1), end - start)


def _inside(windows: Sequence[Windows]) -> torch.Tensor:
    """Whether an offset belongs to its window, as [outputs 0, window 0, outputs 1, window 1, ...]."""
    inside = windows[0].inside
    for window in windows[1:]:
        inside = inside[..., None, None] & window.inside
    return inside


def _places(windows: Sequence[Windows], sizes: Sequence[Any]) -> torch.Tensor:
    """The place in the flattened pooled dims of the input, as [outputs 0, window 0, outputs 1, window 1, ...]."""
    place = windows[0].place
    for window, size in zip(windows[1:], sizes[1:], strict=True):
        place = place[..., None, None] * size + window.place
    return place


def _gathered(x: torch.Tensor, windows: Sequence[Windows], fill: float) -> torch.Tensor:
    """The elements of all windows of ``x`` [..., *sizes], as [..., outputs 0, window 0, outputs 1, window 1, ...]."""
    dims = len(windows)
    sizes = x.shape[x.dim() - dims :]
    flat = x.flatten(-dims)
    gathered = flat.index_select(-1, _places(windows, sizes).flatten())
    inside = _inside(windows)
    return torch.where(inside, gathered.reshape([*flat.shape[:-1], *inside.shape]), fill)


def _spread(values: torch.Tensor, windows: Sequence[Windows], x: torch.Tensor) -> torch.Tensor:
    """The sum of ``values`` [..., *outputs] over the windows that each element of ``x`` is in; in the shape and dtype of ``x``."""
    dims = len(windows)
    sizes = x.shape[x.dim() - dims :]
    inside = _inside(windows)
    leading = values.dim() - dims
    for d in reversed(range(dims)):
        values = values.unsqueeze(leading + d + 1)
    values = torch.where(inside, values, 0)
    zeros = values.new_zeros([*x.shape[:-dims], math.prod(sizes)])
    summed = zeros.index_add(-1, _places(windows, sizes).flatten(), values.flatten(-2 * dims))
    return summed.reshape(x.shape).to(x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in its accumulation type."""
    return x if x.dtype == torch.float64 else x.float()


def _average(x: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    dims = len(pooling.kernel)
    sizes = x.shape[x.dim() - dims :]
    wide = _wide(x)
    pads: list[Any] = []
    for d in reversed(range(dims)):
        covered = (pooling.outputs(sizes[d], d) - 1) * pooling.stride[d] + pooling.kernel[d] - pooling.padding[d]
        pads += [pooling.padding[d], max(covered - sizes[d], 0) if pooling.ceil_mode else pooling.padding[d]]
    patches = functional.pad(wide, pads) if any(pooling.padding) or pooling.ceil_mode else wide
    for d in range(dims):
        patches = patches.unfold(x.dim() - dims + d, pooling.kernel[d], pooling.stride[d])
    total = patches.sum(list(range(-dims, 0)))
    windows = [pooling.windows(size, d, x.device) for d, size in enumerate(sizes)]
    return pooling.divide(total, windows).to(x.dtype)


def _average_backward(grad: torch.Tensor, x: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    dims = len(pooling.kernel)
    windows = [pooling.windows(size, d, x.device) for d, size in enumerate(x.shape[x.dim() - dims :])]
    return _spread(pooling.divide(_wide(grad), windows), windows, x)


def _even(sizes: Sequence[Any], outputs: Sequence[Any]) -> Pooling | None:
    """The average pool that adaptive windows are when they all have one size and do not overlap."""
    if any(size % count for size, count in zip(sizes, outputs, strict=True)):
        return None
    kernel = [size // count for size, count in zip(sizes, outputs, strict=True)]
    return Pooling(kernel, kernel, [0] * len(kernel), False, True, None)


def _adaptive_average(x: torch.Tensor, output_size: Sequence[Any]) -> torch.Tensor:
    dims = len(output_size)
    sizes = x.shape[x.dim() - dims :]
    even = _even(sizes, output_size)
    if even is not None:
        return _average(x, even)
    windows = [_adaptive_windows(size, count, x.device) for size, count in zip(sizes, output_size, strict=True)]
    total = _gathered(_wide(x), windows, 0).sum([2 * d + 1 - 2 * dims for d in range(dims)])
    return (total / _counts(windows, total.dtype)).to(x.dtype)


def _adaptive_average_backward(grad: torch.Tensor, x: torch.Tensor, dims: int) -> torch.Tensor:
    windows = [_adaptive_windows(size, count, x.device) for size, count in zip(x.shape[-dims:], grad.shape[-dims:], strict=True)]
    wide = _wide(grad)
    return _spread(wide / _counts(windows, wide.dtype), windows, x)


def _adaptive_max(x: torch.Tensor, output_size: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima, and their places in the flattened pooled dims of the input: the first of equal elements."""
    dims = len(output_size)
    sizes = x.shape[x.dim() - dims :]
    windows = [_adaptive_windows(size, count, x.device) for size, count in zip(sizes, output_size, strict=True)]
    # [..., outputs 0, window 0, outputs 1, window 1, ...] to [..., *outputs, window]
    leading = x.dim() - dims
    order = [*(2 * d for d in range(dims)), *(2 * d + 1 for d in range(dims))]
    patches = _gathered(x, windows, -math.inf).permute([*range(leading), *(leading + d for d in order)]).flatten(-dims)
    places = _places(windows, sizes).permute(order).flatten(-dims)
    values, chosen = patches.max(-1)
    places = places.expand([*x.shape[:leading], *places.shape])
    return values, places.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def _adaptive_max_backward(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, dims: int) -> torch.Tensor:
    wide = _wide(grad)
    zeros = wide.new_zeros([*x.shape[:-dims], math.prod(x.shape[-dims:])])
    return zeros.scatter_add(-1, indices.flatten(-dims), wide.flatten(-dims)).reshape(x.shape).to(x.dtype)


def _chosen_backward(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, dims: int) -> Any:
    """The gradient of a pool that chose one element a window: windows that share it add up in their order."""
    return _adaptive_max_backward(grad, x, indices, dims) if x.dtype in DTYPES else NotImplemented


def _decompositions(dims: int) -> dict[Any, Any]:
    def average(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return _average(x, Pooling.of(dims, *args, **kwargs)) if x.dtype in DTYPES else NotImplemented

    def average_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return _average_backward(grad, x, Pooling.of(dims, *args, **kwargs)) if x.dtype in DTYPES else NotImplemented

    def adaptive_average(x: torch.Tensor, output_size: Sequence[Any]) -> Any:
        return _adaptive_average(x, output_size) if x.dtype in DTYPES else NotImplemented

    def adaptive_average_backward(grad: torch.Tensor, x: torch.Tensor) -> Any:
        return _adaptive_average_backward(grad, x, dims) if x.dtype in DTYPES else NotImplemented

    def adaptive_max(x: torch.Tensor, output_size: Sequence[Any]) -> Any:
        return _adaptive_max(x, output_size) if x.dtype in DTYPES else NotImplemented

    def adaptive_max_backward(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> Any:
        return _chosen_backward(grad, x, indices, dims)

    def fractional_max_backward(
        grad: torch.Tensor, x: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: torch.Tensor
    ) -> Any:
        return _chosen_backward(grad, x, indices, dims)

    return {
        getattr(aten, f"avg_pool{dims}d").default: average,
        getattr(aten, f"avg_pool{dims}d_backward").default: average_backward,
        getattr(aten, f"_adaptive_avg_pool{dims}d").default: adaptive_average,
        getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default: adaptive_average_backward,
        getattr(aten, f"adaptive_max_pool{dims}d").default: adaptive_max,
        getattr(aten, f"adaptive_max_pool{dims}d_backward").default: adaptive_max_backward,
        getattr(aten, f"fractional_max_pool{dims}d_backward").default: fractional_max_backward,
    }


def _max_pool3d_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> Any:
    return _chosen_backward(grad, x, indices, 3)


DECOMPOSITIONS: dict[Any, Any] = {
    **_decompositions(2),
    **_decompositions(3),
    aten.max_pool3d_with_indices_backward.default: _max_pool3d_backward,
}
