"""The sum over samples: bits of the reference, and parts of a batch that are parts of its tree."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.settings import thread_count
from tests import reference
from tests.templates.rows import DTYPES, THREADS, assert_same_bits, differences, randn

sample_sum = torch.ops.bi_inductor.sample_sum


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_reference_on_any_number_of_threads(dtype: torch.dtype) -> None:
    for samples in (1, 2, 3, 7, 8, 22, 64):
        x = randn(samples, 300, 13, dtype=dtype, seed=samples)
        for threads in THREADS:
            with thread_count(threads):
                assert_same_bits(sample_sum(x), reference.sample_sum(x), f"{samples} samples, {threads} threads")
    assert_same_bits(sample_sum(x.mT.contiguous().mT), reference.sample_sum(x), "transposed")


def test_aligned_parts_are_parts_of_the_tree() -> None:
    x = randn(13, 100)
    whole = sample_sum(x)
    for size in (1, 2, 4, 8):
        assert_same_bits(sample_sum(torch.stack([sample_sum(part) for part in x.split(size)])), whole, f"parts of {size}")
    # The controls: parts that are none of the tree, and a chain.
    assert differences(sample_sum(torch.stack([sample_sum(part) for part in x.split(3)])), whole)
    assert differences(sum(x[1:], start=x[0]), whole)


def test_edges() -> None:
    assert_same_bits(sample_sum(torch.full((1, 2), -0.0)), torch.full((2,), -0.0))
    assert_same_bits(sample_sum(torch.ones(0, 3)), torch.zeros(3))
    with pytest.raises(ValueError, match="samples"):
        sample_sum(torch.tensor(1.0))
