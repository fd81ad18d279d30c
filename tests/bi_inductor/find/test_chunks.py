"""`find` compares a sequence whole with the same in chunks that carry a cache, node by node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor, nn
from torch.nn import functional

import bi_inductor
from bi_inductor import CaptureError, Variant, find
from bi_inductor.find.result import FindResult
from tests.bi_inductor.find.test_find import in_this_file
from tests.bi_inductor.planted import by_batch
from tests.templates.rows import randn


class Remembers(nn.Module):
    """Each position gets the largest entry of all up to it: no bit of that follows how they are cut."""

    def __init__(self, suspect: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.suspect = suspect

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        keys = x if past is None else torch.cat([past, x], 1)
        queries, total = x.shape[1], keys.shape[1]
        seen = torch.arange(total) <= torch.arange(total - queries, total).unsqueeze(1)
        largest = keys.unsqueeze(1).masked_fill(~seen.unsqueeze(-1), -torch.inf).amax(2)
        return self.suspect(largest + x), keys


class Decoder(nn.Module):
    """Two layers with a cache each."""

    def __init__(self, suspect: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Remembers(), Remembers(suspect)])

    def forward(self, x: Tensor, cache: Sequence[Tensor | None] = (None, None)) -> tuple[Tensor, list[Tensor]]:
        new = []
        for layer, past in zip(self.layers, cache, strict=True):
            x, keys = layer(x, past)
            new.append(keys)
        return x * 2, new


def with_cache(fn: Callable[..., Any], chunks: Sequence[Any]) -> Tensor:
    cache: Any = (None, None)
    outputs = []
    for chunk in chunks:
        output, cache = fn(chunk, cache)
        outputs.append(output)
    return torch.cat(outputs, 1)


def forgets(fn: Callable[..., Any], chunks: Sequence[Any]) -> Tensor:
    return torch.cat([fn(chunk)[0] for chunk in chunks], 1)


def by_positions(x: Tensor) -> Tensor:
    """A chunk of one position gets other bits."""
    return by_batch(x.transpose(0, 1).contiguous()).transpose(0, 1)


def in_chunks_of(sizes: Sequence[int], model: nn.Module, run: Callable[..., Any] = with_cache, **arguments: Any) -> FindResult:
    variants = [Variant(), *(Variant(sequence_chunk=size) for size in sizes), Variant(samples=[1], sequence_chunk=sizes[0])]
    return find(model, randn(3, 7, 4), sequence_dim=1, variants=variants, in_chunks=run, **arguments)


def test_chunks_with_their_cache_have_the_bits_of_the_whole() -> None:
    result = in_chunks_of([3, 1], Decoder())
    assert result, result.text()
    assert_expected_inline(
        result.text(),
        """\
eager: batch-invariant, the same bits at all 10 compared values of 25 nodes

compared with the batch of 3:
  batch of 3, chunk 1 of 3                   same bits
  batch of 3, chunk 2 of 3                   same bits
  batch of 3, chunk 3 of 3                   same bits
  batch of 3, its 3 chunks put together      same bits
  batch of 3, chunk 1 of 7                   same bits
  batch of 3, chunk 2 of 7                   same bits
  batch of 3, chunk 3 of 7                   same bits
  batch of 3, chunk 4 of 7                   same bits
  batch of 3, chunk 5 of 7                   same bits
  batch of 3, chunk 6 of 7                   same bits
  batch of 3, chunk 7 of 7                   same bits
  batch of 3, its 7 chunks put together      same bits
  sample 1 alone, chunk 1 of 3               same bits
  sample 1 alone, chunk 2 of 3               same bits
  sample 1 alone, chunk 3 of 3               same bits
  sample 1 alone, its 3 chunks put together  same bits""",
    )


def test_a_planted_fault_in_one_chunk(tmp_path: Path) -> None:
    """The last of three chunks has one position, which the suspect of the second layer gives other bits."""
    result = in_chunks_of([3], Decoder(by_positions))
    assert result.node is not None
    assert_expected_inline(
        in_this_file(result.text()),
        """\
eager: not batch-invariant, first at by_batch (node 25 of 28)
  op          planted.by_batch.default
  line        "test_chunks.py", line N, in by_positions: return by_batch(x.transpose(0, 1).contiguous()).transpose(0, 1)
  module      layers.1 (Remembers)
  contiguous  float32[7, 3, 4] strides (12, 4, 1) | float32[1, 1, 4] strides (4, 4, 1)
  result      float32[7, 3, 4] strides (12, 4, 1) | float32[1, 1, 4] strides (4, 4, 1)
  bits        1 of 4 elements differ, in 1 of 1 shared rows, by up to 1 ulp
  first       at [0, 0, 0]: 1.3745510578155518 | 1.3745511770248413
  cause       the op itself: on the same rows it gives other bits

