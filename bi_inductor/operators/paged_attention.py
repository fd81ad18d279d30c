"""``bi_inductor::paged_attention``: attention over a cache of KV blocks, as serving engines keep it (docs/numerics.md section 8).

The layout of blocks follows Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023.
"""

from __future__ import annotations

import dataclasses

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.operand import Operand
from bi_inductor.templates.paged_attention.kernel import KERNEL, arguments


@dataclasses.dataclass(frozen=True)
class Requests:
    """The requests of one call, checked: a serving engine makes them once a step, for all of its layers.

    Attributes:
        table: [requests, blocks of the longest request], int64, contiguous: the blocks of each request in order.
        starts: [requests + 1], int64: the first query of each request, and the number of queries.
        lengths: [requests], int64: the number of keys of each request.
    """

    table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def checked(
        cls, table: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, tokens: int, blocks: int, block_size: int
    ) -> Requests:
        """The requests of ``tokens`` queries in a cache of ``blocks`` blocks of ``block_size`` keys.

        Raises:
            ValueError: starts that do not ascend from 0 to ``tokens``, a block outside of the cache, a request with more queries than keys.
        """
        result = cls(*(x.to(torch.int64).contiguous() for x in (table, starts, lengths)))
        _check_requests(result, tokens, blocks, block_size)
        return result


def attend(q: torch.Tensor, cache: torch.Tensor, requests: Requests, scale: float, window: int, out: torch.Tensor) -> torch.Tensor:
    """``paged_attention`` into ``out`` [tokens, heads, head_dim], contiguous, for requests that were checked for this cache.

    Raises:
        ValueError, TypeError: shapes or dtypes that do not fit.
    """
    check_operands(q, cache, requests.table, requests.starts, requests.lengths, window)
    check_dtypes("paged_attention", {"q": q, "out": out})
    if out.shape != q.shape or not out.is_contiguous():
        raise ValueError(f"bi_inductor::paged_attention: out is contiguous and of q's shape {tuple(q.shape)}; given {tuple(out.shape)}")
    return _run(q, cache, requests, scale, window, out)


def _run(q: torch.Tensor, cache: torch.Tensor, requests: Requests, scale: float, window: int, out: torch.Tensor) -> torch.Tensor:
    operands = (q if q.stride(-1) == 1 else q.contiguous(), cache.contiguous(), requests.table, requests.starts, requests.lengths)
    q_operand, cache_operand, table, starts, lengths = map(Operand.of, operands)
    return run(KERNEL, out, q.dtype, arguments(q_operand, cache_operand, table, starts, lengths, scale, window, Operand.of(out)))


def paged_attention_cpu(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention of several requests.

    Args:
        q: [tokens, heads, head_dim], the queries of each request together; they are its last positions.
        cache: [blocks, block_size, kv_heads, 2 * head_dim], each key followed by its value; the keys of the queries are in it.
        table: [requests, blocks of the longest request], integers: the blocks of each request in order.
        starts: [requests + 1], integers: the first query of each request, and the number of queries.
        lengths: [requests], integers: the number of keys of each request.
        scale: of the scores.
        window: how many of the last keys a query sees; 0 for all.

    Raises:
        ValueError, TypeError: shapes or dtypes that do not fit, a block outside of the cache, a request with more queries than keys.
    """
    out = paged_attention_fake(q, cache, table, starts, lengths, scale, window)
    return _run(q, cache, Requests.checked(table, starts, lengths, q.shape[0], *cache.shape[:2]), scale, window, out)


def _check_requests(requests: Requests, tokens: int, blocks: int, block_size: int) -> None:
    """Of all requests at once, since this runs at each step of decoding; one that is wrong is looked for only then."""
    table, starts, lengths = requests.table, requests.starts, requests.lengths
    queries = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) != tokens or bool((queries < 0).any()):
        raise ValueError(f"bi_inductor::paged_attention: starts must ascend from 0 to {tokens} tokens; given {starts.tolist()}")
    if bool((queries > lengths).any()):
        request = int((queries > lengths).nonzero()[0])
        raise ValueError(
            f"bi_inductor::paged_attention: request {request} has {int(queries[request])} queries and {int(lengths[request])} keys"
        )
    used = torch.where(queries > 0, (lengths + block_size - 1) // block_size, 0)
    among_used = torch.arange(table.shape[1]) < used.unsqueeze(1)
    wrong = (used > table.shape[1]) | (among_used & ((table < 0) | (table >= blocks))).any(1)
    if bool(wrong.any()):
        request = int(wrong.nonzero()[0])
        raise ValueError(
            f"bi_inductor::paged_attention: request {request} has {int(lengths[request])} keys in blocks "
            f"{table[request, : int(used[request])].tolist()}; the cache has {blocks} blocks of {block_size}"
        )


def check_operands(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, window: int
) -> None:
    """Raises ValueError or TypeError for shapes or dtypes that do not fit."""
    check_dtypes("paged_attention", {"q": q, "cache": cache})
    shapes = {"q": q, "cache": cache, "table": table, "starts": starts, "lengths": lengths}
    given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
    if (q.dim(), cache.dim(), table.dim(), starts.dim(), lengths.dim()) != (3, 4, 2, 1, 1):
        raise ValueError(f"bi_inductor::paged_attention: numbers of dims must be 3, 4, 2, 1, 1; given {given}")
    torch._check(cache.shape[3] == 2 * q.shape[2], lambda: f"bi_inductor::paged_attention: head dims differ; given {given}")
    torch._check(q.shape[1] % cache.shape[2] == 0, lambda: f"bi_inductor::paged_attention: heads do not divide; given {given}")
    torch._check(
        table.shape[0] == lengths.shape[0] and starts.shape[0] == lengths.shape[0] + 1,
        lambda: f"bi_inductor::paged_attention: numbers of requests differ; given {given}",
    )
    if window < 0:
        raise ValueError(f"bi_inductor::paged_attention: window must be 0 (none) or positive; given {window}")


def paged_attention_fake(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    check_operands(q, cache, table, starts, lengths, window)
    return q.new_empty(q.shape)


define(
    "paged_attention(Tensor q, Tensor cache, Tensor table, Tensor starts, Tensor lengths, float scale, int window=0) -> Tensor",
    paged_attention_cpu,
    paged_attention_fake,
)
