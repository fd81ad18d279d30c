"""A failing batch is made as small and plain as it stays failing."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bi_inductor.check import check
from bi_inductor.check.shrink import MOST_CALLS


def shrunk(fn, samples: int = 12, **arguments):
    result = check(fn, torch.arange(1.0, samples + 1).repeat(3, 1).t().contiguous(), backend="eager", shrink=True, **arguments)
    assert not result
    assert result.smallest is not None
    return result.smallest


def nudged(x: Tensor, where: Tensor | bool) -> Tensor:
    """One ulp up in the first column of the rows in `where`."""
    result = x.clone()
    result[:, 0] = torch.where(torch.as_tensor(where), torch.nextafter(x[:, 0], torch.tensor(math.inf)), x[:, 0])
    return result


def test_a_size_shrinks_to_copies_of_one_sample() -> None:
    smallest = shrunk(lambda x: nudged(x, x.shape[0] >= 5))
    assert len(smallest.samples) == 5 and set(smallest.samples) == {smallest.sample} and smallest.place == 0
    assert (smallest.elements_different, smallest.max_ulp) == (1, 1)


def test_a_neighbour_is_found() -> None:
    # Sample 2 (of value 3) changes when sample 7 (of value 8) is in its batch, wherever.
    smallest = shrunk(lambda x: nudged(x, (x[:, 0] == 3) & (x[:, 0] == 8).any()))
    assert smallest.samples == (2, 7) and smallest.sample == 2


def test_a_place_is_kept() -> None:
    smallest = shrunk(lambda x: nudged(x, torch.arange(x.shape[0]) == 3))
    assert smallest.place == 3 and len(smallest.samples) == 4


def test_values_of_neighbours_are_kept() -> None:
    smallest = shrunk(lambda x: x + 0 * x.sum(0), neighbours=(math.nan,), batch_sizes=(1, 8))
    assert smallest.neighbours is not None and math.isnan(smallest.neighbours) and len(smallest.samples) == 2
    assert "the other rows filled with nan" in str(smallest)


def test_the_number_of_calls_is_bounded() -> None:
    calls = 0

    def function(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return nudged(x, (x.shape[0] > 1) & (torch.arange(x.shape[0]) == x.shape[0] - 1))

    samples = torch.randn(200, 2)
    without = check(function, samples, backend="eager", batch_sizes=(1, 200), permutations=0, positions=())
    before = calls
    check(function, samples, backend="eager", batch_sizes=(1, 200), permutations=0, positions=(), shrink=True)
    # Finding which place fails looks at every place once.
    assert not without and calls - 2 * before <= MOST_CALLS + 200


def test_it_stands_below_the_table_and_nothing_is_shrunk_without_a_failure() -> None:
    result = check(lambda x: nudged(x, x.shape[0] >= 2), torch.ones(4, 3), backend="eager", shrink=True)
    assert (
        str(result)
        .splitlines()[-1]
        .startswith("smallest failing batch: samples [0, 0]: sample 0 at place 0 differs from itself alone in 1")
    )
    assert check(torch.relu, torch.ones(4, 3), backend="eager", shrink=True).smallest is None
    assert check(lambda x: x + torch.rand(1), torch.ones(4, 3), backend="eager", shrink=True).smallest is None
