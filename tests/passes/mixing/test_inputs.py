"""Which inputs hold samples, and along which dim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bi_inductor.errors import OptionError
from tests.passes.mixing.graphs import findings


class Model(nn.Module):
    """Parameters, buffers and a plain attribute whose first dim is as large as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4, 4))
        self.scale = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ self.table.softmax(0) * self.scale.mean()


TABLE = torch.ones(4, 4)


def test_parameters_and_what_a_function_closes_over_are_shared() -> None:
    inner = torch.ones(4, 4)
    assert findings(Model(), torch.randn(4, 4)) == []
    assert findings(lambda x: x @ inner.cumsum(0) @ TABLE.cumsum(0), torch.randn(4, 4)) == []


def test_an_input_of_another_size_is_shared() -> None:
    assert findings(lambda x, mask, table: (x + table.cumsum(0)) * mask, torch.randn(3, 7, 5), torch.ones(3, 7, 1), torch.ones(7, 5)) == []
    # A size as large as the batch elsewhere is no batch.
    assert findings(lambda x: x.mean(1) + x.softmax(2).sum(1), torch.randn(4, 4, 4)) == []


def test_one_sample_alone_has_nobody_to_mix_with() -> None:
    assert findings(lambda x: x - x.mean(0), torch.randn(1, 4)) == []


def middle(x: Tensor, mask: Tensor) -> Tensor:
    return x.softmax(0) * x.mean(1, keepdim=True) * mask.cumsum(0)


@pytest.mark.parametrize(
    ("batch_dim", "lines"),
    [(None, 2), (1, 1), ({"x": 1, "mask": None}, 1), ({"x": 1}, 1), ({"x": None, "mask": None}, 0), ({"mask": None}, 1)],
)
def test_the_option_names_the_dim(batch_dim: Any, lines: int) -> None:
    """Along dim 0 softmax and cumsum mix, along dim 1 the mean does."""
    found = findings(middle, torch.randn(6, 3, 5), torch.ones(6, 3, 1), options={"batch_dim": batch_dim})
    assert len(found) == lines
    assert [entry.op for entry in found if entry.op == "aten.mean"] == ["aten.mean"] * (
        batch_dim not in (None, {"mask": None}) and lines > 0
    )


def test_a_dim_that_is_not_there() -> None:
    with pytest.raises(Exception, match=r"'batch_dim' gives dim 3 for 'x', which has 3 dims; allowed are -3 to 2") as caught:
        findings(middle, torch.randn(6, 3, 5), torch.ones(6, 3, 1), options={"batch_dim": {"x": 3}})
    assert isinstance(caught.value.__cause__ or caught.value, OptionError) or "OptionError" in str(caught.value)


def test_a_marked_dim_is_the_batch() -> None:
    x, table = torch.randn(5, 4), torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    (found,) = findings(lambda x, table: x.sum(0) + table.sum(0), x, table, dynamic=None)
    assert found.reason == "reduces dim 0, which holds the samples; samples: x [batch, 4]"


def test_a_cache_of_a_module_has_a_row_for_each_sample() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(3, 2, 4, 5))

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            self.cache.index_copy_(2, place, x)
            return self.cache.mean(0) + self.cache.sum(2, keepdim=True)

    (found,) = findings(Cached(), torch.randn(3, 2, 1, 5), torch.tensor([2]))
    assert found.op == "aten.mean"


def test_a_backward_is_not_looked_at() -> None:
    def train(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    w = torch.randn(4, 4, requires_grad=True)
    assert findings(lambda x: train(x, w), torch.randn(3, 4, requires_grad=True)) == []
