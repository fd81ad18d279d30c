"""Paged attention: each request gives the bits of `attention` over its own keys, wherever its blocks lie and whoever is beside it."""

import pytest
import torch

from bi_inductor.operators import paged_attention
from bi_inductor.operators.paged_attention import paged_attention_cpu
from tests.templates.rows import differences, randn

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 32, 16
SCALE = HEAD_DIM**-0.5
# Keys and queries of each request: a whole prompt, the end of a chunked one, a decode step, a request of one token, and a prompt with so
# much work that all threads share it.
LENGTHS, QUERIES = [70, 133, 300, 1, 321], [70, 48, 1, 1, 321]


class Requests:
    """Requests whose blocks are scattered over a cache; ``adjacent`` leaves them in order."""

    def __init__(self, dtype: torch.dtype, adjacent: bool = False) -> None:
        self.kv = [randn(length, KV_HEADS, 2 * HEAD_DIM, dtype=dtype) for length in LENGTHS]
        self.q = [randn(count, HEADS, HEAD_DIM, dtype=dtype) for count in QUERIES]
        counts = [-(-length // BLOCK) for length in LENGTHS]
        order = torch.arange(sum(counts)) if adjacent else torch.randperm(sum(counts) + 3)
        self.blocks = list(order.split([*counts, len(order) - sum(counts)]))[: len(counts)]
        self.cache = torch.full([len(order), BLOCK, KV_HEADS, 2 * HEAD_DIM], float("nan"), dtype=dtype)
        for blocks, kv in zip(self.blocks, self.kv, strict=True):
            padded = torch.cat([kv, torch.full([len(blocks) * BLOCK - len(kv), *kv.shape[1:]], float("nan"), dtype=dtype)])
            self.cache[blocks] = padded.unflatten(0, (len(blocks), BLOCK))

    def arguments(self, chosen: list[int]) -> tuple[torch.Tensor, ...]:
        """What the operator takes for some of the requests."""
        table = torch.nn.utils.rnn.pad_sequence([self.blocks[i] for i in chosen], batch_first=True).to(torch.int32)
        starts = torch.tensor([0] + [QUERIES[i] for i in chosen]).cumsum(0).to(torch.int32)
        lengths = torch.tensor([LENGTHS[i] for i in chosen], dtype=torch.int32)
        return torch.cat([self.q[i] for i in chosen]), self.cache, table, starts, lengths

    def expected(self, request: int, window: int) -> torch.Tensor:
        """`attention` of the request by itself, with the causal rule and the window as a mask."""
        keys, values = self.kv[request].movedim(0, 1).unsqueeze(0).split(HEAD_DIM, -1)
        position = torch.arange(LENGTHS[request] - QUERIES[request], LENGTHS[request])[:, None]
        key = torch.arange(LENGTHS[request])
        seen = (key <= position) & ((key > position - window) | (window == 0))
        q = self.q[request].movedim(0, 1).unsqueeze(0)
        return torch.ops.bi_inductor.attention(q, keys, values, seen, False, SCALE)[0].movedim(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("adjacent", [False, True])
def test_each_request_is_attention_of_itself(dtype: torch.dtype, window: int, adjacent: bool) -> None:
    requests = Requests(dtype, adjacent)
    out = torch.ops.bi_inductor.paged_attention(*requests.arguments([0, 1, 2, 3, 4]), SCALE, window)
    for request, rows in enumerate(out.split(QUERIES)):
        assert differences(rows, requests.expected(request, window)) == 0


def test_neighbours_and_threads_change_nothing() -> None:
    requests = Requests(torch.float32)
    together = torch.ops.bi_inductor.paged_attention(*requests.arguments([0, 1, 2, 3, 4]), SCALE).split(QUERIES)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for chosen in ([2], [1, 0], [4, 3, 2, 1]):
            out = torch.ops.bi_inductor.paged_attention(*requests.arguments(chosen), SCALE)
            for request, rows in zip(chosen, out.split([QUERIES[i] for i in chosen]), strict=True):
                assert differences(rows, together[request]) == 0


def test_control_a_split_of_the_keys_is_seen() -> None:
    """What vLLM's CPU kernel does for long requests, merging two halves of the keys, gives other bits."""
    requests = Requests(torch.float32)
    out = torch.ops.bi_inductor.paged_attention(*requests.arguments([2]), SCALE)
    keys, values = requests.kv[2].movedim(0, 1).unsqueeze(0).split(HEAD_DIM, -1)
    q = requests.q[2].movedim(0, 1).unsqueeze(0)
    parts, lse = [], []
    for half in (slice(0, 150), slice(150, 300)):
        parts.append(torch.ops.bi_inductor.attention(q, keys[:, :, half], values[:, :, half], None, False, SCALE))
        lse.append(torch.ops.bi_inductor.attention_lse(q, keys[:, :, half], None, False, SCALE))
    share = torch.softmax(torch.stack(lse), 0).unsqueeze(-1)
    merged = (torch.stack(parts) * share).sum(0)[0].movedim(0, 1)
    torch.testing.assert_close(merged, out)
    assert differences(merged, out) > 0


def test_compiled_is_eager() -> None:
    requests = Requests(torch.float32)
    arguments = requests.arguments([1, 2])

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.ops.bi_inductor.paged_attention(*tensors, SCALE) * 2

    compiled = torch.compile(function, backend="batch_invariant")
    assert differences(compiled(*arguments), function(*arguments)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": torch.tensor([9999])}, "blocks"),
        ({"lengths": torch.tensor([47])}, "48 queries and 47 keys"),
        ({"starts": torch.tensor([0, 47])}, "ascend from 0 to 48"),
        ({"table": torch.full([1, 9], 10_000)}, "in blocks"),
        ({"window": -1}, "window must be"),
        ({"q": torch.zeros(48, HEADS, HEAD_DIM + 1)}, "head dims differ"),
        ({"q": torch.zeros(48, 5, HEAD_DIM)}, "heads do not divide"),
        ({"q": torch.zeros(48, HEADS * HEAD_DIM)}, "numbers of dims"),
        ({"q": torch.zeros(48, HEADS, HEAD_DIM, dtype=torch.float64)}, "one dtype"),
    ],
    ids=["long", "short", "starts", "table", "window", "head_dim", "heads", "dims", "dtype"],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    names = ("q", "cache", "table", "starts", "lengths")
    arguments = dict(zip(names, Requests(torch.float32).arguments([1]), strict=True)) | {"scale": SCALE} | change
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        paged_attention_cpu(**arguments)  # type: ignore[arg-type]  # a change may be of any type


def test_attention_into_a_tensor() -> None:
    q, cache, table, starts, lengths = Requests(torch.float32).arguments([1, 2])
    requests = paged_attention.Requests.checked(table, starts, lengths, q.shape[0], *cache.shape[:2])
    expected = paged_attention_cpu(q, cache, table, starts, lengths, SCALE)
    out = torch.empty_like(expected)
    assert differences(paged_attention.attend(q, cache, requests, SCALE, 0, out), expected) == 0
    wrong = {
        "one dtype": out.double(),
        "of q's shape": out[1:],
        "is contiguous": torch.empty(*out.shape[:2], 2 * HEAD_DIM)[..., :HEAD_DIM],
    }
    for message, other in wrong.items():
        with pytest.raises((ValueError, TypeError), match=message):
            paged_attention.attend(q, cache, requests, SCALE, 0, other)
    with pytest.raises(RuntimeError, match="heads do not divide"):
        paged_attention.attend(q[:, :5], cache, requests, SCALE, 0, out[:, :5].contiguous())
