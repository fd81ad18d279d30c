"""Attention: bits of the reference, of prefill in decode, of padded in bare; masked keys reach nothing; accuracy."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from bi_inductor.settings import thread_count
from bi_inductor.testing import accumulation_tree, expected_tree
from tests import reference
from tests.templates.rows import DTYPES, THREADS, assert_same_bits, differences, randn, relative_error

attention = torch.ops.bi_inductor.attention
attention_lse = torch.ops.bi_inductor.attention_lse

SHAPES = [  # batch, heads, kv heads, queries, keys, head dim, value dim
    (1, 1, 1, 1, 1, 8, 8),
    (2, 4, 2, 5, 17, 16, 16),
    (1, 3, 1, 7, 33, 40, 24),
    (2, 2, 2, 16, 128, 64, 64),
    (1, 2, 1, 33, 129, 80, 80),
    (1, 8, 8, 1, 300, 128, 128),
    (1, 1, 1, 3, 15, 5, 7),
    (1, 2, 1, 13, 1100, 32, 40),  # longer than what a tile of any instruction set sums in one go
]


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, heads, kv_heads, queries, keys, dim, value_dim = shape
    return (
        randn(batch, heads, queries, dim, dtype=dtype),
        randn(batch, kv_heads, keys, dim, dtype=dtype, seed=1),
        randn(batch, kv_heads, keys, value_dim, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = tensors(shape, dtype)
    boolean = randn(shape[0], 1, shape[3], shape[4], seed=3) > 0
    boolean[0, 0, 0] = False
    additive = torch.where(boolean, randn(*boolean.shape, seed=4), float("-inf")).to(dtype)
    finite = torch.zeros(boolean.shape, dtype=dtype).masked_fill(~boolean, torch.finfo(dtype).min)
    for mask, causal in [(None, False), (None, True), (boolean, False), (additive, False), (finite, False)]:
        out, lse = reference.attention(q, k, v, mask, causal)
        assert_same_bits(attention(q, k, v, mask, causal), out, f"mask {mask is not None}, causal {causal}")
        assert_same_bits(attention_lse(q, k, mask, causal), lse, "lse")
    assert_same_bits(attention(q, k, v, None, False, 0.3), reference.attention(q, k, v, scale=0.3)[0], "scale")
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert_same_bits(attention(*transposed), attention(q, k, v), "stored [batch, length, heads, dim]")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [16, 64])
def test_decode_chunks_and_padding_equal_prefill(dim: int, dtype: torch.dtype) -> None:
    length, left = 75, 37
    q, k, v = tensors((2, 4, 2, length, length, dim, dim), dtype)
    prefill = attention(q, k, v, None, True)
    for i in (0, 1, 15, 16, 40, length - 1):
        assert_same_bits(attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]), prefill[:, :, i : i + 1], f"token {i}")
    for start, stop in [(0, 7), (7, 40), (40, length)]:
        mask = torch.arange(stop)[None, :] <= torch.arange(start, stop)[:, None]
        chunk = attention(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], mask)
        assert_same_bits(chunk, prefill[:, :, start:stop], f"chunk {start}:{stop}")
    for padding in (1, 5, left):
        padded = [torch.nn.functional.pad(t, (0, 0, padding, 0), value=float("nan")) for t in (k, v)]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mask = torch.nn.functional.pad(mask, (padding, 0), value=False)
        assert_same_bits(attention(q, *padded, mask), prefill, f"{padding} left pads of NaN")
        right = [torch.nn.functional.pad(t, (0, 0, 0, padding), value=float("inf")) for t in (k, v)]
        assert_same_bits(attention(q, *right, torch.ones(length, length + padding, dtype=torch.bool).tril()), prefill, "right pads of inf")


def test_stock_decode_differs_from_prefill() -> None:
    q, k, v = tensors((8, 4, 4, 128, 128, 64, 64), torch.float32)
    prefill = scaled_dot_product_attention(q, k, v, is_causal=True)
    assert differences(scaled_dot_product_attention(q[:, :, -1:], k, v), prefill[:, :, -1:]) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_samples_heads_and_threads_do_not_matter(dtype: torch.dtype) -> None:
    q, k, v = tensors((17, 4, 2, 6, 90, 32, 32), dtype)
    mask = randn(17, 1, 1, 90, seed=5) > -1
    whole = attention(q, k, v, mask)
    for batch in (1, 2, 3, 5, 8, 16):
        assert_same_bits(attention(q[:batch], k[:batch], v[:batch], mask[:batch]), whole[:batch], batch)
    hostile = [t.clone() for t in (q, k, v)]
    for t in hostile:
        t[torch.arange(17) != 4] = float("nan")
    assert_same_bits(attention(*hostile, mask)[4], whole[4], "NaN neighbours")
    for threads in THREADS:
        with thread_count(threads):
            assert_same_bits(attention(q, k, v, mask), whole, threads)


@pytest.mark.parametrize("heads", [1, 6])
def test_threads_that_share_a_causal_head(heads: int) -> None:
    q, k, v = tensors((1, heads, 1, 301, 301, 80, 48), torch.float32)
    expected, _ = reference.attention(q, k, v, is_causal=True)
    for threads in (1, 2, 3, 5, 16):
        with thread_count(threads):
            assert_same_bits(attention(q, k, v, None, True), expected, threads)


def test_rows_without_a_key_are_zero() -> None:
    q, k, v = tensors((1, 1, 1, 2, 4, 8, 8), torch.float32)
    mask = torch.tensor([[False] * 4, [True] * 4])
    out = attention(q, k, v, mask)
    assert_same_bits(out[:, :, 0], torch.zeros(1, 1, 8))
    assert attention_lse(q, k, mask)[0, 0, 0] == float("-inf")
    assert_same_bits(attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros(1, 1, 2, 8))


@pytest.mark.parametrize("queries", [1, 5, 16])
def test_tree_of_the_weighted_sum(queries: int) -> None:
    def weighted(terms: torch.Tensor) -> torch.Tensor:
        n = len(terms)
        v = torch.ones(1, 1, n, 16)
        v[0, 0, :, 9] = terms
        # Equal scores give weights of exactly one before the division by n, a power of two.
        return attention(torch.zeros(1, 1, queries, 8), torch.zeros(1, 1, n, 8), v)[0, 0, queries - 1, 9] * n

    assert accumulation_tree(weighted, 128) == expected_tree(16, 128)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accuracy_is_that_of_stock(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = tensors((2, 4, 4, 64, 64, 64, 64), dtype)
    exact = scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    stock = relative_error(scaled_dot_product_attention(q, k, v, is_causal=causal), exact)
    assert relative_error(attention(q, k, v, None, causal), exact) <= 1.5 * stock


def test_bad_operands_are_refused() -> None:
    q, k, v = tensors((1, 4, 2, 3, 5, 8, 8), torch.float32)
    with pytest.raises(ValueError, match="batch, heads, length, dim"):
        attention(q[0], k, v)
    with pytest.raises((ValueError, RuntimeError), match="divide"):
        attention(q[:, :3], k, v)
    with pytest.raises(TypeError, match="mask"):
        attention(q, k, v, torch.ones(3, 5, dtype=torch.int64))
    with pytest.raises(TypeError, match="one dtype"):
        attention(q, k.double(), v)
