"""The model of what the pinned matmul tiles can reach."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.roofline import LINEARS, PEER_TILE, ROWS, attention_table, modelled, modelled_attention, table
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


def test_attention_reads_what_it_sees() -> None:
    """By hand: 32 tiles of 8 KV heads, two waves of them, each of 128 keys; the memory moves all keys once and takes longer."""
    row = modelled_attention(H100, 1, 1, 64, 32)
    moved = 2 * (2 * 4096 * 8 * 128 + 2 * 32 * 128)
    assert (row.tiles, row.waves, row.moved) == (256, 2, moved) and row.operations == 4 * 32 * 128 * 4096
    assert row.seconds == pytest.approx(moved / 3.35e12) and row.fraction == pytest.approx(1)
    # One program for all keys of a tile: the cache of its multiprocessor takes longer.
    alone = modelled_attention(H100, 1, 1, 16)
    assert alone.tiles == 8 and alone.seconds == pytest.approx(2 * 128 * (4 + 2 * 4096) / (5120 * 1.755e9 / 132))


def test_half_of_the_keys_are_seen_in_prefill() -> None:
    row = modelled_attention(H100, 1, 4096, 64)
    assert row.tiles == 256 * 8 and row.operations == 4 * 32 * 128 * 4096 * 4097 // 2
    # The mean tile: 16 queries, which end at 16, 32, ..., 4096.
    read = 2 * 128 * (64 + 2 * 16 * 257 / 2) / (5120 * 1.755e9 / 132)
    assert row.seconds == pytest.approx(16 * read)


def test_the_page_holds_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert table(H100) in page and attention_table(H100) in page
