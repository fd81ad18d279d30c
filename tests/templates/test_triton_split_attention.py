"""Attention whose keys several programs share, in the interpreter: the bits of the one program that has all keys, unpaged and paged."""

from __future__ import annotations

import functools

import pytest
import torch

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import FEW_QUERIES, PART, UNROLL, configuration, shares_keys
from tests.interpreter import code_of, run_batches, run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.batches import BATCHES
from tests.templates.rows import assert_same_bits, differences, randn, relative_error
from tests.templates.test_triton_paged_attention import Requests, paged

pytestmark = pytest.mark.xdist_group("interpreter")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# More than the programs that share keys compute.
PROMPT = max(BATCHES)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.bi_inductor.attention(q, k, v, mask)
    return out


def operands(dtype: torch.dtype, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys, values and the causal mask of a prompt's last tokens; the second kernel's loop runs more than once."""
    keys = UNROLL * configuration(gpu.DEFAULT, dtype, 20).chunk + 21
    q, k, v = (randn(batch, heads, n, 20, dtype=dtype, seed=i) for i, (heads, n) in enumerate(((2, PROMPT), (1, keys), (1, keys))))
    return q, k, v, torch.ones(PROMPT, keys, dtype=torch.bool).tril(keys - PROMPT)


def attend_in_batches(calls: list[tuple[torch.Tensor, ...]]) -> tuple[list[torch.Tensor], list[str]]:
    """Results and the code of every graph that was compiled for them. Runs in the interpreting process."""
    from torch._inductor.utils import run_and_get_code

    results, codes = run_and_get_code(run_batches, attend, calls)
    return results, codes


def is_split(code: str) -> bool:
    """Whether the code of a graph has a kernel for parts of the keys and one that merges them."""
    return "PART : tl.constexpr" in code and "UNROLL : tl.constexpr" in code


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode_by_several_programs_is_the_prefill_by_one(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """1, 3, 16 and 17 queries, of which the first three share their keys, beside 33; the same numbers of samples of two queries."""
    *many, mask = operands(dtype, max(BATCHES))
    q, k, v = (t[:2] for t in many)
    whole, codes = interpreter.run(code_of, attend, q, k, v, mask)
    assert not is_split(codes[0])
    for m in BATCHES[:-1]:
        part, codes = interpreter.run(code_of, attend, q[:, :, -m:], k, v, mask[-m:], dynamic=False)
        assert is_split(codes[0]) == (m <= FEW_QUERIES)
        assert_same_bits(part, whole[:, :, -m:], f"the last {m} tokens")
    pairs = [(many[0][:m, :1, -2:], *(t[:m] for t in many[1:]), mask[-2:]) for m in BATCHES]
    (*parts, of_all), codes = interpreter.run(attend_in_batches, pairs)
    assert len(codes) >= 2 and all(map(is_split, codes))
    assert_same_bits(of_all[:2], whole[:, :1, -2:], "33 samples")
    for m, part in zip(BATCHES[:-1], parts, strict=True):
        assert_same_bits(part, of_all[:m], f"{m} samples")
    padded_k, padded_v = (torch.cat([torch.full_like(t[:, :, :37], float("nan")), t], 2) for t in (k, v))
    padded = torch.cat([torch.zeros(5, 37, dtype=torch.bool), mask[-5:]], 1)
    last = mask[-5:]
    calls = [
        (q[:, :, -5:], k, v, last),
        (q[:, :, -5:], padded_k, padded_v, padded),
        (q[:, :, -5:], k, v, torch.zeros(last.shape, dtype=dtype).masked_fill(~last, float("-inf"))),
        (q[1:, :, -5:], k[1:], v[1:], last),
        (q[:, :, -5:-4], k, v, mask[-5:-4]),
    ]
    chunk, left, additive, alone, earlier = interpreter.run(run_batches, attend, calls)
    assert_same_bits(chunk, whole[:, :, -5:], "a chunk of the prompt")
    assert_same_bits(left, whole[:, :, -5:], "left padding")
    assert_same_bits(additive, whole[:, :, -5:], "an additive mask")
    assert_same_bits(alone, whole[1:, :, -5:], "alone")
    assert_same_bits(earlier, whole[:, :, -5:-4], "an earlier token, with keys that it does not see")
    # Control: keys in another order are other chunks, which are merged into other sums.
    last_q = q[:, :, -1:]
    forward, backward = interpreter.run(run_batches, attend, [(last_q, k, v), (last_q, k.flip(2), v.flip(2))])
    assert differences(forward, backward) > 0


def test_rows_without_keys_and_scores_of_infinity(interpreter: Interpreter) -> None:
    q, k, v, _ = operands(torch.float32)
    mask = torch.ones(2, 1, 3, k.shape[2], dtype=torch.bool)
    mask[0, 0, 1] = False
    mask[1] = False
    few, many = q[:, :, :3], torch.cat([q[:, :, :3], q], 2)
    padded = torch.cat([mask, torch.zeros(2, 1, PROMPT, k.shape[2], dtype=torch.bool)], 2)
    endless = k.clone()
    endless[0, 0, 7] = float("inf")
    split, split_endless = interpreter.run(run_batches, attend, [(few, k, v, mask), (few, endless, v, mask)])
    one, one_endless = interpreter.run(run_batches, attend, [(many, k, v, padded), (many, endless, v, padded)])
    assert_same_bits(split, one[:, :, :3])
    assert_same_bits(split_endless, one_endless[:, :, :3])
    assert torch.equal(split[1], torch.zeros_like(split[1])) and split_endless.isnan().any() and not split.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_that_of_torch(interpreter: Interpreter, dtype: torch.dtype) -> None:
    q, k, v, mask = operands(dtype)

    def torchs(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(*tensors, mask[-3:], enable_gqa=True)

    q = q[:, :, -3:]
    exact = torchs(q.double(), k.double(), v.double())
    assert relative_error(interpreter.run(run_compiled, attend, q, k, v, mask[-3:]), exact) <= 1.5 * relative_error(torchs(q, k, v), exact)


@pytest.mark.parametrize(
    ("dtype", "window"), [*((dtype, 0) for dtype in DTYPES), (torch.float32, 50), (torch.bfloat16, 50)], ids=lambda value: str(value)
)
def test_blocks_of_a_cache_by_several_programs_are_those_by_one(interpreter: Interpreter, dtype: torch.dtype, window: int) -> None:
    """1, 3, 16 and 17 tokens, of which the first three share their keys; without a window."""
    length = (PART + 1) * configuration(gpu.DEFAULT, dtype, 24).chunk + 7
    requests = Requests([length, 5], dtype)
    columns = length // 8 + 3
    function = functools.partial(paged, window=window)
    whole, codes = interpreter.run(code_of, function, *requests.step([(0, 0, length), (1, 0, 5)], columns))
    assert not is_split(codes[0])
    few = [(0, length - 1, length)], [(1, 0, 5), (0, length - 4, length)], [(0, 60, 65)]
    split, codes = interpreter.run(code_of, function, *requests.step(few[0], columns))
    assert is_split(codes[0])
    assert_same_bits(split, whole[length - 1 : length], "the last token")
    for m in (3, 16, 17) if not window else ():
        part, codes = interpreter.run(code_of, function, *requests.step([(0, length - m, length)], columns), dynamic=False)
        assert is_split(codes[0]) == (m <= FEW_QUERIES)
        assert_same_bits(part, whole[length - m : length], f"the last {m} tokens")
    both, early = interpreter.run(run_batches, function, [requests.step(part, columns) for part in few[1:]])
    assert_same_bits(both, torch.cat([whole[length:], whole[length - 4 : length]]), "two requests")
    assert_same_bits(early, whole[60:65], "a part of the prompt")
    if not window:
        # Control: two blocks that change places are other chunks. A window has left them behind.
        q, cache, table, starts, lengths = requests.step(few[0], columns)
        exchanged = table.clone()
        exchanged[:, 0], exchanged[:, 5] = table[:, 5], table[:, 0]
        assert differences(interpreter.run(run_compiled, function, q, cache, exchanged, starts, lengths), split) > 0


def test_tokens_of_no_request_are_zero(interpreter: Interpreter) -> None:
    requests = Requests([20, 9], torch.float32)
    q, cache, table, starts, lengths = requests.step([(0, 19, 20), (1, 7, 9)], 12)
    behind = torch.cat([q, torch.full_like(q[:4], float("nan"))])
    expected, padded = interpreter.run(run_batches, paged, [(q, cache, table, starts, lengths), (behind, cache, table, starts, lengths)])
    assert_same_bits(padded[:3], expected)
    assert torch.equal(padded[3:], torch.zeros_like(padded[3:]))


def test_what_is_not_known_for_every_batch_does_not_share() -> None:
    assert shares_keys(few_queries=True, many_programs=False, few_keys=False)
    assert not shares_keys(few_queries=False, many_programs=False, few_keys=False)
    assert not shares_keys(few_queries=True, many_programs=True, few_keys=False)
    assert not shares_keys(few_queries=True, many_programs=False, few_keys=True)
