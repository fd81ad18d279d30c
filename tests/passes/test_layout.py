"""Where the samples are in a value, and the digests of their rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bi_inductor.check.batches import Inputs
from bi_inductor.find.capture import Captured, capture
from bi_inductor.find.digest import CHUNK, row_digests
from bi_inductor.passes.layout import BATCH, SEQUENCE, Extent, Factor, Layout
from bi_inductor.ulp import bits_differ
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


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.int8, torch.bool]
)
@pytest.mark.parametrize("width", [1, 3, 8, CHUNK // 2 + 5])
def test_digests_tell_rows_apart(dtype: torch.dtype, width: int) -> None:
    x = randn(5, width).mul(3).to(dtype)
    digests = row_digests(x)
    assert digests.shape == (5,)
    # A row's digest does not follow its place, the number of rows or the strides.
    assert torch.equal(row_digests(x[2:3]), digests[2:3])
    assert torch.equal(row_digests(x.t().contiguous().t()), digests)
    storage = torch.zeros(5 * width + 1, dtype=dtype)[1:].view(5, width)
    assert torch.equal(row_digests(storage.copy_(x)), digests)
    changed = x.clone()
    changed[3, -1] = ~changed[3, -1] if dtype == torch.bool else changed[3, -1] + 1
    expected = bits_differ(changed, x).any(1)
    assert expected.tolist() == [False, False, False, True, False]
    assert torch.equal(row_digests(changed) != digests, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_digests_see_signs_of_zero_and_one_nan(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 8, dtype=dtype)
    x[1, 1] = x[1, 3] = -0.0
    x[2, 1] = x[2, 5] = -0.0
    assert len(set(row_digests(x).tolist())) == 3
    quiet = torch.full((2, 8), float("nan"), dtype=dtype)
    quiet[1] = -quiet[1]
    assert bits_differ(quiet[0], quiet[1]).any().item() is False
    assert len(set(row_digests(quiet).tolist())) == 1
    assert row_digests(quiet)[0] != row_digests(torch.full((1, 8), float("inf"), dtype=dtype))[0]


def test_rows_that_nobody_asks_for_may_be_left_out() -> None:
    # Rows as long as a chunk are taken one by one.
    wide = randn(4, CHUNK)
    assert torch.equal(row_digests(wide, {0, 3}) != 0, torch.tensor([True, False, False, True]))
    assert torch.equal(row_digests(wide, {0, 3})[[0, 3]], row_digests(wide)[[0, 3]])
    # Short ones together: what is asked for is there.
    narrow = randn(1000, 3)
    assert torch.equal(row_digests(narrow, {5, 999})[[5, 999]], row_digests(narrow)[[5, 999]])
