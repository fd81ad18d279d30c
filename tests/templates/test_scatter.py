"""Scatter: bits of the reference, rows that do not know their neighbours, edges."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.settings import thread_count
from tests import reference
from tests.templates.rows import DTYPES, THREADS, assert_rows_invariant, assert_same_bits, randn

scatter = torch.ops.bi_inductor.scatter

REDUCTIONS = ("set", "sum", "prod", "amax", "amin", "mean")


def indices(rows: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, rows, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_bits_of_the_reference_on_any_number_of_threads(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    # Many positions for a place, so that the order shows; NaN, inf and zeros of both signs among them.
    x, src = randn(5, 7, 70, dtype=dtype), randn(5, 40, 70, dtype=dtype, seed=2)
    src[0, :8, :8] = torch.tensor([0.0, -0.0, float("inf"), -1.0, 0.0, -0.0, float("nan"), 2.0], dtype=dtype)
    x[:, 0] = -0.0
    for dim in (0, 1, 2):
        a, b = x.movedim(1, dim), src.movedim(1, dim)
        index = indices(7, 5, 40, 70).movedim(1, dim)
        expected = reference.scatter(a, dim, index, b, reduce, include_self)
        for threads in THREADS:
            with thread_count(threads):
                assert_same_bits(scatter(a, dim, index, b, reduce, include_self), expected, (dim, threads))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_one_index_for_whole_slices(reduce: str, dtype: torch.dtype) -> None:
    x, src, index = randn(9, 70, dtype=dtype), randn(50, 70, dtype=dtype, seed=2), indices(9, 50)
    expected = scatter(x, 0, index[:, None].expand(50, 70), src, reduce)
    assert_same_bits(scatter(x, 0, index, src, reduce), expected)
    assert_same_bits(scatter(x, 0, index.int(), src.t().contiguous().t(), reduce), expected)


def test_rows_do_not_know_their_neighbours() -> None:
    index = indices(6, 256, 40)
    assert_rows_invariant(lambda src: scatter(torch.zeros(len(src), 6), 1, index[:1].expand(len(src), 40), src, "sum"), randn(256, 40))


def test_the_order_of_positions_decides() -> None:
    """The control: another order of the same terms has other bits."""
    src = randn(200, 8)
    forward = scatter(torch.zeros(1, 8), 0, torch.zeros(200, dtype=torch.int64), src, "sum")
    backward = scatter(torch.zeros(1, 8), 0, torch.zeros(200, dtype=torch.int64), src.flip(0), "sum")
    assert not torch.equal(forward, backward)


def test_bad_input() -> None:
    x, index, src = torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4)
    with pytest.raises(IndexError, match=r"index must lie in \[0, 3\)"):
        scatter(x, 0, index + 3, src, "sum")
    with pytest.raises(IndexError, match="dim 2"):
        scatter(x, 2, index, src, "sum")
    with pytest.raises(ValueError, match="reduce must be one of"):
        scatter(x, 0, index, src, "add")
    with pytest.raises(ValueError, match="src must have the shape"):
        scatter(x, 0, index, torch.ones(2, 5), "sum")
    with pytest.raises(TypeError, match="one dtype"):
        scatter(x, 0, index, src.double(), "sum")
    assert_same_bits(scatter(x, 0, index[:0], src[:0], "mean", False), x)
