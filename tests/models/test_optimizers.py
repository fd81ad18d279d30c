"""Optimizers whose step is compiled: torch's arithmetic, each op rounded, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bi_inductor.settings import thread_count
from tests.templates.rows import assert_same_bits, randn

STEPS, RATE, MOMENTUM, DECAY = 3, 0.1, 0.9, 0.01

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], bool], Any]] = {
    "SGD": lambda given, foreach: torch.optim.SGD(given, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, foreach=foreach),
    "Adam": lambda given, foreach: torch.optim.Adam(given, lr=RATE, foreach=foreach),
    "AdamW": lambda given, foreach: torch.optim.AdamW(given, lr=RATE, foreach=foreach),
}


def parameters() -> list[nn.Parameter]:
    """Large enough to be split over threads, and of sizes that leave a tail."""
    found = [nn.Parameter(randn(*shape, seed=i)) for i, shape in enumerate([(257, 131), (17,), (5, 3, 3)])]
    for i, parameter in enumerate(found):
        parameter.grad = randn(*parameter.shape, seed=10 + i)
    return found


def after_steps(name: str, foreach: bool, compiled: bool, threads: int = 1) -> list[Tensor]:
    given = parameters()
    step = OPTIMIZERS[name](given, foreach).step
    if compiled:
        step = torch.compile(step, backend="batch_invariant")
    with thread_count(threads):
        for _ in range(STEPS):
            step()
    return [parameter.detach() for parameter in given]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step(name: str) -> None:
    expected = after_steps(name, True, compiled=True)
    for found, value in zip(after_steps(name, True, compiled=False), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
    for found, value in zip(after_steps(name, True, compiled=True, threads=2), expected, strict=True):
        assert_same_bits(found, value)


def test_one_parameter_after_the_other_and_by_hand() -> None:
    """torch's Adam has another arithmetic for the list of all parameters than for one of them; its SGD has the same."""
    for foreach in (True, False):
        for parameter, found in zip(parameters(), after_steps("SGD", foreach, compiled=True, threads=3), strict=True):
            assert_same_bits(by_hand(parameter.detach(), parameter.grad), found)
    for found, value in zip(after_steps("AdamW", False, compiled=True), after_steps("AdamW", False, compiled=False), strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


def by_hand(x: Tensor, grad: Tensor | None) -> Tensor:
    """SGD with momentum and weight decay; every operation rounds, where ATen's kernels fuse a product and a sum."""
    assert grad is not None
    velocity: Tensor | None = None
    for _ in range(STEPS):
        decayed = grad + DECAY * x
        velocity = decayed if velocity is None else MOMENTUM * velocity + decayed
        x = x + -RATE * velocity
    return x
