"""Captures a model as one graph with a symbolic batch size, every op as the model's source calls it.

torch.export in its first form is what is wanted: linear, matmul, attention and norms are whole, ops in place stay in place, and each node
knows its source line and module. Running that graph node by node gives the bits of the eager model.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import linecache
import logging
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch.fx.traceback import annotate, preserve_node_meta

from ..check.batches import Inputs, Run
from ..check.chunks import InChunks
from ..errors import CaptureError
from ..leaves import Leaf
from .nodes import kept_nodes, last_uses, nodes_of_samples
from .refusals import capture_error, check_choices, check_node, check_outputs, own_error

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    from bi_inductor.passes.layout import Layouts, Symbols

Model = "Callable[..., Any] | ExportedProgram"


@dataclass
class Captured:
    """A model as a graph.

    Attributes:
        module: holds the graph; each placeholder is a parameter, a buffer, a constant or an input.
        constants: the values of the placeholders that are no inputs.
        inputs: for each other placeholder, which leaf of the inputs it is.
        layouts: where the samples are in each node's value.
        symbols: the symbols in the shapes.
        of_samples: the nodes whose values are computed from inputs that hold samples; others follow at most the sizes, as arange does.
        last_uses: the values that nobody needs after a node.
        kept: the nodes that the outputs, or ops in place, depend on; in order.
        calls: for the nodes that a call of the model by `in_chunks` made, the number of that call; empty without `in_chunks`.
    """

    module: GraphModule
    constants: dict[str, Any]
    inputs: dict[str, int]
    layouts: dict[Node, Layouts]
    symbols: Symbols
    of_samples: set[Node]
    last_uses: dict[Node, list[Node]]
    kept: list[Node]
    calls: dict[Node, int]

    @property
    def nodes(self) -> list[Node]:
        """The calls of the graph, in order."""
        return [node for node in self.module.graph.nodes if node.op == "call_function"]

    @property
    def outputs(self) -> list[Node]:
        """The nodes whose values the model returns."""
        return list(self.module.graph.output_node().all_input_nodes)


class _Function(torch.nn.Module):
    """A function as a module whose parameters are its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return self.function(*arguments, **named)


@dataclass(frozen=True)
class Cut:
    """How `in_chunks` of `find` is called in a capture.

    Attributes:
        in_chunks: the user's function.
        pieces: first position and length of each chunk; empty for one chunk that is the whole sequence.
    """

    in_chunks: InChunks
    pieces: tuple[tuple[int, int], ...] = ()


