"""Lowering of the norms. Numerics: 128-lane sums in two passes, rstd = 1 / sqrt, affine last, one rounding (docs/numerics.md section 7)."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import register_lowering

from bi_inductor.templates.cpp_template import contiguous, lower, on_triton
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.norm import kernel as norm_kernel
from bi_inductor.templates.norm import triton_lowering
from bi_inductor.templates.operand import Address, Operand, product
from bi_inductor.templates.prologue import Prologue, prologue_of
from bi_inductor.templates.row_template import lower_rows

ops = torch.ops.bi_inductor


def _contiguous(x: TensorBox | None) -> TensorBox | None:
    return None if x is None else contiguous(x)


def _normalized(x: TensorBox, normalized_dims: int) -> range:
    return range(len(x.get_size()) - normalized_dims, len(x.get_size()))


def _input(x: TensorBox, prologue: Prologue | None) -> dict[str, TensorBox | None]:
    return {} if prologue else {"x": contiguous(x)}


def _norm(kind: int, x: TensorBox, normalized_dims: int, weight: TensorBox | None, bias: TensorBox | None, eps: float) -> TensorBox:
    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        values = norm_kernel.arguments(kind, normalized_dims, eps, t["x"], t["weight"], t["bias"])
        return {**values, "out": out.pointer}

    prologue = prologue_of(x, _normalized(x, normalized_dims))
    inputs = {**_input(x, prologue), "weight": _contiguous(weight), "bias": _contiguous(bias)}
    return lower_rows(norm_kernel.NORM, x, normalized_dims, inputs, arguments, prologue)


def _statistics(kind: int, x: TensorBox, normalized_dims: int, eps: float) -> TensorBox:
    outer = list(x.get_size())[: len(x.get_size()) - normalized_dims]

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        values = norm_kernel.arguments(kind, normalized_dims, eps, t["x"], None, None)
        return {**values, **_statistics_outputs(out)}

    size = [2 if kind == norm_kernel.LAYER_NORM else 1, *outer]
    prologue = prologue_of(x, _normalized(x, normalized_dims))
    out_dtype = accumulation_dtype(x.get_dtype())
    return lower(norm_kernel.NORM, x.get_dtype(), _input(x, prologue), size, arguments, out_dtype=out_dtype, prologue=prologue)


def _statistics_outputs(out: Operand) -> dict[str, Any]:
    """Mean and rstd are the rows of the output; rms_norm has only rstd."""
    if out.size[0] == 1:
        return {"rstd_out": out.pointer}
    return {"mean_out": out.pointer, "rstd_out": Address(out.pointer.base, product(out.size[1:]))}


@register_lowering(ops.layer_norm.default, type_promotion_kind=None)
def layer_norm(x: TensorBox, normalized_dims: int, weight: TensorBox | None, bias: TensorBox | None, eps: float) -> TensorBox:
    """Layer norm over the last ``normalized_dims`` dims."""
    if on_triton(x.get_device()):
        return triton_lowering.norm("layer_norm", x, normalized_dims, weight, bias, eps)
    return _norm(norm_kernel.LAYER_NORM, x, normalized_dims, weight, bias, eps)


@register_lowering(ops.rms_norm.default, type_promotion_kind=None)
def rms_norm(x: TensorBox, normalized_dims: int, weight: TensorBox | None, eps: float) -> TensorBox:
    """RMS norm over the last ``normalized_dims`` dims."""
    if on_triton(x.get_device()):
        return triton_lowering.norm("rms_norm", x, normalized_dims, weight, None, eps)
    return _norm(norm_kernel.RMS_NORM, x, normalized_dims, weight, None, eps)


@register_lowering(ops.mean_square_norm.default, type_promotion_kind=None)
def mean_square_norm(x: TensorBox, normalized_dims: int, weight: TensorBox | None, eps: float) -> TensorBox:
    """``x * rsqrt(mean(x * x) + eps)``, and times ``weight``. It has no Triton template: GPUs run the ops one by one."""

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        values = norm_kernel.mean_square_norm_arguments(normalized_dims, eps, t["x"], t["weight"])
        return {**values, "out": out.pointer}

    prologue = prologue_of(x, _normalized(x, normalized_dims))
    inputs = {**_input(x, prologue), "weight": _contiguous(weight)}
    return lower_rows(norm_kernel.MEAN_SQUARE_NORM, x, normalized_dims, inputs, arguments, prologue)


@register_lowering(ops.layer_norm_statistics.default, type_promotion_kind=None)
def layer_norm_statistics(x: TensorBox, normalized_dims: int, eps: float) -> TensorBox:
    """Mean and rstd, [2, *outer]."""
    if on_triton(x.get_device()):
        return triton_lowering.statistics("layer_norm", x, normalized_dims, eps)
    return _statistics(norm_kernel.LAYER_NORM, x, normalized_dims, eps)


@register_lowering(ops.rms_norm_statistics.default, type_promotion_kind=None)
def rms_norm_statistics(x: TensorBox, normalized_dims: int, eps: float) -> TensorBox:
    """rstd, [1, *outer]."""
    if on_triton(x.get_device()):
        return triton_lowering.statistics("rms_norm", x, normalized_dims, eps)
    return _statistics(norm_kernel.RMS_NORM, x, normalized_dims, eps)


def _group_prologue(x: TensorBox, groups: int) -> Prologue | None:
    """The prologue whose rows are the groups."""
    size = x.get_size()
    return prologue_of(x, range(1, len(size)), size[1] // groups * product(size[2:]))


@register_lowering(ops.group_norm.default, type_promotion_kind=None)
def group_norm(x: TensorBox, groups: int, weight: TensorBox | None, bias: TensorBox | None, eps: float) -> TensorBox:
    """Group norm of [batch, channels, spatial...]."""
    if on_triton(x.get_device()):
        return triton_lowering.group_norm(x, groups, weight, bias, eps)

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        return {**norm_kernel.group_norm_arguments(groups, eps, t["x"], t["weight"], t["bias"]), "out": out.pointer}

    prologue = _group_prologue(x, groups)
    inputs = {**_input(x, prologue), "weight": _contiguous(weight), "bias": _contiguous(bias)}
    return lower(norm_kernel.GROUP_NORM, x.get_dtype(), inputs, x.get_size(), arguments, prologue=prologue)


@register_lowering(ops.group_norm_statistics.default, type_promotion_kind=None)
def group_norm_statistics(x: TensorBox, groups: int, eps: float) -> TensorBox:
    """Mean and rstd of each group, [2, batch, groups]."""
    if on_triton(x.get_device()):
        return triton_lowering.group_norm_statistics(x, groups, eps)

    def arguments(t: dict[str, Any], out: Operand) -> dict[str, Any]:
        return {**norm_kernel.group_norm_arguments(groups, eps, t["x"], None, None), **_statistics_outputs(out)}

    size = [2, x.get_size()[0], groups]
    prologue = _group_prologue(x, groups)
    out_dtype = accumulation_dtype(x.get_dtype())
    return lower(norm_kernel.GROUP_NORM, x.get_dtype(), _input(x, prologue), size, arguments, out_dtype=out_dtype, prologue=prologue)
