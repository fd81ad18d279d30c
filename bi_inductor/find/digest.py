"""A 64-bit digest of each row of a tensor's bits: what is kept of a value instead of the value.

The digest is XXH3 (https://xxhash.com) of the row's bytes, which costs less than the pointwise op that wrote them. Every NaN counts as
one value, as in ``ulp.bits_differ``.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Collection

import torch

# Bytes copied at a time where the rows do not simply follow each other in memory: strided, on a GPU, or with a NaN in them.
COPIED = 1 << 20
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# Digests of one block of the store.
BLOCK = 1 << 17


class Store:
    """Keeps digests in few large blocks.

    Small ones, one for each value of a run, would lie in the gaps that the values before left in the heap, so that the next value
    would not fit there: the memory of a run would grow by a value for each op.
    """

    def __init__(self) -> None:
        self._block = memoryview(array.array("Q"))
        self._used = 0

    def keep(self, digests: list[int]) -> memoryview:
        """The digests as a sequence of numbers."""
        if self._used + len(digests) > len(self._block):
            self._block, self._used = memoryview(array.array("Q", bytes(8 * max(BLOCK, len(digests))))), 0
        kept = self._block[self._used : self._used + len(digests)]
        kept[:] = memoryview(array.array("Q", digests))
        self._used += len(digests)
        return kept


def row_digests(rows: torch.Tensor, wanted: Collection[int] | None = None) -> list[int]:
    """Digests of the rows of a tensor.

    Args:
        rows: a tensor [rows, ...] of any float, complex, integer or bool dtype, in any memory layout, on any device.
        wanted: the rows that are compared with others, by default all.

    Returns:
        A number below 2**64 for each row; equal for rows with equal bits (any NaN is equal to any other), and for others with a chance
        of about 2**-64. 0 for a row that is not wanted.
    """
    rows = rows.detach()
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj())
    rows = rows.resolve_neg()
    count = rows.shape[0]
    if not rows.numel():
        return [0] * count
    has_nan = False
    if rows.is_floating_point():
        wide = rows.float() if rows.element_size() == 1 else rows
        # NaN when one element is (or when infinities cancel), for a fraction of the cost of looking at each.
        has_nan = bool(torch.isnan(wide.sum()))
    as_they_are = rows.is_contiguous() and rows.device.type == "cpu" and not has_nan
    at_once = count if as_they_are else max(1, COPIED // (rows[0].numel() * rows.element_size()))
    found: list[int] = []
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        if wanted is None or any(row in wanted for row in numbers):
            part = rows[start : start + at_once].cpu()
            part = (_one_nan(part) if has_nan else part).contiguous()
            found += _digests(part, [wanted is None or row in wanted for row in numbers])
        else:
            found += [0] * len(numbers)
    return found


def _digests(rows: torch.Tensor, wanted: list[bool]) -> list[int]:
    """Those of rows that follow each other in memory."""
    from xxhash import xxh3_64_intdigest

    size = rows[0].numel() * rows.element_size()
    # Bytes without NumPy, which torch does not require and which lacks bfloat16.
    data = memoryview((ctypes.c_char * (len(wanted) * size)).from_address(rows.data_ptr()))
    return [xxh3_64_intdigest(data[size * row : size * (row + 1)]) if is_wanted else 0 for row, is_wanted in enumerate(wanted)]


def _one_nan(part: torch.Tensor) -> torch.Tensor:
    """The bits of a floating point tensor as integers, every NaN as the same ones."""
    size = part.element_size()
    integers = part.contiguous().view(_INTEGER_OF_SIZE[size])
    return integers.masked_fill(torch.isnan(part.float() if size == 1 else part), -1)