class _InChunks(_Function):
    """A model that the user's `in_chunks` calls, a chunk at a time; the nodes of each call are marked with its number."""

    def __init__(self, function: Callable[..., Any], cut: Cut, inputs: Inputs, sequence: list[int | None]) -> None:
        super().__init__(function)
        self.cut, self.inputs, self.sequence = cut, inputs, sequence

    def forward(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        values = pytree.tree_leaves((arguments, named))
        numbers = itertools.count()

        def call(*args: Any, **kwargs: Any) -> Any:
            with annotate({_CALL: next(numbers)}):
                return self.function(*args, **kwargs)

        return self.cut.in_chunks(call, [self._piece(values, *piece) for piece in self.cut.pieces] or [self._piece(values)])

    def _piece(self, values: list[Any], *piece: int) -> Any:
        dims = self.sequence if piece else [None] * len(values)
        parts = [value if dim is None else value.narrow(dim, *piece).contiguous() for value, dim in zip(values, dims, strict=True)]
        return pytree.tree_unflatten(parts, self.inputs.structure)


# The name of the mark.
_CALL = "bi_inductor.call"


def capture(
    model: Any,
    inputs: Inputs,
    sequence: list[int | None],
    one_sample: bool = False,
    lengths: Collection[int] = (),
    cut: Cut | None = None,
) -> Captured:
    """The graph of ``model``.

    Args:
        model: a module, a function, or a program of torch.export with a dynamic batch size.
        inputs: what it is called with.
        sequence: for each leaf of the inputs the dim whose length varies between variants, or None.
        one_sample: the graph for a batch of exactly one instead of the graph for every size from 2 on. Its layouts know no batch.
        lengths: of the samples in the variants.
        cut: the model is called by `in_chunks`, in these pieces (then the length is that of ``inputs``).

    Raises:
        CaptureError: the model is not one graph, fixes the batch size, writes to its inputs or state, or needs a device that is not there.
    """
    from torch.export import ExportedProgram

    from bi_inductor.passes.layout import layouts

    leaves = [leaf._replace(dim=None) for leaf in inputs.leaves] if one_sample else inputs.leaves
    samples = (0,) if one_sample else tuple(range(inputs.samples))
    # Pieces have lengths of their own; the whole has one that symbols can tell from other sizes.
    symbolic: list[int | None] = [None] * len(sequence) if cut is not None and cut.pieces else sequence
    wrapped = model if cut is None else _InChunks(model, cut, inputs, sequence)
    if not callable(model) and not isinstance(model, ExportedProgram):
        raise TypeError(f"model: got {type(model).__name__}; allowed are a module, a function and a program of torch.export")
    program, fixed = (model, {}) if isinstance(model, ExportedProgram) else _export(wrapped, inputs, samples, leaves, symbolic)
    signature = program.graph_signature
    constants: dict[str, Any] = {}
    user_inputs: list[str] = []
    state = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    for spec in signature.input_specs:
        name = getattr(spec.arg, "name", None)
        if spec.kind.name == "USER_INPUT":
            user_inputs.append(str(name))
        elif name is not None and spec.target is not None:
            constants[name] = state[spec.target]
    if len(user_inputs) != len(inputs.leaves):
        raise CaptureError(
            f"the saved program takes {len(user_inputs)} inputs and {len(inputs.leaves)} are given; give all inputs it was exported with, "
            "in their order."
        )
    leaf_of = {name: index for index, name in enumerate(user_inputs)}
    graph = program.graph_module.graph
    check_outputs(graph)
    symbols = _symbols(graph.find_nodes(op="placeholder"), leaf_of, leaves, symbolic, fixed)
    check_choices(graph.find_nodes(op="placeholder"), symbols, inputs.samples, lengths)
    for node in list(graph.nodes):
        check_node(node, constants, leaf_of)
        # Checks of sizes that hold for the batch of the capture only.
        if node.op == "call_function" and not node.users and "_assert" in str(node.target):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return Captured(
        module=program.graph_module,
        constants=constants,
        inputs=leaf_of,
        layouts=layouts(graph, symbols),
        symbols=symbols,
        of_samples=nodes_of_samples(graph, {name for name, index in leaf_of.items() if inputs.leaves[index].is_batched}),
        last_uses=last_uses(graph),
        kept=kept_nodes(graph),
        calls={node: node.meta["custom"][_CALL] for node in graph.nodes if _CALL in node.meta.get("custom", {})},
    )


def _call_arguments(values: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of a call whose ``inputs`` are given as `find` takes them; ``values``: one for each."""
    if isinstance(inputs, dict):
        return (), values
    return (tuple(values), {}) if isinstance(inputs, (tuple, list)) else ((values,), {})


def _export(
    model: Callable[..., Any], inputs: Inputs, samples: tuple[int, ...], leaves: list[Leaf], sequence: list[int | None]
) -> tuple[ExportedProgram, dict[Any, str]]:
    """The program for a batch of ``samples``, symbolic in the dims of ``leaves`` and ``sequence``; and where it fixes which symbol."""
    from torch.export import Dim, export

    example, _ = inputs.gather(Run("capture", samples, ()), grad=False)
    arguments, named = _call_arguments(example, example)
    dynamic: list[Any] = []
    for leaf, length in zip(leaves, sequence, strict=True):
        dims = {dim: Dim.AUTO for dim in (leaf.dim, length) if dim is not None}
        dynamic.append(dims if isinstance(leaf.value, torch.Tensor) and dims else None)
    shapes, named_shapes = _call_arguments(pytree.tree_unflatten(dynamic, inputs.structure), example)
    specification: Any
    if isinstance(model, torch.nn.Module) and not _takes_any(model.forward) and not isinstance(model, _InChunks):
        module = model
        specification = {**dict(zip(inspect.signature(model.forward).parameters, shapes, strict=False)), **named_shapes}
    else:
        module, arguments, named = model if isinstance(model, _InChunks) else _Function(model), (arguments, named), {}
        specification = (shapes, named_shapes)
    marks = preserve_node_meta() if isinstance(model, _InChunks) else contextlib.nullcontext()
    try:
        with torch.no_grad(), _user_frames() as fixed, _quiet(), marks:
            return export(module, arguments, named, dynamic_shapes=specification, strict=False), fixed
    except Exception as error:
        with torch.no_grad():
            own = own_error(module, arguments, named, samples)
        raise own or capture_error(error) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """While active, export does not print the graph that it could not finish: the error says in a sentence what stopped it."""
    loggers = {
        logging.getLogger("torch.fx.experimental.symbolic_shapes"): logging.ERROR,
        logging.getLogger("torch._subclasses.fake_tensor"): logging.CRITICAL,
    }
    levels = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextlib.contextmanager
def _user_frames() -> Iterator[dict[Any, str]]:
    """While active, the nodes that export makes know every line of the user's code that led to them.

    Yields a dict that will hold, for each symbol of a size that a call into torch replaces by a number, the line of that call.

    By itself export keeps only frames of functions called "forward", so an op in a helper function would be given its caller's line.
    Frames of registered functions are kept too (torch.fx.proxy, checked in 2.13.0 to 2.15.0): each is registered when it calls into torch.
    """
    from torch._guards import detect_fake_mode
    from torch.fx import proxy
    from torch.overrides import TorchFunctionMode

    from ..passes.classify import TORCH_FOLDER

    anchors: set[tuple[str, str]] = proxy._STACK_TRACE_ANCHORS
    before = set(anchors)
    fixed: dict[Any, str] = {}

    class RegisterCallers(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            frame = sys._getframe(1)
            own = None
            while frame is not None and frame.f_code is not _export.__code__:
                if not frame.f_code.co_filename.startswith((TORCH_FOLDER, __file__)):
                    own = own or frame
                    anchors.add((frame.f_code.co_filename, frame.f_code.co_name))
                frame = frame.f_back  # type: ignore[assignment]  # None at the end
            result = func(*args, **(kwargs or {}))
            mode = detect_fake_mode()
            replaced = mode.shape_env.replacements if mode is not None and mode.shape_env is not None else {}
            if len(replaced) > len(fixed):
                for symbol in replaced:
                    fixed.setdefault(symbol, "" if own is None else _line_of(own))
            return result

    try:
        with RegisterCallers():
            yield fixed
    finally:
        anchors.intersection_update(before)


def _line_of(frame: FrameType) -> str:
    code = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f'"{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}: {code}'


def _takes_any(function: Callable[..., Any]) -> bool:
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return bool(kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def _symbols(
    placeholders: list[Node], leaf_of: dict[str, int], leaves: list[Leaf], sequence: list[int | None], fixed: dict[Any, str]
) -> Symbols:
    from bi_inductor.passes.layout import Symbols

    batch: set[Any] = set()
    lengths: set[Any] = set()
    for node in placeholders:
        if node.name not in leaf_of:
            continue
        leaf, length = leaves[leaf_of[node.name]], sequence[leaf_of[node.name]]
        for dim, found, what in ((leaf.dim, batch, "batch size"), (length, lengths, "length")):
            if dim is None:
                continue
            size = node.meta["val"].shape[dim]
            if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol:
                argument = "batch_dim" if what == "batch size" else "sequence_dim"
                environment = getattr(getattr(node.meta["val"], "fake_mode", None), "shape_env", None)
                replaced = environment.replacements.items() if environment is not None else ()
                line = next((fixed[symbol] for symbol, value in replaced if value == size and fixed.get(symbol)), None)
                where = (
                    f"{line} makes a number of it (as len() of a tensor, a loop over one and a constant in a view do): write "
                    f"x.shape[{dim}] and ops on the whole batch"
                    if line
                    else "look for a view, a branch or a constant of that size in the model (or a program saved without a dynamic dim "
                    "there)"
                )
                raise CaptureError(
                    f"the captured graph fixes the {what} to {size} (dim {dim} of {leaf.name}), so others cannot run; {where}, or say "
                    f"{argument}=None for inputs without it."
                )
            found.add(size.node.expr)
    return Symbols(frozenset(batch), frozenset(lengths))
