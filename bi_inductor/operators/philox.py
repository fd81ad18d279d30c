"""``bi_inductor::philox``: a word of the counter-based generator Philox 4x32-10 for each element."""

from __future__ import annotations

import torch
from torch import Tensor

from bi_inductor.operators.definition import define

WORD = 0xFFFFFFFF
# The multipliers of the two halves of a counter, and what is added to the two words of the key before each further round.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_words(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four words of 32 bits for a counter of four and a key of two.

    Args:
        counter, key: int64 tensors that broadcast to one shape, each holding numbers from 0 to 2**32 - 1.

    Returns:
        four int64 tensors of such numbers.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
        high0, low0 = _product(MULTIPLIERS[0], c0)
        high1, low1 = _product(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product of two words. By halves of a word: no int64 overflows, which C++ leaves undefined."""
    low, high = (word & 0xFFFF) * multiplier, (word >> 16) * multiplier
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & WORD


def philox_cpu(seeds: Tensor, positions: Tensor, elements: Tensor, stream: int, word: int) -> Tensor:
    """Word ``word`` of the generator's four for the key ``seeds`` and the counter (element, stream, position), all int64."""
    _check(seeds, positions, elements)
    whole = torch.zeros_like(elements)
    counter = (elements & WORD, whole + stream, positions & WORD, (positions >> 32) & WORD)
    return philox_words(counter, (seeds & WORD, (seeds >> 32) & WORD))[word].contiguous()


def philox_fake(seeds: Tensor, positions: Tensor, elements: Tensor, stream: int, word: int) -> Tensor:
    _check(seeds, positions, elements)
    return seeds.new_empty(torch.broadcast_shapes(seeds.shape, positions.shape, elements.shape))


def _check(seeds: Tensor, positions: Tensor, elements: Tensor) -> None:
    given = {"seeds": seeds, "positions": positions, "elements": elements}
    if any(tensor.dtype != torch.int64 for tensor in given.values()):
        dtypes = ", ".join(f"{name}: {tensor.dtype}" for name, tensor in given.items())
        raise TypeError(f"bi_inductor::philox takes int64 tensors; given {dtypes}")


define("philox(Tensor seeds, Tensor positions, Tensor elements, int stream, int word) -> Tensor", philox_cpu, philox_fake)
