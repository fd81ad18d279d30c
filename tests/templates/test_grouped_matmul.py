"""Grouped matmul: the bits of a matmul of each group alone."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.settings import thread_count
from tests.templates.rows import DTYPES, THREADS, assert_same_bits, randn

grouped_matmul = torch.ops.bi_inductor.grouped_matmul
matmul = torch.ops.bi_inductor.matmul

# An empty group at each end and in between.
ENDS = (0, 3, 3, 20, 21, 21)


def groups(ends: tuple[int, ...]) -> list[slice]:
    return [slice(first, last) for first, last in zip((0, *ends), ends, strict=False)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_group_has_the_bits_of_its_matmul(dtype: torch.dtype) -> None:
    ends = torch.tensor(ENDS, dtype=torch.int32)
    rows, weight = randn(21, 37, dtype=dtype), randn(6, 18, 37, dtype=dtype, seed=1).mT
    columns, terms = randn(37, 21, dtype=dtype, seed=2), randn(21, 18, dtype=dtype, seed=3)
    for threads in THREADS:
        with thread_count(threads):
            by_rows = torch.cat([matmul(rows[part], weight[g]) for g, part in enumerate(groups(ENDS))])
            assert_same_bits(grouped_matmul(rows, weight, ends), by_rows, "rows")
            by_columns = torch.cat([matmul(weight.mT[g], columns[:, part]) for g, part in enumerate(groups(ENDS))], 1)
            assert_same_bits(grouped_matmul(weight.mT, columns, ends), by_columns, "columns")
            by_terms = torch.stack([matmul(rows.mT[:, part], terms[part]) for part in groups(ENDS)])
            assert_same_bits(grouped_matmul(rows.mT, terms, ends), by_terms, "terms")


def test_a_row_keeps_its_bits_in_any_company() -> None:
    rows, weight = randn(40, 64), randn(3, 64, 16, seed=1)
    alone = torch.cat([matmul(rows[i : i + 1], weight[1]) for i in range(40)])
    for first, last in ((0, 40), (5, 6), (7, 24), (39, 40)):
        result = grouped_matmul(rows, weight, torch.tensor([first, last, 40]))
        assert_same_bits(result[first:last], alone[first:last], (first, last))


def test_rows_of_no_group_are_zero_and_bad_input_is_named() -> None:
    rows, weight = randn(5, 8), randn(2, 8, 4)
    assert_same_bits(grouped_matmul(rows, weight, torch.tensor([1, 3]))[3:], torch.zeros(2, 4))
    for ends in ([3, 2], [1, 6], [-1, 2]):
        with pytest.raises(ValueError, match="ends must be ascending and at most 5"):
            grouped_matmul(rows, weight, torch.tensor(ends))
    with pytest.raises(ValueError, match="takes a"):
        grouped_matmul(weight, weight, torch.tensor([1, 3]))
    with pytest.raises(RuntimeError, match="one end for each group"):
        grouped_matmul(rows, weight, torch.tensor([1, 3, 5]))
