"""Captures composite ops whole while AOTAutograd traces, before torch decomposes them by shape, stride or grad mode.

``linear`` becomes addmm or bmm + add depending on strides (one rounding or two), ``scaled_dot_product_attention`` becomes one
of three forms, ``rms_norm`` becomes four ops. Each has a Python kernel here that calls the one operator of its meaning, with
autograd, instead. Autocast has already cast the operands when such a kernel runs, and bodies of higher-order ops are traced
through the same dispatcher.

torch internals, checked in 2.13.0 to 2.15.0: OpOverload.py_kernels and _dispatch_cache (consulted only under the Python dispatcher that
compile_fx enables, so eager calls never see them), OpOverload._op_dk to reach the C++ kernel.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp.decompositions import _grid_sampler_2d
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from bi_inductor.passes.bags import embedding_bag, embedding_bag_with_padding
from bi_inductor.passes.convolution import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS, convolution, transposed_convolution
from bi_inductor.passes.distances import cdist
from bi_inductor.passes.flex_attention import flex_attention, flex_attention_op
from bi_inductor.passes.recurrent import lstm
from bi_inductor.passes.resizing import grid_sampler_3d
from bi_inductor.templates.library import DTYPES, accumulation_dtype

aten = torch.ops.aten

_installing = threading.RLock()
_active = threading.local()
_users = 0
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.AutogradCPU, DispatchKey.AutogradCUDA)

# Types of devices that have templates; ROCm calls its devices "cuda" too.
_DEVICES = ("cpu", "cuda")
_replaced: list[tuple[Any, DispatchKey, Any]] = []


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One matmul with the bias inside, whatever the rank and strides of ``x`` [..., in]; ``weight`` [out, in] or [in]."""
    rows = weight.unsqueeze(0) if weight.dim() == 1 else weight
    flat = x.reshape([math.prod(x.shape[:-1]), x.shape[-1]])
    out = torch.ops.bi_inductor.matmul(flat, rows.t(), bias)
    shape = x.shape[:-1] if weight.dim() == 1 else (*x.shape[:-1], weight.shape[0])
    result: torch.Tensor = out.reshape(shape)
    return result


def rms_norm(x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None) -> torch.Tensor:
    """One op; operands of several dtypes are normalised in the accumulation type and rounded to ``x``'s once."""
    if eps is None:
        eps = torch.finfo(accumulation_dtype(x.dtype)).eps
    if weight is not None and weight.dtype != x.dtype:
        wide = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
        result = torch.ops.bi_inductor.rms_norm(x.to(wide), len(normalized_shape), weight.to(wide), eps)
        return result.to(x.dtype)  # type: ignore[no-any-return]  # operators are untyped
    return torch.ops.bi_inductor.rms_norm(x, len(normalized_shape), weight, eps)  # type: ignore[no-any-return]  # as above


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """One attention op for every rank, mask and head count. With dropout the parts: matmul, softmax, dropout, matmul."""
    # Where torch takes its fused kernel the result is laid out as the query, elsewhere row by row; the model may go on with a view of it.
    fused = query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0] and query.shape[-1] == value.shape[-1]
    fused = fused and all(t.stride(-1) == 1 for t in (query, key, value)) and not (attn_mask is not None and attn_mask.requires_grad)
    kept = 3 if enable_gqa else 2
    batch: tuple[Any, ...] = torch.broadcast_shapes(*(t.shape[:-kept] for t in (query, key, value)))
    query, key, value = (t.expand(*batch, *t.shape[-kept:]) for t in (query, key, value))
    if enable_gqa and key.shape[-3] != value.shape[-3]:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    if dropout_p > 0.0:
        return _attention_with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype):
        wide = torch.promote_types(query.dtype, attn_mask.dtype)
        q, k, v, additive = (t.to(wide) for t in (query, key, value, attn_mask))
        wide_result = scaled_dot_product_attention(q, k, v, additive, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        return wide_result.to(query.dtype)
    mask = None if attn_mask is None else _four_dims(attn_mask.expand(*query.shape[:-1], key.shape[-2]), enable_gqa)
    tensors = (_four_dims(t, enable_gqa) for t in (query, key, value))
    out = torch.ops.bi_inductor.attention(*tensors, mask, is_causal, scale)
    result: torch.Tensor = out if fused else out.reshape([*query.shape[:-1], out.shape[-1]]).contiguous()
    return result


def _four_dims(x: torch.Tensor, third_is_heads: bool) -> torch.Tensor:
    """[..., length, dim] as [batch, heads, length, dim]: no batch dims are 1 x 1, one is heads or batch, more flatten into the batch."""
    if x.dim() == 4:
        return x
    if x.dim() > 4:
        return x.flatten(0, x.dim() - 4)
    if x.dim() == 2:
        return x.unsqueeze(0).unsqueeze(0)
    return x.unsqueeze(0 if third_is_heads else -3)


def _attention_with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    group = query.shape[-3] // key.shape[-3] if query.dim() > 2 else 1
    if group > 1:
        key, value = key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)
    scores = torch.matmul(query, key.mT) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = torch.where(causal, scores, float("-inf"))
    attended = (scores != float("-inf")).any(-1, keepdim=True)
    probabilities = torch.where(attended, torch.softmax(scores, -1), 0.0)
    return torch.matmul(torch.dropout(probabilities.to(value.dtype), dropout_p, True), value)


