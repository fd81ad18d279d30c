"""Random numbers that belong to a sample: each follows from the sample's seed, a position and the number of the element, from nothing else.

``torch.rand`` and ``dropout`` draw by the place of an element in the whole tensor, so a sample's numbers move with its place in the batch.
The functions here call the counter-based generator Philox 4x32-10 (J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel Random
Numbers: As Easy as 1, 2, 3, SC 2011) once for each element:

    key     = seed of the sample (64 bits)
    counter = (element, stream, position (64 bits))

They consist of integer operations and of + - * / and square roots of float64, each of which has one correct result. So the bits are the
same eager and compiled, by any backend, for any batch and any number of threads. ``log`` and ``cos`` are spelled out for that reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bi_inductor.operators.philox import WORD

__all__ = ["bernoulli", "categorical", "dropout", "gumbel", "normal", "uniform"]

# How many random bits a number of [0, 1) of this dtype has: as many as it can hold without rounding.
_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

# A word of the generator's four, by its number: int64 of 32 bits for each element.
Words = Callable[[int], Tensor]


def uniform(
    seeds: Tensor, shape: Sequence[int] = (), *, positions: int | Tensor = 0, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Numbers of [0, 1), evenly distributed.

    Args:
        seeds: int64 [batch], the seed of each sample.
        shape: of the numbers for one sample and position.
        positions: int64 [batch] or [batch, ...], what tells draws with one seed from each other: the position of a token, the number of
            a step. One int serves all samples.
        stream: another number from 0 to 2**32 - 1 that does so: one for each place of the program that draws.
        dtype: float32, float64, float16 or bfloat16.

    Returns:
        ``dtype`` [*positions.shape, *shape], or [batch, *shape] for one position.

    Raises:
        TypeError, ValueError: an argument is none of those.
    """
    if dtype not in _BITS:
        raise TypeError(f"dtype: got {dtype}; allowed are {', '.join(map(str, _BITS))}")
    words = _words(seeds, shape, positions, stream)
    bits = _BITS[dtype]
    if bits > 32:
        return _fraction(words, bits).to(dtype)
    return (_shifted(words(0), 32 - bits).to(torch.float32) * 2.0**-bits).to(dtype)


