"""``bi_inductor::layer_norm``, ``rms_norm``, ``mean_square_norm``, ``group_norm`` and their statistics (docs/numerics.md section 7).

The statistics that autograd saves are operators of their own: an inference graph does not compute them, and each operator has one result.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.norm import kernel as norm_kernel
from bi_inductor.templates.operand import Operand

_NAMES = {norm_kernel.LAYER_NORM: "layer_norm", norm_kernel.RMS_NORM: "rms_norm"}


def _operand(tensor: torch.Tensor | None) -> Operand | None:
    return None if tensor is None else Operand.of(tensor.contiguous())


def _check(name: str, x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.dtype:
    if not 1 <= normalized_dims <= x.dim():
        raise ValueError(f"bi_inductor::{name}: normalized_dims must be 1 to {x.dim()} for {tuple(x.shape)}; given {normalized_dims}")
    for key, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.shape != x.shape[x.dim() - normalized_dims :]:
            raise ValueError(
                f"bi_inductor::{name}: {key} {tuple(tensor.shape)} does not match the last {normalized_dims} dims of {tuple(x.shape)}"
            )
    return check_dtypes(name, {"x": x, "weight": weight, "bias": bias})


def norm_cpu(
    kind: int, x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Eager layer_norm or rms_norm."""
    dtype = _check(_NAMES[kind], x, normalized_dims, weight, bias)
    x = x.contiguous()
    out = torch.empty_like(x)
    arguments = norm_kernel.arguments(kind, normalized_dims, eps, Operand.of(x), _operand(weight), _operand(bias))
    return run(norm_kernel.NORM, out, dtype, {**arguments, "out": out})


def statistics_cpu(kind: int, x: torch.Tensor, normalized_dims: int, eps: float) -> torch.Tensor:
    """Eager statistics: [2, *outer] mean and rstd for layer_norm, [1, *outer] rstd for rms_norm."""
    dtype = _check(_NAMES[kind], x, normalized_dims, None, None)
    x = x.contiguous()
    out = statistics_fake(kind, x, normalized_dims)
    arguments = norm_kernel.arguments(kind, normalized_dims, eps, Operand.of(x), None, None)
    mean = out[0] if kind == norm_kernel.LAYER_NORM else None
    return run(norm_kernel.NORM, out, dtype, {**arguments, "mean_out": mean, "rstd_out": out[-1]})


def statistics_fake(kind: int, x: torch.Tensor, normalized_dims: int) -> torch.Tensor:
    """The empty statistics."""
    outer = x.shape[: x.dim() - normalized_dims]
    return x.new_empty([1 + (kind == norm_kernel.LAYER_NORM), *outer], dtype=accumulation_dtype(x.dtype))


