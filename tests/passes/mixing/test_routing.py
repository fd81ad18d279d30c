"""Experts chosen for each token: indices of the whole batch that only say where rows are mix nothing, dropping rows by place does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bi_inductor.testing import follows_neighbours
from tests.models.test_mixture import mixtral
from tests.models.tiny import MODELS, Logits, tokens
from tests.passes.mixing.graphs import findings, lines_of, marked_lines

BATCH, LENGTH, WIDTH, EXPERTS, CHOSEN = 4, 6, 8, 3, 2


def batch() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()


def weights() -> Tensor:
    return torch.randn(EXPERTS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


def sorted_by_expert(x: Tensor, w: Tensor) -> Tensor:
    """Rows in the order of their experts and back by the inverse permutation."""
    rows = x.reshape(-1, WIDTH)
    scores, chosen = (rows @ w[:, 0].T).softmax(-1).topk(CHOSEN)
    order = chosen.reshape(-1).argsort()
    ends = torch.histc(chosen.reshape(-1).float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
    out = torch._grouped_mm(rows[order // CHOSEN], w, ends) * scores.reshape(-1)[order][:, None]
    return out[order.argsort()].view(-1, CHOSEN, WIDTH).sum(1).view(x.shape)


def added_back(x: Tensor, w: Tensor) -> Tensor:
    """The same, put back by index_add."""
    rows = x.reshape(-1, WIDTH)
    scores, chosen = (rows @ w[:, 0].T).softmax(-1).topk(CHOSEN)
    order = chosen.reshape(-1).sort().indices
    ends = functional.one_hot(chosen.reshape(-1), EXPERTS).sum(0).cumsum(0).int()
    out = torch._grouped_mm(rows[order // CHOSEN], w, ends) * scores.reshape(-1)[order][:, None]
    return torch.zeros_like(rows).index_add(0, order // CHOSEN, out.to(rows.dtype)).view(x.shape)


def added_back_by_our_operator(x: Tensor, w: Tensor) -> Tensor:
    """The same by bi_inductor's own scatter of whole rows."""
    rows = x.reshape(-1, WIDTH)
    scores, chosen = (rows @ w[:, 0].T).softmax(-1).topk(CHOSEN)
    order = chosen.reshape(-1).sort().indices
    ends = functional.one_hot(chosen.reshape(-1), EXPERTS).sum(0).cumsum(0).int()
    out = torch._grouped_mm(rows[order // CHOSEN], w, ends) * scores.reshape(-1)[order][:, None]
    added: Tensor = torch.ops.bi_inductor.scatter(torch.zeros_like(rows), 0, order // CHOSEN, out.to(rows.dtype), "sum")
    return added.view(x.shape)


def inverse_written(x: Tensor, w: Tensor) -> Tensor:
    """The inverse permutation written by indices."""
    rows = x.reshape(-1, WIDTH)
    order = (rows @ w[:, 0].T).argmax(-1).argsort()
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0])
    return torch.tanh(rows[order])[back].view(x.shape)


def groups_of_terms(x: Tensor, w: Tensor) -> Tensor:
    """Each group of a row's elements is multiplied by itself; the results, [groups, rows, width], are added."""
    ends = torch.arange(1, 3, dtype=torch.int32) * (WIDTH // 2)
    return torch._grouped_mm(x.reshape(-1, WIDTH), w[0], ends).float().sum(0).view(x.shape)


def not_put_back(x: Tensor, w: Tensor) -> Tensor:
    rows = x.reshape(-1, WIDTH)
    order = (rows @ w[:, 0].T).argmax(-1).argsort()  # mixes
    return torch.tanh(rows[order]).view(x.shape)


def put_back_by_another_sort(x: Tensor, w: Tensor) -> Tensor:
    rows = x.reshape(-1, WIDTH)
    order = (rows @ w[:, 0].T).argmax(-1).argsort()
    other = (rows @ w[:, 1].T).argmax(-1).argsort()
    return torch.tanh(rows[order])[other.argsort()].view(x.shape)  # mixes


def dropped_by_capacity(x: Tensor, w: Tensor) -> Tensor:
    """A token has no expert when earlier ones, of other samples too, took all its places."""
    rows = x.reshape(-1, WIDTH)
    chosen = functional.one_hot((rows @ w[:, 0].T).argmax(-1), EXPERTS)
    place = chosen.cumsum(0) * chosen  # mixes
    kept = (place <= 5).all(-1)
    return (rows * kept[:, None]).view(x.shape)


def chosen_by_experts(x: Tensor, w: Tensor) -> Tensor:
    """Each expert takes its best tokens of the whole batch."""
    rows = x.reshape(-1, WIDTH)
    scores, tokens = (rows @ w[0, 0]).topk(7)  # mixes
    return torch.zeros_like(rows).index_add(0, tokens, rows[tokens] * scores[:, None]).view(x.shape)  # mixes


def counts_in_the_result(x: Tensor, w: Tensor) -> Tensor:
    """Losses that balance experts."""
    rows = x.reshape(-1, WIDTH)
    chosen = (rows @ w[:, 0].T).argmax(-1)
    return rows.view(x.shape) * functional.one_hot(chosen, EXPERTS).sum(0)[0]  # mixes


ROUTED = (sorted_by_expert, added_back, added_back_by_our_operator, inverse_written, groups_of_terms)
MIXING = (not_put_back, put_back_by_another_sort, dropped_by_capacity, chosen_by_experts, counts_in_the_result)


@pytest.mark.parametrize("fn", [*ROUTED, *MIXING], ids=lambda fn: fn.__name__)
def test_routing(fn: object) -> None:
    assert callable(fn)
    assert lines_of(findings(fn, batch(), weights()), fn) == marked_lines(fn)


@pytest.mark.parametrize("fn", [*ROUTED, *MIXING], ids=lambda fn: fn.__name__)
def test_running_agrees(fn: object) -> None:
    assert callable(fn)
    changed = follows_neighbours(lambda x: fn(x, weights()).float(), batch(), tolerance=0.02)
    assert bool(changed) == (fn in MIXING)


@pytest.mark.parametrize("name", [*MODELS, "mixtral"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_no_model_raises_a_false_alarm(name: str, dynamic: bool | None) -> None:
    model = Logits(MODELS[name]() if name in MODELS else mixtral())
    ids, mask = tokens(3, 7)
    mask[1, 5:] = 0
    with torch.no_grad():
        assert findings(model, ids, mask, dynamic=dynamic) == []
        if dynamic is None:
            # Without the places of padding, where a model may write anything.
            assert follows_neighbours(lambda ids, mask: model(ids, mask) * mask[..., None], (ids, mask), tolerance=1e-4) == ()
