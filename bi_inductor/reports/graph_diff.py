"""Compares two graphs by what their nodes mean: op, arguments, dtypes, shapes and order. Names of nodes play no part.

Nodes are matched in order: first those that agree in everything, the ops they read included; in the gaps between those, the ones that call
the same op (another shape, another constant); in what is left, ops of the same meaning (torch.sum and aten.sum). Where a matched pair then
reads one unmatched node each, those two are the same value computed in another way. Matched nodes get one number, so that equal lines are
equal text.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import difflib
import re
from collections.abc import Hashable, Iterator, Sequence
from os import PathLike
from pathlib import Path

from bi_inductor.reports.records import GraphRecord, NodeRecord

Pairs = list[tuple[int, int]]

# Product of the lengths up to which difflib looks for a common subsequence itself: it is quadratic where a key is frequent.
EXACT_UP_TO = 100_000

# Ops that differ by the level they stand at or by what they fold in.
ONE_MEANING = {
    **dict.fromkeys(("linear", "mm", "addmm", "bmm", "baddbmm", "mv", "dot"), "matmul"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    **{f"native_{name}": name for name in ("layer_norm", "group_norm", "batch_norm", "dropout")},
    **{f"_{name}": name for name in ("softmax", "log_softmax", "to_copy")},
    "scaled_dot_product_attention": "attention",
}

# Ops whose whole numbers are sizes; those of any other op are dims and constants. Where a value is written, only those in brackets are.
SIZED = frozenset(["view", "reshape", "_unsafe_view", "expand", "repeat", "empty", "empty_strided", "zeros", "ones"])
SIZED |= {"new_empty", "new_zeros", "new_ones", "iota", "arange", "slice", "split_with_sizes"}
SIZED_IN_BRACKETS = frozenset(["full", "new_full", "constant_pad_nd"])


@dataclasses.dataclass(frozen=True)
class DiffRow:
    """One line of a comparison: ``kind`` is "same", "resized" (the same op on other sizes), "changed", "removed" or "added".

    The side that has no node is None.
    """

    kind: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True)
class DiffSection:
    """The comparison of one pair of graphs."""

    title: str
    rows: tuple[DiffRow, ...]

    @property
    def changes(self) -> int:
        """Number of lines that are not the same."""
        return sum(row.kind != "same" for row in self.rows)

    @property
    def resized_only(self) -> bool:
        """Whether nothing but sizes differs."""
        return all(row.kind in ("same", "resized") for row in self.rows)

    def headline(self) -> str:
        """The title and how much differs."""
        sizes = ", only sizes" if self.changes and self.resized_only else ""
        return f"{self.title}: {self.changes} of {len(self.rows)} lines differ{sizes}"

    def text(self, context: int = 3) -> str:
        """Unified text: "-" before, "+" after; of longer runs of equal lines only ``context`` on either side."""
        lines = [self.headline()]
        near = [False] * len(self.rows)
        for i, row in enumerate(self.rows):
            if row.kind != "same":
                for j in range(max(0, i - context), min(len(self.rows), i + context + 1)):
                    near[j] = True
        skipped = 0
        for i, row in enumerate(self.rows):
            if not near[i]:
                skipped += 1
                continue
            if skipped:
                lines.append(f"@@ {skipped} equal line{'s' * (skipped != 1)}")
                skipped = 0
            if row.kind == "same":
                lines.append(f"  {row.before}")
            else:
                lines += [f"{sign} {side}" for sign, side in (("-", row.before), ("+", row.after)) if side is not None]
        if skipped:
            lines.append(f"@@ {skipped} equal line{'s' * (skipped != 1)}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class GraphDiff:
    """Comparisons of several pairs of graphs; true when any differs."""

    sections: tuple[DiffSection, ...]

    def __bool__(self) -> bool:
        return any(section.changes for section in self.sections)

    def text(self, context: int = 3) -> str:
        """Unified text of every section."""
        return "\n\n".join(section.text(context) for section in self.sections) + "\n"

    def __str__(self) -> str:
        return self.text()

    def html(self, path: str | PathLike[str]) -> None:
        """Writes a side-by-side page that needs no network. Raises OSError when it cannot be written."""
        from bi_inductor.reports.html import render_diff

        Path(path).write_text(render_diff(self), encoding="utf-8")


def compare(before: GraphRecord, after: GraphRecord, title: str = "") -> DiffSection:
    """Compares two graphs node by node."""
    pairs = match(before.nodes, after.nodes)
    order = list(_merged(pairs, len(before.nodes), len(after.nodes)))
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for number, sides in enumerate(order):
        for known, index in zip(numbers, sides, strict=True):
            if index is not None:
                known[index] = number
    rows = []
    for number, (left, right) in enumerate(order):
        old = None if left is None else f"%{number} = {before.nodes[left].text(lambda i: f'%{numbers[0][i]}')}"
        new = None if right is None else f"%{number} = {after.nodes[right].text(lambda i: f'%{numbers[1][i]}')}"
        word = "" if left is None else _word(before.nodes[left])
        rows.append(DiffRow(_kind(old, new, word), old, new))
    return DiffSection(title or f"{before.stage} to {after.stage}", tuple(rows))


def _kind(old: str | None, new: str | None, word: str) -> str:
    """The kind of a row of an op that is called ``word``."""
    if old is None or new is None:
        return "added" if old is None else "removed"
    if old == new:
        return "same"
    (call, _, value), (new_call, _, new_value) = old.rpartition(" -> "), new.rpartition(" -> ")
    if word in SIZED:
        call, new_call = _without_sizes(call), _without_sizes(new_call)
    elif word in SIZED_IN_BRACKETS:
        call, new_call = (re.sub(r"\[[^\]]*\]", lambda found: _without_sizes(found[0]), text) for text in (call, new_call))
    return "resized" if call == new_call and _without_sizes(value) == _without_sizes(new_value) else "changed"


def _without_sizes(text: str) -> str:
    """Whole numbers and symbols such as s77 masked, but for the numbers of nodes (%12)."""
    return re.sub(r"(?<![%\w.])s?\d+(?![\w.])", "n", text)


def _word(node: NodeRecord) -> str:
    """What an op is called at every level: "sum" for .sum, torch.sum, aten.sum.dim_IntList and bi_inductor.sum.default."""
    parts = node.op.lstrip(".").split(".")
    return parts[1] if len(parts) == 3 and parts[0] in ("aten", "prims", "bi_inductor") else parts[-1]


def match(before: Sequence[NodeRecord], after: Sequence[NodeRecord]) -> Pairs:
    """Index pairs of nodes that mean the same, ascending on both sides."""
    pairs: Pairs = []
    for keys, radius in ((_whole_keys, 3), (_whole_keys, 0), (_op_keys, 3), (_op_keys, 0), (_meaning_keys, 0)):
        # Small numbers for long keys: they are compared often.
        numbers: dict[Hashable, int] = {}
        left, right = (
            [numbers.setdefault(key, len(numbers)) for key in _with_surroundings(keys(nodes), nodes, radius)] for nodes in (before, after)
        )
        found: Pairs = []
        for (low, high), (other_low, other_high) in _gaps(pairs, len(before), len(after)):
            found += [(low + i, other_low + j) for i, j in _common(left[low:high], right[other_low:other_high])]
        pairs = sorted(pairs + found)
    return _with_corresponding(pairs, before, after)


def _with_surroundings(keys: list[Hashable], nodes: Sequence[NodeRecord], radius: int) -> list[Hashable]:
    """Keys that also hold those of the nodes up to ``radius`` edges away: rare ones, which anchor the rest and are found quickly."""
    users: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for j in node.inputs:
            users[j].append(i)
    for _ in range(radius):
        keys = [
            hash((keys[i], tuple(keys[j] for j in node.inputs), tuple(sorted(hash(keys[j]) for j in users[i]))))
            for i, node in enumerate(nodes)
        ]
    return keys


def _whole_keys(nodes: Sequence[NodeRecord]) -> list[Hashable]:
    """Everything about a node that does not depend on names, and the ops that it reads."""
    return [
        (node.kind, node.op, node.value, tuple(piece if isinstance(piece, str) else (nodes[piece].op,) for piece in node.arguments))
        for node in nodes
    ]


def _op_keys(nodes: Sequence[NodeRecord]) -> list[Hashable]:
    # What getitem takes is all that it means.
    return [(node.kind, node.op, node.arguments[1:] if node.op == "getitem" else ()) for node in nodes]


def _meaning_keys(nodes: Sequence[NodeRecord]) -> list[Hashable]:
    keys: list[Hashable] = []
    for node in nodes:
        word = _word(node)
        keys.append((node.kind, ONE_MEANING.get(word, word), node.arguments[1:] if word == "getitem" else ()))
    return keys


def _gaps(pairs: Pairs, size: int, other_size: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The ranges between neighbouring pairs that hold nodes on both sides."""
    last = other_last = 0
    for i, j in [*pairs, (size, other_size)]:
        if i > last and j > other_last:
            yield (last, i), (other_last, j)
        last, other_last = i + 1, j + 1


