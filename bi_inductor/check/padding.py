"""Padding for `check`: sequences made longer on one side, and the results cut to what they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from ..leaves import BatchDim, Leaf, absent_is_none, leaves_with_dims, top_level_entries

SIDES = ("left", "right")


class Pad(NamedTuple):
    """How one call is padded."""

    side: str
    amount: int

    def cut(self, value: torch.Tensor, dim: int) -> torch.Tensor:
        """`value` without the places along `dim` that are padding."""
        return value.narrow(dim, self.amount if self.side == "left" else 0, value.shape[dim] - self.amount)


@dataclass(frozen=True)
class Padding:
    """Which dims of inputs and outputs hold a sequence, and what padding holds.

    Attributes:
        dims: the dim by name of the input tensor; those without one are left out.
        values: what the padding of an input holds, by its name.
        out_dim: the `out_sequence_dim` of `check`.
    """

    dims: Mapping[str, int]
    values: Mapping[str, float]
    out_dim: BatchDim

    def pad(self, leaf: Leaf, value: torch.Tensor, pad: Pad) -> torch.Tensor:
        """The tensor `value` of an input with padding along its sequence dim; as it is when it has none."""
        if leaf.name not in self.dims:
            return value
        shape = list(value.shape)
        shape[self.dims[leaf.name]] = pad.amount
        padding = value.new_full(shape, self.values[leaf.name])
        return torch.cat([padding, value] if pad.side == "left" else [value, padding], self.dims[leaf.name])

    def cut_outputs(self, outputs: Any, pad: Pad) -> Any:
        """The outputs of a padded call without what stands at the padding. Raises ValueError when a dim does not fit."""
        leaves, structure = pytree.tree_flatten_with_path(outputs)
        named = leaves_with_dims(leaves, absent_is_none(leaves, self.out_dim), "out_sequence_dim", "output")
        return pytree.tree_unflatten([leaf.value if leaf.dim is None else pad.cut(leaf.value, leaf.dim) for leaf in named], structure)


def padding_of(inputs: Any, sequence_dim: BatchDim, out_sequence_dim: BatchDim, values: float | Mapping[Any, float]) -> Padding:
    """Checks `check`'s arguments about padding. Raises ValueError, naming the one that does not fit."""
    leaves = pytree.tree_flatten_with_path(inputs)[0]
    named = leaves_with_dims(leaves, absent_is_none(leaves, sequence_dim), "sequence_dim", "inputs")
    dims = {leaf.name: leaf.dim for leaf in named if leaf.dim is not None}
    if not dims:
        raise ValueError(f"sequence_dim={sequence_dim!r} names no dim of any tensor in inputs: padding has nothing to make longer")
    tops = {leaf.name: top for top, leaf in zip(top_level_entries(leaves), named, strict=True)}
    if isinstance(values, Mapping):
        unknown = [key for key in values if key not in tops.values()]
        if unknown:
            raise ValueError(f"padding_values names {unknown[0]!r}; inputs have {', '.join(map(repr, dict.fromkeys(tops.values())))}")
    by_name = {name: values.get(tops[name], 0) if isinstance(values, Mapping) else values for name in dims}
    return Padding(dims, by_name, out_sequence_dim)
