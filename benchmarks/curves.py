"""What `benchmarks.scaling` varies: the batch of models, and one size of single ops at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import minilm_row


class Case(NamedTuple):
    """A function, its arguments, and how many samples they hold; 0 if what is varied is no number of samples."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    samples: int


@dataclass(frozen=True)
class Curve:
    """One size that grows while everything else stays.

    Attributes:
        name: what is run.
        axis: what grows.
        points: its values, ascending.
        make: the case at one value.
    """

    name: str
    axis: str
    points: tuple[int, ...]
    make: Callable[[int], Case]


def _powers(base: int, last: int, first: int = 1) -> tuple[int, ...]:
    values = [first]
    while values[-1] * base <= last:
        values.append(values[-1] * base)
    return tuple(values)


def _minilm(batch: int) -> Case:
    row = minilm_row(batch)
    return Case(row.model, row.arguments, row.batch)


def _linear(m: int, k: int, samples: int) -> Case:
    # A module, so that the weight is no argument: it has no samples.
    return Case(nn.Linear(k, 1024, bias=False), (torch.randn(m, k),), samples)


def _rows(function: Callable[[torch.Tensor], torch.Tensor], m: int, k: int, samples: int) -> Case:
    return Case(function, (torch.randn(m, k),), samples)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _causal(length: int) -> Case:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return Case(attend, tuple(torch.randn(1, 8, length, 64) for _ in range(3)), 0)


def _decode(keys: int) -> Case:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    return Case(attend, (torch.randn(8, 8, 1, 64), *(torch.randn(8, 8, keys, 64) for _ in range(2))), 0)


# The largest operands take one gigabyte each (a gibibyte of float32 is 2**28 elements).
CURVES = (
    Curve("MiniLM, 64 tokens", "batch", _powers(2, 64), _minilm),
    Curve("linear, 1024 to 1024", "M", _powers(4, 16384), lambda m: _linear(m, 1024, m)),
    Curve("linear, 64 rows to 1024", "K", _powers(4, 65536, 64), lambda k: _linear(64, k, 0)),
    Curve("softmax, rows of 1024", "M", _powers(4, 2**18), lambda m: _rows(_softmax, m, 1024, m)),
    Curve("softmax, 64 rows", "K", _powers(4, 2**22, 16), lambda k: _rows(_softmax, 64, k, 0)),
    Curve("layer_norm, rows of 1024", "M", _powers(4, 2**18), lambda m: _rows(_layer_norm, m, 1024, m)),
    Curve("layer_norm, 64 rows", "K", _powers(4, 2**22, 16), lambda k: _rows(_layer_norm, 64, k, 0)),
    Curve("sum, rows of 1024", "M", _powers(4, 2**18), lambda m: _rows(_sum, m, 1024, m)),
    Curve("sum, one row", "K", _powers(4, 2**28, 16), lambda k: _rows(_sum, 1, k, 0)),
    Curve("causal attention, 8 heads of 64", "sequence length", _powers(2, 8192, 64), _causal),
    Curve("attention of one query, 8 samples, 8 heads of 64", "keys", _powers(4, 65536, 64), _decode),
)
