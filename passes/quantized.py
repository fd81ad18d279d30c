"""Quantised linears and the ops around them: products of elements as they are stored, or the weight as the numbers it stands for, then a
matmul of ours.

Numerics (docs/numerics.md section 12): float8 and int8 elements are multiplied as the numbers they are; a sum is unrounded until its scales
are in. An int4 weight is dequantised in the accumulation type, each step rounded as itself. Quantising and dequantising are the pointwise
ops that torch spells in Python.

Weights packed for the CPU's int4 kernel are unpacked as ``_convert_weight_to_int4pack_for_cpu`` packed them, which depends on the machine.
"""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.operators.scaled_matmul import accepts, is_one_element
from bi_inductor.templates.library import DTYPES, FLOAT8, accumulation_dtype

aten = torch.ops.aten

# Rows that the int4 kernel of an instruction set packs together: low nibbles hold the first half of them, high nibbles the second.
INT4_BLOCKS = {"AVX2": 32, "AVX512": 64}


def int8_weight(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> Any:
    """``x`` [m, k] times an int8 ``weight`` [n, k] with a scale [n] for each of its rows."""
    if x.dtype not in DTYPES or weight.dtype != torch.int8 or scales.dtype not in DTYPES:
        return NotImplemented
    return torch.ops.bi_inductor.scaled_matmul(x, weight.t(), x.dtype, None, scales)


def int8_matmul(a: torch.Tensor, b: torch.Tensor) -> Any:
    """int8 ``a`` [m, k] times int8 ``b`` [k, n] into int32, which no order changes."""
    if a.dtype != torch.int8 or b.dtype != torch.int8:
        return NotImplemented
    return torch.ops.bi_inductor.scaled_matmul(a, b, torch.int32)


def int4_weight(x: torch.Tensor, packed: torch.Tensor, group: int, scales_and_zeros: torch.Tensor) -> Any:
    """``x`` [m, k] times a ``packed`` int4 weight [n, k / 2]; ``scales_and_zeros`` is [k / group, n, 2]."""
    block = INT4_BLOCKS.get(torch.backends.cpu.get_cpu_capability())
    if x.dtype not in DTYPES or block is None:
        return NotImplemented
    wide = accumulation_dtype(x.dtype)
    columns = x.shape[1]
    scales, zeros = (part.to(wide).t().unsqueeze(-1) for part in scales_and_zeros.unbind(-1))
    numbers = unpacked_int4(packed, columns, block).reshape(packed.shape[0], columns // group, group).to(wide) - 8
    weight = (numbers * scales + zeros).reshape(packed.shape[0], columns)
    return torch.ops.bi_inductor.matmul(x.to(wide), weight.t()).to(x.dtype)


def unpacked_int4(packed: torch.Tensor, columns: int, block: int) -> torch.Tensor:
    """The numbers 0 to 15 [rows, columns] of a weight in bytes [rows, columns / 2], packed ``block`` rows at a time, columns outermost."""
    rows = packed.shape[0]
    whole = rows // block * block
    flat = packed.reshape(-1)
    blocks = flat[: whole * columns // 2].reshape(-1, columns, block // 2)
    parts = [torch.cat([blocks & 15, torch.bitwise_right_shift(blocks, 4)], -1).transpose(1, 2).reshape(whole, columns)]
    if whole < rows:
        # What is left of the rows is packed two neighbours a byte.
        rest = flat[whole * columns // 2 :].reshape(columns, (rows - whole) // 2)
        parts.append(torch.stack([rest & 15, torch.bitwise_right_shift(rest, 4)], -1).flatten(1).t())
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """float8 ``a`` [m, k] times ``b`` [k, n]; scales are numbers, or [m, 1] and [1, n]."""
    out_dtype = out_dtype or a.dtype
    are_scales = (
        scale_a.dtype == scale_b.dtype == torch.float32 and _is_scale(scale_a, (a.shape[0], 1)) and _is_scale(scale_b, (1, b.shape[1]))
    )
    if not are_scales or scale_result is not None or a.dtype not in FLOAT8 or not accepts(a.dtype, b.dtype, out_dtype):
        return NotImplemented
    return torch.ops.bi_inductor.scaled_matmul(a, b, out_dtype, scale_a, scale_b, bias)


def _is_scale(x: torch.Tensor, shape: tuple[Any, Any]) -> bool:
    """Whether it is one element, or one for each row or column: of ``shape``."""
    return is_one_element(x) or tuple(x.shape) == shape


# ---- quantising and dequantising; qparams are numbers or tensors that broadcast


def _quantize(x: torch.Tensor, scale: Any, zero_point: Any, smallest: int, largest: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.clamp(torch.round(x.float() * (1.0 / scale)) + zero_point, smallest, largest).to(dtype)


def _dequantize(x: torch.Tensor, scale: Any, zero_point: Any, dtype: torch.dtype | None) -> torch.Tensor:
    dtype = dtype or torch.float32
    result: torch.Tensor = (x.to(dtype) - zero_point) * scale
    return result.to(dtype)


def quantize_per_tensor(x: torch.Tensor, scale: Any, zero_point: Any, smallest: Any, largest: Any, dtype: torch.dtype) -> torch.Tensor:
    """With one ``scale`` and ``zero_point``, numbers or tensors of one element."""
    return _quantize(x, scale, zero_point, smallest, largest, dtype)


def dequantize_per_tensor(
    x: torch.Tensor, scale: Any, zero_point: Any, smallest: Any, largest: Any, dtype: torch.dtype, *, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The numbers that ``quantize_per_tensor`` stored."""
    return _dequantize(x, scale, zero_point, out_dtype)


def _along(axis: int, x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One value for each place along ``axis`` of ``x``."""
    return values.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


def quantize_per_channel(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, smallest: int, largest: int, dtype: torch.dtype
) -> torch.Tensor:
    """With a scale and a zero point for each place along ``axis``."""
    return _quantize(x, _along(axis, x, scales), _along(axis, x, zero_points), smallest, largest, dtype)


def dequantize_per_channel(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    smallest: int,
    largest: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The numbers that ``quantize_per_channel`` stored."""
    # As torch computes it: the zero points in their integers, the product in the dtype of the scales.
    centred = x if zero_points is None else x - _along(axis, x, zero_points)
    return (centred * _along(axis, x, scales)).to(out_dtype or torch.float32)


def quantize_rounding_last(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, smallest: int, largest: int, dtype: torch.dtype
) -> torch.Tensor:
    """With a scale and a zero point for each row (token); the zero point is added before rounding."""
    return (x * (1.0 / scales) + zero_points).round().clamp(smallest, largest).to(dtype)


def dequantize_per_token(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    smallest: int,
    largest: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The numbers that ``quantize_rounding_last`` stored."""
    return ((x - zero_points) * scales).to(output_dtype)


def _groups(x: torch.Tensor, scales: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` [rows, columns] as groups [n, size], and one scale for each."""
    size = x.shape[-1] if size > x.shape[-1] and scales.shape[-1] == 1 else size
    return x.reshape(-1, size), scales.reshape(-1, 1)


def quantize_per_channel_group(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, smallest: int, largest: int, dtype: torch.dtype, group_size: int = 128
) -> torch.Tensor:
    """With a scale and a zero point for each ``group_size`` elements of a row."""
    groups, scale = _groups(x, scales, group_size)
    return quantize_rounding_last(groups, scale, zero_points.reshape(-1, 1), smallest, largest, dtype).reshape(x.shape)


def dequantize_per_channel_group(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    smallest: int,
    largest: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The numbers that ``quantize_per_channel_group`` stored."""
    groups, scale = _groups(x, scales, group_size)
    centred = groups if zero_points is None else groups - zero_points.reshape(-1, 1)
    return (centred * scale).reshape(x.shape).to(output_dtype)


# ---- scales and zero points from the values; extrema are exact


def choose_qparams(x: torch.Tensor, smallest: int, largest: int, eps: float, dtype: torch.dtype) -> Any:
    """One scale and zero point for all of ``x``."""
    low, high = x.amin(), x.amax()
    scale = ((high - low) / float(largest - smallest)).clamp(min=eps)
    zero_point = smallest - torch.round(low / scale).to(torch.int32)
    return scale.reshape(1).to(torch.float64), torch.clamp(zero_point, smallest, largest).reshape(1).to(torch.int64)


def choose_qparams_per_token(x: torch.Tensor, dtype: torch.dtype) -> Any:
    """A scale for each row, zero points of 0."""
    if dtype != torch.int8:
        return NotImplemented
    scale = x.abs().amax(-1, keepdim=True)
    scale = scale.float() if scale.dtype == torch.float16 else scale
    scale = scale.clamp(min=1e-5) / 127
    return scale, torch.zeros_like(scale)


def choose_qparams_per_token_asymmetric(x: torch.Tensor, dtype: torch.dtype) -> Any:
    """A scale and a zero point for each row, zero among the numbers that are kept exactly."""
    smallest, largest = -128, 127
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / float(largest - smallest)).clamp(min=torch.finfo(torch.float32).eps)
    from_low, from_high = low / scale, high / scale
    zero_point = torch.where((smallest + from_low) + (largest + from_high) > 0, smallest - from_low, largest - from_high)
    return scale.to(torch.float64), zero_point.clamp(smallest, largest).round().to(torch.int64)


DECOMPOSITIONS: dict[Any, Any] = {
    aten._weight_int8pack_mm.default: int8_weight,
    aten._weight_int4pack_mm_for_cpu.default: int4_weight,
    aten._scaled_mm.default: scaled_matmul,
    aten._int_mm.default: int8_matmul,
}


def decomposed_ops() -> dict[Any, Any]:
    """Decompositions of the ops ``quantized_decomposed::*``, which exist once Inductor is imported."""
    ops = torch.ops.quantized_decomposed
    table: dict[Any, Any] = {getattr(ops.quantize_per_tensor, name): quantize_per_tensor for name in ops.quantize_per_tensor.overloads()}
    table |= {getattr(ops.dequantize_per_tensor, name): dequantize_per_tensor for name in ops.dequantize_per_tensor.overloads()}
    return table | {
        ops.quantize_per_channel.default: quantize_per_channel,
        ops.dequantize_per_channel.default: dequantize_per_channel,
        ops.quantize_per_token.default: quantize_rounding_last,
        ops.dequantize_per_token.default: dequantize_per_token,
        ops.quantize_per_channel_group.default: quantize_per_channel_group,
        ops.dequantize_per_channel_group.default: dequantize_per_channel_group,
        ops.choose_qparams.tensor: choose_qparams,
        ops.choose_qparams_per_token.default: choose_qparams_per_token,
        ops.choose_qparams_per_token_asymmetric.default: choose_qparams_per_token_asymmetric,
        ops._choose_qparams_per_token_asymmetric_impl.default: choose_qparams_per_token_asymmetric,
        getattr(ops.convert_element_type, "no_fuse"): torch.ops.prims.convert_element_type.default,  # noqa: B009  # an op of this name
    }
