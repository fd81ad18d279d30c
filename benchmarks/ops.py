"""`python -m benchmarks.ops`: time of single compiled ops, ours against stock Inductor and eager.

Shapes are those of docs/performance.md. Ratios below 1 mean that ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.competitors import FEW, NATIVE_BFLOAT16, calls
from benchmarks.measurement import Measurement
from benchmarks.record import RESULTS, Record
from benchmarks.table import Table
from benchmarks.timing import environment, headline, measure


class Op(NamedTuple):
    """A function of tensors and the tensors."""

    name: str
    function: Callable[..., Tensor | tuple[Tensor, Tensor]]
    arguments: tuple[Any, ...]


def _attention(name: str, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype, **settings: Any) -> Op:
    query = torch.randn(batch, heads, queries, 64, dtype=dtype)
    key, value = (torch.randn(batch, settings.get("kv_heads", heads), keys, 64, dtype=dtype) for _ in range(2))

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=settings.get("is_causal", False), enable_gqa="kv_heads" in settings
        )

    return Op(f"attention {name}, {batch}x{heads}, {queries} on {keys}", attend, (query, key, value, settings.get("mask")))


def _residual_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What stands between two layers of a transformer: the residual, and its norm in the dtype of the next matmul."""
    total = x + residual
    return total, functional.rms_norm(total, weight.shape, weight).to(torch.bfloat16)


def _written_norm(x: Tensor, weight: Tensor) -> Tensor:
    """An RMS norm as models write it out."""
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _several(x: Tensor, weight: Tensor) -> Tensor:
    """Five kernels, each with next to nothing to compute."""
    for _ in range(2):
        x = torch.softmax(functional.linear(x, weight), -1)
    return x.sum(-1)


def ops(dtype: torch.dtype) -> Iterator[Op]:
    """All measured ops; weights are [out, in] as torch stores them."""
    for columns, size in ((1024, 1024), (4096, 4096), (4096, 11008)):
        weight = torch.randn(columns, size, dtype=dtype) / size**0.5
        for rows in (1, 4, 16, 64, 256, 1024):
            yield Op(f"linear {columns}x{size}, {rows} rows", functional.linear, (torch.randn(rows, size, dtype=dtype), weight))
    stored = torch.randn(1024, 1024, dtype=dtype) / 32
    for rows in (1, 16, 256):
        yield Op(f"mm {rows}x1024 on 1024x1024", torch.mm, (torch.randn(rows, 1024, dtype=dtype), stored))
    for batch, rows, size, columns in ((64, 128, 64, 128), (64, 128, 128, 64), (16, 256, 256, 256)):
        a, b = torch.randn(batch, rows, size, dtype=dtype), torch.randn(batch, size, columns, dtype=dtype)
        yield Op(f"bmm {batch} of {rows}x{size} on {size}x{columns}", torch.bmm, (a, b))
    for rows, length in ((1, 4096), (1, 32000), (1, 2**22), (64, 1024), (512, 1024), (512, 32000), (1024, 768), (16384, 64), (16384, 16)):
        x, weight = torch.randn(rows, length, dtype=dtype), torch.randn(length, dtype=dtype)
        shape = f"{rows}x{length}"
        yield Op(f"softmax {shape}", lambda x: torch.softmax(x, -1), (x,))
        yield Op(f"layer_norm {shape}", lambda x, weight: functional.layer_norm(x, weight.shape, weight, weight), (x, weight))
        yield Op(f"rms_norm {shape}", lambda x, weight: functional.rms_norm(x, weight.shape, weight), (x, weight))
        yield Op(f"rms_norm written out {shape}", _written_norm, (x, weight))
        yield Op(f"log_softmax {shape}", lambda x: torch.log_softmax(x, -1), (x,))
        yield Op(f"add, rms_norm, cast {shape}", _residual_norm, (x, x.flip(0), weight))
        yield Op(f"sum {shape}", lambda x: x.sum(-1), (x,))
        yield Op(f"var {shape}", lambda x: x.var(-1), (x,))
    for terms, columns in ((100000, 16), (100000, 64), (4096, 768), (4096, 4096)):
        yield Op(f"sum of columns {terms}x{columns}", lambda x: x.sum(0), (torch.randn(terms, columns, dtype=dtype),))
    small, square = torch.randn(2, 8, dtype=dtype), torch.randn(8, 8, dtype=dtype)
    yield Op("call of a graph of one kernel", lambda x: x + 1, (small,))
    yield Op("call of a graph of one linear", functional.linear, (small, square))
    yield Op("call of a graph of five kernels", _several, (small, square))
    padded = (torch.arange(128) >= 37).expand(8, 1, 128, 128)
    yield _attention("causal", 1, 8, 128, 128, dtype, is_causal=True)
    yield _attention("37 left pads", 8, 4, 128, 128, dtype, mask=padded)
    yield _attention("decode", 8, 8, 1, 128, dtype)
    yield _attention("chunk", 1, 8, 4, 1024, dtype)
    yield _attention("prefill, 4 queries a key", 1, 16, 1024, 1024, dtype, is_causal=True, kv_heads=4)
    yield _attention("long decode", 1, 8, 1, 32768, dtype)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only ops whose name contains TEXT")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16", "float64"])
    parser.add_argument("--native-bfloat16", action="store_true", help=NATIVE_BFLOAT16)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds per op (default 15)")
    parser.add_argument("--block", type=float, default=0.02, metavar="SECONDS", help="length of one variant's turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the JSON goes (default benchmarks/results/)")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds is {arguments.rounds}; at least 2 are needed for a median and quartiles")
    torch.manual_seed(0)
    options = {"native_bfloat16": True} if arguments.native_bfloat16 else {}
    print(f"{headline()}, {arguments.dtype}{''.join(f', {name}' for name in options)}")
    table = Table(FEW)
    table.print_header()
    results: dict[str, Measurement] = {}
    with torch.no_grad():
        for op in ops(getattr(torch, arguments.dtype)):
            if arguments.only not in op.name:
                continue
            torch.compiler.reset()
            timed = calls(FEW, op.function, op.arguments, op.arguments[0].shape[0], options)
            results[op.name] = measure(timed, rounds=arguments.rounds, seconds_per_block=arguments.block)
            table.print_row(op.name, results[op.name])
    if not results:
        parser.error(f"--only {arguments.only!r} matches no op")
    table.print_means(results)
    name = " ".join(["ops", arguments.dtype, *options])
    path = arguments.json or RESULTS / f"{name.replace(' ', '-')}.json"
    Record(name, environment(), results, {}).write(path)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
