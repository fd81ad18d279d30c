"""Where the samples are in a value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bi_inductor.check.batches import Inputs
from bi_inductor.find.capture import Captured, capture
from bi_inductor.passes.layout import BATCH, SEQUENCE, Extent, Factor, Layout
from tests.templates.rows import randn


def captured(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Captured:
    return capture(fn, Inputs(inputs, 0), [1] * len(inputs))


@pytest.mark.parametrize(
    ("fn", "dims"),
    [
        (lambda x: x.flatten(0, 1), ((BATCH, SEQUENCE), (Factor(6),))),
        (lambda x: x.transpose(0, 1).reshape(-1, 6), ((SEQUENCE, BATCH), (Factor(6),))),
        (lambda x: torch.relu(x.transpose(0, 1).reshape(-1, 6)), ((SEQUENCE, BATCH), (Factor(6),))),
        (lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).reshape(-1, x.shape[1], 3), None),
        (lambda x: x.view(-1, 2, 3), ((BATCH, SEQUENCE), (Factor(2),), (Factor(3),))),
        (lambda x: torch.cat([x, x]), ((Factor(2), BATCH), (SEQUENCE,), (Factor(6),))),
        (lambda x: x.repeat_interleave(3, 0), ((BATCH, Factor(3)), (SEQUENCE,), (Factor(6),))),
        (lambda x: x.sum((0, 1)), ((Factor(6),),)),
        (lambda x: x.flatten() @ x.flatten().unsqueeze(-1), ((Factor(1),),)),
        (lambda x: x[:, 0] @ x[:, 0].T, ((BATCH,), (BATCH,))),
    ],
)
def test_layouts(fn: Callable[..., torch.Tensor], dims: tuple[tuple[Factor, ...], ...] | None) -> None:
    found = captured(fn, randn(4, 5, 6))
    layout = found.layouts[found.outputs[0]]
    assert isinstance(layout, Layout)
    if dims is None:
        # Heads merged with the batch: the batch stays outermost.
        dims = ((BATCH, Factor(2)), (SEQUENCE,), (Factor(3),))
    assert layout.dims == dims


def test_rows_are_those_of_the_samples() -> None:
    """Whatever the layout, the rows of a value are those of the same function of each sample alone."""
    x = randn(4, 5, 6)
    for fn in (
        lambda x: x.transpose(0, 1).reshape(-1, 6),
        lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2).reshape(-1, x.shape[1], 3),
        lambda x: x.permute(2, 0, 1).reshape(2, -1, x.shape[1]),
    ):
        found = captured(fn, x)
        layout = found.layouts[found.outputs[0]]
        assert isinstance(layout, Layout) and layout.comparable(padded=True)
        rows = layout.rows(fn(x), Extent(4, 5, 0, 5))
        for sample in range(4):
            alone = layout.rows(fn(x[sample : sample + 1]), Extent(1, 5, 0, 5))
            assert torch.equal(rows[sample], alone[0])
        padded = torch.nn.functional.pad(x, (0, 0, 2, 1))
        assert torch.equal(layout.rows(fn(padded), Extent(4, 8, 2, 5)), rows)


def test_sizes_that_are_no_multiples_of_the_batch_are_not_compared() -> None:
    found = captured(lambda x: torch.cat([x, x[:1]]), randn(4, 5, 6))
    assert found.layouts[found.outputs[0]] is None
