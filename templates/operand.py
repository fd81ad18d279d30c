"""A tensor as a kernel sees it: a pointer, sizes and strides; real in an eager call, symbolic in a lowering."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

# An int in an eager call, a sympy.Expr or an int in a lowering.
Size: TypeAlias = Any


@dataclasses.dataclass(frozen=True)
class Address:
    """In a lowering: ``base`` (C++ text) plus ``offset`` elements."""

    base: str
    offset: Size


@dataclasses.dataclass(frozen=True)
class Operand:
    """``pointer`` is a tensor (eager) or an ``Address`` (lowering); sizes and strides are in elements."""

    pointer: Any
    size: tuple[Size, ...]
    stride: tuple[Size, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Operand:
        """The operand of a real tensor."""
        return cls(tensor, tuple(tensor.shape), tensor.stride())

    def expanded(self, ndim: int) -> Operand:
        """Broadcast to ``ndim`` dims by leading dims of size 1; the stride of every dim of size 1 becomes 0."""
        missing = ndim - len(self.size)
        size = (1,) * missing + self.size
        stride = (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(self.size, self.stride, strict=True))
        return Operand(self.pointer, size, stride)


def product(sizes: Sequence[Size]) -> Size:
    """The number of elements of ``sizes``; 1 when there is none."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result
