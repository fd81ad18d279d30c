"""The tensors of nested inputs or outputs, each with its name for messages and the dim that holds the samples (or the positions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

# One dim for all tensors, or one per top-level argument (by position or name); None for a tensor without samples.
BatchDim = int | Sequence[int | None] | Mapping[Any, int | None] | None


class Leaf(NamedTuple):
    """One leaf of the inputs or outputs: its name for messages, its value, its batch dim (None: no samples in it)."""

    name: str
    value: Any
    dim: int | None

    @property
    def is_batched(self) -> bool:
        return self.dim is not None


def call_with(function: Callable[..., Any], inputs: Any) -> Any:
    """Calls a function with inputs as users give them: a tensor, a tuple or list of positional arguments, a dict of named ones."""
    if isinstance(inputs, dict):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, (tuple, list)) else function(inputs)


def top_level_entries(leaves: list[tuple[Any, Any]]) -> list[Any]:
    """For each leaf, with its path, the index or name of the top-level entry it belongs to."""
    return [_key(path[0]) if path else None for path, _ in leaves]


def leaves_with_dims(leaves: list[tuple[Any, Any]], given: BatchDim, argument: str, root: str) -> list[Leaf]:
    """Pairs each leaf with the dim that `given` (the value of `argument`) says for its top-level parent."""
    tops = top_level_entries(leaves)
    by_top: dict[Any, int | None]
    if given is None or isinstance(given, int):
        by_top = dict.fromkeys(tops, given)
    else:
        known = list(dict.fromkeys(tops))
        if isinstance(given, Mapping):
            fits = all(key in known for key in given)
        else:
            # A sequence goes by position; for inputs with names, by the order of the names.
            fits = len(given) == len(known)
        if not fits:
            raise ValueError(f"{argument}={given!r} does not fit {root}, whose entries are {known}")
        entries = given if isinstance(given, Mapping) else dict(zip(known, given, strict=True))
        by_top = {key: entries.get(key, 0) for key in known}
    named = []
    for (path, value), top in zip(leaves, tops, strict=True):
        name = root + pytree.keystr(path)
        dim = by_top[top] if isinstance(value, torch.Tensor) else None
        if dim is not None and not -value.dim() <= dim < value.dim():
            raise ValueError(
                f"{argument}={dim} is out of range for {name} of shape {tuple(value.shape)}; allowed is "
                + (f"-{value.dim()} to {value.dim() - 1}, or " if value.dim() else "")
                + "None for a tensor that holds no samples"
            )
        named.append(Leaf(name, value, None if dim is None else dim % value.dim()))
    return named


def absent_is_none(leaves: list[tuple[Any, Any]], dims: BatchDim) -> BatchDim:
    """Dims of a sequence: a mapping names what has one, entries that it lacks have none."""
    if not isinstance(dims, Mapping):
        return dims
    return {**dict.fromkeys(top_level_entries(leaves)), **dims}


def unknown_output(leaf: Any) -> str | None:
    """One sentence for an object in a function's results whose tensors cannot be seen, such as a dataclass; None for any other leaf."""
    if isinstance(leaf, torch.Tensor) or not hasattr(leaf, "__dict__"):
        return None
    kind = type(leaf).__name__
    return (
        f"the model returns an object of type {kind}, whose tensors cannot be seen; return a tuple or a dict, or call "
        f"torch.export.register_dataclass({kind}), or torch.utils._pytree.register_pytree_node, first."
    )


def _key(entry: Any) -> Any:
    """The index, key or attribute name of one step of a pytree path."""
    for attribute in ("idx", "key", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)
