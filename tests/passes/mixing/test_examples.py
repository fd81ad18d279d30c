"""Each example that mixes is found with its line, no other is; running with other neighbours says the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bi_inductor.testing import follows_neighbours
from tests.passes.mixing.examples import BATCH, GROUPS, LENGTH, batch
from tests.passes.mixing.graphs import MARK, findings, lines_of, marked_lines

Group = Callable[[Tensor], list[Tensor]]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_lines_that_mix_are_found(group: Group) -> None:
    found = findings(group, batch())
    assert lines_of(found, group) == marked_lines(group)
    assert [entry for entry in found if not entry.certain] == []


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_running_agrees(group: Group) -> None:
    lines = [line for line in inspect.getsource(group).splitlines() if line.startswith(" " * 8) and not line.strip().startswith("#")]
    expected = {f"output[{i}]" for i, line in enumerate(lines) if line.endswith(MARK)}
    assert set(follows_neighbours(group, batch(), tolerance=1e-4)) == expected


def test_a_dynamic_batch_is_followed_by_its_symbol() -> None:
    def function(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.view(-1, 8) @ table
        return flat.view(x.shape).mean(1), flat.mean(0)

    (found,) = findings(function, batch(), torch.ones(8, 8), dynamic=True)
    assert (found.op, found.reason.split(";")[0]) == ("aten.mean", "reduces dim 0, which holds the samples")


def test_a_value_that_follows_its_place_is_found() -> None:
    """Neighbours change nothing here, another place does."""

    def function(x: Tensor) -> list[Tensor]:
        return [
            x * torch.arange(BATCH)[:, None, None],  # mixes
            x * torch.arange(LENGTH)[:, None],
            x.flatten(0, 1) * torch.arange(LENGTH).repeat(BATCH)[:, None],
        ]

    assert lines_of(findings(function, batch()), function) == marked_lines(function)
