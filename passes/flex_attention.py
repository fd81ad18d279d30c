"""``flex_attention`` as operators of ours: torch's own kernels for it split keys by the batch and by the machine.

Without a ``score_mod`` it is ``bi_inductor::attention`` with the block mask as a mask of bools. With one the scores are a product of their
own, ``score_mod`` is pointwise code on all of them at once, and ``bi_inductor::attention`` takes the result as its additive mask, with
queries and keys of zeros: the scores are then the mask's, and what is masked is skipped as ever. Either way memory grows with queries
times keys, which ``warn_of_flex_attention`` says.

torch internals, checked in 2.13.0: the arguments of torch.ops.higher_order.flex_attention (a block mask's tensors and functions by their
places in BlockMask.as_tuple), its results (the logarithm of the sum and the maximum divided by log(2)), _vmap_for_bhqkv and
TransformGetItemToIndex, by which its own reference turns functions of one score into functions of all, and _permute_strides.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from bi_inductor.errors import FallbackWarning, UnsupportedOpError
from bi_inductor.options import Options
from bi_inductor.passes.classify import source_line
from bi_inductor.templates.library import accumulation_dtype

NAME = "flex_attention"
flex_attention_op = torch.ops.higher_order.flex_attention

# Places in a block mask's tuple. Between them and the last three lie tables of the backward.
KV_NUM_BLOCKS, KV_INDICES, FULL_KV_NUM_BLOCKS, FULL_KV_INDICES = 2, 3, 4, 5
Q_BLOCK_SIZE, KV_BLOCK_SIZE, MASK_MOD = -3, -2, -1

# The size of the one block of the mask that stands for none.
NO_BLOCKS = 1 << 30


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> Any:
    """What torch.ops.higher_order.flex_attention gives: the result [batch, heads, queries, dim] laid out as ``query``, and for each row the
    logarithm of its sum of exponentials and its largest score, each divided by log(2).

    Args:
        query: [batch, heads, queries, head_dim].
        key, value: [batch or 1, kv_heads, keys, head_dim or dim]; query heads share those of keys in groups.
        score_mod, block_mask, scale: as the op takes them. A block of keys that the block mask does not list for a block of queries is
            masked.
        kernel_options: of torch's kernels; whether a maximum is asked for.
        score_mod_other_buffers, mask_mod_other_buffers: tensors and sizes that the functions capture.

    Returns:
        the three tensors; NotImplemented for operands of several dtypes.
    """
    if not query.dtype == key.dtype == value.dtype:
        return NotImplemented
    ops = torch.ops.bi_inductor
    key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
    mask = _mask(query, key, block_mask, mask_mod_other_buffers)
    wants_maximum = bool(kernel_options.get("OUTPUT_MAX"))
    if _is_identity(score_mod) and not wants_maximum:
        out = ops.attention(query, key, value, mask, False, scale)
        lse = ops.attention_lse(query, key, mask, False, scale)
        maximum = lse
    else:
        scores = _scores(query, key, scale)
        if not _is_identity(score_mod):
            scores = _on_all(
                _with_tensors_for_numbers(score_mod, scores.dtype), (scores,), scores.shape, score_mod_other_buffers, query.device
            ).to(scores.dtype)
        if mask is not None:
            scores = torch.where(mask, scores, -math.inf)
        # One dim of zeros: every product of a query and a key is zero.
        q, k = (t[..., :1].to(scores.dtype).new_zeros([*t.shape[:3], 1]) for t in (query, key))
        out = ops.attention(q, k, value.to(scores.dtype), scores, False, 1.0).to(query.dtype)
        lse = ops.attention_lse(q, k, scores, False, 1.0)
        maximum = scores.amax(-1)
    sums: torch.Tensor = _Statistic.apply(lse)  # type: ignore[no-untyped-call]  # torch's
    return _laid_out_as(query, out), sums / math.log(2), maximum / math.log(2)


def _scores(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled products [batch, heads, queries, keys] in the accumulation type."""
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    wide = accumulation_dtype(query.dtype)
    # The heads of a group have the same keys: their queries are rows of one matrix.
    rows = query.to(wide).reshape(batch * kv_heads, heads // kv_heads * queries, dim)
    columns = key.to(wide).reshape(batch * kv_heads, keys, dim).mT
    scores: torch.Tensor = torch.ops.bi_inductor.matmul(rows, columns, None, scale).view(batch, heads, queries, keys)
    return scores


def _mask(query: torch.Tensor, key: torch.Tensor, block_mask: tuple[Any, ...], buffers: tuple[Any, ...]) -> torch.Tensor | None:
    """Which keys a query sees, bool [batch or 1, heads or 1, queries, keys]; None for all of them."""
    sizes = block_mask[Q_BLOCK_SIZE], block_mask[KV_BLOCK_SIZE]
    if sizes == (NO_BLOCKS, NO_BLOCKS):
        return None
    mask_mod = block_mask[MASK_MOD]
    queries, keys = query.shape[2], key.shape[2]
    # What is the same for all samples, or heads, is held once.
    batch, heads = (size if _reads(mask_mod, i) else 1 for i, size in enumerate(query.shape[:2]))
    mask = _on_all(mask_mod, (), (batch, heads, queries, keys), buffers, query.device)
    mask = mask & _listed(block_mask[KV_NUM_BLOCKS], block_mask[KV_INDICES], queries, keys, *sizes)
    if block_mask[FULL_KV_NUM_BLOCKS] is not None:
        # Blocks of which every key is seen: the function is not asked.
        mask = mask | _listed(block_mask[FULL_KV_NUM_BLOCKS], block_mask[FULL_KV_INDICES], queries, keys, *sizes)
    return mask


def _listed(count: torch.Tensor, indices: torch.Tensor, queries: int, keys: int, q_size: int, kv_size: int) -> torch.Tensor:
    """Whether a key lies in a block that its query's block lists, bool [batch or 1, heads or 1, queries, keys].

    Args:
        count: int [batch or 1, heads or 1, blocks of queries], how many blocks each lists.
        indices: int [batch or 1, heads or 1, blocks of queries, places], those blocks, and anything behind them.
        q_size, kv_size: queries and keys of a block.
    """
    device = indices.device
    columns = torch.arange((keys + kv_size - 1) // kv_size, device=device)
    is_listed = torch.arange(indices.shape[-1], device=device) < count.unsqueeze(-1)
    # Compared with each place: without a scatter it is one pointwise kernel and an exact reduction.
    blocks = ((indices.unsqueeze(-2) == columns.unsqueeze(-1)) & is_listed.unsqueeze(-2)).any(-1)
    rows = blocks.index_select(2, torch.arange(queries, device=device) // q_size)
    return rows.index_select(3, torch.arange(keys, device=device) // kv_size)


def _on_all(
    function: Callable[..., torch.Tensor],
    first: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...] | torch.Size,
    buffers: tuple[Any, ...],
    device: torch.device,
) -> torch.Tensor:
    """A function of (a score,) the numbers of a sample, a head, a query and a key, for all of them: [batch, heads, queries, keys]."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    indices = (torch.arange(size, device=device) for size in sizes)
    mapped = _vmap_for_bhqkv(function, prefix=(0,) * len(first), suffix=(None,) * len(buffers))
    with TransformGetItemToIndex():
        result: torch.Tensor = mapped(*first, *indices, *buffers)
    return result


def _with_tensors_for_numbers(function: Any, dtype: torch.dtype) -> Any:
    """The function with captured floating-point numbers left in the tensors that dynamic shapes carry them in, as ``dtype``.

    Dynamo reads such a number by ``item()``, and torch's decompositions under vmap know no symbolic ones.
    """
    if not isinstance(function, GraphModule):
        return function
    module = GraphModule(function, copy.deepcopy(function.graph))
    for node in module.graph.find_nodes(op="call_method", target="item"):
        number = node.meta.get("example_value")
        if isinstance(number, (float, torch.SymFloat)):
            node.target, node.args = "to", (node.args[0], dtype)
    module.recompile()
    return module


def _placeholders(function: Any) -> list[Node] | None:
    return list(function.graph.find_nodes(op="placeholder")) if isinstance(function, GraphModule) else None


def _is_identity(function: Any) -> bool:
    """Whether the function returns its first argument."""
    inputs = _placeholders(function)
    return inputs is not None and function.graph.output_node().args[0] in (inputs[0], (inputs[0],), [inputs[0]])


def _reads(function: Any, place: int) -> bool:
    """Whether the function uses the argument at ``place``."""
    inputs = _placeholders(function)
    return inputs is None or bool(inputs[place].users)


def _laid_out_as(query: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out`` in the order of the strides of ``query``, which the model may rely on."""
    from torch._higher_order_ops.flex_attention import _permute_strides

    expected = _permute_strides(out.new_empty(out.shape), query.stride())
    return out if out.stride() == expected.stride() else torch.empty_like(expected).copy_(out)


class _Statistic(torch.autograd.Function):
    """A result that has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise UnsupportedOpError(
            "the logarithm of the sum of exponentials that flex_attention returns (return_lse, AuxRequest(lse=True)) has no gradient; "
            "that of its first result has. Detach it."
        )


def warn_of_flex_attention(gm: GraphModule, options: Options) -> None:
    """One FallbackWarning for each line of Dynamo's graph, bodies included, whose flex_attention holds something for every pair of a query
    and a key in memory; none where ``allow`` names it.
    """
    if NAME in options.allow:
        return
    warned = set()
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=flex_attention_op):
            held = _held(module, node)
            line = source_line(node)
            if held is None or line in warned:
                continue
            warned.add(line)
            warnings.warn(
                f"flex_attention is made of kernels that see all pairs of a query and a key, masked blocks included, and holds {held} in "
                f"memory, at {line}\nName it in options={{'allow': ({NAME!r},)}} to silence this warning.",
                FallbackWarning,
                stacklevel=2,
            )


def _held(module: GraphModule, node: Node) -> str | None:
    """What a call holds for each pair of a query and a key, in words; None where it holds nothing."""
    query, key, _, score_mod, block_mask, *_ = node.args
    assert isinstance(query, Node) and isinstance(key, Node) and isinstance(score_mod, Node) and isinstance(block_mask, tuple)
    (batch, heads, queries, _), keys = query.meta["example_value"].shape, key.meta["example_value"].shape[2]
    if not _is_identity(getattr(module, str(score_mod.target))):
        wide = accumulation_dtype(query.meta["example_value"].dtype)
        return f"scores {str(wide).removeprefix('torch.')}[{batch}, {heads}, {queries}, {keys}]"
    if block_mask[Q_BLOCK_SIZE] == block_mask[KV_BLOCK_SIZE] == NO_BLOCKS:
        return None
    return f"a mask bool[{queries}, {keys}] (once for each sample and head that has another)"
