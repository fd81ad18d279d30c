"""bi_inductor.testing: accumulation trees recovered from outside are the trees that were added."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from bi_inductor.testing import (
    Tree,
    accumulation_tree,
    accumulation_tree_of_nonnegative_terms,
    expected_tree,
    of_attention_denominator,
    of_attention_scores,
    of_attention_values,
    of_matmul,
    of_mean,
    of_rms_norm,
    of_softmax_denominator,
)
from tests import reference


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny calls: handing them to threads only costs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


HALVES_AND_FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def add_in_order(tree: Tree) -> Callable[[torch.Tensor], torch.Tensor]:
    """A float32 sum that adds as ``tree`` says; a node of many keeps 24 bits from its largest child down, no more."""

    def total(terms: torch.Tensor) -> torch.Tensor:
        value: dict[int, torch.Tensor] = {}
        for node in tree.nodes():
            if node.is_leaf:
                value[id(node)] = terms[node.first_term]
            elif len(node.children) == 2:
                value[id(node)] = value[id(node.children[0])] + value[id(node.children[1])]
            else:
                values = [float(value[id(child)]) for child in node.children]
                quantum = 2.0 ** (math.frexp(max(map(abs, values)))[1] - 24)
                kept = [math.trunc(x / quantum) * quantum for x in values]
                value[id(node)] = torch.tensor(math.fsum(kept), dtype=torch.float32)
        return value[id(tree)]

    return total


@st.composite
def trees(draw: st.DrawFn, max_terms: int, max_children: int = 2) -> Tree:
    """Any order of additions: nodes are joined at random until one is left."""
    roots = [Tree.leaf(term) for term in range(draw(st.integers(1, max_terms)))]
    while len(roots) > 1:
        count = draw(st.integers(2, min(max_children, len(roots))))
        chosen = [roots.pop(draw(st.integers(0, len(roots) - 1))) for _ in range(count)]
        roots.append(Tree(chosen))
    return roots[0]


# --- the tree --------------------------------------------------------------------------------------------------------


@given(trees(40, max_children=4))
def test_text_round_trip(tree: Tree) -> None:
    again = Tree.from_string(tree.to_string())
    assert again == tree and hash(again) == hash(tree) and again.depth == tree.depth and again.size == tree.size
    assert tree.render()


def test_children_have_no_order() -> None:
    a, b, c = Tree.leaf(0), Tree.leaf(1), Tree.leaf(2)
    assert Tree([Tree([c, a]), b]) == Tree([b, Tree([a, c])])
    assert Tree([Tree([c, a]), b]).to_string() == "((0 2) 1)"
    assert Tree([Tree([a, b]), c]) != Tree([a, Tree([b, c])])
    assert Tree([a, b, c]) != Tree([a, Tree([b, c])])
    assert Tree([a, b, c]).to_string() == "(0 1 2)"


def test_tree_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Tree.leaf(0).depth = 3  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "(0)", "(0 1", "0 1)", "0 1", "(0 0)", "(0 -1)", "(a b)", "()"])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Tree.from_string(text)


def test_deep_chain_needs_no_recursion() -> None:
    chain = expected_tree(1, 5000)
    assert chain.depth == 4999
    assert Tree.from_string(chain.to_string()) == chain
    assert chain.render() == "5000 terms, depth 4999\nlane 0: 0, 1, 2, ..., 4999 (5000 terms)"


def test_expected_tree() -> None:
    assert expected_tree(1, 3).to_string() == "((0 1) 2)"
    assert expected_tree(4, 4).to_string() == "((0 2) (1 3))"
    assert expected_tree(4, 7).to_string() == "(((0 4) (2 6)) ((1 5) 3))"
    assert expected_tree(128, 3).to_string() == "((0 2) 1)"
    assert expected_tree(128, 1) == Tree.leaf(0)
    for lanes, n in [(3, 4), (0, 4), (4, 0)]:
        with pytest.raises(ValueError):
            expected_tree(lanes, n)


def test_render_lanes() -> None:
    assert expected_tree(16, 64).render() == (
        "64 terms, depth 7\n"
        "lane  0: 0, 16, 32, 48\n"
        "lane  1: 1, 17, 33, 49\n"
        "...\n"
        "lane 15: 15, 31, 47, 63\n"
        "lanes added by halves: lane j + lane j+8, then j+4, j+2, j+1"
    )


def test_render_of_other_shapes() -> None:
    pairs = Tree.from_string("(((0 1) (2 3)) ((4 5) (6 7)))")
    assert "lane 1: 2, 3\n" in pairs.render() and "in pairs of neighbours" in pairs.render()
    fused = Tree.from_string("((((0 1 2 3) 4 5 6 7) 8 9 10 11) 12)")
    assert fused.render() == "13 terms, depth 4\nlane 0: {0 1 2 3}, {4 5 6 7}, {8 9 10 11}, 12"
    irregular = Tree.from_string("((0 1) ((2 3) ((4 5) (6 7))))")
    assert irregular.render().endswith("lanes added: (0 (1 (2 3)))")
    in_order = Tree.from_string("((((0 1) (2 3)) (4 5)) (6 7))")
    assert in_order.render().endswith("lanes added in order: 0, 1, ..., 3")


# --- recovery --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(trees(40))
def test_any_order_is_recovered(tree: Tree) -> None:
    assert accumulation_tree(add_in_order(tree), tree.size) == tree


@settings(max_examples=40, deadline=None)
@given(trees(24, max_children=5))
def test_any_order_with_fused_nodes_is_recovered(tree: Tree) -> None:
    assert accumulation_tree(add_in_order(tree), tree.size) == tree


@settings(max_examples=30, deadline=None)
@given(trees(16))
def test_any_order_is_recovered_from_nonnegative_terms(tree: Tree) -> None:
    assert accumulation_tree_of_nonnegative_terms(add_in_order(tree), tree.size) == tree


def test_sums_that_are_no_tree_are_refused() -> None:
    def exact(terms: torch.Tensor) -> torch.Tensor:
        return torch.tensor(math.fsum(terms.tolist()), dtype=torch.float32)

    for fn in (exact, torch.amax, lambda terms: terms.sum() + 1, torch.linalg.vector_norm):
        with pytest.raises(ValueError, match="no accumulation tree explains"):
            accumulation_tree(fn, 12)
    for fn in (exact, lambda terms: terms.sum() * torch.nan):
        with pytest.raises(ValueError, match="no accumulation tree explains"):
            accumulation_tree_of_nonnegative_terms(fn, 12)


def test_limits_are_stated() -> None:
    assert accumulation_tree(torch.sum, 256, dtype=torch.bfloat16).size == 256
    with pytest.raises(ValueError, match="bfloat16 counts exactly only to 256"):
        accumulation_tree(torch.sum, 257, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="float16 counts exactly only to 2048"):
        accumulation_tree(torch.sum, 2049, dtype=torch.float16)
    with pytest.raises(ValueError, match="allows 16384"):
        accumulation_tree(lambda terms: terms.float().sum(), 16385, dtype=torch.float16)
    with pytest.raises(ValueError, match="counts exactly only to 16777216"):
        accumulation_tree(lambda terms: terms.sum(), 2**24 + 1)
    with pytest.raises(ValueError, match="no accumulation tree for dtype"):
        accumulation_tree(torch.sum, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="at least one term"):
        accumulation_tree(torch.sum, 0)
    with pytest.raises(ValueError, match="not one floating-point number"):
        accumulation_tree(lambda terms: terms, 4)
    with pytest.raises(ValueError, match="non-negative terms for"):
        accumulation_tree_of_nonnegative_terms(torch.sum, 4, dtype=torch.float16)


# --- the reference adds as docs/numerics.md says ---------------------------------------------------------------------

REFERENCE_SUMS = {
    "sum": lambda x: reference.reduce("sum", x),
    "mean": of_mean(lambda x: reference.reduce("mean", x)),
    "layer_norm": of_mean(lambda x: reference.layer_norm(x, x.shape)[1]),
    "group_norm": of_mean(lambda x: reference.group_norm(x.reshape(1, 1, -1), 1)[1]),
}


def attention_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return reference.attention(query, key, value, scale=1.0)[0]


def attention_lse(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return reference.attention(query, key, value, scale=1.0)[1]


@pytest.mark.parametrize("dtype", HALVES_AND_FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 16, 17, 100])
def test_reference_matmul_tree(n: int, dtype: torch.dtype) -> None:
    assert accumulation_tree(of_matmul(reference.matmul), n, dtype=dtype) == expected_tree(16, n)
    assert accumulation_tree(of_matmul(reference.matmul, 3, 5, 2, 4), n, dtype=dtype) == expected_tree(16, n)


@pytest.mark.parametrize("name", REFERENCE_SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 5, 128, 300])
def test_reference_sum_tree(name: str, n: int, dtype: torch.dtype) -> None:
    assert accumulation_tree(REFERENCE_SUMS[name], n, dtype=dtype) == expected_tree(128, n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_reference_sum_tree_of_halves(dtype: torch.dtype) -> None:
    assert accumulation_tree(REFERENCE_SUMS["sum"], 200, dtype=dtype) == expected_tree(128, 200)


@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_reference_attention_trees(n: int, dtype: torch.dtype) -> None:
    assert accumulation_tree(of_attention_scores(attention_lse), n, dtype=dtype) == expected_tree(16, n)
    assert accumulation_tree(of_attention_values(attention_out), n, dtype=dtype) == expected_tree(16, n)


@pytest.mark.parametrize("n", [6, 131])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_reference_trees_of_nonnegative_terms(n: int, dtype: torch.dtype) -> None:
    sums = {
        "softmax": of_softmax_denominator(lambda x: reference.softmax(x, 0)),
        "log_softmax": of_softmax_denominator(lambda x: reference.log_softmax(x, 0)),
        "attention": of_attention_denominator(attention_lse),
        "rms_norm": of_rms_norm(lambda x, eps: reference.rms_norm(x, x.shape, None, eps)[1]),
    }
    for name, fn in sums.items():
        assert accumulation_tree_of_nonnegative_terms(fn, n, dtype=dtype) == expected_tree(128, n), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_reference_chains(dtype: torch.dtype) -> None:
    def embedding(terms: torch.Tensor) -> torch.Tensor:
        return reference.embedding_backward(terms[:, None], torch.zeros(terms.numel(), dtype=torch.int64), 1)

    assert accumulation_tree(embedding, 50, dtype=dtype) == expected_tree(1, 50)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_reference_cumsum_is_a_chain(dtype: torch.dtype) -> None:
    """Not float32: what masks its small terms does not mask them in the float64 in which they are added."""
    assert accumulation_tree(lambda x: reference.cumsum(x, 0)[-1], 50, dtype=dtype) == expected_tree(1, 50)


# --- controls: other orders are seen ---------------------------------------------------------------------------------


def test_planted_orders_are_caught() -> None:
    n = 200

    def eight_lanes(terms: torch.Tensor) -> torch.Tensor:
        return add_in_order(expected_tree(8, n))(terms)

    def blocked(terms: torch.Tensor) -> torch.Tensor:  # the forbidden block boundary of a long row
        return reference.reduce("sum", terms[:130]) + reference.reduce("sum", terms[130:])

    def misplaced(terms: torch.Tensor) -> torch.Tensor:  # lanes counted from a place that is not the row's start
        return reference.reduce("sum", torch.cat([terms[1:], terms[:1]]))

    for fn in (eight_lanes, blocked, misplaced):
        assert accumulation_tree(fn, n) != expected_tree(128, n)


def test_rotated_lanes_are_the_same_tree() -> None:
    """Left padding by any amount: the lanes rotate, the tree of the terms stays."""
    for padding in (1, 5, 64, 127, 128):

        def padded(terms: torch.Tensor, padding: int = padding) -> torch.Tensor:
            return reference.reduce("sum", torch.cat([torch.zeros(padding), terms]))

        assert accumulation_tree(padded, 140) == expected_tree(128, 140)


def test_stock_sums_have_other_trees() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 0)

    def mean(x: torch.Tensor) -> torch.Tensor:
        return torch.mean(x)

    assert accumulation_tree(torch.sum, 300) != expected_tree(128, 300)
    assert accumulation_tree(of_mean(mean), 300) != expected_tree(128, 300)
    assert accumulation_tree_of_nonnegative_terms(of_softmax_denominator(softmax), 200) != expected_tree(128, 200)


def test_stock_matmul_has_another_tree() -> None:
    assert accumulation_tree(of_matmul(torch.mm, 4, 4), 64) != expected_tree(16, 64)


def test_stock_rms_norm_has_another_tree() -> None:
    def rstd(x: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape, eps=eps)[x.argmax()]

    assert accumulation_tree_of_nonnegative_terms(of_rms_norm(rstd), 64) != expected_tree(128, 64)
