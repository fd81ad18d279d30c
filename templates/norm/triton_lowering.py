"""layer_norm, rms_norm and group_norm in Triton, and their statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch._inductor import ir
from torch._inductor import lowering as inductor

from bi_inductor.templates.common.triton_rows import CONSTANTS, STAGES, WARPS, rows_grid
from bi_inductor.templates.cpp_template import contiguous, realized
from bi_inductor.templates.library import accumulation_dtype
from bi_inductor.templates.triton_template import Rows, constant, lower, rows_of, template


def norm(
    name: str, x: ir.TensorBox, normalized_dims: int, weight: ir.TensorBox | None, bias: ir.TensorBox | None, eps: float
) -> ir.TensorBox:
    """``name`` ("layer_norm", "rms_norm") over the last ``normalized_dims`` dims of ``x``."""
    rows = _trailing_rows(x, normalized_dims)
    return inductor.view(_call(name, rows, x, weight, bias, eps, {}), x.get_size())


def statistics(name: str, x: ir.TensorBox, normalized_dims: int, eps: float) -> ir.TensorBox:
    """Mean and rstd, or rstd alone, [2 or 1, *outer], in the accumulation dtype."""
    outer = list(x.get_size())[: len(x.get_size()) - normalized_dims]
    return _statistics(name, _trailing_rows(x, normalized_dims), x, outer, eps)


def group_norm(x: ir.TensorBox, groups: int, weight: ir.TensorBox | None, bias: ir.TensorBox | None, eps: float) -> ir.TensorBox:
    """Group norm of ``x`` [batch, channels, spatial...]."""
    rows, channels = _group_rows(x, groups)
    constants = {"GROUPS": groups, "GROUP_CHANNELS": channels}
    return inductor.view(_call("group_norm", rows, x, weight, bias, eps, constants), x.get_size())


def group_norm_statistics(x: ir.TensorBox, groups: int, eps: float) -> ir.TensorBox:
    """Mean and rstd of each group, [2, batch, groups]."""
    rows, _ = _group_rows(x, groups)
    return _statistics("group_norm", rows, x, [x.get_size()[0], groups], eps)


def _trailing_rows(x: ir.TensorBox, normalized_dims: int) -> Rows:
    ndim = len(x.get_size())
    return rows_of(x, range(ndim - normalized_dims, ndim))


def _group_rows(x: ir.TensorBox, groups: int) -> tuple[Rows, Any]:
    """A row for each group of each sample, and the number of channels in a group."""
    batch, channels, *spatial = contiguous(x).get_size()
    grouped = inductor.view(contiguous(x), [batch, groups, channels // groups, *spatial])
    return rows_of(grouped, range(2, 3 + len(spatial))), channels // groups


def _call(
    name: str,
    rows: Rows,
    x: ir.TensorBox,
    weight: ir.TensorBox | None,
    bias: ir.TensorBox | None,
    eps: float,
    constants: Mapping[str, Any],
) -> ir.TensorBox:
    parameters = {key: realized(contiguous(node)) for key, node in (("WEIGHT", weight), ("BIAS", bias)) if node is not None}
    names = ("X", *parameters)
    kernel_name = "_with_".join([name, *(key.lower() for key in parameters)])
    return lower(
        template("norm", kernel_name, rows_grid, NAMES=names, CENTERED=name != "rms_norm", STATISTICS=False),
        {"X": rows.node, **parameters},
        [rows.rows, rows.n],
        {**CONSTANTS, **rows.constants, "EPSILON": constant(eps), "GROUPS": 0, **constants},
        (rows.rows, 1),
        warps=WARPS,
        stages=STAGES,
        dtype=x.get_dtype(),
    )


def _statistics(name: str, rows: Rows, x: ir.TensorBox, outer: Sequence[Any], eps: float) -> ir.TensorBox:
    centered = name != "rms_norm"
    count = 2 if centered else 1
    out = lower(
        template("norm", f"{name}_statistics", rows_grid, NAMES=("X",), CENTERED=centered, STATISTICS=True),
        {"X": rows.node},
        [count, rows.rows],
        {**CONSTANTS, **rows.constants, "EPSILON": constant(eps), "GROUPS": 0},
        (rows.rows, count),
        warps=WARPS,
        stages=STAGES,
        dtype=x.get_dtype(),
        out_dtype=accumulation_dtype(x.get_dtype()),
    )
    return inductor.view(out, [count, *outer])
