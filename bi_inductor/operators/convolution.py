"""``bi_inductor::convolution``: conv1d, conv2d and conv3d of a batch as one sum over the patches (docs/numerics.md section 3)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.fx.traceback import annotate
from torch.nn import functional

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.convolution.kernel import DIMS, KERNEL, arguments, output_sizes
from bi_inductor.templates.operand import Operand

aten = torch.ops.aten

# In the custom annotations of the nodes of a traced ``over_patches``: their products are a convolution's.
OF_PATCHES = "bi_inductor.convolution_over_patches"


def check_shapes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> list[Any]:
    """The shape of the result. Raises ValueError or RuntimeError when the operands do not fit."""
    dims = x.dim() - 2
    given = f"given x {tuple(x.shape)}, weight {tuple(weight.shape)}, groups {groups}"
    if not 1 <= dims <= DIMS or weight.dim() != x.dim():
        raise ValueError(f"bi_inductor::convolution takes x [batch, channels, *size] of 1 to {DIMS} sizes and such a weight; {given}")
    if len(stride) != dims or len(dilation) != dims or len(padding) != 2 * dims:
        counts = f"stride {stride}, padding {padding}, dilation {dilation}"
        raise ValueError(f"bi_inductor::convolution: a stride and a dilation for each dim and two paddings; {given}, {counts}")
    if groups < 1 or min([*stride, *dilation]) < 1:
        raise ValueError(f"bi_inductor::convolution: groups, strides and dilations are at least 1; {given}, {stride}, {dilation}")
    torch._check(
        x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0,
        lambda: f"bi_inductor::convolution: channels do not fit; {given}",
    )
    if bias is not None:
        torch._check(bias.shape == weight.shape[:1], lambda: f"bi_inductor::convolution: bias {tuple(bias.shape)} does not fit; {given}")
    sizes = output_sizes(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    for extent in weight.shape[2:]:
        torch._check(extent > 0, lambda: f"bi_inductor::convolution: each size of the kernel is at least 1; {given}")
    for size in sizes:
        torch._check(size > 0, lambda: f"bi_inductor::convolution: the kernel is larger than the padded input; {given}")
    return [x.shape[0], weight.shape[0], *sizes]


def over_patches(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """The same bits as one matmul over gathered patches, of differentiable ops: the backward follows from slicing and matmul.

    The patches are copied: memory is the kernel's size times the input's. Raises what the operator raises. Traced nodes are annotated
    (torch.fx.traceback.annotate, checked in torch 2.13.0).
    """
    check_dtypes("convolution", {"x": x, "weight": weight, "bias": bias})
    batch, out_channels, *sizes = check_shapes(x, weight, bias, stride, padding, dilation, groups)
    kernel = weight.shape[2:]
    # The last dim first, as functional.pad takes it.
    x = functional.pad(x, [side for i in reversed(range(len(kernel))) for side in padding[2 * i : 2 * i + 2]])
    patches = []
    for offset in itertools.product(*(range(k) for k in kernel)):
        patch = x
        for i, (o, n, s, d) in enumerate(zip(offset, sizes, stride, dilation, strict=True)):
            patch = aten.slice.Tensor(patch, 2 + i, o * d, o * d + s * (n - 1) + 1, s)
        patches.append(patch)
    channels = weight.shape[1]
    reduced, positions = channels * len(patches), math.prod(sizes)
    columns = torch.stack(patches, 2)
    if groups == 1:
        rows = weight.reshape(1, out_channels, reduced).expand(batch, -1, -1)
        bias = None if bias is None else bias.unsqueeze(1)
        with annotate({OF_PATCHES: True}):
            out = torch.ops.bi_inductor.matmul(rows, columns.reshape(batch, reduced, positions), bias)
    else:
        columns = columns.reshape(batch, groups, reduced, positions).permute(1, 2, 0, 3).reshape(groups, reduced, batch * positions)
        bias = None if bias is None else bias.reshape(groups, out_channels // groups, 1)
        with annotate({OF_PATCHES: True}):
            out = torch.ops.bi_inductor.matmul(weight.reshape(groups, out_channels // groups, reduced), columns, bias)
        out = out.reshape(out_channels, batch, positions).transpose(0, 1)
    result: torch.Tensor = out.reshape([batch, out_channels, *sizes])
    return result


def convolution_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    dtype = check_dtypes("convolution", {"x": x, "weight": weight, "bias": bias})
    out = x.new_empty(check_shapes(x, weight, bias, stride, padding, dilation, groups))
    operands = Operand.of(x), Operand.of(weight.contiguous()), None if bias is None else Operand.of(bias)
    return run(KERNEL, out, dtype, arguments(*operands, out, stride, padding, dilation, groups))


def convolution_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    check_dtypes("convolution", {"x": x, "weight": weight, "bias": bias})
    return x.new_empty(check_shapes(x, weight, bias, stride, padding, dilation, groups))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, bias, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, bias)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    with torch.enable_grad():
        x, weight, bias = (
            None if t is None else t.detach().requires_grad_(needed)
            for t, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        )
        assert x is not None and weight is not None
        out = over_patches(x, weight, bias, *ctx.geometry)
        wanted = [t for t in (x, weight, bias) if t is not None and t.requires_grad]
        gradients = iter(torch.autograd.grad(out, wanted, grad))
    return *(next(gradients) if t is not None and t.requires_grad else None for t in (x, weight, bias)), *[None] * len(ctx.geometry)


define(
    "convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, SymInt[] padding, int[] dilation, int groups) -> Tensor",
    convolution_cpu,
    convolution_fake,
    _backward,
    _setup_context,
)