def layer_norm_cpu(
    x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return norm_cpu(norm_kernel.LAYER_NORM, x, normalized_dims, weight, bias, eps)


def layer_norm_fake(
    x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    _check("layer_norm", x, normalized_dims, weight, bias)
    return x.new_empty(x.shape)


def layer_norm_statistics_cpu(x: torch.Tensor, normalized_dims: int, eps: float) -> torch.Tensor:
    return statistics_cpu(norm_kernel.LAYER_NORM, x, normalized_dims, eps)


def layer_norm_statistics_fake(x: torch.Tensor, normalized_dims: int, eps: float) -> torch.Tensor:
    return statistics_fake(norm_kernel.LAYER_NORM, x, normalized_dims)


def rms_norm_cpu(x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return norm_cpu(norm_kernel.RMS_NORM, x, normalized_dims, weight, None, eps)


def rms_norm_fake(x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    _check("rms_norm", x, normalized_dims, weight, None)
    return x.new_empty(x.shape)


def rms_norm_statistics_cpu(x: torch.Tensor, normalized_dims: int, eps: float) -> torch.Tensor:
    return statistics_cpu(norm_kernel.RMS_NORM, x, normalized_dims, eps)


def rms_norm_statistics_fake(x: torch.Tensor, normalized_dims: int, eps: float) -> torch.Tensor:
    return statistics_fake(norm_kernel.RMS_NORM, x, normalized_dims)


def mean_square_norm_cpu(x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """``x * rsqrt(mean(x * x) + eps)`` over the last dims, and times ``weight``: the bits of these ops in the accumulation type."""
    dtype = _check("mean_square_norm", x, normalized_dims, weight, None)
    x = x.contiguous()
    out = torch.empty_like(x)
    arguments = norm_kernel.mean_square_norm_arguments(normalized_dims, eps, Operand.of(x), _operand(weight))
    return run(norm_kernel.MEAN_SQUARE_NORM, out, dtype, {**arguments, "out": out})


def mean_square_norm_fake(x: torch.Tensor, normalized_dims: int, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    _check("mean_square_norm", x, normalized_dims, weight, None)
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, ctx.normalized_dims, weight, *rest = inputs
    ctx.eps = rest[-1]
    ctx.bias = rest[0] if len(rest) == 2 else None
    ctx.save_for_backward(x, weight)


def _normalized_backward(ctx: Any, grad: torch.Tensor, layer_norm: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Gradients of x and weight, and ``grad`` in the accumulation type; every sum over a row or over rows is an operator of ours."""
    ops = torch.ops.bi_inductor
    x, weight = ctx.saved_tensors
    split = x.dim() - ctx.normalized_dims
    row, outer = list(range(split, x.dim())), list(range(split))
    wide = x.to(accumulation_dtype(x.dtype))
    grad = grad.to(wide.dtype)
    shape = [*x.shape[:split], *[1] * ctx.normalized_dims]
    if layer_norm:
        mean, rstd = (part.reshape(shape) for part in ops.layer_norm_statistics(x, ctx.normalized_dims, ctx.eps).unbind(0))
        normalized = (wide - mean) * rstd
    else:
        rstd = ops.rms_norm_statistics(x, ctx.normalized_dims, ctx.eps).reshape(shape)
        normalized = wide * rstd
    scaled = grad if weight is None else grad * weight.to(wide.dtype)
    inner = scaled - normalized * ops.mean(scaled * normalized, row, True)
    if layer_norm:
        inner = inner - ops.mean(scaled, row, True)
    grad_weight = None
    if weight is not None and ctx.needs_input_grad[2]:
        weighted = grad * normalized
        grad_weight = (ops.sum(weighted, outer, False) if outer else weighted).to(weight.dtype)
    return (inner * rstd).to(x.dtype), grad_weight, grad


def _layer_norm_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    grad_x, grad_weight, wide = _normalized_backward(ctx, grad, True)
    grad_bias = None
    if ctx.bias is not None and ctx.needs_input_grad[3]:
        outer = list(range(wide.dim() - ctx.normalized_dims))
        grad_bias = (torch.ops.bi_inductor.sum(wide, outer, False) if outer else wide).to(grad.dtype)
    return grad_x, None, grad_weight, grad_bias, None


def _rms_norm_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    grad_x, grad_weight, _ = _normalized_backward(ctx, grad, False)
    return grad_x, None, grad_weight, None


def group_norm_cpu(x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    dtype = _check_groups(x, groups, weight, bias)
    x = x.contiguous()
    out = torch.empty_like(x)
    arguments = norm_kernel.group_norm_arguments(groups, eps, Operand.of(x), _operand(weight), _operand(bias))
    return run(norm_kernel.GROUP_NORM, out, dtype, {**arguments, "out": out})


def group_norm_fake(x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    _check_groups(x, groups, weight, bias)
    return x.new_empty(x.shape)


def group_norm_statistics_cpu(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    dtype = _check_groups(x, groups, None, None)
    x = x.contiguous()
    out = group_norm_statistics_fake(x, groups, eps)
    arguments = norm_kernel.group_norm_arguments(groups, eps, Operand.of(x), None, None)
    return run(norm_kernel.GROUP_NORM, out, dtype, {**arguments, "mean_out": out[0], "rstd_out": out[1]})


def group_norm_statistics_fake(x: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    return x.new_empty([2, x.shape[0], groups], dtype=accumulation_dtype(x.dtype))


def _check_groups(x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.dtype:
    if x.dim() < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"bi_inductor::group_norm: {tuple(x.shape)} has no {groups} groups of channels in dim 1")
    for key, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.shape != x.shape[1:2]:
            raise ValueError(f"bi_inductor::group_norm: {key} {tuple(tensor.shape)} does not match the channels of {tuple(x.shape)}")
    return check_dtypes("group_norm", {"x": x, "weight": weight, "bias": bias})


def _group_norm_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    ops = torch.ops.bi_inductor
    x, weight = ctx.saved_tensors
    groups = ctx.normalized_dims
    wide_dtype = accumulation_dtype(x.dtype)
    # Every size spelled out: -1 has no meaning for a batch of none.
    by_channel = [x.shape[0], x.shape[1], math.prod(x.shape[2:])]
    by_group = [x.shape[0], groups, x.shape[1] // groups * by_channel[2]]
    mean, rstd = (part.unsqueeze(-1) for part in ops.group_norm_statistics(x, groups, ctx.eps).unbind(0))
    normalized = ((x.to(wide_dtype).reshape(by_group) - mean) * rstd).reshape(by_channel)
    wide = grad.to(wide_dtype).reshape(by_channel)
    scaled = (wide if weight is None else wide * weight.to(wide_dtype).reshape(1, -1, 1)).reshape(by_group)
    rows = normalized.reshape(by_group)
    inner = scaled - ops.mean(scaled, [2], True) - rows * ops.mean(scaled * rows, [2], True)
    grad_x = (inner * rstd).reshape(x.shape).to(x.dtype)
    grad_weight = grad_bias = None
    if weight is not None and ctx.needs_input_grad[2]:
        grad_weight = ops.sum(wide * normalized, [0, 2], False).to(weight.dtype)
    if ctx.bias is not None and ctx.needs_input_grad[3]:
        grad_bias = ops.sum(wide, [0, 2], False).to(grad.dtype)
    return grad_x, None, grad_weight, grad_bias, None


define(
    "layer_norm(Tensor x, int normalized_dims, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    layer_norm_cpu,
    layer_norm_fake,
    _layer_norm_backward,
    _save,
)
define(
    "layer_norm_statistics(Tensor x, int normalized_dims, float eps) -> Tensor",
    layer_norm_statistics_cpu,
    layer_norm_statistics_fake,
)
define(
    "rms_norm(Tensor x, int normalized_dims, Tensor? weight, float eps) -> Tensor",
    rms_norm_cpu,
    rms_norm_fake,
    _rms_norm_backward,
    _save,
)
define(
    "rms_norm_statistics(Tensor x, int normalized_dims, float eps) -> Tensor",
    rms_norm_statistics_cpu,
    rms_norm_statistics_fake,
)
define(
    "mean_square_norm(Tensor x, int normalized_dims, Tensor? weight, float eps) -> Tensor",
    mean_square_norm_cpu,
    mean_square_norm_fake,
)
define(
    "group_norm(Tensor x, int groups, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    group_norm_cpu,
    group_norm_fake,
    _group_norm_backward,
    _save,
)
define(
    "group_norm_statistics(Tensor x, int groups, float eps) -> Tensor",
    group_norm_statistics_cpu,
    group_norm_statistics_fake,
)
