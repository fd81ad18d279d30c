"""Which symbol of the captured shapes is the number of samples."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from bi_inductor.errors import OptionError


def batch_symbol(gm: GraphModule) -> Any:
    """The symbol that is the size of dim 0 of inputs, parameters and buffers left out, and of no other dim; None for a batch of one.

    Args:
        gm: as Dynamo captured it, with the fake values of its inputs.

    Raises:
        OptionError: there is no such symbol, or there are several.
    """
    shapes = [node.meta["example_value"].shape for node in gm.graph.find_nodes(op="placeholder") if _may_hold_samples(node)]
    symbols = [_symbol(shape[0]) for shape in shapes]
    elsewhere = {symbol for shape in shapes for size in shape[1:] for symbol in _symbols(size)}
    found = {symbol for symbol in symbols if symbol is not None} - elsewhere
    if len(found) == 1:
        return found.pop()
    # Inputs of one dim are often shared by all samples, positions for instance.
    batches = [shape for shape in shapes if len(shape) > 1] or shapes
    if not found and all(not isinstance(shape[0], torch.SymInt) and shape[0] == 1 for shape in batches):
        return None
    given = ", ".join(str(list(shape)) for shape in shapes)
    raise OptionError(
        "option 'sample_gradients' has to know which dim holds the samples: dim 0 of the inputs must be dynamic and its size that of no "
        "other dim. Compile with dynamic=True, or call torch._dynamo.mark_dynamic(x, 0) on each input that holds samples; the inputs are "
        f"of shapes {given}"
    )


def _may_hold_samples(node: Node) -> bool:
    value = node.meta.get("example_value")
    # Dynamo (checked in torch 2.13.0) marks parameters and buffers so in the meta of their inputs.
    is_static = isinstance(value, torch.nn.Parameter) or bool(node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"))
    return isinstance(value, torch.Tensor) and value.dim() > 0 and not is_static


def _symbols(size: Any) -> set[Any]:
    return set(size.node.expr.free_symbols) if isinstance(size, torch.SymInt) else set()


def _symbol(size: Any) -> Any:
    """The size where it is one symbol, else None."""
    return size.node.expr if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol else None
