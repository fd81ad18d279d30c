"""The Triton attentions in the interpreter, by the rule of batches.py: queries, samples and requests in every batch, every head dim.

Swept, each in float32, bfloat16 and float16: 1, 3, 16, 17 and 33 queries with every padded head dim, and dims that are padded; as many
requests of a cache in blocks; as many samples by flex_attention with scores of its own and their logarithms of sums; in bfloat16 and
float16 alone flex_attention without scores, the causal rule, and attention sinks in the two forms that transformers has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import PART, configuration
from tests.interpreter.process import Interpreter
from tests.templates.batches import DTYPES, ROWS, Case, Results, Tensors, assert_rows_of, integers, parameters, tensors
from tests.templates.rows import randn

pytestmark = pytest.mark.xdist_group("interpreter")

HEAD_DIMS = (64, 80, 96, 128, 256)
# Of samples and of requests: each dtype with another dim.
DIMS = {torch.float32: 80, torch.bfloat16: 96, torch.float16: 128}
# Of the cache: keys of a block, blocks of a request, keys that a token sees.
BLOCK, COLUMNS, WINDOW = 8, 9, 50


def chunk_of(dtype: torch.dtype, head_dim: int) -> int:
    return configuration(gpu.DEFAULT, dtype, head_dim).chunk


# --- queries of one sample ----------------------------------------------------------------------------------------------------------------


def attention(q: torch.Tensor, mask: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """Queries [rows, heads, dim] of one sample under a mask [rows, keys]; two heads share one of keys and values."""

    def attend(given: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, given, enable_gqa=True)[0].transpose(0, 1)

    found = {"all keys": attend(None), "mask": attend(mask)}
    if q.shape[-1] == HEAD_DIMS[0]:
        found["additive mask"] = attend(torch.where(mask, 0.25, float("-inf")).to(q.dtype))
    return found


def keys_of(dtype: torch.dtype, head_dim: int) -> int:
    """More keys than one program's part, where programs share them: so does a batch of one row, whose size is known."""
    return PART * chunk_of(dtype, head_dim) + 9


def queries_and_mask(head_dim: int) -> Callable[[torch.dtype], Tensors]:
    """The last queries of a sample: each sees a window of keys up to its own, none of the first three."""

    def of(dtype: torch.dtype) -> Tensors:
        keys = keys_of(dtype, head_dim)
        key, query = torch.arange(keys), torch.arange(keys - ROWS, keys)[:, None]
        return randn(ROWS, 2, head_dim, dtype=dtype), (key <= query) & (key > query - 40) & (key >= 3)

    return of


def keys_and_values(head_dim: int) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: tensors(*[(1, 1, keys_of(dtype, head_dim), head_dim)] * 2)(dtype)


# --- samples ------------------------------------------------------------------------------------------------------------------------------

QUERIES, FIRST_KEYS = 2, 4


