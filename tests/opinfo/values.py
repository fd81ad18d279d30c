"""Whether a compiled call has eager's results: as many tensors, of its shapes and dtypes, and its values up to rounding.

Eager rounds the steps of some ops to bfloat16 that a compiled kernel keeps in float32, so values may also be those of eager in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.opinfo.batches import call, close, tensors_of
from tests.opinfo.entries import Entry

# The values of these are whatever was in memory.
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_")
# The number of the result that holds places of sorted elements: eager leaves the order of equal ones open.
OPEN = {"argsort": 0, "sort": 1}


def difference(entry: Entry, spec: pytree.TreeSpec, leaves: Sequence[Any], results: Sequence[torch.Tensor]) -> str:
    """What differs between the results of a call and eager's, in words; empty if nothing does."""
    expected = eager(entry, spec, leaves)
    if len(results) != len(expected):
        return f"{len(results)} results, eager {len(expected)}"
    for i, (result, value) in enumerate(zip(results, expected, strict=True)):
        given, wanted = (f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in (result, value))
        if given != wanted:
            return f"result {i} is {given}, eager's {wanted}"
    if entry.name in UNINITIALISED:
        return ""
    pairs = enumerate(zip(results, expected, strict=True))
    different = [i for i, pair in pairs if i != OPEN.get(entry.name) and not close(*pair)]
    if different:
        try:
            exact = eager(entry, spec, [widened(leaf) for leaf in leaves])
        except Exception:
            # The op has no float64.
            return f"values of results {different}"
        different = [i for i in different if not close(results[i], exact[i].to(results[i].dtype))]
    return f"values of results {different}" if different else ""


def eager(entry: Entry, spec: pytree.TreeSpec, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The results of the call in eager."""
    with torch.no_grad():
        return tensors_of(call(entry.function, spec, leaves))


def widened(leaf: Any) -> Any:
    """A floating or complex tensor in float64 or complex128; anything else as it is."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return leaf
    return leaf.to(torch.complex128) if leaf.is_complex() else leaf.double() if leaf.is_floating_point() else leaf
