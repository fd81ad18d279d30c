"""Makes the gradient of each parameter a sum over samples whose order micro-batches do not change (option ``sample_gradients``).

In the joint graph, forward and backward together, a node that sums over the batch on its way to the gradient of a parameter is computed
for each sample alone, with the op and the order that a batch of that sample has. What follows until the gradient itself (casts,
transposes, the sum of the gradients of a parameter that is used twice) stays one value a sample, [samples, ...]. The last step is
``bi_inductor.sample_sum``, a tree over the samples (docs/numerics.md section 13).

An op for which this is not known raises. Gradients of inputs that hold samples are left as they are.

torch internals, checked in 2.13.0: Inductor's ``joint_custom_pre_pass`` gets the joint graph before it is partitioned; its inputs and
outputs carry ``meta["desc"]`` (torch._functorch._aot_autograd.descriptors), and ``partitioner_tag`` says what belongs to the backward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from bi_inductor.errors import OptionError, UnsupportedOpError
from bi_inductor.passes.batch_symbol import batch_symbol
from bi_inductor.passes.classify import describe
from bi_inductor.passes.layout import BATCH
from bi_inductor.passes.op_classes import op_name
from bi_inductor.passes.op_tables.elementwise import ELEMENTWISE
from bi_inductor.passes.rewriter import Rewriter
from bi_inductor.passes.sample_layout import SampleLayout, named_dims

aten = torch.ops.aten
ops = torch.ops.bi_inductor


class SampleGradientPass(CustomGraphPass):
    """Inductor's ``joint_custom_pre_pass``.

    Args:
        batch: the symbol of the number of samples; None where the graph is for one sample, whose gradients are as they should be. An error
            is raised when there is a gradient to rewrite.
        version: hash of our sources, for the cache key.
    """

    def __init__(self, batch: Any, version: str) -> None:
        self.batch = batch
        self.version = version

    @classmethod
    def of(cls, gm: GraphModule, version: str) -> SampleGradientPass:
        """The pass for a graph that Dynamo captured."""
        try:
            return cls(batch_symbol(gm), version)
        except OptionError as error:
            return cls(error, version)

    def __call__(self, graph: Graph) -> None:
        """Rewrites the gradients of ``graph`` in place. Raises UnsupportedOpError, and OptionError when the batch is not known."""
        if self.batch is None or not any(_is_tangent(node) for node in graph.nodes):
            return
        if isinstance(self.batch, OptionError):
            raise self.batch
        _SampleGradients(graph, self.batch).rewrite()

    def uuid(self) -> str:
        """Part of the keys of Inductor's FX graph cache and AOTAutograd's cache."""
        return f"bi_inductor.sample_gradients:{self.version}:{self.batch}"


def _is_tangent(node: Node) -> bool:
    return node.op == "placeholder" and bool(node.meta.get("desc") and node.meta["desc"].is_tangent())


class _SampleGradients:
    def __init__(self, graph: Graph, batch: Any) -> None:
        self.graph = graph
        self.layout = SampleLayout(graph, batch)
        self.samples = _number_of_samples(graph, batch)
        # The value of each sample, [samples, ...], of nodes that sum over the samples.
        self.of_each: dict[Node, Node] = {}
        self.from_tangents: set[Node] = set()
        for node in graph.nodes:
            if _is_tangent(node) or any(source in self.from_tangents for source in node.all_input_nodes):
                self.from_tangents.add(node)

    def rewrite(self) -> None:
        output = self.graph.output_node()
        results = list(output.args[0])  # type: ignore[arg-type]  # the results as a list
        gradients = [
            i
            for i, (result, what) in enumerate(zip(results, output.meta["desc"], strict=True))
            if isinstance(result, Node) and what is not None and what.is_grad() and not self.layout.holds_samples(result)
        ]
        needed = _with_sources([results[i] for i in gradients])
        for node in list(self.graph.nodes):
            if node in needed and node in self.from_tangents and node.op == "call_function":
                self._visit(node)
        for i in gradients:
            result = results[i]
            if result not in self.from_tangents:
                continue  # zeros: nothing depends on this parameter
            if result not in self.of_each:
                raise self._refused(result, "its gradient is no sum over samples, so that each micro-batch would add it again")
            rewriter = _TaggedRewriter(result)
            results[i] = rewriter.emit(ops.sample_sum.default, self.of_each[result])
        output.args = (results,)
        self.graph.eliminate_dead_code()

    def _visit(self, node: Node) -> None:
        sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        if any(source in self.of_each for source in sources):
            if self.layout.holds_samples(node) or any(self.layout.holds_samples(source) for source in sources):
                raise self._refused(node, "it combines a sum over the samples with a value of single samples")
            if any(source in self.from_tangents and source not in self.of_each for source in sources):
                raise self._refused(node, "it combines a sum over the samples with a gradient that is none")
            self._record(node, AFTERWARDS, ELEMENTWISE)
        elif not self.layout.holds_samples(node) and any(self.layout.holds_samples(source) for source in sources):
            for source in sources:
                if source in self.layout.unordered:
                    cause = describe(self.layout.unordered[source]).strip()
                    raise self._refused(node, f"it sums values that may no longer be in the order of the samples since\n  {cause}")
            self._record(node, SUMS, frozenset())

    def _record(self, node: Node, rules: dict[str, Callable[..., Node | None]], elementwise: frozenset[str] | set[str]) -> None:
        name = op_name(node.target)
        found = rules.get(name) or (_elementwise if name in elementwise else None)
        result = None if found is None else found(_Each(self, node), *node.args, **node.kwargs)
        if result is None:
            raise self._refused(node, "how to take it one sample at a time is not known")
        self.of_each[node] = result

    @staticmethod
    def _refused(node: Node, why: str) -> UnsupportedOpError:
        return UnsupportedOpError(
            f"option 'sample_gradients' cannot make the gradient that this op is part of a sum over samples:\n{describe(node)}\n{why}.\n"
            "Leave the option out, or keep this part of the model out of the compiled region (torch.compiler.disable)."
        )


def _number_of_samples(graph: Graph, batch: Any) -> Node:
    """The node whose value is the size of the batch."""
    placeholders: list[Node] = list(graph.find_nodes(op="placeholder"))
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == batch:
            return node
    raise AssertionError(f"the joint graph has no input for its symbol {batch}")


def _with_sources(nodes: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


class _TaggedRewriter(Rewriter):
    """New nodes belong to the backward, as the one they stand for."""

    def emit(self, op: Any, *args: Any, **kwargs: Any) -> Node:
        new = super().emit(op, *args, **kwargs)
        if "partitioner_tag" in self.node.meta:
            new.meta["partitioner_tag"] = self.node.meta["partitioner_tag"]
        return new


class _Each(_TaggedRewriter):
    """Writes what a node does for each sample alone: values [samples, ...]."""

    def __init__(self, gradients: _SampleGradients, node: Node) -> None:
        super().__init__(node)
        self.layout = gradients.layout
        self.samples = gradients.samples
        self.of_each = gradients.of_each

    def split(self, x: Node) -> Node | None:
        """``x``, which holds samples, as [samples, ...]: each as a batch of that sample has it. None where a sample lies in pieces."""
        layout = self.layout.of(x)
        if layout is None or layout.batches != 1:
            return None
        (dim,) = self.layout.dims(x)
        factors = layout.dims[dim]
        if BATCH not in (factors[0], factors[-1]):
            return None
        sizes = self.sizes(x)
        rest = 1 if factors == (BATCH,) else self.emit(operator.floordiv, sizes[dim], self.samples)
        outermost = factors[0] == BATCH
        pair = [self.samples, rest] if outermost else [rest, self.samples]
        parts = self.viewed(x, [*sizes[:dim], *pair, *sizes[dim + 1 :]])
        place = dim if outermost else dim + 1
        if place == 0:
            return parts
        return self.emit(aten.permute.default, parts, [place, *(i for i in range(len(sizes) + 1) if i != place)])

    def each(self, x: Node) -> Node:
        """``x`` of each sample; what is the same for all of them is repeated."""
        if x in self.of_each:
            return self.of_each[x]
        return self.emit(aten.expand.default, self.emit(aten.unsqueeze.default, x, 0), [self.samples, *self.sizes(x)])

    def viewed(self, x: Node, sizes: Sequence[Any]) -> Node:
        """``x`` in another shape; copied where its strides allow no view."""
        assert self.fake_mode is not None
        with self.fake_mode:
            try:
                x.meta["val"].view([size.meta["val"] if isinstance(size, Node) else size for size in sizes])
            except (RuntimeError, ValueError):
                x = self.emit(aten.clone.default, x, memory_format=torch.contiguous_format)
        return self.emit(aten.view.default, x, list(sizes))


# What sums over the samples, done for each of them: the arguments are those of the node.


def _sum(each: _Each, x: Node, *args: Any, **kwargs: Any) -> Node | None:
    parts = each.split(x)
    dims = [dim + 1 for dim in named_dims(each.node, x.meta["val"].dim())]
    target = aten.sum.dim_IntList if each.node.target is aten.sum.default else each.node.target
    return None if parts is None else each.emit(target, parts, dims, *args[1:], **kwargs)


def _matmul(each: _Each, a: Node, b: Node, bias: Node | None = None, alpha: float = 1.0, beta: float = 1.0) -> Node | None:
    rank = a.meta["val"].dim()
    if bias is not None or each.layout.dims(a) != [rank - 1] or each.layout.dims(b) != [rank - 2]:
        return None
    left, right = each.split(a), each.split(b)
    if left is None or right is None:
        return None
    return _product(each, left, right, alpha)


def _product(each: _Each, left: Node, right: Node, alpha: float = 1.0) -> Node:
    """The matmuls of ``left`` [samples, ..., m, k] and ``right`` [samples, ..., k, n]."""
    if left.meta["val"].dim() == 3:
        return each.emit(ops.matmul.default, left, right, None, alpha)
    samples, groups, m, k = each.sizes(left)
    n = each.size(right, 3)
    batch = each.emit(operator.mul, samples, groups)
    out = each.emit(ops.matmul.default, each.viewed(left, [batch, m, k]), each.viewed(right, [batch, k, n]), None, alpha)
    return each.viewed(out, [samples, groups, m, n])


def _embedding_backward(each: _Each, grad: Node, index: Node, rows: Any, padding_idx: int, scale_grad_by_freq: bool) -> Node | None:
    grads, indices = each.split(grad), each.split(index)
    if scale_grad_by_freq or grads is None or indices is None:
        return None
    # One table behind the other, a sample each; what is padding goes to one more row behind them all.
    all_rows = each.emit(operator.mul, each.samples, rows)
    first = each.emit(aten.mul.Tensor, _numbers(each, indices), rows)
    places = each.emit(aten.add.Tensor, indices, first)
    if padding_idx >= 0:
        places = each.emit(aten.where.self, each.emit(aten.eq.Scalar, indices, padding_idx), _scalar(each, all_rows, indices), places)
    table = each.emit(aten.embedding_dense_backward.default, grads, places, each.emit(operator.add, all_rows, 1), -1, False)
    table = each.emit(aten.slice.Tensor, table, 0, 0, all_rows)
    return each.viewed(table, [each.samples, rows, each.size(grad, grad.meta["val"].dim() - 1)])


def _numbers(each: _Each, like: Node) -> Node:
    """The number of the sample, to be combined with ``like`` [samples, ...]."""
    dtype, device = like.meta["val"].dtype, like.meta["val"].device
    numbers = each.emit(torch.ops.prims.iota.default, each.samples, start=0, step=1, dtype=dtype, device=device, requires_grad=False)
    return each.viewed(numbers, [each.samples, *[1] * (like.meta["val"].dim() - 1)])


def _scalar(each: _Each, value: Node, like: Node) -> Node:
    return each.emit(aten.full.default, [], value, dtype=like.meta["val"].dtype, device=like.meta["val"].device)


def _index_put(each: _Each, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node | None:
    places = [None if index is None else each.split(index) for index in indices if index is None or each.layout.holds_samples(index)]
    parts = each.split(values)
    if not accumulate or parts is None or len(places) != len(indices) or any(place is None for place in places):
        return None
    (widest,) = sorted((place for place in places if place is not None), key=lambda place: -place.meta["val"].dim())[:1]
    return each.emit(each.node.target, each.emit(aten.clone.default, each.each(x)), [_numbers(each, widest), *places], parts, True)


SUMS: dict[str, Callable[..., Node | None]] = {
    "aten.sum": _sum,
    "bi_inductor.sum": _sum,
    "aten.mm": _matmul,
    "aten.bmm": _matmul,
    "bi_inductor.matmul": _matmul,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
}


# What follows such a sum, for the values of each sample.


def _elementwise(each: _Each, *args: Any, **kwargs: Any) -> Node:
    rank = each.node.meta["val"].dim()

    def operand(x: Any) -> Any:
        if not isinstance(x, Node) or x not in each.of_each:
            return x
        own = each.of_each[x]
        missing = rank + 1 - own.meta["val"].dim()
        samples, *sizes = each.sizes(own)
        return each.viewed(own, [samples, *[1] * missing, *sizes]) if missing else own

    return each.emit(each.node.target, *map(operand, args), **{key: operand(value) for key, value in kwargs.items()})


def _same(each: _Each, x: Node, *args: Any, **kwargs: Any) -> Node:
    return each.emit(each.node.target, each.of_each[x], *args, **kwargs)


def _view(each: _Each, x: Node, sizes: Sequence[Any]) -> Node:
    return each.viewed(each.of_each[x], [each.samples, *each.sizes(each.node)] if -1 in sizes else [each.samples, *sizes])


def _permute(each: _Each, x: Node, dims: Sequence[int]) -> Node:
    return each.emit(aten.permute.default, each.of_each[x], [0, *(dim % len(dims) + 1 for dim in dims)])


def _expand(each: _Each, x: Node, sizes: Sequence[Any], **kwargs: Any) -> Node:
    samples, *own = each.sizes(each.of_each[x])
    padded = each.viewed(each.of_each[x], [samples, *[1] * (len(sizes) - len(own)), *own])
    return each.emit(aten.expand.default, padded, [-1, *sizes])


def _at_dim(each: _Each, x: Node, *args: Any, **kwargs: Any) -> Node:
    """Ops with the numbers of one or more dims after their first argument."""
    rank = each.node.meta["val"].dim() if op_name(each.node.target) == "aten.unsqueeze" else x.meta["val"].dim()
    place = args[0] if args else 0
    dims = [dim % rank + 1 for dim in place] if isinstance(place, (list, tuple)) else place % rank + 1
    return each.emit(each.node.target, each.of_each[x], dims, *args[1:], **kwargs)


def _later_sum(each: _Each, x: Node, *args: Any, **kwargs: Any) -> Node:
    dims = [dim + 1 for dim in named_dims(each.node, x.meta["val"].dim())]
    target = aten.sum.dim_IntList if each.node.target is aten.sum.default else each.node.target
    return each.emit(target, each.of_each[x], dims, *args[1:], **kwargs)


def _cat(each: _Each, parts: Sequence[Node], dim: int = 0) -> Node:
    rank = each.node.meta["val"].dim()
    return each.emit(aten.cat.default, [each.each(part) for part in parts], dim % rank + 1)


def _scattered(each: _Each, x: Node, src: Node, dim: int = 0, *args: Any) -> Node:
    return each.emit(each.node.target, each.each(x), each.each(src), dim % x.meta["val"].dim() + 1, *args)


def _later_matmul(each: _Each, a: Node, b: Node, bias: Node | None = None, alpha: float = 1.0, beta: float = 1.0) -> Node | None:
    return None if bias is not None else _product(each, each.each(a), each.each(b), alpha)


AFTERWARDS: dict[str, Callable[..., Node | None]] = {
    **dict.fromkeys(("aten.clone", "aten.alias", "aten.detach", "aten._to_copy", "aten.constant_pad_nd"), _same),
    **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten.reshape"), _view),
    "aten.permute": _permute,
    "aten.expand": _expand,
    **dict.fromkeys(("aten.unsqueeze", "aten.squeeze", "aten.slice", "aten.select", "prims.rev"), _at_dim),
    "aten.sum": _later_sum,
    "bi_inductor.sum": _later_sum,
    "aten.cat": _cat,
    "aten.slice_scatter": _scattered,
    "aten.select_scatter": _scattered,
    "aten.mm": _later_matmul,
    "aten.bmm": _later_matmul,
    "bi_inductor.matmul": _later_matmul,
}
