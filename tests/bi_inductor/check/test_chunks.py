"""`check` runs a sequence in chunks too, alone or by a function of the user's that carries a cache, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bi_inductor.check import check
from tests.templates.rows import randn

ARGUMENTS: dict[str, Any] = {"batch_sizes": (1, 3), "sequence_dim": 1, "out_sequence_dim": 1, "padding": ()}


def in_chunks_of(fn: Callable[..., Any], inputs: Any, backend: str = "eager", **arguments: Any) -> dict[str, int]:
    """How many rows differ in each kind of run with chunks."""
    result = check(fn, inputs, backend=backend, **{**ARGUMENTS, **arguments})
    return {f"{row.run}, {row.batch_size}": row.rows_different for row in result.rows if "chunks" in row.run}


def by_length(x: Tensor) -> Tensor:
    """A position's result follows how many there are."""
    return x * x.shape[1]


def test_chunks_of_every_length_run_and_a_position_by_itself_has_the_same_bits() -> None:
    found = in_chunks_of(torch.sin, randn(3, 7, 4), chunks=(3, 1))
    assert found == {"in chunks of 3, 1": 0, "in chunks of 3, 3": 0, "in chunks of 1, 1": 0, "in chunks of 1, 3": 0}


def test_what_follows_the_length_of_a_chunk_is_found_and_shrunk() -> None:
    assert in_chunks_of(by_length, randn(3, 7, 4), chunks=(3,)) == {"in chunks of 3, 1": 3, "in chunks of 3, 3": 3}
    result = check(by_length, randn(3, 7, 4), backend="eager", chunks=(3,), shrink=True, **ARGUMENTS)
    assert result.smallest is not None and result.smallest.chunk == 3 and result.smallest.samples == (0,)
    assert "in chunks of 3" in str(result) and result.json()["smallest"]["chunk"] == 3


def test_gradients() -> None:
    assert set(in_chunks_of(torch.sin, randn(3, 7, 4), chunks=(2,), grad=True).values()) == {0}

    class Grows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * gradient.shape[1]

    assert set(in_chunks_of(Grows.apply, randn(3, 7, 4), chunks=(2,), grad=True).values()) == {3}


def attention(x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Causal attention of x [batch, positions, 16] to itself and to what came before; the second result is what comes next time."""
    keys = x if past is None else torch.cat([past, x], 1)
    queries, total = x.shape[1], keys.shape[1]
    causal = torch.arange(total) <= torch.arange(total - queries, total).unsqueeze(1)
    return functional.scaled_dot_product_attention(x, keys, keys * 2, attn_mask=causal), keys


def with_cache(fn: Callable[..., Any], chunks: Sequence[Any]) -> Tensor:
    past, outputs = None, []
    for (x,) in chunks:
        output, past = fn(x, past)
        outputs.append(output)
    return torch.cat(outputs, 1)


def forgets(fn: Callable[..., Any], chunks: Sequence[Any]) -> Tensor:
    return torch.cat([fn(x, None)[0] for (x,) in chunks], 1)


class Attention(torch.nn.Module):
    """The whole sequence when called without a past, one tensor or a pair as `with_cache` needs it."""

    def forward(self, x: Tensor, *past: Tensor | None) -> Any:
        return attention(x, *past) if past else attention(x)[0]


def test_a_cache_of_the_users() -> None:
    arguments: dict[str, Any] = {"chunks": (4,), "sequence_dim": (1,), "backend": "batch_invariant", "batch_sizes": (1,)}
    assert in_chunks_of(Attention(), (randn(2, 7, 16),), in_chunks=with_cache, **arguments) == {"in chunks of 4, 1": 0}
    # A control: what a chunk does not hand on is missed.
    found = in_chunks_of(Attention(), (randn(2, 7, 16),), in_chunks=forgets, **{**arguments, "backend": "eager"})
    assert found == {"in chunks of 4, 1": 2}


def test_bad_arguments() -> None:
    x = randn(3, 7, 4)
    for arguments, message in (
        ({"sequence_dim": None}, "chunks: they need sequence_dim"),
        ({"out_sequence_dim": None}, "chunks: they need out_sequence_dim.*or in_chunks"),
        ({"chunks": (7,)}, r"chunks: got 7; allowed are whole numbers from 1 to 6 \(the inputs have 7 positions\)"),
        ({"in_chunks": 3}, "in_chunks: got 3"),
        ({"chunks": (), "in_chunks": with_cache}, "in_chunks: it needs chunks"),
        ({"in_chunks": lambda fn, chunks: fn(chunks[0])}, "in_chunks has to return the outputs of the whole sequence"),
        ({"out_sequence_dim": {}, "out_batch_dim": 0}, "output has no dim in out_sequence_dim"),
    ):
        with pytest.raises(ValueError, match=message):
            in_chunks_of(torch.sin, x, **{"chunks": (3,), **arguments})
