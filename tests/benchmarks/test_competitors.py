"""The columns of the tables: what each compiles, and that one sample at a time sees each sample."""

from __future__ import annotations

import pytest
import torch

from benchmarks.competitors import COMPETITORS, FEW, calls, sample_of
from benchmarks.rows import ALL_ROWS, FEW_ROWS, select
from benchmarks.timing import measure
from bi_inductor import OptionError


def test_samples_are_views_of_the_batch() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    cut = sample_of([x, x + 1], 1, 3)
    assert torch.equal(cut[0], x[1:2])
    assert cut[0].data_ptr() == x[1].data_ptr()
    assert torch.equal(cut[1], x[1:2] + 1)
    assert sample_of(7, 1, 3) == 7
    with pytest.raises(ValueError, match=r"shape \(3, 4\) has no batch of 2"):
        sample_of(x, 1, 2)


def test_every_competitor_computes_the_function_and_changes_no_setting() -> None:
    from torch._inductor import config

    def function(x: torch.Tensor, shift: int) -> torch.Tensor:
        return torch.softmax(x + shift, -1)

    x = torch.randn(3, 8)
    settings = config.batch_invariant, config.deterministic
    for name, call in calls(tuple(COMPETITORS), function, (x, 2), 3).items():
        result = call()
        assert len(result) == 3
        result = torch.cat(result) if isinstance(result, list) else result
        torch.testing.assert_close(result, function(x, 2), msg=name)
        assert (config.batch_invariant, config.deterministic) == settings


def test_a_batch_of_one_has_no_column_one_by_one() -> None:
    assert "one-by-one" not in calls(tuple(COMPETITORS), torch.neg, (torch.ones(1, 2),), 1)
    assert "one-by-one" in calls(tuple(COMPETITORS), torch.neg, (torch.ones(2, 2),), 2)


def test_options_of_ours_reach_ours_alone() -> None:
    timed = calls(FEW, torch.neg, (torch.ones(2, 2),), 2, {"allow": "no sequence"})
    for name, call in timed.items():
        if name == "ours":
            with pytest.raises(OptionError, match="option 'allow' must be"):
                call()
        else:
            assert call().sum() == -4, name


def test_options_reach_the_compile() -> None:
    """An option is in force while Inductor compiles, and only then."""
    from torch._inductor import config

    found: list[tuple[bool, bool]] = []

    def record(graph: torch.fx.Graph) -> None:
        found.append((config.batch_invariant, config.deterministic))

    for name in ("stock", "stock-bi", "stock-det"):
        torch.compiler.reset()
        competitor = COMPETITORS[name]
        options = {**competitor.options, "post_grad_custom_pre_pass": record, "fx_graph_cache": False}
        type(competitor)(competitor.backend, options).compiled(lambda x: x + 1)(torch.ones(4))
    assert found == [(False, False), (True, False), (False, True)]


def test_rows_are_selected_by_name() -> None:
    assert list(select(False, "")) == list(FEW_ROWS)
    assert list(select(True, "ResNet")) == ["ResNet-18, batch 1", "ResNet-18, batch 8"]
    assert set(FEW) <= set(COMPETITORS)
    assert len(ALL_ROWS) == 28


def test_rounds_are_cut_where_a_row_would_take_too_long() -> None:
    counts = {"stock": 0, "ours": 0}

    def call(name: str) -> None:
        counts[name] += 1

    timed = {name: lambda name=name: call(name) for name in counts}
    result = measure(timed, rounds=40, seconds_per_block=1e-9, most_seconds=0.0)
    # Two calls before the rounds and one a round: a block is one call.
    assert counts == {"stock": 7, "ours": 7}
    low, middle, high = result.ratios["ours/stock"]
    assert low <= middle <= high
