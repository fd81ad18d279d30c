"""The embedding's backward: bits of the reference, order of positions, edges."""

from __future__ import annotations

import pytest
import torch

from bi_inductor.settings import thread_count
from tests import reference
from tests.templates.rows import DTYPES, THREADS, assert_same_bits, randn

embedding_backward = torch.ops.bi_inductor.embedding_backward


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_bits_of_the_reference_on_any_number_of_threads(padding_idx: int, dtype: torch.dtype) -> None:
    grad = randn(300, 37, dtype=dtype)
    index = torch.randint(0, 11, (300,), generator=torch.Generator().manual_seed(1))
    expected = reference.embedding_backward(grad, index, 11, padding_idx)
    for threads in THREADS:
        with thread_count(threads):
            assert_same_bits(embedding_backward(grad, index, 11, padding_idx), expected, threads)
    assert_same_bits(embedding_backward(grad.reshape(3, 100, 37), index.reshape(3, 100).int(), 11, padding_idx), expected)


def test_edges() -> None:
    assert_same_bits(embedding_backward(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64), 4), torch.zeros(4, 3))
    with pytest.raises(IndexError, match="index"):
        embedding_backward(torch.ones(1, 3), torch.tensor([4]), 4)
