"""A 64-bit digest of each row of a tensor's bits, in bounded memory: what is kept of a value instead of the value.

The digest is a sum of the row's words times fixed odd 64-bit weights, modulo 2**64, per chunk; chunks are chained. All is integer
arithmetic, so a digest does not depend on the order in which it is added up. Every NaN counts as one value, as in ``ulp.bits_differ``.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import torch

# Bytes at a time: they stay in a core's second-level cache over the few passes, and one core takes them without waking the others.
CHUNK = 1 << 18
_PRIME = 0x100000001B3
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    return (torch.randint(lowest, highest, (CHUNK,), generator=generator) | 1).to(device)


def row_digests(rows: torch.Tensor, wanted: Collection[int] | None = None) -> torch.Tensor:
    """Digests of the rows of a tensor.

    Args:
        rows: a tensor [rows, ...] of any float, complex, integer or bool dtype, in any memory layout.
        wanted: the rows that are compared with others, by default all. The rest may be left out, which saves their time.

    Returns:
        int64 [rows], on the CPU; equal for rows with equal bits (any NaN is equal to any other), and for others with a chance of
        about 2**-32. 0 for a row that was left out.
    """
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj())
    rows = rows.resolve_neg()
    count = rows.shape[0]
    width = rows[0].numel() if count else 0
    if not width:
        return torch.zeros(count, dtype=torch.int64)
    has_nan = False
    if rows.is_floating_point():
        wide = rows.float() if rows.element_size() == 1 else rows
        # NaN when one element is (or when infinities cancel), for a fraction of the cost of looking at each.
        has_nan = bool(torch.isnan(wide.sum()))
    at_once = max(1, CHUNK // (width * rows.element_size()))
    found = torch.zeros(count, dtype=torch.int64, device=rows.device)
    for start in range(0, count, at_once):
        if wanted is None or any(row in wanted for row in range(start, min(start + at_once, count))):
            found[start : start + at_once] = _digest(rows[start : start + at_once].reshape(-1, width), has_nan)
    return found.cpu()


def _digest(rows: torch.Tensor, has_nan: bool) -> torch.Tensor:
    """int64 [rows] of a matrix [rows, width]."""
    weights = _weights(rows.device)
    digest: torch.Tensor | None = None
    step = CHUNK // rows.element_size()
    for start in range(0, rows.shape[1], step):
        words = _words(rows[:, start : start + step], has_nan)
        words *= weights[: words.shape[1]]
        total = words.sum(1)
        digest = total if digest is None else digest * _PRIME + total
    assert digest is not None, "a row has at least one element"
    return digest


def _words(part: torch.Tensor, has_nan: bool) -> torch.Tensor:
    """The bits of a matrix as a new matrix of int64, every NaN as the same ones."""
    size = part.element_size()
    words = part.contiguous().view(_INTEGER_OF_SIZE[size])
    if has_nan:
        words = words.masked_fill(torch.isnan(part.float() if size == 1 else part), -1)
    if words.shape[1] * size % 8:
        return words.to(torch.int64, copy=True)
    if words.storage_offset() * size % 8 or words.stride(0) * size % 8:
        words = words.clone(memory_format=torch.contiguous_format)
    words = words.view(torch.int64)
    # An odd weight leaves a top bit where it is, so two flipped signs would cancel: give it to a lower bit as well. (By exclusive or: in
    # torch an addition of int64 is also a multiplication, by its alpha, and that has no vector instruction.)
    return (words >> 32).bitwise_xor_(words)
