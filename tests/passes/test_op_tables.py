"""The table is complete: every op of torch that can be in a post-grad graph has a class, unsupported ones with a reason."""

from __future__ import annotations

import operator

import pytest
import torch

import bi_inductor.passes.rewrite  # noqa: F401  # registers the rules
from bi_inductor.passes import op_classes
from bi_inductor.passes.complex_numbers import COMPLEX_RULES
from bi_inductor.passes.decompositions import decomposition_table
from bi_inductor.passes.op_classes import OpClass, classify, op_name, table_of
from bi_inductor.passes.op_tables.reachable import Reach, all_ops, reach
from bi_inductor.passes.op_tables.unsupported import UNSUPPORTED
from bi_inductor.passes.rewriter import RULES

aten = torch.ops.aten
LISTED = set().union(*table_of().values())


def missing(ops: list[torch._ops.OpOverload], listed: set[str]) -> list[str]:
    """Names of the ops that can be in a graph and have no class."""
    table = decomposition_table("test")
    rewritten = {op_name(op) for op in (*RULES, *COMPLEX_RULES) if not isinstance(op, str)}
    return sorted({op_name(op) for op in ops if reach(op, table) is Reach.REACHES} - listed - rewritten)


def test_every_op_that_can_be_in_a_graph_has_a_class() -> None:
    """What a new torch adds is named here; it belongs into the file of its class under passes/op_tables, with a reason if unsupported."""
    assert missing(all_ops(), LISTED) == []


def test_an_op_without_a_class_is_found() -> None:
    assert missing([aten.erf.default, aten.add.Tensor], LISTED - {"aten.erf"}) == ["aten.erf"]


def test_no_op_is_in_two_files() -> None:
    names = [name for members in table_of().values() for name in members]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_every_name_is_an_op_of_torch() -> None:
    known = {op_name(op) for op in all_ops()}
    # Collectives are no ops of a single process's graph.
    collectives = {name for name in LISTED - known if name.startswith("_c10d_functional") and operator.attrgetter(name)(torch.ops)}
    assert sorted(LISTED - known - collectives) == []


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.sin.default, Reach.REACHES),
        (aten.linear.default, Reach.COMPOSITE),
        (aten.silu.default, Reach.DECOMPOSED),
        (aten.add_.Tensor, Reach.WRITES),
        (aten.add.out, Reach.WRITES),
        (aten.add.int, Reach.NO_TENSORS),
        (aten._flash_attention_forward.default, Reach.NO_KERNEL),
    ],
    ids=str,
)
def test_what_keeps_an_op_out_of_a_graph(op: torch._ops.OpOverload, expected: Reach) -> None:
    assert reach(op, decomposition_table("test")) is expected


def test_an_unsupported_op_has_a_reason_and_is_refused() -> None:
    x = [torch.empty(1)]
    for text, members in UNSUPPORTED.items():
        assert text and members
        for op in all_ops():
            if op_name(op) in members and op not in RULES:
                assert classify(op, x, False) is OpClass.UNSUPPORTED, op
    assert op_classes.why_unsupported("aten.igamma").startswith("Inductor calls ATen's elementwise kernel")
    assert "no name" in op_classes.why_unsupported("aten.an_op_of_tomorrow")
