"""A prompt's first tokens, prefilled alone or decoded one by one on the same cache: the bits that the whole prefill gives them.

In the interpreter. Every call runs in a graph of the backend: Dynamo leaves none to eager, neither for a break nor at its limit of graphs.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import PART, configuration
from tests.interpreter.process import Interpreter
from tests.templates.rows import assert_same_bits, differences
from tests.templates.test_triton_paged_attention import BLOCK, HEAD_DIM, Call, Requests, paged
from tests.templates.test_triton_split_attention import is_split

pytestmark = pytest.mark.xdist_group("interpreter")


def run_without_eager(calls: list[Call]) -> tuple[list[torch.Tensor], list[str], int]:
    """Results, the code of every graph, and how often the backend was called. Runs in the interpreting process."""
    from torch._inductor.utils import run_and_get_code

    from bi_inductor.backend import compile_graph

    graphs = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return functools.partial(compile_graph, cpu_backend="triton", options=None)(*args, **kwargs)

    torch._dynamo.reset()
    run = torch.compile(paged, backend=counted, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=32, fail_on_recompile_limit_hit=True):
        results, codes = run_and_get_code(lambda: [run(*call) for call in calls])
    return results, codes, graphs


# Some 20 seconds each.
SLOW = [pytest.param(dtype, marks=pytest.mark.full) for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("dtype", [torch.float32, *SLOW], ids=str)
def test_first_tokens_have_the_bits_of_the_whole_prefill(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """1, 5, 17 tokens and those around the end of a chunk; decode by several programs."""
    chunk = configuration(gpu.DEFAULT, dtype, HEAD_DIM).chunk
    length = chunk + BLOCK + 2
    requests = Requests([length], dtype)
    # A table that long lets programs share keys, most of which a request does not have yet.
    columns = (PART + 1) * chunk // BLOCK + 1
    firsts = (1, 5, 17, chunk - 1, chunk, chunk + 1)
    tokens = sorted({*range(17), *range(chunk - 2, chunk + 2), length - 1})
    prefills = [requests.step([(0, 0, m)], columns) for m in (length, *firsts)]
    decodes = [requests.step([(0, token, token + 1)], columns) for token in tokens]
    # Control: two blocks, of two chunks, in each other's place.
    q, cache, table, starts, lengths = prefills[0]
    exchanged = table.clone()
    exchanged[:, 0], exchanged[:, chunk // BLOCK] = table[:, chunk // BLOCK], table[:, 0]
    (whole, *parts), codes, graphs = interpreter.run(run_without_eager, [*prefills, *decodes, (q, cache, exchanged, starts, lengths)])
    *parts, other = parts
    assert graphs == len(codes) >= 2
    assert any(map(is_split, codes)) and not all(map(is_split, codes))
    for m, part in zip(firsts, parts, strict=False):
        assert_same_bits(part, whole[:m], f"the first {m} tokens")
    for token, part in zip(tokens, parts[len(firsts) :], strict=True):
        assert_same_bits(part, whole[token : token + 1], f"token {token}, decoded")
    assert differences(other[chunk + BLOCK :], whole[chunk + BLOCK :]) > 0
    assert differences(whole[:1], whole[1:2]) > 0
