"""The normalisation kernels: their parameters, and how operands become arguments (docs/numerics.md section 7)."""

from __future__ import annotations

from typing import Any

from bi_inductor.templates.library import NEITHER, NO_PROLOGUE, PROLOGUE_PARAMETERS, ROW_PARAMETERS, Parameter, register_kernel
from bi_inductor.templates.operand import Operand, product

NORM = register_kernel(
    "norm",
    "norm",
    {
        "kind": Parameter.SIZE,
        "rows": Parameter.SIZE,
        "n": Parameter.SIZE,
        "eps": Parameter.NUMBER,
        "x": Parameter.INPUT,
        "x_row": Parameter.SIZE,
        "weight": Parameter.INPUT,
        "bias": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "mean_out": Parameter.STATISTICS,
        "rstd_out": Parameter.STATISTICS,
        **ROW_PARAMETERS,
        "threads": Parameter.SIZE,
    },
)

# What mean_square_norm lacks.
_OF_NORM_ALONE = ("kind", "bias", "mean_out", "rstd_out")

MEAN_SQUARE_NORM = register_kernel(
    "norm", "mean_square_norm", {name: parameter for name, parameter in NORM.parameters if name not in _OF_NORM_ALONE}
)

GROUP_NORM = register_kernel(
    "norm",
    "group_norm",
    {
        "batch": Parameter.SIZE,
        "channels": Parameter.SIZE,
        "spatial": Parameter.SIZE,
        "groups": Parameter.SIZE,
        "eps": Parameter.NUMBER,
        "x": Parameter.INPUT,
        "weight": Parameter.INPUT,
        "bias": Parameter.INPUT,
        "out": Parameter.OUTPUT,
        "mean_out": Parameter.STATISTICS,
        "rstd_out": Parameter.STATISTICS,
        **PROLOGUE_PARAMETERS,
        "threads": Parameter.SIZE,
    },
)

# The values of `kind` in kernel.h.
LAYER_NORM, RMS_NORM = 0, 1


def arguments(kind: int, normalized_dims: int, eps: float, x: Operand, weight: Operand | None, bias: Operand | None) -> dict[str, Any]:
    """Arguments for normalising over the last ``normalized_dims`` dims of the contiguous ``x``; the caller adds the outputs."""
    split = len(x.size) - normalized_dims
    n = product(x.size[split:])
    return {
        "kind": kind,
        "rows": product(x.size[:split]),
        "n": n,
        "eps": eps,
        "x": x.pointer,
        "x_row": n,
        "weight": None if weight is None else weight.pointer,
        "bias": None if bias is None else bias.pointer,
        "out": None,
        "mean_out": None,
        "rstd_out": None,
        **NEITHER,
    }


def mean_square_norm_arguments(normalized_dims: int, eps: float, x: Operand, weight: Operand | None) -> dict[str, Any]:
    """Arguments as of ``arguments``."""
    values = arguments(RMS_NORM, normalized_dims, eps, x, weight, None)
    return {name: values[name] for name in values if name not in _OF_NORM_ALONE}


def group_norm_arguments(groups: int, eps: float, x: Operand, weight: Operand | None, bias: Operand | None) -> dict[str, Any]:
    """Arguments for group_norm of the contiguous ``x`` [batch, channels, spatial...]; the caller adds the outputs."""
    return {
        "batch": x.size[0],
        "channels": x.size[1],
        "spatial": product(x.size[2:]),
        "groups": groups,
        "eps": eps,
        "x": x.pointer,
        "weight": None if weight is None else weight.pointer,
        "bias": None if bias is None else bias.pointer,
        "out": None,
        "mean_out": None,
        "rstd_out": None,
        **NO_PROLOGUE,
    }
