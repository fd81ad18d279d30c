"""What Dynamo leaves to eager is said: one warning for each break that ends a graph, none for a whole function."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import expecttest
import pytest
import torch
from torch import Tensor

import bi_inductor
from bi_inductor.graph_breaks import GraphBreak, one_line


@torch.compiler.disable
def eager(x: Tensor) -> Tensor:
    return x.softmax(-1)


def disabled(x: Tensor) -> Tensor:
    return eager(x * 2) + 1


def branching(x: Tensor) -> Tensor:
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


def whole(x: Tensor) -> Tensor:
    return x * 2 + 1


def warned(fn: Callable[[Tensor], Tensor], backend: str = "batch_invariant") -> list[str]:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        torch.compile(fn, backend=backend)(torch.randn(3, 2, 4))
    return [str(warning.message) for warning in caught if warning.category is bi_inductor.GraphBreakWarning]


def test_a_warning_names_reason_and_line() -> None:
    (text,) = warned(disabled)
    lines = text.splitlines()
    assert lines[2].startswith(f'  at "{__file__}", line ') and lines[2].endswith("in disabled: return eager(x * 2) + 1")
    expecttest.assert_expected_inline(
        "\n".join((*lines[:2], *lines[3:])),
        """\
Dynamo ended a graph here; what it could not capture runs in eager, where bits may follow the batch:
  Skip calling `torch.compiler.disable()`d function: Skip calling function `<function eager>` since it was wrapped with `torch.compiler.disable` (reason: None)
fullgraph=True turns such places into errors.""",  # noqa: E501  # Dynamo's reason
    )
    (branch,) = warned(branching)
    assert "a branch on the value of a tensor" in branch and "if y.sum() > 0 else" in branch


def test_no_warning_without_a_break_or_for_another_backend() -> None:
    assert warned(whole) == []
    assert warned(disabled, "inductor") == []


def test_a_report_lists_the_break_and_does_not_warn() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", bi_inductor.GraphBreakWarning)
        explanation = bi_inductor.explain(branching, torch.randn(3, 2, 4))
    (found,) = explanation.breaks
    assert found.reason == "a branch on the value of a tensor" and "y.sum() > 0" in found.source


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("generic_jump TensorVariable()", "a branch on the value of a tensor"),
        ("Bad op\n  Explanation: too\n  new\n  Hint: none\n  Developer debug context: x", "Bad op: too new"),
        ("plain", "plain"),
    ],
)
def test_reason_in_one_line(reason: str, line: str) -> None:
    assert one_line(reason) == line
    assert GraphBreak(line).source == ""
