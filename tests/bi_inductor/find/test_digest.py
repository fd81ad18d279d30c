"""Digests of rows."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from bi_inductor.find import digest
from bi_inductor.find.digest import BLOCK, COPIED, Store
from bi_inductor.ulp import bits_differ
from tests.templates.rows import randn


def row_digests(rows: torch.Tensor, wanted: Collection[int] | None = None) -> torch.Tensor:
    """int64 [rows]: the digests' bits."""
    return torch.tensor(digest.row_digests(rows, wanted), dtype=torch.uint64).view(torch.int64)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int8, torch.bool]
)
@pytest.mark.parametrize("width", [1, 3, 8, COPIED // 2 + 5])
def test_digests_tell_rows_apart(dtype: torch.dtype, width: int) -> None:
    x = randn(5, width).mul(3).to(dtype)
    digests = row_digests(x)
    assert digests.shape == (5,)
    # A row's digest does not follow its place, the number of rows or the strides.
    assert torch.equal(row_digests(x[2:3]), digests[2:3])
    assert torch.equal(row_digests(x.t().contiguous().t()), digests)
    storage = torch.zeros(5 * width + 1, dtype=dtype)[1:].view(5, width)
    assert torch.equal(row_digests(storage.copy_(x)), digests)
    changed = x.clone()
    changed[3, -1] = ~changed[3, -1] if dtype == torch.bool else changed[3, -1] + 1
    expected = bits_differ(changed, x).any(1)
    assert expected.tolist() == [False, False, False, True, False]
    assert torch.equal(row_digests(changed) != digests, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_digests_see_signs_of_zero_and_one_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 8, dtype=dtype)
    x[1, 1] = x[1, 3] = -0.0
    x[2, 1] = x[2, 5] = -0.0
    assert len(set(row_digests(x).tolist())) == 3
    quiet = torch.full((2, 8), float("nan"), dtype=dtype)
    quiet[1] = -quiet[1]
    assert bits_differ(quiet[0], quiet[1]).any().item() is False
    assert len(set(row_digests(quiet).tolist())) == 1
    assert row_digests(quiet)[0] != row_digests(torch.full((1, 8), float("inf"), dtype=dtype))[0]


def test_rows_that_nobody_asks_for_may_be_left_out() -> None:
    # Rows as long as a chunk are taken one by one.
    wide = randn(4, COPIED)
    assert torch.equal(row_digests(wide, {0, 3}) != 0, torch.tensor([True, False, False, True]))
    assert torch.equal(row_digests(wide, {0, 3})[[0, 3]], row_digests(wide)[[0, 3]])
    # Short ones together: what is asked for is there.
    narrow = randn(1000, 3)
    assert torch.equal(row_digests(narrow, {5, 999})[[5, 999]], row_digests(narrow)[[5, 999]])


@pytest.mark.parametrize("width", [3, COPIED])
def test_a_nan_in_another_row_changes_no_digest(width: int) -> None:
    x = randn(3, width)
    digests = row_digests(x)
    x[1, -1] = float("nan")
    assert torch.equal(row_digests(x) == digests, torch.tensor([True, False, True]))


@pytest.mark.parametrize("count", [0, 1, 3, BLOCK - 1, BLOCK, BLOCK + 1])
def test_what_is_kept_stays(count: int) -> None:
    store = Store()
    given = [[number + 2**63 for number in range(size)] for size in (2, count, 3)]
    kept = [store.keep(digests) for digests in given]
    assert [list(digests) for digests in kept] == given