def capped(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    return 2 * torch.tanh(score / 2)


def blocks_of(q: torch.Tensor, k: torch.Tensor, first: torch.Tensor) -> BlockMask:
    """Of the causal rule for the last queries, without the keys before ``first``."""
    (batch, _, queries, _), keys = q.shape, k.shape[2]

    def sees(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (j <= i + keys - queries) & (j >= first[b])

    return create_block_mask(sees, batch, None, queries, keys, device=q.device, BLOCK_SIZE=16)


def flex_of_samples(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor) -> Results:
    """flex_attention alone, with scores of its own."""
    scored, sums = flex_attention(q, k, v, capped, blocks_of(q, k, first), return_aux=AuxRequest(lse=True))
    assert sums.lse is not None
    return {"scores": scored, "logarithm of the sum of scores": sums.lse}


def attention_of_samples(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, sinks: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The last queries of samples whose keys before ``first`` [rows] are padding; ``sinks`` [heads] are one more score each.

    Sinks for the last query, and in a column for the first head: a softmax is slow to interpret.
    """
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    blocks = blocks_of(q, k, first)
    masked, sums = flex_attention(q, k, v, None, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True))
    scored, sums_of_scores = flex_attention(q, k, v, capped, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert sums.lse is not None and sums_of_scores.lse is not None
    # Sinks as transformers adds them to flex_attention: a score whose value is zero scales the row.
    lse = sums.lse[..., -1:, None]
    column = sinks.view(1, heads, 1, 1).expand(batch, heads, 1, 1)
    scaled = masked[:, :, -1:] * torch.exp(lse - torch.cat([lse, column.to(lse.dtype)], -1).logsumexp(-1, keepdim=True))
    # And as its eager attention does: one more column of the softmax.
    seen = torch.arange(keys, device=q.device) >= first[:, None, None, None]
    scores = (q[:, :1, -1:] @ k.mT * dim**-0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
    weights = torch.cat([scores, column[:, :1]], -1).softmax(-1)[..., :-1]
    return {
        "mask": masked,
        "logarithm of the sum": sums.lse,
        "scores": scored,
        "logarithm of the sum of scores": sums_of_scores.lse,
        "sinks": scaled.to(q.dtype),
        "sinks in a column": weights @ v,
        "causal": F.scaled_dot_product_attention(q, k[:, :, :queries], v[:, :, :queries], is_causal=True, enable_gqa=True),
    }


def samples(dtype: torch.dtype) -> Tensors:
    """Keys of two chunks, one of them not full."""
    dim = DIMS[dtype]
    keys = chunk_of(dtype, dim) + FIRST_KEYS + QUERIES + 1
    operands = tensors((ROWS, 2, QUERIES, dim), (ROWS, 1, keys, dim), (ROWS, 1, keys, dim))(dtype)
    return *operands, integers(ROWS, below=FIRST_KEYS)


def samples_of_one_head(dtype: torch.dtype) -> Tensors:
    """Its last query alone: the interpreter takes as long as there are programs."""
    q, *others = samples(dtype)
    return q[:, :1, -1:], *others


def exchanged_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: torch.Tensor, *sinks: torch.Tensor) -> Tensors:
    """Two keys that every query sees, of two chunks, in each other's place."""
    order = torch.arange(k.shape[2])
    near, far = FIRST_KEYS, FIRST_KEYS + chunk_of(q.dtype, q.shape[-1])
    order[near], order[far] = far, near
    return q, k[:, :, order], v[:, :, order], first, *sinks


# --- requests -----------------------------------------------------------------------------------------------------------------------------


def decoded(q: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, cache: torch.Tensor) -> Results:
    """One token [heads, dim] of each request, which may see all of its keys, or a window of them."""
    starts = torch.arange(q.shape[0] + 1, device=q.device)
    paged = torch.ops.bi_inductor.paged_attention
    return {"all keys": paged(q, cache, table, starts, lengths, 0.125), "window": paged(q, cache, table, starts, lengths, 0.125, WINDOW)}


def decoded_from_copies(q: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, cache: torch.Tensor) -> Results:
    keys, values = cache[table].flatten(1, 2).transpose(1, 2).chunk(2, -1)
    seen = torch.arange(keys.shape[2]) < lengths[:, None, None, None]
    in_window = seen & (torch.arange(keys.shape[2]) >= lengths[:, None, None, None] - WINDOW)

    def attend(mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, mask, scale=0.125, enable_gqa=True)[:, :, 0]

    return {"all keys": attend(seen), "window": attend(in_window)}


def requests(dtype: torch.dtype) -> Tensors:
    """Requests that share blocks of one cache, of other lengths each."""
    return randn(ROWS, 2, DIMS[dtype], dtype=dtype), integers(ROWS, COLUMNS, below=40), BLOCK * COLUMNS - integers(ROWS, below=12)


def exchanged_blocks(q: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, cache: torch.Tensor) -> Tensors:
    """Two blocks of each request, of two chunks, in each other's place; both are in every window."""
    order = torch.arange(COLUMNS)
    order[3], order[6] = 6, 3
    return q, table[:, order], lengths, cache


# --- the table ----------------------------------------------------------------------------------------------------------------------------

# Weights are rounded to the dtype beside the largest of their chunk, so the order of keys shows in every dtype.
CASES = {
    **{
        f"queries, {dim}": Case(
            attention,
            queries_and_mask(dim),
            keys_and_values(dim),
            reordered=lambda q, mask, k, v: (q, mask.flip(1), k.flip(2), v.flip(2)),
            order_shows_in=DTYPES,
            # A score is one chain of as many products, where torch adds in lanes.
            error=1.5 if dim < 256 else 2,
        )
        for dim in HEAD_DIMS
    },
    "samples": Case(
        attention_of_samples,
        samples,
        lambda dtype: (torch.tensor([0.5, -0.25], dtype=dtype),),
        reordered=exchanged_keys,
        # Of so few numbers of 16 bits an order hardly ever shows.
        order_shows_in=(torch.float16,),
        of_no_order=("causal", "sinks in a column"),
        dtypes=(torch.bfloat16, torch.float16),
    ),
    "flex attention": Case(
        flex_of_samples,
        samples_of_one_head,
        reordered=exchanged_keys,
        # It is rounded too far for the order of its terms to show.
        of_no_order=("logarithm of the sum of scores",),
        dtypes=(torch.float32,),
    ),
    "requests": Case(
        decoded,
        requests,
        lambda dtype: (randn(40, BLOCK, 1, 2 * DIMS[dtype], dtype=dtype, seed=5),),
        decoded_from_copies,
        reordered=exchanged_blocks,
        order_shows_in=DTYPES,
    ),
}


# Samples take more than a minute for each dtype, flex_attention alone half of one.
SLOW = ("samples", "flex attention")
MARKED = [pytest.param(name, dtype, marks=pytest.mark.full) if name in SLOW else (name, dtype) for name, dtype in parameters(CASES)]


@pytest.mark.parametrize(("name", "dtype"), MARKED, ids=str)
def test_near_float64_and_the_same_rows_in_every_batch(interpreter: Interpreter, name: str, dtype: torch.dtype) -> None:
    assert_rows_of(interpreter, CASES[name], dtype)
