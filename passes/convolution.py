"""Convolutions as one operator: out[o, p] = bias[o] + sum over (channel, kernel position) of weight * patch.

Numerics: the sum is the matmul family's, with k the row-major index over (channel of the group, kernel position); one rounding,
after the bias (docs/numerics.md section 3). For inference the kernel reads patches from the input; where a gradient is needed they are
copied once, since the gradient of the weight reads them again, and one matmul gives the same bits.

A transposed convolution is the convolution with the flipped weight of the input with stride - 1 zeros between neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from bi_inductor.operators.convolution import over_patches

aten = torch.ops.aten


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> torch.Tensor:
    """conv1d, conv2d or conv3d of ``x`` [batch?, channels, *spatial] with ``weight`` [out channels, channels / groups, *kernel]."""
    kernel = weight.shape[2:]
    dims = len(kernel)
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    if x.dim() == dims + 1:
        return convolution(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    geometry = (list(stride), _pads(padding, kernel, dilation), list(dilation), groups)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return over_patches(x, weight, bias, *geometry)
    result: torch.Tensor = torch.ops.bi_inductor.convolution(x, weight, bias, *geometry)
    return result


def transposed_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> torch.Tensor:
    """conv_transpose1d, 2d or 3d of ``x`` [batch?, channels, *spatial] with ``weight`` [channels, out channels / groups, *kernel]."""
    kernel = weight.shape[2:]
    dims = len(kernel)
    stride, padding, output_padding, dilation = (_each(values, dims) for values in (stride, padding, output_padding, dilation))
    if x.dim() == dims + 1:
        return transposed_convolution(x.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation).squeeze(0)
    for i, s in enumerate(stride):
        x = _with_zeros_between(x, 2 + i, s)
    pads = []
    for k, p, o, d in zip(reversed(kernel), reversed(padding), reversed(output_padding), reversed(dilation), strict=True):
        pads += [d * (k - 1) - p, d * (k - 1) - p + o]
    out_channels = weight.shape[1] * groups
    swapped = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *kernel).transpose(1, 2)
    swapped = swapped.reshape(out_channels, weight.shape[0] // groups, *kernel).flip(list(range(2, 2 + dims)))
    return convolution(functional.pad(x, pads), swapped, bias, (1,), (0,), dilation, groups)


def _with_zeros_between(x: torch.Tensor, dim: int, stride: int) -> torch.Tensor:
    if stride == 1:
        return x
    size = (x.shape[dim] - 1) * stride + 1
    zeros = x.new_zeros([*x.shape[:dim], size, *x.shape[dim + 1 :]])
    return aten.slice_scatter.default(zeros, x, dim, 0, size, stride)  # type: ignore[no-any-return]  # ops are untyped


def _each(values: Sequence[int], dims: int) -> Sequence[int]:
    return list(values) * dims if len(values) == 1 else values


def _pads(padding: Sequence[int] | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[Any]:
    """Zeros before and after each dim, as bi_inductor::convolution takes them; "same" puts the odd one at the end, as torch does."""
    if padding == "valid":
        return [0, 0] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [side for t in total for side in (t // 2, t - t // 2)]
    assert not isinstance(padding, str), f"padding must be 'valid', 'same' or numbers; given {padding!r}"
    return [side for p in _each(padding, len(kernel)) for side in (p, p)]


CONVOLUTIONS = (aten.conv1d, aten.conv2d, aten.conv3d)
TRANSPOSED_CONVOLUTIONS = (aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)
