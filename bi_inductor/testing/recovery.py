"""Recovers the accumulation tree of a sum from its results alone.

The method is that of FPRev (Xie, Gao, Wang, Xue, "FPRev: Revealing the Order of Floating-Point Summation by Numerical
Testing", 2024, arXiv 2411.00442). Set term i to a huge +M, term j to -M and all others to one. A one that is added to a
partial sum holding M or -M is absorbed; once the two have met they cancel, and the ones added from there on are
counted. So the result is the number of terms outside the smallest subtree that holds both i and j, and these numbers
determine the tree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from bi_inductor.testing.tree import Tree

# A sum of n terms as a black box: Tensor[n] -> a tensor of one element.
SumFunction = Callable[[torch.Tensor], torch.Tensor]

# dtype: (the unit that is counted, M). M must absorb n units in the accumulator. float16 is accumulated in float32,
# where M absorbs n units only if it is 2^25 * n units large: hence its subnormal unit.
_UNIT_AND_HUGE = {
    torch.float64: (1.0, 2.0**500),
    torch.float32: (1.0, 2.0**100),
    torch.bfloat16: (1.0, 2.0**100),
    torch.float16: (2.0**-24, 2.0**15),
}
_FLOAT16_TERMS = 2**14

# The largest count a result of this dtype holds exactly.
_EXACT_COUNT = {torch.float64: 2**53, torch.float32: 2**24, torch.bfloat16: 2**8, torch.float16: 2**11}


def accumulation_tree(fn: SumFunction, n: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tree:
    """The tree in which ``fn`` adds the ``n`` elements of its argument.

    ``fn`` maps a tensor [n] of ``dtype`` on ``device`` to a tensor of one element: the plain sum, whatever computes it
    (a chain of fma over products with one is a sum). It is called some n log n times for the trees of real kernels,
    n^2 / 2 times at worst. The adapters of this package make such a function of a mean, a matmul, attention.

    bfloat16 must be accumulated in float32 or wider, float16, whose range is small, in float32. Hardware that adds many
    terms at once must drop what lies below the last place of the largest, as tensor cores do: it then shows as a node
    of many children. A sum of many that is exact before its one rounding is refused.

    ValueError: ``n`` beyond what a result of ``fn``'s dtype counts exactly (2^8 for bfloat16, 2^11 for float16, 2^24
    for float32) or beyond 2^14 terms of float16; another dtype; or results that no tree explains, because the sum keeps
    what was rounded off or is no plain sum. An order that depends on the values goes unnoticed.
    """
    if dtype not in _UNIT_AND_HUGE:
        raise ValueError(f"no accumulation tree for dtype {dtype}: use float64, float32, bfloat16 or float16")
    if n < 1:
        raise ValueError(f"a sum has at least one term, not {n}")
    if dtype == torch.float16 and n > _FLOAT16_TERMS:
        raise ValueError(f"n = {n} terms of float16: the range of float16 allows {_FLOAT16_TERMS}")
    unit, huge = _UNIT_AND_HUGE[dtype]

    def count(terms: torch.Tensor) -> int:
        result = fn(terms)
        limit = _EXACT_COUNT.get(result.dtype)
        if result.numel() != 1 or limit is None:
            raise ValueError(f"fn returned {list(result.shape)} of {result.dtype}, not one floating-point number")
        if n > limit:
            raise ValueError(f"n = {n} terms, but a result of {result.dtype} counts exactly only to {limit}")
        units = float(result.item()) / unit
        # Means are multiplied back and carry a rounding error: a quarter tells it from a result that is no count.
        if not math.isfinite(units) or abs(units - round(units)) > 0.25:
            raise _not_a_tree(f"a result is {units:g} times the unit")
        return round(units)

    ones = torch.full((n,), unit, dtype=dtype)
    total = count(ones.to(device))
    if total != n:
        raise _not_a_tree(f"{n} terms of one unit add up to {total}")

    @functools.cache
    def common_subtree_size(i: int, j: int) -> int:
        """Terms of the smallest subtree that holds both i and j."""
        terms = ones.clone()
        terms[i], terms[j] = huge, -huge
        size = n - count(terms.to(device))
        if not 2 <= size <= n:
            raise _not_a_tree(f"terms {i} and {j} leave {n - size} of {n} terms outside")
        return size

    [tree] = _branches(range(n), lambda i, j: common_subtree_size(min(i, j), max(i, j)), n)
    return tree


def _branches(terms: Sequence[int], common_subtree_size: Callable[[int, int], int], parent_size: int) -> list[Tree]:
    """The subtrees that ``terms`` form below a node of ``parent_size`` terms: one, or several if that node adds many.

    Walks up from one term. The terms that meet it at the same node are a group, and groups are trees by themselves.
    """
    # Any term will do. The middle one halves the work for a chain, whichever end it starts from.
    start = terms[len(terms) // 2]
    groups: dict[int, list[int]] = {}
    for term in terms:
        if term != start:
            groups.setdefault(common_subtree_size(start, term), []).append(term)
    tree = Tree.leaf(start)
    for size, group in sorted(groups.items()):
        siblings = _branches(group, common_subtree_size, size)
        if size == parent_size and size > len(terms):  # these meet the walked-up branch only in the parent itself
            if size != max(groups) or tree.size + len(group) != len(terms):
                raise _not_a_tree("subtree sizes contradict each other")
            return [tree, *siblings]
        tree = Tree([tree, *siblings])
        if tree.size != size:
            raise _not_a_tree(f"a subtree of {size} terms has {tree.size}")
    return [tree]


def accumulation_tree_of_nonnegative_terms(
    fn: SumFunction, n: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tree:
    """The tree of a sum whose terms cannot be negative: squares in a norm, exponentials in a softmax.

    Nothing can cancel there, so triples of terms are asked: is j added to k before either meets i? With term i one, j
    and k three eighths of its last place and all others zero, one absorbs j and k unless they come together.

    ``fn`` maps the terms, a tensor [n] of ``dtype``, to any tensor of one element that is different when the sum is one
    and when it is the next number above one. So the result must be of the accumulation type. Called some n (log n)^2
    times for the trees of real kernels.

    ``dtype`` is float32, bfloat16 (accumulated in float32) or float64. ValueError for another, and when the answers are
    not those of a tree of two-way additions.
    """
    if dtype not in (torch.float64, torch.float32, torch.bfloat16):
        raise ValueError(f"no accumulation tree of non-negative terms for {dtype}: use float64, float32 or bfloat16")
    if n < 1:
        raise ValueError(f"a sum has at least one term, not {n}")
    last_place = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps

    def result(i: int, *small: int) -> torch.Tensor:
        terms = torch.zeros(n, dtype=dtype)
        terms[i] = 1.0
        terms[list(small)] = 0.375 * last_place
        return fn(terms.to(device)).detach().clone()

    one_alone = functools.cache(result)

    @functools.cache
    def outsider(i: int, j: int, k: int) -> int:
        """Of three terms, the one that the two others meet last."""
        outside = []
        for alone, first, second in ((i, j, k), (j, i, k), (k, i, j)):
            if not torch.equal(result(alone, first, second), one_alone(alone)):
                outside.append(alone)
        if len(outside) != 1:
            raise _not_a_tree(f"no two of the terms {i}, {j}, {k} meet before the third")
        return outside[0]

    def tree_of(terms: Sequence[int]) -> Tree:
        start = terms[len(terms) // 2]

        def compare(j: int, k: int) -> int:
            """Along the way from ``start`` to the root: does j or k join first, or both from one branch (0)?"""
            outside = outsider(*sorted((start, j, k)))
            return {j: 1, k: -1, start: 0}[outside]

        others = sorted((term for term in terms if term != start), key=functools.cmp_to_key(compare))
        tree = Tree.leaf(start)
        while others:
            branch = [term for term in others[1:] if compare(others[0], term) == 0]
            tree = Tree([tree, tree_of([others[0], *branch])])
            others = others[1 + len(branch) :]
        return tree

    return tree_of(range(n))


def _not_a_tree(found: str) -> ValueError:
    return ValueError(
        f"no accumulation tree explains the results ({found}): fn is no plain sum in one fixed order, "
        "or it accumulates in a type too narrow to count or too wide to absorb"
    )
