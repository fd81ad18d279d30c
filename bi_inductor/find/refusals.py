"""What `find` cannot capture: each case is one sentence with the place and the way out."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from ..errors import CaptureError, missing_device, user_line
from ..leaves import unknown_output
from .nodes import is_view, written_arguments

if TYPE_CHECKING:
    from torch.fx import Node

    from bi_inductor.passes.layout import Symbols


def own_error(module: torch.nn.Module, arguments: Any, named: Any, samples: tuple[int, ...]) -> CaptureError | None:
    """The error for a model that does not run outside of a capture either, or returns what a capture cannot take."""
    arguments, named = pytree.tree_map_only(torch.Tensor, torch.clone, (arguments, named))
    buffers = {buffer: buffer.clone() for buffer in module.buffers()}
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = module(*arguments, **named)
    except Exception as error:
        if missing_device(error) is not None:
            return None
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "no message"
        of = "a batch of one" if samples == (0,) else "these inputs"
        return CaptureError(
            f"the model raises {type(error).__name__} for {of} at {user_line(error)}: {first}; call it once by itself and mend that."
        )
    finally:
        for buffer, value in buffers.items():
            buffer.copy_(value)
    for leaf in pytree.tree_leaves(outputs):
        if (sentence := unknown_output(leaf)) is not None:
            return CaptureError(sentence)
    return None


def capture_error(error: Exception) -> CaptureError:
    """One sentence that says what stopped the capture, where, and what to do."""
    line = user_line(error)
    text = str(error)
    name = type(error).__name__
    if missing_device(error) is not None:
        return no_cuda(line)
    if name in ("GuardOnDataDependentSymNode", "DataDependentOutputException") or "data-dependent" in text:
        return CaptureError(
            f"a branch or a shape depends on values at {line}, so the model is not one graph for every batch; call find on the parts "
            "before and after it, or write the choice with torch.where or torch.cond."
        )
    first = text.strip().splitlines()[0] if text.strip() else ""
    return CaptureError(
        f"the model cannot be captured as one graph (a graph break) at {line}: {name}: {first.rstrip('.')}; call find on the parts before "
        "and after it, or write it with torch ops only."
    )


def no_cuda(line: str) -> CaptureError:
    return CaptureError(f"the model uses a CUDA device at {line}, and this machine has none; move it to the CPU, or run find on a GPU.")


def check_outputs(graph: torch.fx.Graph) -> None:
    """Raises CaptureError for an output as long as the data say, in which a sample has no rows of its own."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    from ..passes.classify import source_line

    for node in graph.output_node().all_input_nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and free_unbacked_symbols(value):
            raise CaptureError(
                f"the shape of an output depends on values at {source_line(node)}, so a sample's rows cannot be told apart in it; call "
                "find on the part before it, or return a result of a fixed shape, with torch.where or a mask."
            )


def check_choices(placeholders: list[Node], symbols: Symbols, samples: int, lengths: Collection[int]) -> None:
    """Raises CaptureError when the model takes another way at some batch size or length: the graph holds for the way of the capture only.

    Capture takes any size from 2 on for like the others; a way for a batch of one alone is found by `batch_of_one.other_way`.
    """
    import sympy

    values = [node.meta["val"] for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    environment = next((value.fake_mode.shape_env for value in values if hasattr(value, "fake_mode")), None)
    named = {
        **{symbol: sympy.Symbol("batch_size") for symbol in symbols.batch},
        **{symbol: sympy.Symbol("length") for symbol in symbols.sequence},
    }
    for guard in environment.guards if environment is not None else ():
        free = guard.expr.free_symbols
        if not free or not free <= named.keys():
            continue
        by_batch, by_length = bool(free & symbols.batch), bool(free & symbols.sequence)
        for batch in range(2, samples + 1) if by_batch else (samples,):
            for length in lengths if by_length else (0,):
                sizes = {**dict.fromkeys(symbols.batch, batch), **dict.fromkeys(symbols.sequence, length)}
                if guard.expr.subs(sizes) == False:  # noqa: E712  # a sympy value
                    what, captured, other = ("batch size", samples, batch) if by_batch else ("length", "the given samples", length)
                    of = "a batch of " if by_batch else ""
                    raise CaptureError(
                        f"the model chooses by the {what} ({guard.expr.subs(named)} holds for {of}{captured} and not for one of {other}), "
                        "so it is not one graph, and the choice itself may change bits; make the choice independent of "
                        f"the {what}, or call find on each side of it."
                    )


def check_node(node: Node, constants: dict[str, Any], leaf_of: dict[str, int]) -> None:
    """Raises CaptureError for what would make one run depend on the run before, and for devices that are not there."""
    from ..passes.classify import source_line

    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.device.type == "cuda" and not torch.cuda.is_available():
            # A build of torch with CUDA traces without a device; one without CUDA has raised by now.
            raise no_cuda(source_line(node))
    for written in written_arguments(node):
        root = written
        while isinstance(root, torch.fx.Node) and root.op == "call_function" and is_view(root):
            root = root.args[0]
        if isinstance(root, torch.fx.Node) and root.op == "placeholder":
            what = "an input" if root.name in leaf_of else "a parameter or buffer"
            raise CaptureError(
                f"{node.target} writes to {what} ({root.name}) in place at {source_line(node)}, so one run would change the next; write "
                "to a copy (clone it first), or put the module into eval mode if these are running statistics."
            )
