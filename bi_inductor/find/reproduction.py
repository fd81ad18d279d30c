"""Writes a script that shows a difference by itself, with the tensors it needs beside it."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bi_inductor.passes.layout import BATCH, SEQUENCE, Layout

from .capture import Captured
from .compiled import CompiledPair, part
from .execution import Call
from .variants import Setting, shared_places

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_SCRIPT = '''\
"""{op}: the same rows, other bits: "{other}" against "{reference}" ({backend}, torch {version})."""

{imports}

{function}

saved = torch.load(Path(__file__).with_suffix(".pt"))
results = []
{run}
reference = {reference_rows}
other = {other_rows}
differ = {differ}
print(f"{{int(differ.sum())}} of {{differ.numel()}} elements differ")
'''

_EAGER = """\
for variant, threads in (("reference", {threads[0]}), ("other", {threads[1]})):
    torch.set_num_threads(threads)
    with torch.no_grad():
        results += forward(*saved[variant])"""

_COMPILED = """\
settings = (("reference", {threads[0]}, {backends[0]!r}, {dynamic[0]}), ("other", {threads[1]}, {backends[1]!r}, {dynamic[1]}))
for variant, threads, backend, dynamic in settings:
    torch.set_num_threads(threads)
    torch._dynamo.reset()
    fn = forward if backend == "eager" else torch.compile(forward, backend=backend, dynamic=dynamic, options={options})
    with torch.no_grad():
        results += fn(*saved[variant])"""


def write_call(path: Path, captured: Captured, call: Call, node: Node, settings: tuple[Setting, Setting]) -> None:
    """The reproduction of an eager difference: one op, with the arguments it had."""
    nodes = [call.node] if node is call.node else [call.node, node]
    module, inputs = part(captured, nodes, [node])
    values = []
    for arguments, named in (call.reference, call.other):
        given: dict[Node, Any] = {}
        _match(((call.node.args, call.node.kwargs)), (arguments, named), given)
        values.append([given[source] for source in inputs])
    _write(path, captured, module, (values[0], values[1]), call.node, node, settings)


def _match(argument: Any, value: Any, given: dict[Node, Any]) -> None:
    """Pairs the nodes in an argument with the values in the same places."""
    if isinstance(argument, torch.fx.Node):
        given[argument] = value
    elif isinstance(argument, (tuple, list)):
        for entry, inner in zip(argument, value, strict=True):
            _match(entry, inner, given)
    elif isinstance(argument, dict):
        for key, entry in argument.items():
            _match(entry, value[key], given)


def write_part(path: Path, pair: CompiledPair, node: Node) -> None:
    """The reproduction of a compiled difference: the shortest part of the graph before ``node``, doubled from its op on, that shows it."""
    needed = pair.needed_for(node)
    count = 2 if node.target is operator.getitem else 1
    while True:
        nodes = needed[-count:]
        # An op that writes in place belongs to the nodes that read what it wrote.
        if len(nodes) == len(needed) or pair.differs_on_same_rows(nodes, node, compile=True):
            break
        count *= 2
    module, inputs = part(pair.captured, nodes, [node])
    producer: Any = node.args[0] if node.target is operator.getitem else node
    _write(path, pair.captured, module, pair.arguments(inputs), producer, node, (pair.reference, pair.other), pair.options)


def _write(
    path: Path,
    captured: Captured,
    module: GraphModule,
    arguments: tuple[Sequence[Any], Sequence[Any]],
    op: Node,
    node: Node,
    settings: tuple[Setting, Setting],
    options: Mapping[str, Any] | None = None,
) -> None:
    reference, other = settings
    layout = captured.layouts[node]
    assert isinstance(layout, Layout), f"{node.name} was compared, so its rows are known"
    if module.graph.find_nodes(op="get_attr"):
        raise ValueError(
            f"{op.target} has a graph of its own as an argument, which a script cannot hold; cut the region out of the model by hand"
        )
    for setting in settings:
        if not isinstance(setting.backend, str):
            raise ValueError("the backend is a callable, which a script cannot name; register it with torch._dynamo.register_backend")
    places = shared_places(reference, other)
    rows = [_rows(index, layout, setting, kept) for index, (setting, kept) in enumerate(zip(settings, places, strict=True))]
    code = module.graph.python_code("self")
    backends = tuple(setting.backend for setting in settings)
    eager = all(setting.eager for setting in settings)
    run = (_EAGER if eager else _COMPILED).format(
        threads=(reference.threads, other.threads),
        backends=backends,
        dynamic=(reference.dynamic, other.dynamic),
        options=dict(options) if options else None,
    )
    text = _SCRIPT.format(
        op=op.target,
        reference=reference.name,
        other=other.name,
        backend=" and ".join(dict.fromkeys(map(str, backends))),
        version=torch.__version__,
        imports="\n".join(_imports(code.src, code.globals, module)),
        function=re.sub(r";  [\w =]+ = None", "", code.src.strip()).replace("(self, ", "(").replace("(self)", "()"),
        run=run,
        reference_rows=rows[0],
        other_rows=rows[1],
        differ=_differ(node.meta["val"].dtype),
    )
    torch.save(
        {"reference": [_own(value) for value in arguments[0]], "other": [_own(value) for value in arguments[1]]}, path.with_suffix(".pt")
    )
    path.write_text(text)


def _own(value: Any) -> Any:
    """A tensor in a storage that holds nothing else, with its strides; any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    # A dim with stride 0 holds one entry, expanded.
    single = value.detach()
    for dim, stride in enumerate(value.stride()):
        if stride == 0 and value.shape[dim] > 1:
            single = single.narrow(dim, 0, 1)
    copy = torch.empty_strided(single.size(), single.stride(), dtype=value.dtype, device=value.device).copy_(single)
    return copy.expand(value.size())


