"""Where a graph's values hold the samples of a batch, and which of them may no longer hold them in their order.

The layout is read from sizes (``layout``), so the batch must be a symbol of its own. An op that reads along a dim that holds the batch
(sorting, indexing, a softmax over it) leaves the sizes as they are and not the order: what it gives, and all that follows, is
``unordered``. Ops that this module does not know are taken for such.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from bi_inductor.passes.layout import Layout, Symbols, layouts
from bi_inductor.passes.op_classes import op_name
from bi_inductor.passes.op_tables.elementwise import ELEMENTWISE
from bi_inductor.passes.op_tables.names import names

# Each element comes from the element at its own place, whatever the dims are called afterwards.
PLACES_KEPT = names(
    "aten",
    """
    alias arange clone detach empty empty_like expand eye fill full full_like new_empty new_full new_ones new_zeros ones ones_like
    permute reshape scalar_tensor squeeze stack t transpose unsqueeze view zeros zeros_like _to_copy _unsafe_view
    """,
) | names("prims", "broadcast_in_dim iota")

# Read along the dims that their argument ``dim`` or ``dims`` names, all when it is missing or empty.
ALONG_DIM = (
    names(
        "aten",
        """
    all amax amin any argmax argmin cat cumprod cumsum gather index_add logcumsumexp max mean min prod scatter
    scatter_add scatter_reduce select slice slice_scatter sort split split_with_sizes std sum topk unbind var var_mean _log_softmax _softmax
    """,
    )
    | names("prims", "rev")
    | names("bi_inductor", "cumprod cumsum log_softmax logcumsumexp mean prod scatter softmax std sum var")
)

MATMULS = {"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "bi_inductor.matmul"}
NORMS = {"bi_inductor.layer_norm", "bi_inductor.layer_norm_statistics", "bi_inductor.rms_norm", "bi_inductor.rms_norm_statistics"}
GROUP_NORMS = {"aten.native_group_norm", "bi_inductor.group_norm", "bi_inductor.group_norm_statistics"}
ATTENTIONS = {"bi_inductor.attention", "bi_inductor.attention_lse"}


class SampleLayout:
    """The samples in each value of a joint or backward graph.

    Args:
        graph: with fake values.
        batch: the symbol that is the number of samples.
    """

    def __init__(self, graph: Graph, batch: Any) -> None:
        others = {symbol for node in graph.nodes for size in _sizes(node) for symbol in size.node.expr.free_symbols} - {batch}
        self.layouts = layouts(graph, Symbols(frozenset([batch]), frozenset(others)))
        # The values that may no longer be in the order of the samples, each with the node that may have changed it.
        self.unordered: dict[Node, Node] = {}
        for node in graph.nodes:
            has_values = isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))
            if node.op == "call_function" and has_values:
                before = next((self.unordered[source] for source in node.all_input_nodes if source in self.unordered), None)
                if before is not None or self._loses_order(node):
                    self.unordered[node] = before or node

    def of(self, node: Node) -> Layout | None:
        """The layout of a tensor; None where it is unknown."""
        found = self.layouts.get(node)
        return found if isinstance(found, Layout) else None

    def holds_samples(self, node: Node) -> bool:
        """Whether the value, or one of the results, holds samples or may do so."""
        values = node.meta.get("val")
        if isinstance(values, (tuple, list)):
            found = self.layouts.get(node)
            parts = found if isinstance(found, tuple) else ()
            return any(
                part is None or part.batches > 0 for part, value in zip(parts, values, strict=False) if isinstance(value, torch.Tensor)
            )
        if not isinstance(values, torch.Tensor):
            return False
        layout = self.of(node)
        return layout is None or layout.batches > 0

    def dims(self, node: Node) -> list[int]:
        """The dims that hold samples."""
        layout = self.of(node)
        return [] if layout is None else [i for i, factors in enumerate(layout.dims) if any(factor.batches for factor in factors)]

    def _loses_order(self, node: Node) -> bool:
        read = dims_read(node)
        for source in node.all_input_nodes:
            if not isinstance(source.meta.get("val"), (torch.Tensor, tuple, list)) or not self.holds_samples(source):
                continue
            if read is None or (isinstance(source.meta["val"], torch.Tensor) and self.of(source) is None):
                return True
        layout = self.of(node)
        several = layout is not None and not layout.comparable(False)
        return several or any(set(dims) & set(self.dims(source)) for source, dims in read or () if self.holds_samples(node))


def _sizes(node: Node) -> Iterable[Any]:
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, torch.Tensor):
            yield from (size for size in value.shape if isinstance(size, torch.SymInt))


def dims_read(node: Node) -> list[tuple[Node, list[int]]] | None:
    """For each tensor that the op reads along dims: the tensor and those dims. None for an op that is not known."""
    name = op_name(node.target)
    if name in ELEMENTWISE or name in PLACES_KEPT or not isinstance(node.target, torch._ops.OpOverload):
        return []
    args = list(node.args)
    tensors = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
    rank = {source: source.meta["val"].dim() for source in tensors}
    if name in MATMULS:
        a, b = tensors[-2:] if name in ("aten.addmm", "aten.baddbmm") else tensors[:2]
        return [(a, [rank[a] - 1]), (b, [rank[b] - 2])]
    if name == "aten.slice" and _same_shape(node.meta["val"], tensors[0].meta["val"]):
        return []  # x[:, 1:] slices the first dim too, as a whole
    if name in ("aten.index_select", "aten.select_scatter"):
        return [(tensors[0], named_dims(node, rank[tensors[0]]))]
    if name in ALONG_DIM:
        return [(source, named_dims(node, rank[source])) for source in tensors]
    if name in NORMS or name == "aten.native_layer_norm":
        extent = args[1] if isinstance(args[1], int) else len(args[1])  # type: ignore[arg-type]  # the normalised shape
        return [(tensors[0], list(range(rank[tensors[0]] - extent, rank[tensors[0]])))]
    if name in GROUP_NORMS:
        return [(tensors[0], list(range(1, rank[tensors[0]])))]
    if name in ATTENTIONS:
        return [(source, [rank[source] - 2, rank[source] - 1]) for source in tensors]
    if name == "aten.embedding":
        return [(tensors[0], [0])]
    if name == "aten.embedding_dense_backward":
        return [(tensors[0], list(range(rank[tensors[0]] - 1))), (tensors[1], list(range(rank[tensors[1]])))]
    if name in ("aten.index", "aten.index_put", "aten._unsafe_index", "aten._unsafe_index_put"):
        indices: Any = args[1]
        return [(tensors[0], [i for i, index in enumerate(indices) if index is not None and not _counts(index, tensors[0], i)])]
    if name == "aten.constant_pad_nd":
        pads: Any = args[1]
        widths = [pads[i : i + 2] for i in range(0, len(pads), 2)]
        return [(tensors[0], [rank[tensors[0]] - 1 - i for i, width in enumerate(widths) if any(side != 0 for side in width)])]
    return None


def _counts(index: Node, x: Node, dim: int) -> bool:
    """Whether the index is 0, 1, 2, ... up to the size of ``dim`` of ``x``, along one dim of its own: it leaves the order as it is."""
    while index.op == "call_function" and index.target is not torch.ops.prims.iota.default and dims_read(index) == [] and index.args:
        if op_name(index.target) in ELEMENTWISE or not isinstance(index.args[0], Node):
            return False
        index = index.args[0]
    if index.target is not torch.ops.prims.iota.default or index.kwargs.get("start") != 0 or index.kwargs.get("step") != 1:
        return False
    return statically_known_true(index.meta["val"].shape[0] == x.meta["val"].shape[dim])


def _same_shape(x: torch.Tensor, y: torch.Tensor) -> bool:
    return all(statically_known_true(a == b) for a, b in zip(x.shape, y.shape, strict=True))


def named_dims(node: Node, rank: int) -> list[int]:
    """The dims, from 0, that the arguments name; all when they name none."""
    dims: Any = None
    schema = node.target._schema.arguments  # type: ignore[union-attr]  # an OpOverload
    for position, argument in enumerate(schema):
        if argument.name in ("dim", "dims"):
            dims = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
    if isinstance(dims, int):
        dims = [dims]
    return [dim % max(rank, 1) for dim in dims] if dims else list(range(rank))