def bilinear(x1: torch.Tensor, x2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """One matmul with the first input, one with the second; ``x1`` [..., in1], ``x2`` [..., in2], ``weight`` [out, in1, in2].

    What lies between them stays in the accumulation type.
    """
    dtype = x1.dtype
    wide = dtype if dtype == torch.float64 else torch.float32
    outputs, in1, in2 = weight.shape
    rows, columns = x1.to(wide).reshape(-1, in1), x2.to(wide).reshape(-1, in2, 1)
    first = torch.ops.bi_inductor.matmul(rows, weight.to(wide).transpose(0, 1).reshape(in1, outputs * in2))
    out = torch.ops.bi_inductor.matmul(first.reshape(-1, outputs, in2), columns, None if bias is None else bias.to(wide).unsqueeze(-1))
    result: torch.Tensor = out.reshape([*x1.shape[:-1], outputs]).to(dtype)
    return result


def grid_sampler(x: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """Sampling of images [batch, channels, height, width] as torch's decomposition spells it, so that the backward is made of its parts."""
    if x.dim() == 5:
        return grid_sampler_3d(x, grid, interpolation_mode, padding_mode, align_corners)
    return _grid_sampler_2d(x, grid, interpolation_mode, padding_mode, align_corners, False)


# A kernel may return NotImplemented for a call that torch's own path takes.
CAPTURED: dict[Any, Callable[..., Any]] = {
    aten.linear.default: linear,
    aten.rms_norm.default: rms_norm,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
    aten.bilinear.default: bilinear,
    aten.cdist.default: cdist,
    aten.embedding_bag.default: embedding_bag,
    aten.embedding_bag.padding_idx: embedding_bag_with_padding,
    aten.grid_sampler.default: grid_sampler,
    aten.lstm.input: lstm,
    flex_attention_op: flex_attention,
    **dict.fromkeys(TRANSPOSED_CONVOLUTIONS, transposed_convolution),
    **{overload: convolution for conv in CONVOLUTIONS for overload in (conv.default, conv.padding)},
}


def _is_wrapped(x: torch.Tensor) -> bool:
    # torch._C._functorch.is_functorch_wrapped_tensor, checked in torch 2.13.0.
    return is_traceable_wrapper_subclass(x) or torch._C._functorch.is_functorch_wrapped_tensor(x)


def _python_kernel(op: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    # Some ops have a Python kernel of torch's own (higher-order ones for autograd), others the C++ one.
    own = op.py_kernels.get(DispatchKey.CompositeImplicitAutograd) or op.py_kernels.get(DispatchKey.Autograd)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        # Other threads may be tracing with another backend, other devices and dtypes keep torch's own path.
        x = args[0]
        # Subclasses of tensors (DTensor, a quantised weight) and function transforms (vmap, jacrev) know torch's ops and not ours.
        is_wrapped = any(isinstance(arg, torch.Tensor) and _is_wrapped(arg) for arg in args)
        if getattr(_active, "depth", 0) and x.device.type in _DEVICES and x.dtype in DTYPES and not is_wrapped:
            result = replacement(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return own(*args, **kwargs) if own else op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return kernel


@contextlib.contextmanager
def captured_ops() -> Iterator[None]:
    """While active, this thread's tracing under the Python dispatcher keeps the composite ops of ``CAPTURED`` whole.

    The registry is per process: it is filled by the first user and restored by the last; other threads pass through to torch's kernels.
    """
    global _users
    with _installing:
        if _users == 0:
            for op, replacement in CAPTURED.items():
                kernel = _python_kernel(op, replacement)
                for key in _KEYS:
                    _replaced.append((op, key, op.py_kernels.get(key)))
                    op.py_kernels[key] = kernel
                op._dispatch_cache.clear()
        _users += 1
    _active.depth = getattr(_active, "depth", 0) + 1
    try:
        yield
    finally:
        _active.depth -= 1
        with _installing:
            _users -= 1
            if _users == 0:
                for op, key, before in _replaced:
                    if before is None:
                        del op.py_kernels[key]
                    else:
                        op.py_kernels[key] = before
                    op._dispatch_cache.clear()
                _replaced.clear()
