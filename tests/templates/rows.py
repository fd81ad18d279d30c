"""What the template tests share: batches of rows, hostile neighbours, and comparison by bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bi_inductor.settings import thread_count
from bi_inductor.ulp import bits_differ

BATCHES = (1, 2, 3, 5, 8, 16, 17, 32, 64, 100, 256)
THREADS = (1, 2, 3, 4, 7)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HOSTILE = (float("nan"), float("inf"), 1e30)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers of a seed of their own."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def differences(left: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements have other bits, NaN as NaN."""
    assert left.shape == right.shape and left.dtype == right.dtype, (left.shape, right.shape, left.dtype, right.dtype)
    return int(bits_differ(left, right).sum())


def assert_same_bits(left: torch.Tensor, right: torch.Tensor, what: object = "") -> None:
    """Raises AssertionError with the number of elements that differ."""
    count = differences(left, right)
    assert count == 0, f"{what}: {count} of {left.numel()} elements differ"


def varying_batches(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, batches: Sequence[int] = BATCHES) -> list[int]:
    """The batch sizes at which a row of ``x`` gets other bits than in the whole batch."""
    whole = fn(x)
    return [m for m in batches if m <= len(x) and differences(fn(x[:m].clone()), whole[:m])]


def assert_rows_invariant(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, batches: Sequence[int] = BATCHES) -> None:
    """Rows keep their bits in every batch size, order and place, next to hostile rows, in strided storage and on any number of threads."""
    whole = fn(x)
    assert varying_batches(fn, x, batches) == []
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert_same_bits(fn(x[order]), whole[order], "permuted")
    for place in (0, 1, len(x) - 1):
        assert_same_bits(fn(x[place : place + 1]), whole[place : place + 1], f"row {place} alone")
    for value in HOSTILE:
        # 1e30 is beyond float16.
        neighbours = torch.full_like(x, min(value, torch.finfo(x.dtype).max) if value == 1e30 else value)
        neighbours[3] = x[3]
        assert_same_bits(fn(neighbours)[3], whole[3], f"neighbours {value}")
    storage = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)
    for view in (storage[..., 1 : 1 + x.shape[-1]], storage[..., :-1:2]):
        view.copy_(x)
        assert_same_bits(fn(view), whole, f"strides {view.stride()}")
    transposed = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert_same_bits(fn(transposed), whole, "transposed storage")
    for threads in THREADS:
        with thread_count(threads):
            assert_same_bits(fn(x), whole, f"{threads} threads")


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square error against ``exact`` (float64), relative to its root mean square."""
    return float((result.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())
