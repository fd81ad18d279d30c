"""Graphs are compared by meaning: names play no part, another size changes lines and matches nodes, big graphs take seconds."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from bi_inductor.reports.graph_diff import GraphDiff, compare, match
from bi_inductor.reports.records import GraphRecord, NodeRecord


class Builder:
    """Writes graphs: `b.call("aten.mm.default", x, w)` returns the index of the new node."""

    def __init__(self, value: str = "float32[8, 4]") -> None:
        self.value = value
        self.nodes: list[NodeRecord] = []

    def placeholder(self, value: str = "") -> int:
        return self._add("placeholder", "placeholder", (), value)

    def call(self, op: str, *arguments: int | str, value: str = "") -> int:
        pieces = [piece for argument in arguments for piece in (argument, ", ")][:-1]
        return self._add("call", op, tuple(pieces), value)

    def graph(self, *results: int) -> GraphRecord:
        self._add("output", "output", results, "")
        return GraphRecord("built", tuple(self.nodes))

    def _add(self, kind: str, op: str, arguments: tuple[int | str, ...], value: str) -> int:
        self.nodes.append(NodeRecord(f"n{len(self.nodes)}", kind, op, arguments, value or self.value))
        return len(self.nodes) - 1


def linear(ours: bool, batch: int = 8) -> GraphRecord:
    b = Builder(f"float32[{batch}, 4]")
    x, weight, bias = b.placeholder(), b.placeholder("float32[4, 4]"), b.placeholder("float32[4]")
    flipped = b.call("aten.permute.default", weight, "[1, 0]", value="float32[4, 4]")
    if ours:
        out = b.call("bi_inductor.matmul.default", x, flipped, bias)
    else:
        out = b.call("aten.addmm.default", bias, x, flipped)
    return b.graph(b.call("aten.relu.default", out))


def test_renamed_nodes_are_no_difference() -> None:
    graph = linear(False)
    renamed = GraphRecord("other", tuple(dataclasses.replace(node, name=f"other_{i}") for i, node in enumerate(graph.nodes)))
    section = compare(graph, renamed, "same")
    assert section.changes == 0 and not GraphDiff((section,))
    assert section.text() == "same: 0 of 7 lines differ\n@@ 7 equal lines"


def test_a_rewritten_op_is_one_changed_line() -> None:
    section = compare(linear(False), linear(True), "stock to ours")
    assert section.text(1) == (
        "stock to ours: 1 of 7 lines differ\n"
        "@@ 3 equal lines\n"
        "  %3 = aten.permute.default(%1, [1, 0]) -> float32[4, 4]\n"
        "- %4 = aten.addmm.default(%2, %0, %3) -> float32[8, 4]\n"
        "+ %4 = bi_inductor.matmul.default(%0, %3, %2) -> float32[8, 4]\n"
        "  %5 = aten.relu.default(%4) -> float32[8, 4]\n"
        "@@ 1 equal line"
    )


def test_another_batch_size_matches_every_node() -> None:
    section = compare(linear(True, 1), linear(True, 8), "1 to 8")
    assert [row.kind for row in section.rows] == ["resized", "same", "same", "same", "resized", "resized", "resized"]
    assert section.resized_only and section.headline() == "1 to 8: 4 of 7 lines differ, only sizes"
    assert not compare(linear(True, 1), linear(False, 8)).resized_only


@pytest.mark.parametrize(
    ("op", "argument", "other", "kind"),
    [
        ("aten.view.default", "[1, 4]", "[8, 4]", "resized"),
        ("prims.iota.default", "1, start=0", "8, start=0", "resized"),
        ("aten.full.default", "[1, 4], 2", "[8, 4], 2", "resized"),
        ("aten.full.default", "[4], 1", "[4], 8", "changed"),
        ("aten.permute.default", "[1, 0]", "[0, 1]", "changed"),
        ("aten.add.Tensor", "1", "2", "changed"),
        ("aten.mul.Tensor", "0.5", "0.25", "changed"),
    ],
)
def test_sizes_are_told_from_dims_and_constants(op: str, argument: str, other: str, kind: str) -> None:
    def graph(text: str) -> GraphRecord:
        b = Builder()
        return b.graph(b.call(op, b.placeholder(), text))

    assert [row.kind for row in compare(graph(argument), graph(other)).rows] == ["same", kind, "same"]


def test_an_added_and_a_removed_node() -> None:
    def chain(*ops: str) -> GraphRecord:
        b = Builder()
        x = b.placeholder()
        for op in ops:
            x = b.call(op, x)
        return b.graph(x)

    longer, shorter = chain("aten.exp.default", "aten.neg.default", "aten.sin.default"), chain("aten.exp.default", "aten.sin.default")
    assert [row.kind for row in compare(longer, shorter).rows] == ["same", "same", "removed", "changed", "same"]
    assert [row.kind for row in compare(shorter, longer).rows] == ["same", "same", "added", "changed", "same"]


def test_ops_of_one_meaning_match_across_levels() -> None:
    def summed(op: str) -> GraphRecord:
        b = Builder()
        return b.graph(b.call(op, b.call("aten.exp.default", b.placeholder()), "-1"))

    graphs = [summed(op) for op in (".sum", "torch.sum", "aten.sum.dim_IntList", "bi_inductor.sum.default")]
    for graph in graphs[1:]:
        assert [row.kind for row in compare(graphs[0], graph).rows] == ["same", "same", "changed", "same"]


def layers(count: int, ours: bool, batch: int = 8, skip: int = -1) -> GraphRecord:
    """A deep model of equal layers, 10 nodes each."""
    b = Builder(f"float32[{batch}, 64]")
    x = b.placeholder()
    for layer in range(count):
        if layer == skip:
            continue
        weight = b.call("aten.permute.default", b.placeholder("float32[64, 64]"), "[1, 0]", value="float32[64, 64]")
        if ours:
            normal = b.call("bi_inductor.layer_norm.default", x, "1")
        else:
            both = b.call("aten.var_mean.correction", x, "[1]")
            spread, mean = b.call("getitem", both, "0"), b.call("getitem", both, "1")
            normal = b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", x, mean), b.call("aten.rsqrt.default", spread))
        product = b.call("bi_inductor.matmul.default" if ours else "aten.mm.default", normal, weight)
        x = b.call("aten.add.Tensor", x, b.call("aten.gelu.default", product))
    return b.graph(x)


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        # A product and a normalisation of each layer are changed lines; five nodes of the old normalisation are gone.
        (lambda: layers(450, True), 450 * 7),
        # Three nodes per layer are of the weight, and everything else has another size.
        (lambda: layers(450, False, batch=1), 450 * 9 + 2),
        # The layer itself, and the line that read its result.
        (lambda: layers(450, False, skip=200), 12),
    ],
    ids=["ours", "batch 1", "layer left out"],
)
def test_five_thousand_nodes(other, changes: int) -> None:
    before, after = layers(450, False), other()
    assert len(before.nodes) > 4900
    assert compare(before, after).changes <= changes


def test_pairs_ascend_on_both_sides_for_random_graphs() -> None:
    generator = random.Random(0)
    for _ in range(15):
        graphs = []
        for _ in range(2):
            b = Builder()
            b.placeholder()
            for _ in range(generator.randrange(500)):
                b.call(generator.choice(["aten.add.Tensor", "aten.mul.Tensor", "aten.neg.default"]), generator.randrange(len(b.nodes)))
            graphs.append(b.graph(len(b.nodes) - 1))
        pairs = match(graphs[0].nodes, graphs[1].nodes)
        assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
        section = compare(*graphs)
        assert sum(row.before is not None for row in section.rows) == len(graphs[0].nodes)
        assert sum(row.after is not None for row in section.rows) == len(graphs[1].nodes)
        # Equal text means equal nodes: what the numbers stand for agrees on both sides.
        assert all((row.kind == "same") == (row.before == row.after) for row in section.rows)
