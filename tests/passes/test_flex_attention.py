"""flex_attention: a sample keeps its bits in every batch, prefill is decode, accuracy, what it warns of and what it refuses."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from bi_inductor import UnsupportedOpError
from bi_inductor.errors import FallbackWarning, OpaqueOpWarning
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention is made of:bi_inductor.errors.FallbackWarning")

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, DIM = 8, 4, 2, 21, 33, 16
Values = dict[str, Tensor]
Mod = Callable[..., Tensor]

# What the models of transformers ask for: Gemma's cap, ALiBi, and a table of relative positions that the function captures.


def cap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 2 * torch.tanh(score / 2)


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score - torch.exp2(-(h + 1.0)) * (i + KEYS - QUERIES - j).abs()


def relative(table: Tensor) -> Mod:
    """``table`` [heads, keys + queries]."""
    return lambda score, b, h, i, j: score + table[h, j - i + QUERIES]


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i + KEYS - QUERIES


def windowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (j <= i + KEYS - QUERIES) & (j > i + KEYS - QUERIES - 6)


def padded(starts: Tensor) -> Mod:
    """The causal rule, and keys from ``starts`` [batch] on."""
    return lambda b, h, i, j: (j <= i + KEYS - QUERIES) & (j >= starts[b])


def attend(q: Tensor, k: Tensor, v: Tensor, mod: Mod | None = None, mask: BlockMask | None = None, lse: bool = False) -> Any:
    return flex_attention(q, k, v, score_mod=mod, block_mask=mask, enable_gqa=True, return_lse=lse)


def block_mask(mask_mod: Mod, batch: int | None, device: Any) -> BlockMask:
    return create_block_mask(mask_mod, batch, None, QUERIES, KEYS, device=device, BLOCK_SIZE=16)


def forms(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, table: Tensor) -> Values:
    """Every form; masks are made in the graph, as models make them."""
    batch, device = q.shape[0], q.device
    masks = {"causal": block_mask(causal, None, device), "padded": block_mask(padded(starts), batch, device)}
    masks["windowed"] = block_mask(windowed, None, device)
    capped, lse = attend(q, k, v, cap, masks["padded"], lse=True)
    # As transformers adds attention sinks: one more score of each head, whose value is zero.
    sinks = table[:, 0].view(1, HEADS, 1, 1).expand(batch, HEADS, QUERIES, 1).to(lse.dtype)
    with_sinks = capped * torch.exp(lse[..., None] - torch.cat([lse[..., None], sinks], -1).logsumexp(-1, keepdim=True))
    masked, lse_of_mask = attend(q, k, v, None, masks["padded"], lse=True)
    return {
        "all keys": attend(q, k, v),
        "causal": attend(q, k, v, None, masks["causal"]),
        "padded": masked,
        "padded, sums": lse_of_mask,
        "capped": capped,
        "capped, sums": lse,
        "capped, sinks": with_sinks,
        "alibi": attend(q, k, v, alibi, masks["causal"]),
        "windowed": attend(q, k, v, None, masks["windowed"]),
        "relative": attend(q, k, v, relative(table)),
    }


def inputs(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Queries, keys, values, the first key of each sample, and a table."""
    shapes = {"q": (BATCH, HEADS, QUERIES, DIM), "k": (BATCH, KV_HEADS, KEYS, DIM), "v": (BATCH, KV_HEADS, KEYS, DIM)}
    tensors = {name: randn(*shape, dtype=dtype, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    starts = torch.tensor([0, 3, 12, 1, 0, 17, 5, 2])
    return {**tensors, "starts": starts, "table": randn(HEADS, KEYS + QUERIES, dtype=dtype, seed=3)}


def rows_of(batch: dict[str, Tensor], rows: Any) -> dict[str, Tensor]:
    return {name: tensor if name == "table" else tensor[rows].clone() for name, tensor in batch.items()}


def compiled(function: Callable[..., Any], dynamic: bool | None = None, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    return torch.no_grad()(torch.compile(function, backend="batch_invariant", dynamic=dynamic, options=options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_keep_their_bits_and_errors_are_those_of_torch(dtype: torch.dtype) -> None:
    batch = inputs(dtype)
    dynamic, static = compiled(forms, dynamic=True), compiled(forms, dynamic=False)
    whole = dynamic(**batch)
    for rows in (slice(2, 5), [5, 0, 2, 4, 6, 7, 1, 3], slice(6, 7)):
        part = rows_of(batch, rows)
        values = (static if len(part["q"]) == 1 else dynamic)(**part)
        for name, value in values.items():
            assert_same_bits(value, whole[name][rows], f"{name}, samples {rows}")
    exact = forms(**{name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in batch.items()})
    torchs = forms(**batch)
    for name, value in whole.items():
        assert value.dtype == torchs[name].dtype and value.stride() == torchs[name].stride(), name
        # A query before its sample's first key sees none: its sum is -inf.
        sees = exact[name].isfinite()
        assert torch.equal(sees, value.isfinite()), name
        assert relative_error(value[sees], exact[name][sees]) <= 1.5 * relative_error(torchs[name][sees], exact[name][sees]), name


def test_a_planted_variant_is_seen() -> None:
    """Control: keys in another order are other sums."""
    batch = inputs()
    run = compiled(lambda q, k, v: attend(q, k, v, cap), dynamic=False)
    q, k, v = batch["q"], batch["k"], batch["v"]
    assert differences(run(q, k, v), run(q, k.flip(2), v.flip(2))) > 0


def last(queries: int, keys: int, starts: Tensor) -> Mod:
    """The causal rule of the last ``queries`` of ``keys``, from ``starts`` on."""
    return lambda b, h, i, j: (j <= i + keys - queries) & (j >= starts[b])


@pytest.mark.parametrize("mod", [None, cap], ids=["mask", "scores"])
def test_prefill_is_decode_and_padding_changes_nothing(mod: Mod | None) -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Any:
        queries, keys = q.shape[2], k.shape[2]
        mask = create_block_mask(last(queries, keys, starts), q.shape[0], None, queries, keys, device=q.device, BLOCK_SIZE=16)
        return attend(q, k, v, mod, mask, lse=True)

    q, k, v = randn(2, HEADS, KEYS, DIM), *(randn(2, KV_HEADS, KEYS, DIM, seed=seed) for seed in (1, 2))
    starts = torch.zeros(2, dtype=torch.int64)
    step = compiled(run, dynamic=True)
    whole, sums = step(q, k, v, starts)
    for first, end in ((KEYS - 1, KEYS), (20, 29)):
        part, part_sums = step(q[:, :, first:end], k[:, :, :end], v[:, :, :end], starts)
        assert_same_bits(part, whole[:, :, first:end], f"queries {first} to {end}")
        assert_same_bits(part_sums, sums[:, :, first:end], f"sums of queries {first} to {end}")
    # Unused places of a cache may hold NaN.
    padded_k, padded_v = (torch.cat([torch.full_like(t[:, :, :7], math.nan), t], 2) for t in (k, v))
    padded_q = torch.cat([q[:, :, :7], q], 2)
    left, _ = step(padded_q, padded_k, padded_v, starts + 7)
    assert_same_bits(left[:, :, 7:], whole, "left padding")


def test_a_number_that_the_score_mod_captures() -> None:
    """Dynamic shapes leave its value open."""

    def run(q: Tensor, k: Tensor, v: Tensor, most: float) -> Tensor:
        return attend(q, k, v, lambda score, b, h, i, j: most * torch.tanh(score / most))  # type: ignore[no-any-return]  # returns tuples too

    batch = inputs()
    q, k, v = (batch[name] for name in ("q", "k", "v"))
    step = compiled(run, dynamic=True)
    for most in (2.0, 3.0):
        whole = step(q, k, v, most)
        assert_same_bits(step(q[2:5], k[2:5], v[2:5], most), whole[2:5], f"capped at {most}")
        torch.testing.assert_close(whole, run(q, k, v, most), rtol=1e-5, atol=1e-5)


def test_without_a_score_mod_it_is_scaled_dot_product_attention() -> None:
    batch = inputs()
    q, k, v, starts = (batch[name] for name in ("q", "k", "v", "starts"))

    def flex(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        out: Tensor = attend(q, k, v, None, block_mask(padded(starts), q.shape[0], q.device))
        return out

    def masked(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        places = torch.arange(KEYS)
        mask = (places <= torch.arange(QUERIES)[:, None] + KEYS - QUERIES) & (places >= starts[:, None, None, None])
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    assert_same_bits(compiled(flex)(q, k, v, starts), compiled(masked)(q, k, v, starts))


def test_blocks_that_are_not_listed_are_masked() -> None:
    """A block mask without a function: its blocks are all there is, as for torch's compiled kernels (its reference does not read them)."""
    batch = inputs()
    # Two blocks of queries, three of keys; what stands behind the count is no block.
    counts, blocks = torch.tensor([[[2, 1]]], dtype=torch.int32), torch.tensor([[[[2, 0, 1], [1, 0, 2]]]], dtype=torch.int32)

    def sparse(q: Tensor, k: Tensor, v: Tensor, counts: Tensor, blocks: Tensor) -> Tensor:
        mask = BlockMask.from_kv_blocks(counts, blocks, BLOCK_SIZE=16, seq_lengths=(QUERIES, KEYS))
        out: Tensor = attend(q, k, v, None, mask)
        return out

    seen = torch.tensor([[True, False, True], [False, True, False]])
    mask = seen.repeat_interleave(16, 0)[:QUERIES].repeat_interleave(16, 1)[:, :KEYS]

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    q, k, v = (batch[name] for name in ("q", "k", "v"))
    assert_same_bits(compiled(sparse)(q, k, v, counts, blocks), compiled(masked)(q, k, v))


def test_the_gradient_of_a_captured_table() -> None:
    batch = inputs()
    q, k, v = (batch[name] for name in ("q", "k", "v"))

    def gradient(function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Tensor:
        table = batch["table"].to(dtype).clone().requires_grad_()
        function(q.to(dtype), k.to(dtype), v.to(dtype), table).square().sum().backward()
        assert table.grad is not None
        return table.grad

    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        return attend(q, k, v, relative(table))  # type: ignore[no-any-return]  # returns tuples too

    def spelled(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        places = torch.arange(KEYS) - torch.arange(QUERIES)[:, None] + QUERIES
        return functional.scaled_dot_product_attention(q, k, v, table[:, places], enable_gqa=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error", OpaqueOpWarning)
        found = gradient(torch.compile(function, backend="batch_invariant"))
    torch.testing.assert_close(found.double(), gradient(spelled, torch.float64), rtol=1e-4, atol=1e-4)


def test_sums_have_no_gradient() -> None:
    batch = inputs()

    def function(table: Tensor) -> Tensor:
        _, sums = attend(batch["q"], batch["k"], batch["v"], relative(table), None, lse=True)
        return sums  # type: ignore[no-any-return]  # of Any

    with pytest.raises(UnsupportedOpError, match="has no gradient"):
        torch.compile(function, backend="batch_invariant")(batch["table"].clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    ("mod", "masked", "held"),
    [
        (None, False, None),
        (None, True, r"a mask bool\[21, 33\]"),
        (cap, False, r"scores float32\[8, 4, 21, 33\]"),
    ],
)
def test_what_it_holds_is_said(mod: Mod | None, masked: bool, held: str | None) -> None:
    batch = inputs()
    q, k, v = (batch[name] for name in ("q", "k", "v"))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = block_mask(causal, None, q.device) if masked else None
        return attend(q, k, v, mod, mask)  # type: ignore[no-any-return]  # returns tuples too

    def found(options: dict[str, Any] | None = None) -> list[str]:
        torch._dynamo.reset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(function, options=options)(q, k, v)
        return [str(warning.message) for warning in caught if warning.category is FallbackWarning]

    said = found()
    assert len(said) == (held is not None)
    if held is not None:
        assert re.search(held, said[0]) and "test_flex_attention.py" in said[0]
        assert found({"allow": ("flex_attention",)}) == []