compared with the batch of 3:
  batch of 3, chunk 1 of 3                   same bits
  batch of 3, chunk 2 of 3                   same bits
  batch of 3, chunk 3 of 3                   differs from by_batch on, at 2 values
  batch of 3, its 3 chunks put together      differs from cat on, at 1 values
  sample 1 alone, chunk 1 of 3               same bits
  sample 1 alone, chunk 2 of 3               same bits
  sample 1 alone, chunk 3 of 3               differs from by_batch on, at 2 values
  sample 1 alone, its 3 chunks put together  differs from cat on, at 1 values

along the graph (sample 1 alone, chunk 3 of 3):
  node      op                        module    max ulp     effect
  by_batch  planted.by_batch.default  layers.1        1  #  differs by itself
  mul_2     aten.mul.Tensor           Decoder         1  #  passes on""",
    )
    script, _ = result.write_reproduction(tmp_path / "reproduction.py")
    path = str(Path(bi_inductor.__file__).parent.parent)
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, env={"PYTHONPATH": path}, check=False)
    assert completed.stdout == f"{result.node.elements_different} of {result.node.elements} elements differ\n", completed.stderr


def test_a_cache_that_is_forgotten_is_a_difference_of_the_op_that_looks_back() -> None:
    result = in_chunks_of([3], Decoder(), forgets)
    assert result.node is not None and result.node.op == "aten.amax.default", result.text()
    assert result.node.module == "layers.0 (Remembers)"
    assert [row.first is None for row in result.variants] == [True, False, False, False] * 2


def test_positions_that_start_again_in_each_chunk() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return torch.relu(x) + torch.arange(x.shape[1]).unsqueeze(1), None

    result = in_chunks_of([3], Counts(), forgets)
    assert result.node is not None and result.node.op == "aten.add.Tensor"
    assert result.node.cause == "unsqueeze counts positions from the start of each chunk; give the positions as an input"


class Attention(nn.Module):
    """Two layers of attention that look back, by named arguments; the cache is one object that they write to."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def forward(self, *, x: Tensor, cache: dict[int, Tensor]) -> dict[str, Tensor]:
        for index, projection in enumerate(self.projections):
            q, k, v = projection(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            if index in cache:
                k, v = (torch.cat(pair, 2) for pair in zip(cache[index], (k, v), strict=True))
            cache[index] = torch.stack([k, v])
            total = k.shape[2]
            seen = torch.arange(total) <= torch.arange(total - x.shape[1], total).unsqueeze(1)
            x = x + functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        return {"hidden": x}


def named(fn: Callable[..., Any], chunks: Sequence[Any]) -> Tensor:
    cache: dict[int, Tensor] = {}
    return torch.cat([fn(**chunk, cache=cache)["hidden"] for chunk in chunks], 1)


def test_the_verdict_is_that_of_the_model_itself() -> None:
    """Matrix products and attention over a growing cache: the runs node by node have the bits of calls without `find`."""
    torch.manual_seed(0)
    model, x = Attention(), randn(3, 21, 16)
    whole = named(model, [{"x": x}])
    sizes = (8, 20)
    variants = [Variant(), *(Variant(sequence_chunk=size) for size in sizes)]
    result = find(model, {"x": x}, sequence_dim=1, variants=variants, in_chunks=named)
    together = [row for row in result.variants if "put together" in row.name]
    parts = [named(model, [{"x": part.contiguous()} for part in x.split(size, 1)]) for size in sizes]
    assert [row.first is None for row in together] == [torch.equal(whole, part) for part in parts]


def test_what_in_chunks_has_to_be() -> None:
    x = randn(3, 7, 4)
    variants = [Variant(), Variant(sequence_chunk=3)]
    arguments: dict[str, Any] = {"sequence_dim": 1, "variants": variants}
    for run, more, message in (
        (3, {}, "in_chunks: got 3; allowed is a function of"),
        (with_cache, {"variants": None}, "in_chunks needs a variant with sequence_chunk"),
        (with_cache, {"backend": "aot_eager"}, "in_chunks runs in eager only.*bi_inductor.check"),
        (with_cache, {"variants": [Variant(), Variant(sequence_chunk=7)]}, "sequence_chunk: got 7; allowed are whole numbers from 1 to 6"),
        (with_cache, {"variants": [Variant(), Variant(sequence_chunk=3, chunk=1)]}, "chunk cannot be joined with sequence_chunk"),
        (lambda fn, chunks: fn(torch.cat(list(chunks), 1))[0], {}, "once for each chunk; given 3 chunks, it made 1 calls"),
    ):
        with pytest.raises(ValueError, match=message):
            find(Decoder(), x, **{**arguments, **more}, in_chunks=run)
    with pytest.raises(CaptureError, match=r"a branch or a shape depends on values at .*test_chunks.py"):
        find(Decoder(), x, **arguments, in_chunks=lambda fn, chunks: with_cache(fn, chunks) if chunks[0].sum() > 0 else x)


def test_values_that_a_chunk_has_no_counterpart_of_are_told() -> None:
    class Pools(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            last = torch.relu(x)[:, -1]
            return x + (last * 0).unsqueeze(1), None

    result = in_chunks_of([3], Pools(), forgets)
    assert result, result.text()
    assert result.notes[0].startswith("not compared in chunks, since they hold no positions") and "(mul)" in result.notes[0]