def _common(left: Sequence[int], right: Sequence[int]) -> Pairs:
    """Index pairs of a long common subsequence, in time that stays near linear for graphs of many equal layers."""
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    pairs = [(i, i) for i in range(start)]
    middle, other_middle = left[start : len(left) - end], right[start : len(right) - end]
    pairs += [(start + i, start + j) for i, j in _common_middle(middle, other_middle)]
    return pairs + [(len(left) - i, len(right) - i) for i in range(end, 0, -1)]


def _common_middle(left: Sequence[int], right: Sequence[int]) -> Pairs:
    if len(left) * len(right) <= EXACT_UP_TO:
        blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    # The first with the first, the second with the second, for keys that are as often on both sides.
    places, other_places = _places(left), _places(right)
    equal = [key for key, found in places.items() if len(found) == len(other_places.get(key, ()))]
    anchors = _ascending([pair for key in equal for pair in zip(places[key], other_places[key], strict=True)])
    if not anchors:
        return _walked(left, right)
    pairs = list(anchors)
    for (low, high), (other_low, other_high) in _gaps(anchors, len(left), len(right)):
        pairs += [(low + i, other_low + j) for i, j in _common(left[low:high], right[other_low:other_high])]
    return sorted(pairs)


def _walked(left: Sequence[int], right: Sequence[int], window: int = 32, run: int = 3) -> Pairs:
    """Walks along both sides; after a difference goes on at the nearest place where ``run`` keys agree."""
    pairs: Pairs = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        steps = ((a, total - a) for total in range(1, window) for a in range(total + 1))
        agreeing = (
            (a, b)
            for a, b in steps
            if i + a < len(left)
            and j + b < len(right)
            and left[i + a] == right[j + b]
            and left[i + a : i + a + run] == right[j + b : j + b + run]
        )
        skipped, other_skipped = next(agreeing, (1, 1))
        i, j = i + skipped, j + other_skipped
    return pairs


