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
import operator
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
from ..errors import CaptureError, missing_device, user_line
from ..leaves import Leaf, unknown_output

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
    _check_outputs(graph)
    symbols = _symbols(graph.find_nodes(op="placeholder"), leaf_of, leaves, symbolic, fixed)
    _check_choices(graph.find_nodes(op="placeholder"), symbols, inputs.samples, lengths)
    for node in list(graph.nodes):
        _check_node(node, constants, leaf_of)
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
        of_samples=_of_samples(graph, {name for name, index in leaf_of.items() if inputs.leaves[index].is_batched}),
        last_uses=_last_uses(graph),
        kept=_kept(graph),
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
            own = _own_error(module, arguments, named, samples)
        raise own or _capture_error(error) from error


def _own_error(module: torch.nn.Module, arguments: Any, named: Any, samples: tuple[int, ...]) -> CaptureError | None:
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


def _no_cuda(line: str) -> CaptureError:
    return CaptureError(f"the model uses a CUDA device at {line}, and this machine has none; move it to the CPU, or run find on a GPU.")


def _capture_error(error: Exception) -> CaptureError:
    """One sentence that says what stopped the capture, where, and what to do."""
    line = user_line(error)
    text = str(error)
    name = type(error).__name__
    if missing_device(error) is not None:
        return _no_cuda(line)
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


def _check_outputs(graph: torch.fx.Graph) -> None:
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


def _check_choices(placeholders: list[Node], symbols: Symbols, samples: int, lengths: Collection[int]) -> None:
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


def written_arguments(node: Node) -> list[Any]:
    """The arguments that the node's op writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    found: list[Any] = []
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
            found += value if isinstance(value, (tuple, list)) else [value]
    return found


def _check_node(node: Node, constants: dict[str, Any], leaf_of: dict[str, int]) -> None:
    """Raises CaptureError for what would make one run depend on the run before, and for devices that are not there."""
    from ..passes.classify import source_line

    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.device.type == "cuda" and not torch.cuda.is_available():
            # A build of torch with CUDA traces without a device; one without CUDA has raised by now.
            raise _no_cuda(source_line(node))
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


def is_view(node: Node) -> bool:
    """Whether the value shares its bits with its first operand, or is one of several results."""
    if node.target is operator.getitem:
        return True
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else []
    return any(value.alias_info is not None for value in returns)


def _of_samples(graph: torch.fx.Graph, batched: set[str]) -> set[Node]:
    found: set[Node] = set()
    for node in graph.nodes:
        reads = node.name in batched if node.op == "placeholder" else any(source in found for source in node.all_input_nodes)
        # A size is no value of a sample.
        if reads and not isinstance(node.meta.get("val"), (int, torch.SymInt)):
            found.add(node)
    return found


def _last_uses(graph: torch.fx.Graph) -> dict[Node, list[Node]]:
    uses: dict[Node, list[Node]] = {}
    seen = set()
    for node in reversed(graph.nodes):
        uses[node] = [source for source in node.all_input_nodes if source not in seen]
        if node not in seen and node.op != "output":
            # A result that nobody reads.
            uses[node].append(node)
        seen.update(node.all_input_nodes)
    return uses


def _kept(graph: torch.fx.Graph) -> list[Node]:
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in needed or node.op == "output" or written_arguments(node):
            needed.update({node, *node.all_input_nodes})
    return [node for node in graph.nodes if node in needed and node.op == "call_function"]
