"""Accumulation trees as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bi_inductor.testing.tree import Tree

# A lane is a chain of additions: its terms in order, each step one term, or several that are added with one rounding.
Lane = tuple[tuple[int, ...], ...]

_WIDTH = 100


def render(tree: Tree) -> str:
    """See :meth:`bi_inductor.testing.Tree.render`."""
    lanes, additions = _split_lanes(tree)
    lines = [f"{tree.size} terms, depth {tree.depth}", *_lane_lines(lanes)]
    if len(lanes) > 1:
        lines.append(_describe(additions, len(lanes)))
    return "\n".join(lines)


def _split_lanes(tree: Tree) -> tuple[list[Lane], str]:
    """The longest chains of ``tree`` by first term, and the text of the tree that remains with lanes as leaves."""
    chain_of: dict[int, Lane] = {}  # by id of the node
    for node in tree.nodes():
        chain = _chain(node, chain_of)
        if chain is not None:
            chain_of[id(node)] = chain

    roots: list[Tree] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        if id(node) in chain_of:
            roots.append(node)
        else:
            stack.extend(node.children)
    roots.sort(key=lambda node: node.first_term)
    number_of = {id(node): str(number) for number, node in enumerate(roots)}

    text_of = dict(number_of)
    for node in tree.nodes():
        if id(node) not in chain_of:
            text_of[id(node)] = "(" + " ".join(text_of[id(child)] for child in node.children) + ")"
    return [chain_of[id(node)] for node in roots], text_of[id(tree)]


def _chain(node: Tree, chain_of: dict[int, Lane]) -> Lane | None:
    """The chain that ends in ``node``, if it is one: terms alone, or terms added to a chain."""
    if node.is_leaf:
        return ((node.first_term,),)
    terms = tuple(child.first_term for child in node.children if child.is_leaf)
    inner = [child for child in node.children if not child.is_leaf]
    if not inner:
        return ((terms[0],), (terms[1],)) if len(terms) == 2 else (terms,)
    if len(inner) > 1 or id(inner[0]) not in chain_of:
        return None
    return (*chain_of[id(inner[0])], terms)


def _lane_lines(lanes: list[Lane]) -> list[str]:
    """One line a lane; of a run of lanes that are shifts of each other by one amount, the first two and the last."""
    lines: list[str] = []
    width = len(str(len(lanes) - 1))
    for run in _runs(lanes):
        folded = len(run) > 4
        for number in run[:2] if folded else run:
            lines.append(f"lane {number:>{width}}: {_lane_text(lanes[number])}")
        if folded:
            lines += ["...", f"lane {run[-1]:>{width}}: {_lane_text(lanes[run[-1]])}"]
    return lines


def _lane_text(lane: Lane) -> str:
    """The terms of a lane; a run in equal steps as ``0, 16, 32, ..., 4080 (256 terms)``."""
    pieces: list[str] = []
    for run in _runs([(step,) for step in lane]):
        steps = [str(lane[i][0]) if len(lane[i]) == 1 else "{" + " ".join(map(str, lane[i])) + "}" for i in run]
        if len(steps) > 6:
            terms = sum(len(lane[i]) for i in run)
            steps = [*steps[:3], "...", f"{steps[-1]} ({terms} terms)"]
        pieces += steps
    return ", ".join(pieces)


def _runs(lanes: list[Lane]) -> Iterator[range]:
    """The positions of each longest run in which a lane is the one before it, shifted by one amount throughout."""
    start = 0
    while start < len(lanes):
        end = start + 1
        shift = _shift(lanes[start], lanes[end]) if end < len(lanes) else None
        while shift is not None and end < len(lanes) and _shift(lanes[end - 1], lanes[end]) == shift:
            end += 1
        yield range(start, end)
        start = end


def _shift(first: Lane, second: Lane) -> int | None:
    """The amount by which every term of ``second`` exceeds that of ``first``; None if there is no such amount."""
    if [len(step) for step in first] != [len(step) for step in second]:
        return None
    amounts = {b - a for step_a, step_b in zip(first, second, strict=True) for a, b in zip(step_a, step_b, strict=True)}
    return amounts.pop() if len(amounts) == 1 else None


def _describe(additions: str, lanes: int) -> str:
    """How the lanes are added: one of the usual ways by name, else the nested text."""
    halves = 1 << (lanes - 1).bit_length()
    offsets = [halves >> level for level in range(1, halves.bit_length())]
    if additions == _by_halves(lanes, offsets[0]):
        later = "".join(f", {'then ' if i == 0 else ''}j+{offset}" for i, offset in enumerate(offsets[1:]))
        return f"lanes added by halves: lane j + lane j+{offsets[0]}{later}"
    if additions == _by_neighbours(lanes):
        return "lanes added in pairs of neighbours: (0 1), (2 3), ..., then pairs of those"
    if additions == _in_order(lanes):
        return f"lanes added in order: 0, 1, ..., {lanes - 1}"
    return "\n".join(textwrap.wrap(f"lanes added: {additions}", _WIDTH, subsequent_indent="  "))


def _pair(left: str | None, right: str | None) -> str | None:
    return f"({left} {right})" if left is not None and right is not None else left or right


def _by_halves(lanes: int, half: int) -> str | None:
    row: list[str | None] = [str(j) if j < lanes else None for j in range(2 * half)]
    while half:
        row = [_pair(row[j], row[j + half]) for j in range(half)]
        half //= 2
    return row[0]


def _by_neighbours(lanes: int) -> str | None:
    row: list[str | None] = [str(j) for j in range(lanes)]
    while len(row) > 1:
        row = [_pair(row[j], row[j + 1] if j + 1 < len(row) else None) for j in range(0, len(row), 2)]
    return row[0]


def _in_order(lanes: int) -> str | None:
    total: str | None = None
    for j in range(lanes):
        total = _pair(total, str(j))
    return total
