"""Comparing tensors bit for bit, and how far apart two bit patterns are.

Two values have the same bits when their integer views are equal or when both are NaN: the payload and the sign of a NaN
follow the vector width of the code that made it and are not part of a value (docs/numerics.md, section 1).
"""

from __future__ import annotations

import torch

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of reals (one trailing dim of 2 more), any other tensor as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()


def _is_nan(tensor: torch.Tensor) -> torch.Tensor:
    # isnan has no kernel for the 8-bit floats; every one of their values is exact in float32.
    return torch.isnan(tensor.float() if tensor.element_size() == 1 else tensor)


def _check_alike(left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dtype != right.dtype or left.shape != right.shape:
        raise ValueError(
            f"both tensors must have one dtype and shape, got {left.dtype} {tuple(left.shape)} and {right.dtype} {tuple(right.shape)}"
        )


def bits_differ(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Where two tensors differ in their bits.

    Args:
        left, right: tensors of one shape and dtype (any float, complex, integer or bool dtype).

    Returns:
        A bool tensor of their shape. NaN equals NaN; `-0.0` differs from `+0.0`. A complex element differs when its
        real or its imaginary part does.

    Raises:
        ValueError: the shapes or dtypes are not the same.
    """
    _check_alike(left, right)
    if left.is_complex():
        return bits_differ(_real(left), _real(right)).any(-1)
    if not left.is_floating_point():
        return left != right
    left, right = _real(left), _real(right)
    integer = _INTEGER_OF_SIZE[left.element_size()]
    differ = left.contiguous().view(integer) != right.contiguous().view(integer)
    return differ & ~(_is_nan(left) & _is_nan(right))


def _ordinal(tensor: torch.Tensor) -> torch.Tensor:
    """Maps floats to int64 so that neighbouring floats get neighbouring integers and both zeros get 0."""
    bits = tensor.contiguous().view(_INTEGER_OF_SIZE[tensor.element_size()])
    # Floats are sign and magnitude, integers two's complement: a negative float's magnitude is its bits less the sign.
    lowest = torch.iinfo(bits.dtype).min
    bits = bits.to(torch.int64)
    return torch.where(bits >= 0, bits, lowest - bits)


def ulp_distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many representable values lie between two tensors' elements, plus one.

    Args:
        left, right: tensors of one shape and dtype.

    Returns:
        A float64 tensor of their shape: 0 for equal values and for zeros of either sign, 1 for neighbours (across zero
        as well: the smallest positive and the smallest negative number are 2 apart; infinity is next to the largest
        finite number), infinity where exactly one of the two is NaN. Exact up to 2**53, rounded above. Integers and
        bools give their absolute difference; a complex element the larger distance of its two parts.

    Raises:
        ValueError: the shapes or dtypes are not the same.
    """
    _check_alike(left, right)
    if left.is_complex():
        return ulp_distance(_real(left), _real(right)).amax(-1)
    if left.is_floating_point():
        left, right = _real(left), _real(right)
        left_nan, right_nan = _is_nan(left), _is_nan(right)
        left, right = _ordinal(left), _ordinal(right)
    else:
        left_nan = right_nan = torch.zeros(left.shape, dtype=torch.bool, device=left.device)
        left, right = left.to(torch.int64), right.to(torch.int64)
    difference = torch.maximum(left, right) - torch.minimum(left, right)
    # Far apart with opposite signs: the difference of two int64 wraps to a negative number.
    distance = torch.where(difference >= 0, difference.double(), (left.double() - right.double()).abs())
    distance = torch.where(left_nan & right_nan, 0.0, distance)
    return torch.where(left_nan ^ right_nan, torch.inf, distance)
