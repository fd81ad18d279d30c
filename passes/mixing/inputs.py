"""Which inputs of a graph hold samples, and along which dim.

Parameters, buffers, attributes of modules, globals and values of an enclosing function are shared by all samples. Of the other inputs,
those hold samples that have the batch size in the right place:

1. the dim that option ``batch_dim`` names;
2. else, with dynamic shapes, the dim whose size is the symbol of the batch: the symbol at dim 0 that ``mark_dynamic`` marks, else the one
   that most inputs have at dim 0. A symbol that is at no input's dim 0 is a length, as in a batch of one;
3. else dim 0, when it has the size that most inputs have there (of several sizes, that of the input with the most dims). The rest (a
   table of positions, say) is shared.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from bi_inductor.errors import OptionError

# One dim for all inputs, or dims by the name of the argument (None: no samples in it); others are found as for None.
BatchDims = int | tuple[tuple[str, int | None], ...] | None


class GraphInput(NamedTuple):
    """An input of the graph that Dynamo captured: how the user calls it, and the dim that holds the samples."""

    name: str
    dim: int | None


class _Candidate(NamedTuple):
    number: int
    name: str
    shape: tuple[Any, ...]
    marked: frozenset[int]

    def symbol(self, dim: int) -> Any:
        """The symbol that is the size of ``dim``; None for a number or an expression."""
        size = self.shape[dim]
        if not isinstance(size, torch.SymInt):
            return None
        expression = size.node.expr
        return expression if expression.is_Symbol else None


def describe_inputs(gm: GraphModule, example_inputs: Sequence[Any], batch_dim: BatchDims) -> tuple[GraphInput, ...]:
    """One entry for each input of ``gm``, a graph of Dynamo.

    Raises:
        OptionError: ``batch_dim`` names an input that is not there, or a dim that it does not have.
    """
    names: list[str] = []
    candidates: list[_Candidate] = []
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        example = example_inputs[index] if index < len(example_inputs) else None
        value = node.meta.get("example_value", node.meta.get("val", example))
        name, shared = _name_and_sharing(node)
        names.append(name)
        if isinstance(value, torch.Tensor) and value.dim() and not shared and not isinstance(value, torch.nn.Parameter):
            candidates.append(_Candidate(index, name, tuple(value.shape), _marked(node, example)))
    dims = _sample_dims(candidates, batch_dim)
    return tuple(GraphInput(name, dims.get(index)) for index, name in enumerate(names))


def _name_and_sharing(node: Node) -> tuple[str, bool]:
    """The user's name of an input ("mask", "cache.keys[0]"), and whether it is no argument of the call."""
    argument = node.meta.get("grapharg")
    source = getattr(node, "_dynamo_source", None) or getattr(argument, "source", None)
    if source is None:
        return node.name, False
    # torch._dynamo.source, checked in 2.13.0 to 2.15.0: name is a property or a method.
    name = source.name() if callable(source.name) else source.name
    if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {}):
        return name, True
    root = source
    while True:
        if "NNModule" in type(root).__name__ or "ParamBuffer" in type(root).__name__:
            return name, True
        if getattr(root, "base", None) is None:
            break
        root = root.base
    is_argument = getattr(root, "is_input", False) and getattr(root, "local_name", "") != "self"
    return re.sub(r"^L\['(\w+)'\]", r"\1", name), not is_argument


def _marked(node: Node, example: Any) -> frozenset[int]:
    """The dims that ``torch._dynamo.mark_dynamic`` marked."""
    tensor_dict: Mapping[str, Any] = node.meta.get("tensor_dict") or {}
    found: set[int] = set()
    for key in ("_dynamo_dynamic_indices", "_dynamo_unbacked_indices"):
        found |= set(tensor_dict.get(key, ())) | set(getattr(example, key, ()))
    return frozenset(found)


def _sample_dims(candidates: list[_Candidate], batch_dim: BatchDims) -> dict[int, int | None]:
    """The dim of the samples for each candidate that holds some, by its index."""
    named: dict[int, int | None] = {}
    if isinstance(batch_dim, int):
        for candidate in candidates:
            if -len(candidate.shape) <= batch_dim < len(candidate.shape):
                named[candidate.number] = batch_dim % len(candidate.shape)
        sizes = collections.Counter(str(candidate.shape[named[c]]) for candidate in candidates if (c := candidate.number) in named)  # type: ignore[index]  # ints
        size = sizes.most_common(1)[0][0] if sizes else ""
        return {c.number: named[c.number] for c in candidates if c.number in named and str(c.shape[named[c.number]]) == size}  # type: ignore[index]
    for name, dim in batch_dim or ():
        matching = [candidate for candidate in candidates if _names(name, candidate.name)]
        if not matching and candidates:
            continue
        for candidate in matching:
            if dim is not None and not -len(candidate.shape) <= dim < len(candidate.shape):
                raise OptionError(
                    f"option 'batch_dim' gives dim {dim} for {candidate.name!r}, which has {len(candidate.shape)} dims; allowed are "
                    f"{-len(candidate.shape)} to {len(candidate.shape) - 1}, or None for an input without samples"
                )
            named[candidate.number] = None if dim is None else dim % len(candidate.shape)
    given = [candidate.shape[dim] for candidate in candidates if (dim := named.get(candidate.number)) is not None]
    rest = [candidate for candidate in candidates if candidate.number not in named]
    found = _by_symbol(rest, given)
    if found is None:
        size = str(given[0]) if given else _most_common_size(rest)
        found = {candidate.number: 0 for candidate in rest if str(candidate.shape[0]) == size}
    return {**found, **named}


def _most_common_size(candidates: list[_Candidate]) -> str:
    """The size that most inputs have at dim 0; of several, that of the input with the most dims."""
    counts = collections.Counter(str(candidate.shape[0]) for candidate in candidates)
    best = max(candidates, key=lambda c: (counts[str(c.shape[0])], len(c.shape)), default=None)
    return "" if best is None else str(best.shape[0])


def _names(given: str, name: str) -> bool:
    """Whether an option's name means this input: "cache" means "cache.keys[0]" too, "mask" the "inputs['mask']" of ``**inputs``."""
    return name == given or name.endswith(f"['{given}']") or (name.startswith(given) and name[len(given)] in ".[")


def _by_symbol(candidates: list[_Candidate], given: list[Any]) -> dict[int, int] | None:
    """The dim of each input whose size is the symbol of the batch; None when no symbol can be told to be it."""
    symbols = [size.node.expr for size in given if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol]
    for of_marked in (True, False):
        at_front = [candidate.symbol(0) for candidate in candidates if not of_marked or 0 in candidate.marked]
        symbols += [symbol for symbol, _ in collections.Counter(s for s in at_front if s is not None).most_common()]
    if not symbols:
        return None
    found = {}
    for candidate in candidates:
        dims_of_batch = [dim for dim in range(len(candidate.shape)) if candidate.symbol(dim) == symbols[0]]
        if dims_of_batch:
            found[candidate.number] = dims_of_batch[0]
    return found
