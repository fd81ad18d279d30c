"""`check` runs padded inputs too, and compares what is not padding, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bi_inductor.check import check
from bi_inductor.check.result import CheckResult


def masked_sum(ids: Tensor, mask: Tensor) -> Tensor:
    """Running sums along the sequence that a padded place adds nothing to."""
    return (ids * mask).cumsum(1) * mask


def inputs() -> dict[str, Tensor]:
    # Whole numbers, whose sums are exact.
    return {"ids": torch.randint(1, 9, (4, 6)).float(), "mask": torch.ones(4, 6)}


def padded(fn, given, **arguments) -> dict[str, int]:
    result: CheckResult = check(fn, given, backend="eager", batch_sizes=(1, 4), sequence_dim=1, out_sequence_dim=1, **arguments)
    return {f"{row.run}, {row.batch_size}": row.rows_different for row in result.rows if row.run.startswith("padded")}


def test_every_side_and_amount_runs_and_what_a_mask_hides_changes_nothing() -> None:
    found = padded(masked_sum, inputs(), padding=(1, 3))
    assert found == {f"padded {side} by {amount}, {size}": 0 for side in ("left", "right") for amount in (1, 3) for size in (1, 4)}


def test_padding_that_is_seen_is_found() -> None:
    # Left padding of ones moves the sums; right padding comes after them.
    found = padded(masked_sum, inputs(), padding=(2,), padding_values={"ids": 5, "mask": 1})
    assert found == {"padded left by 2, 1": 4, "padded left by 2, 4": 4, "padded right by 2, 1": 0, "padded right by 2, 4": 0}


def test_one_side() -> None:
    # Places are counted from the first one on: only padding on the right leaves a sample what it is.
    def placed(ids: Tensor, mask: Tensor) -> Tensor:
        return (ids + torch.arange(ids.shape[1])) * mask

    assert padded(placed, inputs(), padding=(2,), padding_sides=("right",)) == {"padded right by 2, 1": 0, "padded right by 2, 4": 0}
    assert padded(placed, inputs(), padding=(2,), padding_sides=("left",)) == {"padded left by 2, 1": 4, "padded left by 2, 4": 4}


def test_without_a_sequence_dim_nothing_is_padded() -> None:
    assert not [row for row in check(torch.relu, torch.ones(4, 6), backend="eager").rows if "padded" in row.run]


def test_gradients_are_cut_too() -> None:
    def function(x: Tensor, seen: Tensor) -> Tensor:
        return torch.sin(x) * seen

    given = {"x": torch.randn(4, 6), "seen": torch.ones(4, 6)}
    assert set(padded(function, given, padding=(2,), grad=True).values()) == {0}
    # The gradient of a place depends on how long the sequence is.
    found = padded(lambda x, seen: x * x.shape[1], given, padding=(2,), grad=True)
    assert set(found.values()) == {4}


def test_outputs_without_a_sequence() -> None:
    def last(ids: Tensor, mask: Tensor) -> Tensor:
        return (ids * mask).sum(1)

    arguments = {"backend": "eager", "sequence_dim": {"ids": 1, "mask": 1}}
    assert check(last, inputs(), **arguments)
    with pytest.raises(ValueError, match="give out_sequence_dim for an output that is as long as the padded inputs"):
        check(masked_sum, inputs(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_dim": 2}, r"sequence_dim=2 is out of range for inputs\['ids'\]"),
        ({"sequence_dim": {}}, r"sequence_dim=\{\} names no dim of any tensor"),
        ({"sequence_dim": 1, "padding_values": {"idz": 1}}, r"padding_values names 'idz'; inputs have 'ids', 'mask'"),
        ({"sequence_dim": 1, "padding": (0,)}, r"padding: got 0; allowed are whole numbers from 1 on"),
        ({"sequence_dim": 1, "padding_sides": "left"}, r"padding_sides: got 'left'; allowed is a sequence of 'left' and 'right'"),
        ({"sequence_dim": 1, "padding_sides": ("top",)}, r"padding_sides: got \('top',\)"),
        ({"sequence_dim": 1, "out_sequence_dim": 3}, r"out_sequence_dim=3 is out of range for output"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(masked_sum, inputs(), backend="eager", **arguments)
