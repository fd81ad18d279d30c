"""Tools to look at a kernel from outside: in which order does it add?

``accumulation_tree(torch.sum, 64).render()`` shows it for a sum of 64 terms; the ``of_...`` adapters do the same for a
matmul, a mean, softmax, attention and rms_norm. ``expected_tree`` is the order that docs/numerics.md defines.

``follows_neighbours`` runs a function with other samples beside a sample and says which outputs change for it.
"""

from bi_inductor.testing.adapters import (
    of_attention_denominator,
    of_attention_scores,
    of_attention_values,
    of_matmul,
    of_mean,
    of_rms_norm,
    of_softmax_denominator,
)
from bi_inductor.testing.neighbours import follows_neighbours
from bi_inductor.testing.recovery import accumulation_tree, accumulation_tree_of_nonnegative_terms
from bi_inductor.testing.tree import Tree, expected_tree

__all__ = [
    "Tree",
    "accumulation_tree",
    "accumulation_tree_of_nonnegative_terms",
    "expected_tree",
    "follows_neighbours",
    "of_attention_denominator",
    "of_attention_scores",
    "of_attention_values",
    "of_matmul",
    "of_mean",
    "of_rms_norm",
    "of_softmax_denominator",
]
