"""Results of one element in the interpreter: the lanes of a program that are outside of them write nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.interpreter import run_compiled
from tests.interpreter.process import Interpreter
from tests.templates.rows import randn

pytestmark = pytest.mark.xdist_group("interpreter")


def running_sum(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1)


def scattered(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(1, torch.zeros_like(src, dtype=torch.int64), src)


# By name: the function, and sizes of its arguments.
CALLS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "product": (torch.mm, ((1, 72), (72, 1))),
    "convolution": (F.conv2d, ((1, 8, 3, 3), (1, 8, 3, 3))),
    "scatter": (scattered, ((1, 1), (1, 9))),
    "scan": (running_sum, ((1, 1),)),
    "attention": (F.scaled_dot_product_attention, ((1, 1, 1, 1), (1, 1, 90, 1), (1, 1, 90, 1))),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_element(interpreter: Interpreter, name: str) -> None:
    function, sizes = CALLS[name]
    given = [randn(*size, seed=i) for i, size in enumerate(sizes)]
    found = interpreter.run(run_compiled, function, *given)
    exact = function(*(t.double() for t in given))
    assert found.numel() == 1 and found.shape == exact.shape
    # What lanes without terms hold is another number.
    assert abs(exact.item()) > 0.01
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6)
