"""The model of what the pinned matmul tiles can reach."""

from __future__ import annotations

import pytest
import torch

from benchmarks.roofline import LINEARS, PEER_TILE, ROWS, modelled
from bi_inductor.targets import target_named
from bi_inductor.templates.matmul.configurations import configuration

H100 = target_named("sm_90")


def fraction(rows: str, linear: str, tile: tuple[int, int] | None = None) -> float:
    """Of the roofline of an H100, with the tile of the table or another one."""
    n, k = LINEARS[linear]
    chosen = configuration("sm_90", torch.bfloat16, n)
    return modelled(H100, ROWS[rows], n, k, tile or (chosen.block_m, chosen.block_n)).fraction


@pytest.mark.parametrize("linear", LINEARS)
def test_no_tile_of_the_table_is_worse_than_64_by_128(linear: str) -> None:
    """``k``, whose columns are few, trades prefill for decode."""
    for rows in ROWS:
        assert fraction(rows, linear) >= fraction(rows, linear, (64, 128)) or (linear, rows) == ("k", "prefill 4096"), rows


def test_wide_results_gain_in_prefill_and_others_in_decode() -> None:
    for linear in ("gate, up", "gate"):
        assert fraction("prefill 4096", linear) > 1.4 * fraction("prefill 4096", linear, (64, 128))
    for linear in ("q, k, v", "output", "down"):
        for rows in ("decode 64", "decode 1"):
            assert fraction(rows, linear) > max(fraction(rows, linear, (64, 128)), fraction(rows, linear, PEER_TILE))


def test_padded_rows_are_multiplied_and_not_read() -> None:
    """By hand: 32 tiles, one wave; 128 rows of 989 / 132 TFLOP/s against one row and 128 columns of 5120 / 132 bytes a clock."""
    row = modelled(H100, 1, 4096, 4096, (128, 128))
    multiplied, read = 2 * 128 * 128 * 4096 / (989e12 / 132), 2 * 129 * 4096 / (5120 * 1.755e9 / 132)
    assert (row.tiles, row.waves) == (32, 1) and row.seconds == pytest.approx(max(multiplied, read))
    assert row.fraction == pytest.approx(2 * (2 * 4096 + 4096**2) / 3.35e12 / multiplied)