def _rows(index: int, layout: Layout, setting: Setting, places: Sequence[int]) -> str:
    """The expression that reads the compared rows from a result, as `Layout.rows` does."""
    extent = setting.extent
    factors = [factor for dim in layout.dims for factor in dim]
    text = f"results[{index}]"
    if len(factors) != len(layout.dims):
        # At most one size is known only when the value is there.
        text += f".view({[factor.size(extent.batch, extent.length) if factor.number else -1 for factor in factors]})"
    if extent.kept != extent.length:
        text += "".join(f".narrow({dim}, {extent.start}, {extent.kept})" for dim, factor in enumerate(factors) if factor == SEQUENCE)
    if BATCH not in factors:
        return text
    dim = factors.index(BATCH)
    return f"{text}{f'.movedim({dim}, 0)' if dim else ''}[{list(places)}]"


def _differ(dtype: torch.dtype) -> str:
    """The expression that compares the bits of ``reference`` and ``other``, NaN as NaN."""
    if not dtype.is_floating_point:
        return "reference != other"
    integer = f"torch.int{8 * dtype.itemsize}"
    left, right = (f"{name}.contiguous().view({integer})" for name in ("reference", "other"))
    return f"({left} != {right}) & ~(reference.isnan() & other.isnan())"


def _imports(source: str, known: Mapping[str, Any], module: GraphModule) -> list[str]:
    """What the generated function names, and the modules that register its custom ops."""
    lines = ["from pathlib import Path", "", "import torch"]
    for name, value in known.items():
        if name == "torch" or not re.search(rf"\b{re.escape(name)}\b", source):
            continue
        if isinstance(value, float):
            lines.append(f"{name} = float({str(value)!r})")
        elif value is type(None):
            lines.append(f"{name} = type(None)")
        else:
            lines.append(f"from {value.__module__} import {value.__qualname__} as {name}")
    return lines + _registrations(module)


def _registrations(module: GraphModule) -> list[str]:
    from torch._library.custom_ops import OPDEFS

    lines: dict[str, None] = {}
    for node in module.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace in ("aten", "prims"):
            continue
        name = node.target.name().partition(".")[0]
        home = "bi_inductor" if node.target.namespace == "bi_inductor" else getattr(OPDEFS.get(name), "_init_fn", None)
        home = getattr(home, "__module__", home)
        known = home not in (None, "__main__")
        lines[f"import {home}  # registers {name}" if known else f"# Import here what registers {name}."] = None
    return list(lines)