def normal(
    seeds: Tensor, shape: Sequence[int] = (), *, positions: int | Tensor = 0, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Numbers of the standard normal distribution (Box and Muller's transform in float64); arguments and result as for ``uniform``."""
    if dtype not in _BITS:
        raise TypeError(f"dtype: got {dtype}; allowed are {', '.join(map(str, _BITS))}")
    words = _words(seeds, shape, positions, stream)
    radius = torch.sqrt(-2.0 * _log(_open_fraction(words)))
    return (radius * _cos_of_turns(words(2))).to(dtype)


def bernoulli(
    probability: float | Tensor, seeds: Tensor, shape: Sequence[int] = (), *, positions: int | Tensor = 0, stream: int = 0
) -> Tensor:
    """True with the given probability.

    Args:
        probability: of True; a tensor broadcasts with the result.
        seeds, shape, positions, stream: as for ``uniform``.

    Returns:
        bool, shaped as for ``uniform``.
    """
    if not isinstance(probability, Tensor) and not 0 <= probability <= 1:
        raise ValueError(f"probability: got {probability}; allowed are numbers from 0 to 1")
    draws = _words(seeds, shape, positions, stream)(0).to(torch.float64) * 2.0**-32
    return draws < (probability.to(torch.float64) if isinstance(probability, Tensor) else probability)


def dropout(x: Tensor, p: float, seeds: Tensor, *, positions: int | Tensor = 0, stream: int = 0) -> Tensor:
    """``x`` with elements set to zero with probability ``p``, the others divided by ``1 - p``.

    Args:
        x: floating point [*positions.shape, ...], or [batch, ...] for one position.
        p: from 0 to below 1.
        seeds, positions, stream: as for ``uniform``.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p: got {p}; allowed are numbers from 0 to below 1")
    leading = positions.dim() if isinstance(positions, Tensor) else 1
    kept = ~bernoulli(p, seeds, x.shape[leading:], positions=positions, stream=stream)
    return torch.where(kept, x * (1.0 / (1.0 - p)), 0.0)


def gumbel(
    seeds: Tensor, shape: Sequence[int] = (), *, positions: int | Tensor = 0, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Numbers of the standard Gumbel distribution: the argmax of them plus logits is a draw of ``categorical``. As for ``uniform``."""
    if dtype not in _BITS:
        raise TypeError(f"dtype: got {dtype}; allowed are {', '.join(map(str, _BITS))}")
    return (-_log(-_log(_open_fraction(_words(seeds, shape, positions, stream))))).to(dtype)


def categorical(logits: Tensor, seeds: Tensor, *, positions: int | Tensor = 0, stream: int = 0) -> Tensor:
    """One index for each row of logits, with the probability that softmax gives it.

    Args:
        logits: floating point [*positions.shape, ..., classes], or [batch, ..., classes] for one position; minus infinity for what must
            not be drawn.
        seeds, positions, stream: as for ``uniform``.

    Returns:
        int64, the shape of ``logits`` without its last dim.
    """
    leading = positions.dim() if isinstance(positions, Tensor) else 1
    noise = gumbel(seeds, logits.shape[leading:], positions=positions, stream=stream, dtype=torch.float64)
    return torch.argmax(logits.to(torch.float64) + noise, dim=-1)


def _words(seeds: Tensor, shape: Sequence[int], positions: int | Tensor, stream: int) -> Words:
    """The generator's words for each element: int64 [*positions.shape, *shape]."""
    if not isinstance(seeds, Tensor) or seeds.dtype != torch.int64 or seeds.dim() != 1:
        given = f"{seeds.dtype} {list(seeds.shape)}" if isinstance(seeds, Tensor) else type(seeds).__name__
        raise TypeError(f"seeds: got {given}; allowed is an int64 tensor [batch]")
    if not 0 <= stream <= WORD:
        raise ValueError(f"stream: got {stream}; allowed are numbers from 0 to 2**32 - 1")
    count = math.prod(shape)
    if isinstance(positions, Tensor):
        if positions.dtype != torch.int64 or positions.dim() < 1 or positions.shape[0] != seeds.shape[0]:
            raise TypeError(f"positions: got {positions.dtype} {list(positions.shape)}; allowed are an int and int64 tensors [batch, ...]")
        place = positions
    else:
        place = torch.full_like(seeds, positions)
    seeds = seeds.reshape([-1, *[1] * (place.dim() - 1 + len(shape))])
    place = place.reshape([*place.shape, *[1] * len(shape)])
    element = torch.arange(count, device=seeds.device).reshape(tuple(shape))
    return lambda word: torch.ops.bi_inductor.philox(seeds, place, element, stream, word)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, towards the low bits."""
    return torch.bitwise_right_shift(words, bits)


def _fraction(words: Words, bits: int) -> Tensor:
    """float64 of [0, 1) with up to 53 random bits."""
    high, low = words(0).to(torch.float64), _shifted(words(1), 64 - bits).to(torch.float64)
    return high * 2.0**-32 + low * 2.0**-bits


def _open_fraction(words: Words) -> Tensor:
    """float64 of (0, 1): 52 random bits and a half."""
    return _fraction(words, 52) + 2.0**-53


# ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _log(x: Tensor) -> Tensor:
    """The natural logarithm of normal positive float64 numbers, spelled in operations that have one result.

    log(m * 2**e) = e ln 2 + 2 artanh((m - 1) / (m + 1)), by the series of artanh; m is from sqrt(1/2) to sqrt(2), so the argument of the
    series is below 0.172 and 11 terms leave an error below one rounding.
    """
    # Of the bits of a normal number the lowest 52 are those of the mantissa, the next 11 the exponent: 1022 where x is from 1/2 to 1.
    bits = x.view(torch.int64)
    exponent = (_shifted(bits, 52) - 1022).to(torch.float64)
    mantissa = ((bits & ((1 << 52) - 1)) + (1022 << 52)).view(torch.float64)
    small = mantissa < math.sqrt(0.5)
    mantissa = torch.where(small, mantissa * 2.0, mantissa)
    exponent = torch.where(small, exponent - 1.0, exponent)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = torch.zeros_like(square)
    for power in range(21, 1, -2):
        series = (series + 1.0 / power) * square
    return exponent * _LN2_HIGH + (2.0 * ratio * (series + 1.0) + exponent * _LN2_LOW)


def _cos_of_turns(word: Tensor) -> Tensor:
    """cos(2 pi word / 2**32) in float64: a Taylor series in the eighth of a turn around the nearest quarter."""
    nearest = word + (1 << 29)
    quarter = _shifted(nearest, 30) & 3
    angle = ((nearest & ((1 << 30) - 1)) - (1 << 29)).to(torch.float64) * (2.0 * math.pi * 2.0**-32)
    square = angle * angle
    cosine, sine = torch.zeros_like(angle), torch.zeros_like(angle)
    for power in range(16, 0, -2):
        cosine = (cosine + (-1.0) ** (power // 2) / math.factorial(power)) * square
        sine = (sine + (-1.0) ** (power // 2) / math.factorial(power + 1)) * square
    cosine, sine = cosine + 1.0, angle * (sine + 1.0)
    value = torch.where((quarter & 1) == 0, cosine, -sine)
    return torch.where(quarter >= 2, -value, value)
