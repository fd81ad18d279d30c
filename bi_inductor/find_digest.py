"""A 64-bit digest of each row of a tensor's bits, in bounded memory: what is kept of a value instead of the value.

The digest is a sum of 32-bit words times fixed odd 64-bit weights, modulo 2**64, per chunk; chunks are chained. All is integer arithmetic,
so a digest does not depend on the order in which it is added up. Every NaN counts as one value, as in ``ulp.bits_differ``.
"""

from __future__ import annotations

import functools

import torch

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Elements at a time: their widened words stay in a core's second-level cache.
CHUNK = 1 << 16
_PRIME = 0x100000001B3


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    # Complex and 8-byte elements are several words each.
    return (torch.randint(lowest, highest, (4 * CHUNK,), generator=generator) | 1).to(device)


def row_digests(rows: torch.Tensor) -> torch.Tensor:
    """Digests of the rows of a tensor.

    Args:
        rows: a tensor [rows, ...] of any float, complex, integer or bool dtype, in any memory layout.

    Returns:
        int64 [rows], on the CPU; equal for rows with equal bits (any NaN is equal to any other), and for others with a chance of
        about 2**-32.
    """
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj())
    rows = rows.resolve_neg()
    count = rows.shape[0]
    width = rows[0].numel() if count else 0
    if not width:
        return torch.zeros(count, dtype=torch.int64)
    at_once = max(1, CHUNK // width)
    return torch.cat([_digest(rows[start : start + at_once].reshape(-1, width)) for start in range(0, count, at_once)]).cpu()


def _digest(rows: torch.Tensor) -> torch.Tensor:
    """int64 [rows] of a matrix [rows, width]."""
    weights = _weights(rows.device)
    digest = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
    for start in range(0, rows.shape[1], CHUNK):
        words = _words(rows[:, start : start + CHUNK]).to(torch.int64)
        words *= weights[: words.shape[1]]
        digest = digest * _PRIME + words.sum(1)
    return digest


def _words(part: torch.Tensor) -> torch.Tensor:
    """The bits as integers of at most 32 bits, every NaN as the same ones."""
    words = part.contiguous().view(_INTEGER_OF_SIZE[part.element_size()])
    if part.is_floating_point():
        # The sum is NaN when one of them is (or when infinities cancel), and costs a tenth of looking at each.
        part = part.float() if part.element_size() == 1 else part
        if torch.isnan(part.sum()):
            words = words.masked_fill(torch.isnan(part), -1)
    # Whole 32-bit words where the width allows: half as many for 16 bits, twice as many for 64, whose sign would lose its weight.
    if words.shape[1] * words.element_size() % 4:
        return words
    return (words if words.storage_offset() * words.element_size() % 4 == 0 else words.clone()).view(torch.int32)
