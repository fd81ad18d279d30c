"""Beyond Dynamo's recompile limit a call is left to eager, without a word to the backend: what README says about it."""

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from tests.templates.rows import assert_same_bits, randn


def call_with_many_sizes(**settings: bool) -> torch.Tensor:
    """The sums of 2 to 12 rows, one call for each number of them; those of the last call."""
    torch.compiler.reset()
    compiled = torch.compile(lambda x: x.sum(-1), backend="batch_invariant", **settings)
    x = randn(12, 4097)
    for rows in range(2, 13):
        found = compiled(x[:rows])
    return found


def test_the_limit_is_an_error_with_fullgraph() -> None:
    with pytest.raises(FailOnRecompileLimitHit):
        call_with_many_sizes(dynamic=False, fullgraph=True)


def test_the_limit_is_an_error_where_it_is_asked_for() -> None:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True), pytest.raises(FailOnRecompileLimitHit):
        call_with_many_sizes(dynamic=False)


def test_one_graph_for_all_sizes_does_not_reach_it() -> None:
    expected = torch.ops.bi_inductor.sum(randn(12, 4097), [1])
    assert_same_bits(call_with_many_sizes(dynamic=True, fullgraph=True), expected)
    # Control: with a graph for each size the last of them is eager's.
    assert not torch.equal(call_with_many_sizes(dynamic=False), expected)
