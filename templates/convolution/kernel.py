"""The convolution kernel: its parameters, and how operands become arguments (docs/numerics.md section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bi_inductor.templates.library import Parameter, register_kernel
from bi_inductor.templates.operand import Operand, Size

KERNEL = register_kernel(
    "convolution",
    "convolution",
    {
        "batch": Parameter.SIZE,
        "groups": Parameter.SIZE,
        "channels": Parameter.SIZE,
        "out_channels": Parameter.SIZE,
        "x": Parameter.INPUT,
        "x_batch": Parameter.SIZE,
        "x_channel": Parameter.SIZE,
        "x_stride": Parameter.SIZES,
        "size": Parameter.SIZES,
        "kernel": Parameter.SIZES,
        "stride": Parameter.SIZES,
        "padding": Parameter.SIZES,
        "dilation": Parameter.SIZES,
        "out_size": Parameter.SIZES,
        "weight": Parameter.INPUT,
        "bias": Parameter.INPUT,
        "bias_stride": Parameter.SIZE,
        "out": Parameter.OUTPUT,
        "threads": Parameter.SIZE,
        "epilogue": Parameter.EPILOGUE,
        "epilogue_context": Parameter.CONTEXT,
    },
)

# Depth, height and width: a convolution over fewer dims has ones in front.
DIMS = 3


def output_sizes(
    size: Sequence[Size], kernel: Sequence[Size], stride: Sequence[int], padding: Sequence[Size], dilation: Sequence[int]
) -> list[Size]:
    """The sizes of the result; ``padding`` has the zeros before and after each dim: [before, after, before, after, ...]."""
    return [(n + padding[2 * i] + padding[2 * i + 1] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i, n in enumerate(size)]


def arguments(
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    out: Any,
    stride: Sequence[int],
    padding: Sequence[Size],
    dilation: Sequence[int],
    groups: int,
) -> dict[str, Any]:
    """Arguments for ``x`` [batch, channels, *size] of any strides and a row-major ``weight`` [out channels, channels / groups, *kernel].

    ``out``: the pointer of the row-major result; ``padding`` as ``output_sizes`` takes it.
    """
    size, kernel = x.size[2:], weight.size[2:]

    def three(values: Sequence[Size], missing: Size) -> tuple[Size, ...]:
        return (missing,) * (DIMS - len(values)) + tuple(values)

    return {
        "batch": x.size[0],
        "groups": groups,
        "channels": weight.size[1],
        "out_channels": weight.size[0] // groups,
        "x": x.pointer,
        "x_batch": x.stride[0],
        "x_channel": x.stride[1],
        "x_stride": three(x.stride[2:], 0),
        "size": three(size, 1),
        "kernel": three(kernel, 1),
        "stride": three(stride, 1),
        "padding": three(padding[::2], 0),
        "dilation": three(dilation, 1),
        "out_size": three(output_sizes(size, kernel, stride, padding, dilation), 1),
        "weight": weight.pointer,
        "bias": None if bias is None else bias.pointer,
        "bias_stride": 0 if bias is None else bias.stride[0],
        "out": out,
        "epilogue": None,
        "epilogue_context": None,
    }
