"""The Triton attention in the interpreter: prefill is decode, padding changes nothing, batches and heads do not matter, accuracy."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import CONFIGURATIONS, configuration
from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor
DTYPES = (torch.float32, torch.bfloat16)


def operands(queries: int, keys: int, dtype: torch.dtype, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of four heads over keys and values of two, dims of 24."""
    shapes = [(batch, 4, queries, 24), (batch, 2, keys, 24), (batch, 2, keys, 24)]
    q, k, v = (randn(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
    return q, k, v


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False) -> torch.Tensor:
    out: torch.Tensor = ops.attention(q, k, v, mask, causal)
    return out


def causal_mask(queries: int, keys: int) -> torch.Tensor:
    """The last ``queries`` of ``keys``; each sees itself and what is before it."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prefill_is_decode_and_padding_changes_nothing(interpreter: Interpreter, dtype: torch.dtype) -> None:
    q, k, v = operands(40, 40, dtype)
    mask = causal_mask(40, 40).expand(2, 1, 40, 40)
    # 37 keys before the first real one, which hold NaN: unused places of a cache.
    padded_k, padded_v = (torch.cat([torch.full_like(t[:, :, :37], float("nan")), t], 2) for t in (k, v))
    padded = torch.cat([torch.zeros(2, 1, 40, 37, dtype=torch.bool), mask], 3)
    after_k, after_v = (torch.cat([t, torch.full_like(t[:, :, :5], float("nan"))], 2) for t in (k, v))
    after = torch.cat([mask, torch.zeros(2, 1, 40, 5, dtype=torch.bool)], 3)
    calls = [
        (q, k, v, mask),
        (q, k, v, None, True),
        (q[:, :, -1:], k, v, mask[:, :, -1:]),
        (q[:, :, 8:], k, v, mask[:, :, 8:]),
        (q[:, :, 10:11], k[:, :, :11], v[:, :, :11]),
        (q, padded_k, padded_v, padded),
        (q, after_k, after_v, after),
        (q, k, v, torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, float("-inf"))),
        (q[1:], k[1:], v[1:], mask[1:]),
        (q.flip(0), k.flip(0), v.flip(0), mask),
    ]
    whole, causal, decoded, chunk, early, left, right, additive, alone, flipped = interpreter.run(run_batches, attend, calls)
    assert_same_bits(causal, whole, "the causal rule")
    assert_same_bits(decoded, whole[:, :, -1:], "the last token")
    assert_same_bits(chunk, whole[:, :, 8:], "a chunk")
    assert_same_bits(early, whole[:, :, 10:11], "a token with the keys it had then")
    assert_same_bits(left, whole, "left padding")
    assert_same_bits(right, whole, "right padding")
    assert_same_bits(additive, whole, "an additive mask")
    assert_same_bits(alone, whole[1:], "alone")
    assert_same_bits(flipped, whole.flip(0), "another order")
    # Control: keys in another order are other sums.
    reversed_keys = interpreter.run(run_compiled, attend, q[:, :, -1:], k.flip(2), v.flip(2))
    assert differences(reversed_keys, decoded) > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_window_that_left_whole_chunks_behind_is_the_prefill(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """The limit that docs/numerics.md states: chunks are counted from the first key that the call sees."""
    chunk = configuration(gpu.DEFAULT, dtype, 24).chunk
    keys, window = 3 * chunk + 20, chunk + 10
    q, k, v = operands(keys, keys, dtype)
    places = torch.arange(keys)
    mask = (places <= places[:, None]) & (places > places[:, None] - window)
    # The first query whose window has left one chunk behind, and those after it; then the same where the cache has dropped these keys.
    first = chunk + window - 1
    behind = [(q[:, :, n : n + 2], k, v, mask[n : n + 2]) for n in (first, first + 1, first + 5, first + chunk)]
    dropped = (q[:, :, first:], k[:, :, chunk:], v[:, :, chunk:], mask[first:, chunk:])
    whole, aligned, *others, next_aligned, cached = interpreter.run(run_batches, attend, [(q, k, v, mask), *behind, dropped])
    assert_same_bits(aligned, whole[:, :, first : first + 2], "one chunk left behind")
    assert_same_bits(next_aligned, whole[:, :, first + chunk : first + chunk + 2], "two chunks left behind")
    assert_same_bits(cached, whole[:, :, first:], "one chunk dropped")
    # Control: the window has left a chunk and some keys behind.
    assert sum(differences(other, whole[:, :, n : n + 2]) for other, n in zip(others, (first + 1, first + 5), strict=True)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_that_of_torch(interpreter: Interpreter, dtype: torch.dtype) -> None:
    q, k, v = operands(5, 70, dtype)
    mask = torch.rand(2, 1, 5, 70, generator=torch.Generator().manual_seed(0)) > 0.3
    found = interpreter.run(run_compiled, attend, q, k, v, mask)

    def torchs(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*tensors, mask, enable_gqa=True)

    exact = torchs(q.double(), k.double(), v.double())
    assert relative_error(found, exact) <= 1.5 * relative_error(torchs(q, k, v), exact)


def attend_in_slices(columns: int, calls: list[tuple[torch.Tensor, ...]]) -> tuple[list[torch.Tensor], int]:
    """``attend`` where a program multiplies ``columns`` of a row at a time, and how many products make a score in its source."""
    table = CONFIGURATIONS[gpu.DEFAULT]["float32"]
    sliced = {dim: dataclasses.replace(chosen, slice=columns) for dim, chosen in table.items()}
    with mock.patch.dict(table, sliced), inductor_config.patch(force_disable_caches=True):
        _, codes = code_of(attend, *calls[0])
        return run_batches(attend, calls), codes[0].count("tl.dot(q")


def test_slices_of_a_row_decide_no_bits(interpreter: Interpreter) -> None:
    q, k, v = (torch.cat([t, t.flip(-1)], -1)[..., :42] for t in operands(5, 40, torch.float32))
    # Values of other columns than keys, in the lowering that shares the keys among programs too.
    longer = [t.repeat(1, 1, 2, 1) for t in (k, v)]
    calls: list[tuple[torch.Tensor, ...]] = [(q, k, v[..., :40], causal_mask(5, 40)), (q[:, :, :1], longer[0], longer[1])]
    whole, count = interpreter.run(attend_in_slices, 256, calls)
    sliced, more = interpreter.run(attend_in_slices, 16, calls)
    assert (count, more) == (1, 3)
    for found, expected in zip(sliced, whole, strict=True):
        assert_same_bits(found, expected)
    # Control: columns in another order are other sums.
    backwards: list[tuple[torch.Tensor, ...]] = [(*(t.flip(-1) for t in call[:3]), *call[3:]) for call in calls]
    (turned, _), _ = interpreter.run(attend_in_slices, 16, backwards)
    assert differences(turned.flip(-1), whole[0]) > 0


def test_masked_keys_leave_the_sign_of_a_zero_and_keys_of_no_query_are_not_read(interpreter: Interpreter) -> None:
    """Sums that underflow to -0, followed by chunks that are masked, and keys after the last query of a causal call."""
    chunk = configuration(gpu.DEFAULT, torch.float32, 24).chunk
    q, k, v = (torch.zeros(1, 1, n, 24) for n in (1, 3 * chunk, 3 * chunk))
    # The first chunk gives -2^-149, which a factor of less than 1/2 in the second underflows to -0; the third is masked.
    q[..., 0], k[:, :, chunk, 0], v[:, :, 0] = 1, 20, -(2.0**-149)
    mask = torch.ones(1, 1, 1, 3 * chunk, dtype=torch.bool)
    mask[..., 1:chunk] = mask[..., 2 * chunk :] = False
    unseen = [t[:, :, : 2 * chunk].clone() for t in (k, v)]
    many, causal_k, causal_v = operands(5, 3 * chunk, torch.float32)
    causal_k[:, :, 5:] = causal_v[:, :, 5:] = float("nan")
    padded, alone = interpreter.run(run_batches, attend, [(q, k, v, mask), (q, *unseen, mask[..., : 2 * chunk])])
    assert_same_bits(padded, alone, "a masked chunk")
    assert alone.count_nonzero() == 0
    causal, short = interpreter.run(
        run_batches, attend, [(many, causal_k, causal_v, None, True), (many, causal_k[:, :, :5], causal_v[:, :, :5], None, True)]
    )
    assert_same_bits(causal, short, "keys after the last query")
    assert not short.isnan().any()


def test_rows_without_keys_and_scores_of_infinity(interpreter: Interpreter) -> None:
    q, k, v = operands(3, 40, torch.float32)
    mask = torch.ones(2, 1, 3, 40, dtype=torch.bool)
    mask[0, 0, 1] = False
    mask[1] = False
    found = interpreter.run(run_compiled, attend, q, k, v, mask)
    assert torch.equal(found[1], torch.zeros_like(found[1])) and torch.equal(found[0, :, 1], torch.zeros_like(found[0, :, 1]))
    assert_same_bits(found[0, :, ::2], interpreter.run(run_compiled, attend, q[:1], k[:1], v[:1])[0, :, ::2], "rows beside them")
    endless = k.clone()
    endless[0, 0, 7] = float("inf")
    expected = attend(q, endless, v).isnan()
    assert torch.equal(interpreter.run(run_compiled, attend, q, endless, v).isnan(), expected)


def normalizers(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = ops.attention_lse(q, k, mask)
    return out


def test_the_logarithm_of_the_normalizer(interpreter: Interpreter) -> None:
    q, k, _ = operands(3, 40, torch.float32)
    mask = torch.ones(2, 1, 3, 40, dtype=torch.bool)
    mask[0, 0, 1] = False
    found, expected = interpreter.run(run_compiled, normalizers, q, k, mask), normalizers(q, k, mask)
    assert torch.equal(found.isinf(), expected.isinf())
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ weight.t()).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return attended.transpose(1, 2).flatten(2) + x


def test_a_model_is_made_of_templates(interpreter: Interpreter) -> None:
    x, weight = randn(2, 5, 32, dtype=torch.bfloat16), randn(96, 32, dtype=torch.bfloat16, seed=1)
    found, codes = interpreter.run(code_of, block, x, weight)
    assert "extern_kernels." not in codes[0] and codes[0].count("@triton_heuristics.template") == 2
    assert_same_bits(found[1:], interpreter.run(run_compiled, block, x[1:], weight), "alone")


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flex attention of the last queries with Gemma's cap on scores; ``starts`` holds the first key of each sample."""
    queries, keys = q.shape[2], k.shape[2]

    def mask(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (j <= i + keys - queries) & (j >= starts[b])

    def cap(score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return 2 * torch.tanh(score / 2)

    blocks = create_block_mask(mask, q.shape[0], None, queries, keys, device=q.device, BLOCK_SIZE=16)
    result: tuple[torch.Tensor, torch.Tensor] = flex_attention(q, k, v, cap, blocks, enable_gqa=True, return_lse=True)
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flex_attention_is_made_of_templates(interpreter: Interpreter, dtype: torch.dtype) -> None:
    q, k, v = operands(21, 21, dtype)
    starts = torch.tensor([0, 3])
    padded = [torch.cat([torch.full_like(t[:, :, :7], float("nan")), t], 2) for t in (k, v)]
    calls = [
        (q, k, v, starts),
        (q[:, :, -2:], k, v, starts),
        (torch.cat([q[:, :, :7], q], 2), *padded, starts + 7),
        (q[1:], k[1:], v[1:], starts[1:]),
    ]
    (whole, sums), (decoded, decoded_sums), (left, _), (alone, alone_sums) = interpreter.run(run_batches, capped, calls)
    assert_same_bits(decoded, whole[:, :, -2:], "the last tokens")
    assert_same_bits(decoded_sums, sums[:, :, -2:], "sums of the last tokens")
    # Queries of sample 1 before its first key see none.
    assert_same_bits(left[:, :, 7:], whole, "left padding")
    assert_same_bits(alone, whole[1:], "alone")
    assert_same_bits(alone_sums, sums[1:], "sums alone")
    _, codes = interpreter.run(code_of, capped, q, k, v, starts)
    assert "extern_kernels." not in codes[0] and codes[0].count("@triton_heuristics.template") == 3
    exact, _ = capped(q.double(), k.double(), v.double(), starts)
    torchs, _ = capped(q, k, v, starts)
    assert relative_error(whole, exact) <= 1.5 * relative_error(torchs, exact)
