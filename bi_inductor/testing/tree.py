"""Accumulation trees: which partial sums a floating-point sum adds to which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bi_inductor.testing.rendering import render


class Tree:
    """The order of additions in a sum: a leaf is a term, a node adds its children.

    A node of two children is one addition. A node of more adds them all with a single rounding, as tensor cores do.
    Addition commutes, so the children of a node have no order; they are kept sorted by their smallest term, and two
    trees are equal when the same terms meet in the same nodes. Trees are immutable and hashable.
    """

    __slots__ = ("_children", "_depth", "_first_term", "_size")

    _children: tuple[Tree, ...]
    _depth: int
    _first_term: int
    _size: int

    def __init__(self, children: Iterable[Tree]) -> None:
        """A node that adds ``children``. ValueError for fewer than two."""
        self._children = tuple(sorted(children, key=lambda child: child._first_term))
        if len(self._children) < 2:
            raise ValueError("a node adds at least two children")
        self._depth = 1 + max(child._depth for child in self._children)
        self._first_term = self._children[0]._first_term
        self._size = sum(child._size for child in self._children)

    @classmethod
    def leaf(cls, term: int) -> Tree:
        """The leaf of term number ``term``."""
        if term < 0:
            raise ValueError(f"terms are numbered from 0, not {term}")
        tree = cls.__new__(cls)
        tree._children, tree._depth, tree._first_term, tree._size = (), 0, term, 1
        return tree

    @property
    def children(self) -> tuple[Tree, ...]:
        """The trees this node adds; empty for a leaf."""
        return self._children

    @property
    def is_leaf(self) -> bool:
        return not self._children

    @property
    def first_term(self) -> int:
        """The smallest term below this node; of a leaf, its term."""
        return self._first_term

    @property
    def size(self) -> int:
        """The number of terms."""
        return self._size

    @property
    def depth(self) -> int:
        """The largest number of additions a term goes through; a leaf has depth 0."""
        return self._depth

    # The methods below walk with a stack of their own: a sequential sum is as deep as it is long.

    def nodes(self) -> Iterator[Tree]:
        """Every node and leaf, children before the node that adds them."""
        parents_first: list[Tree] = []
        stack = [self]
        while stack:
            tree = stack.pop()
            parents_first.append(tree)
            stack.extend(tree._children)
        return reversed(parents_first)

    def terms(self) -> tuple[int, ...]:
        """The terms of the sum, ascending."""
        return tuple(sorted(tree._first_term for tree in self.nodes() if tree.is_leaf))

    def to_string(self) -> str:
        """The canonical text, parentheses around what is added: ``((0 2) (1 3))``. For golden files and comparison."""
        pieces: list[str] = []
        stack: list[Tree | str] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                pieces.append(item)
            elif item.is_leaf:
                pieces.append(str(item._first_term))
            else:
                # Popped in reverse: the first child, a blank, the second child, ..., the closing parenthesis.
                stack.append(")")
                for position, child in enumerate(reversed(item._children)):
                    stack.extend([" ", child] if position else [child])
                pieces.append("(")
        return "".join(pieces)

    @classmethod
    def from_string(cls, text: str) -> Tree:
        """The tree that :meth:`to_string` wrote. ValueError for anything else."""
        open_nodes: list[list[Tree]] = [[]]
        for token in re.findall(r"\d+|\S", text):
            if token == "(":
                open_nodes.append([])
            elif token == ")" and len(open_nodes) > 1:
                children = open_nodes.pop()
                open_nodes[-1].append(cls(children))
            elif token.isdecimal():
                open_nodes[-1].append(cls.leaf(int(token)))
            else:
                raise ValueError(f"unexpected {token!r} in a tree")
        if len(open_nodes) != 1 or len(open_nodes[0]) != 1:
            raise ValueError("a tree is one term or one pair of parentheses, all of them closed")
        tree = open_nodes[0][0]
        if len(set(tree.terms())) != tree.size:
            raise ValueError("a term occurs twice in the tree")
        return tree

    def render(self) -> str:
        """The tree as a few lines to read: chains of additions as numbered lanes, then how the lanes are added.

        ::

            64 terms, depth 7
            lane  0: 0, 16, 32, 48
            lane  1: 1, 17, 33, 49
            ...
            lane 15: 15, 31, 47, 63
            lanes added by halves: lane j + lane j+8, then j+4, j+2, j+1
        """
        return render(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return (self._size, self._depth) == (other._size, other._depth) and self.to_string() == other.to_string()

    def __hash__(self) -> int:
        return hash(self.to_string())

    def __repr__(self) -> str:
        return f"Tree.from_string({self.to_string()!r})"


def expected_tree(lanes: int, n: int) -> Tree:
    """The tree of a lane sum of ``n`` terms, docs/numerics.md section 2: a chain for each lane, folded by halves.

    The +0 that each lane starts from, and lanes that no term reaches, change no value and are not part of the tree.
    """
    if lanes < 1 or lanes & (lanes - 1):
        raise ValueError(f"the number of lanes is a power of two, not {lanes}")
    if n < 1:
        raise ValueError(f"a tree has at least one term, not {n}")
    lane: list[Tree | None] = [None] * lanes
    for term in range(n):
        lane[term % lanes] = _add(lane[term % lanes], Tree.leaf(term))
    half = lanes // 2
    while half:
        lane = [_add(lane[j], lane[j + half]) for j in range(half)]
        half //= 2
    assert lane[0] is not None
    return lane[0]


def _add(left: Tree | None, right: Tree | None) -> Tree | None:
    if left is None or right is None:
        return left or right
    return Tree([left, right])
