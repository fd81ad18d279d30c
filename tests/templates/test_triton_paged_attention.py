"""The Triton paged attention in the interpreter: the unpaged kernel's bits, wherever blocks lie, however a prompt is cut, beside anyone."""

from __future__ import annotations

import functools

import pytest
import torch

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import configuration
from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.batches import BATCHES
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 24, 8
SCALE = 0.25
Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Requests:
    """Whole sequences of ``lengths`` tokens, their keys and values in blocks of a cache. Its other places hold NaN."""

    def __init__(self, lengths: list[int], dtype: torch.dtype, seed: int = 0) -> None:
        self.q = [randn(n, HEADS, HEAD_DIM, dtype=dtype, seed=3 * i) for i, n in enumerate(lengths)]
        self.kv = [randn(n, KV_HEADS, 2 * HEAD_DIM, dtype=dtype, seed=3 * i + 1) for i, n in enumerate(lengths)]
        counts = [-(-n // BLOCK) for n in lengths]
        order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(seed))
        self.blocks = [part.tolist() for part in order[3:].split(counts)]
        self.cache = torch.full([len(order), BLOCK, KV_HEADS, 2 * HEAD_DIM], float("nan"), dtype=dtype)
        for blocks, kv in zip(self.blocks, self.kv, strict=True):
            for i, place in enumerate(blocks):
                part = kv[i * BLOCK : (i + 1) * BLOCK]
                self.cache[place, : len(part)] = part

    def step(self, parts: list[tuple[int, int, int]], columns: int = 9) -> Call:
        """The operator's tensors for a step that computes tokens ``first`` to ``last`` of ``request``, for each of the parts."""
        table = torch.full([len(parts), columns], -1, dtype=torch.int32)
        for row, (request, _, _) in zip(table, parts, strict=True):
            row[: len(self.blocks[request])] = torch.tensor(self.blocks[request], dtype=torch.int32)
        starts = torch.tensor([0, *(last - first for _, first, last in parts)]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([last for _, _, last in parts], dtype=torch.int32)
        return torch.cat([self.q[request][first:last] for request, first, last in parts]), self.cache, table, starts, lengths

    def unpaged(self, request: int, window: int = 0) -> tuple[torch.Tensor, ...]:
        """Arguments of ``attend`` for the whole request."""
        keys, values = self.kv[request].movedim(0, 1)[None].split(HEAD_DIM, -1)
        place = torch.arange(len(self.q[request]))
        mask = (place <= place[:, None]) & ((place > place[:, None] - window) | (window == 0))
        return self.q[request].movedim(0, 1)[None], keys, values, mask


def paged(*tensors: torch.Tensor, window: int = 0) -> torch.Tensor:
    out: torch.Tensor = torch.ops.bi_inductor.paged_attention(*tensors, SCALE, window)
    return out


def attend(*tensors: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.ops.bi_inductor.attention(*tensors, False, SCALE)
    return out[0].movedim(0, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_and_cuts_have_the_bits_of_the_unpaged_kernel(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """The last 1, 3, 16, 17 and 33 tokens of a request among them; as many requests are in test_triton_attention_batches.py."""
    lengths = [41, 18, 1]
    requests, moved = Requests(lengths, dtype), Requests(lengths, dtype, seed=1)
    whole = [(0, 0, 41), (1, 0, 18), (2, 0, 1)]
    parts = [
        whole,
        [(1, 0, 18)],
        [(2, 0, 1), (1, 0, 18), (0, 0, 41)],
        [(0, 0, 13), (1, 17, 18)],
        [(1, 16, 18), (0, 13, 40)],
        *([(0, 41 - m, 41)] for m in reversed(BATCHES)),
    ]
    calls = [*(requests.step(part) for part in parts), moved.step(whole)]
    *found, elsewhere = interpreter.run(run_batches, paged, calls, True)
    expected = interpreter.run(run_batches, attend, [requests.unpaged(i) for i in range(3)], True)
    for part, rows in zip(parts, found, strict=True):
        for (request, first, last), of_request in zip(part, rows.split([last - first for _, first, last in part]), strict=True):
            assert_same_bits(of_request, expected[request][first:last], f"request {request}, tokens {first} to {last} of step {part}")
    assert_same_bits(elsewhere, found[0], "other blocks")
    # Control: two keys that change places are other sums.
    q, cache, table, starts, lengths_ = requests.step([(0, 40, 41)])
    exchanged = cache.clone()
    exchanged[table[0, 0], 0], exchanged[table[0, 4], 0] = cache[table[0, 4], 0], cache[table[0, 0], 0]
    assert differences(interpreter.run(run_compiled, paged, q, exchanged, table, starts, lengths_), found[-1]) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_window_is_the_prefill_however_many_keys_it_left_behind(interpreter: Interpreter, dtype: torch.dtype) -> None:
    chunk = configuration(gpu.DEFAULT, dtype, HEAD_DIM).chunk
    length, window = 2 * chunk + 7, chunk + 3
    requests = Requests([length], dtype)
    calls = [requests.step([(0, 0, length)], 10), *(requests.step([(0, n, n + 1)], 10) for n in (chunk + 1, 2 * chunk, length - 1))]
    whole, *decoded = interpreter.run(run_batches, functools.partial(paged, window=window), calls, True)
    assert_same_bits(whole, interpreter.run(run_compiled, attend, *requests.unpaged(0, window)), "unpaged")
    for n, row in zip((chunk + 1, 2 * chunk, length - 1), decoded, strict=True):
        assert_same_bits(row, whole[n : n + 1], f"token {n}")
    # Control: another window.
    assert differences(interpreter.run(run_compiled, functools.partial(paged, window=window - 1), *calls[-1]), decoded[-1]) > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_that_of_torch(interpreter: Interpreter, dtype: torch.dtype) -> None:
    requests = Requests([37], dtype)
    q, keys, values, mask = requests.unpaged(0)
    found = interpreter.run(run_compiled, paged, *requests.step([(0, 0, 37)]))

    def torchs(*tensors: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(*tensors, mask, scale=SCALE, enable_gqa=True)
        return out[0].movedim(0, 1)

    exact = torchs(q.double(), keys.double(), values.double())
    assert relative_error(found, exact) <= 1.5 * relative_error(torchs(q, keys, values), exact)


def test_strides_tokens_of_no_request_and_what_is_not_well_formed(interpreter: Interpreter) -> None:
    requests = Requests([20, 9], torch.float32)
    q, cache, table, starts, lengths = requests.step([(0, 17, 20), (1, 0, 9)])
    strided_q, strided_cache = q.movedim(1, 0).contiguous().movedim(0, 1), cache.transpose(1, 2).contiguous().transpose(1, 2)
    behind = torch.cat([q, torch.full_like(q[:4], float("nan"))])
    # A request without queries between the others; blocks outside of the cache, which only their own request sees.
    gap = (torch.stack([table[0], table[1], table[1]]), torch.tensor([0, 3, 3, 12]), torch.tensor([20, 9, 9]))
    outside = table.clone()
    outside[0] = 10**6
    calls = [
        (q, cache, table, starts, lengths),
        (strided_q, strided_cache, table.long(), starts.long(), lengths.long()),
        (behind, cache, table, starts, lengths),
        (q, cache, *gap),
        (q, cache, outside, starts, lengths),
    ]
    expected, strided, padded, empty, wrong = interpreter.run(run_batches, paged, calls, True)
    assert_same_bits(strided, expected, "strides and dtypes of integers")
    assert_same_bits(padded[:12], expected, "tokens behind")
    assert torch.equal(padded[12:], torch.zeros_like(padded[12:]))
    assert_same_bits(empty, expected, "a request without queries")
    assert_same_bits(wrong[3:], expected[3:], "beside blocks that there are not")


def test_the_cache_is_read_in_place(interpreter: Interpreter) -> None:
    requests = Requests([20], torch.float32)
    q, cache, *rest = requests.step([(0, 0, 20)])
    _, codes = interpreter.run(code_of, paged, q, cache.transpose(1, 2).contiguous().transpose(1, 2), *rest)
    assert codes[0].count("@triton_heuristics.") == codes[0].count("@triton_heuristics.template") == 1
    assert "extern_kernels." not in codes[0]
