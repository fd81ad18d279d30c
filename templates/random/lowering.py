"""Lowering of ``philox``: elementwise integer code, fused with what uses it (docs/numerics.md section 14)."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import make_pointwise, register_lowering
from torch._inductor.virtualized import ops

from bi_inductor.operators.philox import MULTIPLIERS, ROUNDS, WEYL, WORD


def _number(value: int) -> Any:
    return ops.constant(value, torch.int64)


def _shifted(x: Any, bits: int) -> Any:
    return ops.bitwise_right_shift(x, _number(bits))


def _low_bits(x: Any, mask: int = WORD) -> Any:
    return ops.bitwise_and(x, _number(mask))


def _product(multiplier: int, word: Any) -> tuple[Any, Any]:
    """High and low word, as in bi_inductor.operators.philox."""
    low, high = ops.mul(_low_bits(word, 0xFFFF), _number(multiplier)), ops.mul(_shifted(word, 16), _number(multiplier))
    upper = _shifted(ops.add(high, _shifted(low, 16)), 16)
    return upper, _low_bits(ops.add(low, ops.mul(_low_bits(high, 0xFFFF), _number(0x10000))))


@register_lowering(torch.ops.bi_inductor.philox.default, type_promotion_kind=None, broadcast=True)
def philox(seeds: TensorBox, positions: TensorBox, elements: TensorBox, stream: int, word: int) -> TensorBox:
    """One word for each element of the broadcast operands."""

    def element_word(seed: Any, position: Any, element: Any) -> Any:
        c0, c1, c2, c3 = _low_bits(element), _number(stream), _low_bits(position), _low_bits(_shifted(position, 32))
        k0, k1 = _low_bits(seed), _low_bits(_shifted(seed, 32))
        for number in range(ROUNDS):
            if number:
                k0, k1 = _low_bits(ops.add(k0, _number(WEYL[0]))), _low_bits(ops.add(k1, _number(WEYL[1])))
            high0, low0 = _product(MULTIPLIERS[0], c0)
            high1, low1 = _product(MULTIPLIERS[1], c2)
            c0 = ops.bitwise_xor(ops.bitwise_xor(high1, c1), k0)
            c2 = ops.bitwise_xor(ops.bitwise_xor(high0, c3), k1)
            c1, c3 = low1, low0
        return (c0, c1, c2, c3)[word]

    result: TensorBox = make_pointwise(element_word)(seeds, positions, elements)
    return result
