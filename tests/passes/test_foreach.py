"""Ops on lists of tensors are one op for each tensor: torch's values, and an optimizer step whose bits do not follow the threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bi_inductor.passes.foreach import DECOMPOSITIONS
from bi_inductor.settings import thread_count
from tests.templates.rows import differences, randn


def operand(kind: str, seed: int) -> Any:
    """A value for an argument of one of the schemas."""
    tensors = [randn(3, 4, seed=seed).sigmoid(), randn(7, seed=seed + 1).sigmoid()]
    if kind == "List[Tensor]":
        return tensors
    return {"List[number]": [0.5, 2.0], "Tensor": torch.tensor(0.5), "number": 0.5}[kind]


@pytest.mark.parametrize("overload", DECOMPOSITIONS, ids=str)
def test_each_has_torchs_values(overload: Any) -> None:
    required = [each for each in overload._schema.arguments if not each.has_default_value()]
    operands = [operand(str(each.type), 2 * seed) for seed, each in enumerate(required)]
    for given, expected in zip(DECOMPOSITIONS[overload](*operands), overload(*operands), strict=True):
        torch.testing.assert_close(given, expected)


def test_values_come_by_keyword() -> None:
    lists = [[randn(5, seed=seed)] for seed in range(3)]
    (given,) = DECOMPOSITIONS[torch.ops.aten._foreach_addcdiv.Scalar](*lists, 0.25)
    torch.testing.assert_close(given, torch.addcdiv(*(x for (x,) in lists), value=0.25))


def step(parameter: Tensor, gradient: Tensor, average: Tensor, square: Tensor) -> list[Tensor]:
    """The arithmetic of Adam's step for one parameter, as its foreach implementation spells it, clipping by the norm included."""
    (norm,) = torch._foreach_norm([gradient])
    gradients = torch._foreach_div([gradient], [norm])
    averages = torch._foreach_lerp([average], gradients, 0.1)
    squares = torch._foreach_addcmul(torch._foreach_mul([square], 0.999), gradients, gradients, 0.001)
    denominators = torch._foreach_add(torch._foreach_sqrt(squares), 1e-8)
    return [*torch._foreach_addcdiv([parameter], averages, denominators, [-1e-3]), *torch._foreach_tanh(averages)]


def test_an_optimizer_step_compiles_and_no_bit_follows_the_threads() -> None:
    tensors = [randn(200_001, seed=0), randn(200_001, seed=1), randn(200_001, seed=2), randn(200_001, seed=3).abs()]
    compiled = torch.compile(step, backend="batch_invariant")
    expected = compiled(*tensors)
    for given, stock in zip(expected, step(*tensors), strict=True):
        torch.testing.assert_close(given, stock)
    for threads in (1, 3):
        with thread_count(threads):
            assert [differences(a, b) for a, b in zip(compiled(*tensors), expected, strict=True)] == [0, 0]
