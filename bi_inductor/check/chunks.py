"""A sequence in chunks for `check`: one call after the other, as chunked prefill and decoding with a KV cache do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..leaves import BatchDim, absent_is_none, call_with, leaves_with_dims

# Calls the function on each chunk of the inputs, in order, and returns the outputs for the whole sequence.
InChunks = Callable[[Callable[..., Any], Sequence[Any]], Any]


@dataclass(frozen=True)
class Chunks:
    """How inputs are cut into chunks, and outputs put together again.

    Attributes:
        sequence_dim: the dim of the inputs along which they are cut, as `check` takes it.
        out_sequence_dim: the dim of the outputs along which the chunks are put together, when `in_chunks` is None.
        in_chunks: the user's function.
        length: positions of the inputs.
    """

    sequence_dim: BatchDim
    out_sequence_dim: BatchDim
    in_chunks: InChunks | None
    length: int

    def run(self, call: Callable[..., Any], inputs: Any, chunk: int) -> Any:
        """The outputs for the whole sequence, from calls with ``chunk`` positions each (the last may have fewer)."""
        chunks = [self._cut(inputs, start, min(chunk, self.length - start)) for start in range(0, self.length, chunk)]
        if self.in_chunks is not None:
            return self.in_chunks(call, chunks)
        return self._join([call_with(call, part) for part in chunks])

    def _cut(self, inputs: Any, start: int, length: int) -> Any:
        leaves, structure = pytree.tree_flatten_with_path(inputs)
        named = leaves_with_dims(leaves, absent_is_none(leaves, self.sequence_dim), "sequence_dim", "inputs")
        values = [leaf.value if leaf.dim is None else leaf.value.narrow(leaf.dim, start, length).contiguous() for leaf in named]
        return pytree.tree_unflatten(values, structure)

    def _join(self, outputs: list[Any]) -> Any:
        """Raises ValueError for an output without a dim to put its chunks together along."""
        leaves, structure = pytree.tree_flatten_with_path(outputs[0])
        named = leaves_with_dims(leaves, absent_is_none(leaves, self.out_sequence_dim), "out_sequence_dim", "output")
        joined = []
        for leaf, *others in zip(named, *(pytree.tree_leaves(output) for output in outputs[1:]), strict=True):
            if isinstance(leaf.value, torch.Tensor) and leaf.dim is None:
                raise ValueError(
                    f"chunks: {leaf.name} has no dim in out_sequence_dim along which its chunks could be put together; name one, or give "
                    "in_chunks, a function that runs the chunks and returns the outputs of the whole sequence"
                )
            joined.append(leaf.value if leaf.dim is None else torch.cat([leaf.value, *others], leaf.dim))
        return pytree.tree_unflatten(joined, structure)


def chunks_of(inputs: Any, sequence_dim: BatchDim, out_sequence_dim: BatchDim, in_chunks: InChunks | None) -> Chunks:
    """Checks `check`'s arguments about chunks. Raises ValueError, naming the one that does not fit."""
    if in_chunks is not None and not callable(in_chunks):
        raise ValueError(
            f"in_chunks: got {in_chunks!r}; allowed is a function of (fn, chunks) that returns the outputs of the whole sequence"
        )
    if sequence_dim is None:
        raise ValueError("chunks: they need sequence_dim, the dim of the inputs along which a sequence is cut")
    if in_chunks is None and out_sequence_dim is None:
        raise ValueError(
            "chunks: they need out_sequence_dim, the dim along which the outputs of the chunks are put together, or in_chunks, a function "
            "that runs the chunks one after the other (with a KV cache, say)"
        )
    leaves = pytree.tree_flatten_with_path(inputs)[0]
    named = leaves_with_dims(leaves, absent_is_none(leaves, sequence_dim), "sequence_dim", "inputs")
    lengths = {leaf.value.shape[leaf.dim] for leaf in named if leaf.dim is not None}
    if len(lengths) != 1:
        raise ValueError(f"chunks: the inputs have {sorted(lengths) or 'no'} lengths along sequence_dim={sequence_dim!r}; allowed is one")
    return Chunks(sequence_dim, out_sequence_dim, in_chunks, lengths.pop())