def _places(keys: Sequence[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    return places


def _ascending(pairs: Pairs) -> Pairs:
    """The longest selection of the pairs that ascends on both sides; no index is in two pairs of either side."""
    pairs = sorted(pairs)
    ends: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for at, (_, j) in enumerate(pairs):
        length = bisect.bisect_left(ends, j)
        previous.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [at]
    result: Pairs = []
    at = last[-1] if last else -1
    while at >= 0:
        result.append(pairs[at])
        at = previous[at]
    return result[::-1]


def _with_corresponding(pairs: Pairs, before: Sequence[NodeRecord], after: Sequence[NodeRecord]) -> Pairs:
    """Adds pairs of unmatched nodes that matched ones read in their places, as far as the order stays."""
    result = sorted(pairs)
    matched, matched_after = {i for i, _ in result}, {j for _, j in result}
    # Late nodes first: a pair found this way says in turn what its inputs correspond to.
    pending = collections.deque(reversed(result))
    while pending:
        i, j = pending.popleft()
        inputs, inputs_after = before[i].inputs, after[j].inputs
        candidates = [(a, b) for a, b in zip(inputs, inputs_after, strict=False) if a not in matched and b not in matched_after]
        left = [a for a in dict.fromkeys(inputs) if a not in matched]
        right = [b for b in dict.fromkeys(inputs_after) if b not in matched_after]
        # addmm(bias, a, b) became matmul(a, b, bias): another place, but the only one left.
        if len(left) == len(right) == 1:
            candidates = [(left[0], right[0])]
        for a, b in candidates:
            if a in matched or b in matched_after:
                continue
            at = bisect.bisect(result, (a, b))
            fits = (at == 0 or result[at - 1][1] < b) and (at == len(result) or b < result[at][1])
            if fits and before[a].kind == after[b].kind:
                result.insert(at, (a, b))
                matched.add(a)
                matched_after.add(b)
                pending.append((a, b))
    return result


def _merged(pairs: Pairs, size: int, other_size: int) -> Iterator[tuple[int | None, int | None]]:
    """All nodes of both sides in order, pairs together, in a gap those of the left side first."""
    i = j = 0
    for a, b in [*pairs, (size, other_size)]:
        yield from ((left, None) for left in range(i, a))
        yield from ((None, right) for right in range(j, b))
        if a < size:
            yield a, b
        i, j = a + 1, b + 1
