"""A model that runs other code for a batch of exactly one: `find` runs that code and says so, in eager and under a compiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from bi_inductor import Variant, find
from tests.bi_inductor.planted import by_batch
from tests.templates.rows import randn

BACKENDS = ("eager", "aot_eager")
ANOTHER_WAY = "a batch of one takes another way than bigger ones"


class Branch(nn.Module):
    """Twice the input; for a batch of one by ``alone``."""

    def __init__(self, alone: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.alone = alone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        if x.shape[0] == 1:
            y = self.alone(x)  # one sample
        else:
            y = x * 2
        return y + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_bits_by_another_way_are_found_at_the_line_of_the_way(backend: str) -> None:
    result = find(Branch(lambda x: (x * 3.1 - x) * 0.9), randn(4, 8), backend=backend)
    assert result.node is not None, result.text()
    assert (result.node.name, result.node.op) == ("mul", "aten.mul.Tensor")
    assert "lambda x: (x * 3.1 - x) * 0.9" in result.node.line
    assert result.node.cause == "a batch of one calls aten.mul.Tensor in another way; the bits above are those of the output add"
    assert result.node.elements_different > 0
    assert [(bool(row.first), row.way) for row in result.variants] == [(True, "by another way"), (True, "by another way"), (False, "")]
    assert result.notes[0].startswith(f"{ANOTHER_WAY}: at ") and "by another way" in result.text()
    with pytest.raises(ValueError, match="cannot be cut out"):
        result.write_reproduction("reproduction.py")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_bits_by_another_way_are_not_called_the_same_way(backend: str) -> None:
    result = find(Branch(lambda x: x + x), randn(4, 8), backend=backend)
    assert result, result.text()
    assert result.text().count("same bits, by another way") == 2
    (note,) = result.notes
    assert "line " in note and note.endswith("it calls aten.add.Tensor where bigger batches call aten.mul.Tensor")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_before_the_ways_part_is_named_as_ever(backend: str) -> None:
    result = find(nn.Sequential(nn.ReLU(), Planted(), Branch(lambda x: x + x)), randn(4, 8), backend=backend)
    assert result.node is not None and result.node.op == "planted.by_batch.default", result.text()
    # What bigger batches do after the ways have parted is nothing that a batch of one does.
    assert [row.op for row in result.table][:1] == ["planted.by_batch.default"]
    assert "aten.mul.Tensor" not in [row.op for row in result.table]
    assert ANOTHER_WAY in result.notes[0]


class Planted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return by_batch(x)


def squeezes(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).squeeze(0) * 2


def squeezes_and_unsqueezes(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x).squeeze(0) * 2
    return (y if y.dim() == 2 else y.unsqueeze(0)) + 1


def adds_an_op(x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[0] > 1 else x * 1.5


def other_constant(x: torch.Tensor) -> torch.Tensor:
    return x + (torch.tensor([1.0]) if x.shape[0] == 1 else torch.tensor([2.0]))


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.exp(x) if x.shape[0] == 1 else torch.sin(x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("model", "invariant", "text"),
    [
        (squeezes, False, "calls aten.squeeze.dim in another way"),
        (squeezes_and_unsqueezes, True, "calls aten.squeeze.dim in another way"),
        (adds_an_op, True, "calls aten.mul.Tensor too"),
        (other_constant, False, "calls aten.lift_fresh_copy.default in another way"),
        (under_autocast, False, "a batch of one"),
    ],
)
def test_kinds_of_other_ways(model: Callable[..., torch.Tensor], invariant: bool, text: str, backend: str) -> None:
    result = find(model, randn(4, 8), backend=backend)
    assert result.invariant is invariant, result.text()
    assert text in result.notes[0]
    assert all(row.way.startswith("by another way") for row in result.variants[:2])


def test_a_model_that_refuses_one_sample() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise RuntimeError("more than one, please")
        return x * 2

    result = find(refuses, randn(4, 8))
    assert "the model cannot be captured for a batch of one" in result.notes[0] and "more than one, please" in result.notes[0]
    assert result.variants[0].way == "by the graph of bigger batches"
    # Nobody asks for a batch of one: nothing to say.
    assert find(refuses, randn(4, 8), variants=[Variant(), Variant(samples=[2, 0])]).notes == ()


def test_sizes_and_lengths_make_no_other_way() -> None:
    """Views to sizes that follow the batch and the length, a mask of the length, a table of the batch: one graph for all sizes."""

    def model(x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        flat = x.reshape(batch * length, width) * length
        causal = torch.ones(length, length).tril()
        return (causal @ flat.view(batch, length, width)).transpose(1, 2)[:, : width // 2] + torch.arange(batch).view(-1, 1, 1)

    variants = [Variant(), Variant(samples=[1]), Variant(samples=[0], pad_right=2)]
    result = find(model, randn(4, 5, 8), sequence_dim=1, variants=variants)
    assert not any(ANOTHER_WAY in note for note in result.notes), result.text()
