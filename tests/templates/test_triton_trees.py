"""The orders in which the Triton templates add, recovered in the interpreter as of a black box: one for every number of rows.

A tree takes many sums to recover. Each row of a batch (for a product, each column) is given a sum of its own, so the answers come from
every place of the batch: an order that follows the place or the number of rows gives answers that no tree explains, or another tree.

Only some places of a long row hold terms, those at the boundaries of lanes, warps and steps of loops; the others hold zeros, which change
nothing. The tree is that of these terms.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import numpy
import pytest
import torch

from bi_inductor.templates.attention.configurations import configuration
from bi_inductor.templates.gpu import DEFAULT
from bi_inductor.testing import Tree, accumulation_tree, accumulation_tree_of_nonnegative_terms, expected_tree
from tests.interpreter import compiled
from tests.interpreter.process import Interpreter

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor

ROWS = (1, 3, 17)

# A row, and the places of its terms: lanes of other blocks of 32, the same lanes again, and the next step of 512.
LENGTH = 700
PLACES = (0, 1, 31, 32, 64, 96, 127, 128, 129, 256, 384, 511, 512, 640, 699)

# Sums of many terms at once: terms [count, n] to sums [count].
Sums = Callable[[torch.Tensor], torch.Tensor]


def restricted(tree: Tree, places: tuple[int, ...]) -> Tree:
    """What is left of ``tree`` when only the terms at ``places`` count, these numbered in ascending order."""
    found: dict[int, Tree | None] = {}
    for node in tree.nodes():
        if node.is_leaf:
            found[id(node)] = Tree.leaf(places.index(node.first_term)) if node.first_term in places else None
        else:
            left, right = (found[id(child)] for child in node.children)
            found[id(node)] = Tree([left, right]) if left and right else left or right
    result = found[id(tree)]
    assert result is not None
    return result


def chains_in_order(length: int, n: int) -> Tree:
    """The tree of ``n`` terms in chains of ``length``, the chains added in order."""
    chains = [functools.reduce(_added, map(Tree.leaf, range(first, min(first + length, n)))) for first in range(0, n, length)]
    return functools.reduce(_added, chains)


def _added(left: Tree, right: Tree) -> Tree:
    return Tree([left, right])


def add_in_order(tree: Tree, terms: torch.Tensor) -> torch.Tensor:
    """The float32 sum of ``terms`` [n] in the order of ``tree``."""
    values = terms.numpy()
    found: dict[int, numpy.float32] = {}
    for node in tree.nodes():
        found[id(node)] = values[node.first_term] if node.is_leaf else found[id(node.children[0])] + found[id(node.children[1])]
    return torch.tensor(found[id(tree)])


@dataclasses.dataclass(frozen=True)
class Question:
    """Which tree, of the terms at ``places`` of ``length``, is expected, and how it is found."""

    length: int
    places: tuple[int, ...]
    expected: Tree
    nonnegative: bool = False

    def recover(self, total: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
        """The tree of ``total``, a sum of ``length`` terms."""

        def of_places(terms: torch.Tensor) -> torch.Tensor:
            row = torch.zeros(self.length)
            row[list(self.places)] = terms
            return total(row)

        search = accumulation_tree_of_nonnegative_terms if self.nonnegative else accumulation_tree
        return search(of_places, len(self.places))

    def recover_in_batches(self, sums: Sums, count: int) -> Tree:
        """The tree of ``sums``, which is called with ``count`` sums at a time.

        The sums that lead to the expected tree are asked for first, in full batches. Where an answer is another one, others are needed;
        each of those fills a batch.
        """
        wanted: list[torch.Tensor] = []

        def record(row: torch.Tensor) -> torch.Tensor:
            wanted.append(row)
            return add_in_order(self.expected, row[list(self.places)])

        self.recover(record)
        answers: dict[tuple[float, ...], torch.Tensor] = {}

        def ask(rows: list[torch.Tensor]) -> None:
            batch = list(itertools.islice(itertools.cycle(rows), count))
            answers.update(zip((tuple(row.tolist()) for row in batch), sums(torch.stack(batch)), strict=True))

        for first in range(0, len(wanted), count):
            ask(wanted[first : first + count])

        def answer(row: torch.Tensor) -> torch.Tensor:
            if tuple(row.tolist()) not in answers:
                ask([row])
            return answers[tuple(row.tolist())]

        return self.recover(answer)


def question(tree: Tree, places: tuple[int, ...], nonnegative: bool = False) -> Question:
    """The question for the terms of ``tree`` at ``places``."""
    return Question(tree.size, places, restricted(tree, places), nonnegative)


CHUNK = configuration(DEFAULT, torch.float32, 16).chunk
IN_LANES = question(expected_tree(128, LENGTH), PLACES)
# The order of exponentials takes many more sums to recover, and each of them many operations.
EXPONENTIALS = question(expected_tree(128, 140), (0, 64, 96, 128), nonnegative=True)
IN_RUNS = question(chains_in_order(256, 600), (0, 1, 31, 32, 255, 256, 257, 511, 512, 599))
IN_CHUNKS = question(chains_in_order(CHUNK, 3 * CHUNK - 3), tuple(range(0, 3 * CHUNK - 3, 5)))


# --- what is recovered; a sum for each row, or the sums in each column of every row ----------------------------------------


def row_sums(x: torch.Tensor) -> torch.Tensor:
    return ops.sum(x, [1])


def layer_norm_means(x: torch.Tensor) -> torch.Tensor:
    # float64 brings the mean back to the sum without another rounding.
    return ops.layer_norm_statistics(x, 1, 1e-5)[0].double() * x.shape[1]


def softmax_denominators(x: torch.Tensor) -> torch.Tensor:
    # Exponentials that are the terms; that of a zero term underflows. The largest result is one over the denominator.
    return ops.softmax(torch.where(x > 0, x.log(), -1e4), 1).amax(1)


def products(a: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    return ops.matmul(a, terms.t())


def attended(query: torch.Tensor, key: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    # Scores of zero: every key weighs one, and the sum is divided by their number.
    return ops.attention(query, key, terms.t()[None, None])[0, 0].double() * len(key[0, 0])


def trees_of_rows(sums: Sums, asked: Question, dynamic: bool) -> list[Tree]:
    """The trees of an op over rows, one for each number of rows. Runs in the interpreting process."""
    run = compiled(sums, dynamic)
    with torch.no_grad():
        return [asked.recover_in_batches(run, rows) for rows in ROWS]


def trees_of_columns(
    function: Callable[..., torch.Tensor], operands: list[tuple[torch.Tensor, ...]], count: int, asked: Question, dynamic: bool
) -> list[Tree]:
    """The trees of ``function(*operands, terms)``, which gives every row the sums of ``count`` columns, for each of the operands.

    Runs in the interpreting process.
    """
    run = compiled(function, dynamic)

    def of_every_row(tensors: tuple[torch.Tensor, ...], terms: torch.Tensor) -> torch.Tensor:
        found = run(*tensors, terms)
        assert torch.equal(found, found[:1].expand_as(found))
        return found[0]

    with torch.no_grad():
        return [asked.recover_in_batches(functools.partial(of_every_row, tensors), count) for tensors in operands]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("sums", [row_sums, layer_norm_means])
def test_rows_add_as_the_cpp_kernels_do(interpreter: Interpreter, sums: Sums, dynamic: bool) -> None:
    cpp = IN_LANES.recover_in_batches(sums, 1)
    assert cpp == IN_LANES.expected
    assert interpreter.run(trees_of_rows, sums, IN_LANES, dynamic) == [cpp] * len(ROWS)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_softmax_adds_as_the_cpp_kernel_does(interpreter: Interpreter, dynamic: bool) -> None:
    cpp = EXPONENTIALS.recover_in_batches(softmax_denominators, 1)
    assert cpp == EXPONENTIALS.expected
    assert interpreter.run(trees_of_rows, softmax_denominators, EXPONENTIALS, dynamic) == [cpp] * len(ROWS)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_products_are_runs_of_256(interpreter: Interpreter, dynamic: bool) -> None:
    operands = [(torch.ones(rows, IN_RUNS.length),) for rows in ROWS]
    assert interpreter.run(trees_of_columns, products, operands, 20, IN_RUNS, dynamic) == [IN_RUNS.expected] * len(ROWS)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_attention_adds_values_in_chunks(interpreter: Interpreter, dynamic: bool) -> None:
    # Decode and two prefills.
    operands = [(torch.zeros(1, 1, rows, 16), torch.zeros(1, 1, IN_CHUNKS.length, 16)) for rows in ROWS]
    assert interpreter.run(trees_of_columns, attended, operands, 16, IN_CHUNKS, dynamic) == [IN_CHUNKS.expected] * len(ROWS)


def test_the_trees_themselves() -> None:
    """What the tests above compare with, by the number of the place: a change of docs/numerics.md would show here."""
    assert IN_LANES.expected.to_string() == "((((((((0 7) 9) 10) 12) 13) 4) (3 5)) ((1 8) ((2 (6 11)) 14)))"
    assert EXPONENTIALS.expected.to_string() == "(((0 3) 1) 2)"
    assert IN_RUNS.expected.to_string() == "((((((0 1) 2) 3) 4) ((5 6) 7)) (8 9))"
    assert IN_CHUNKS.expected.to_string() == "(((((0 1) 2) 3) ((4 5) 6)) (7 8))"


# --- control: an order that follows the number of rows is seen --------------------------------------------------------------


@triton.jit
def _planted_kernel(x, out, n, LANES: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for first in range(0, n, LANES):
        total += tl.load(x + row * n + first + lane, mask=first + lane < n, other=0.0)
    tl.store(out + row, tl.sum(total, 0))


def planted(x: torch.Tensor) -> torch.Tensor:
    """Sums of rows in 128 lanes, or in 64 where there are many rows, as a compiler that tunes for throughput might write them."""
    out = torch.empty(len(x))
    _planted_kernel[(len(x),)](x, out, x.shape[1], 128 if len(x) < 16 else 64)
    return out


def planted_trees() -> list[Tree]:
    """Runs in the interpreting process."""
    return [IN_LANES.recover_in_batches(planted, rows) for rows in ROWS]


def test_an_order_that_follows_the_batch_is_seen(interpreter: Interpreter) -> None:
    few, several, many = interpreter.run(planted_trees)
    assert few == several == IN_LANES.expected
    assert many == restricted(expected_tree(64, LENGTH), PLACES) != few
