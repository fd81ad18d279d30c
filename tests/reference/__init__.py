"""docs/numerics.md as running code: the value of every output element, in plain scalar C++ loops.

The functions take float32, bfloat16, float16 or float64 CPU tensors of any strides. Halves are converted to float32,
which is exact; the C++ computes in the accumulation type; the result is rounded once to the operands' dtype, to
nearest-even, by ``Tensor.to``. Every test that asks for the bits of a kernel compares with these.

Nothing here is shared with ``templates/``: two spellings of one page that agree are evidence, one used twice is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tests.reference.library import call

__all__ = [
    "accumulation_dtype",
    "attention",
    "cumprod",
    "cumsum",
    "embedding_backward",
    "exp",
    "group_norm",
    "layer_norm",
    "log_softmax",
    "logcumsumexp",
    "matmul",
    "mean_square_norm",
    "native_matmul",
    "reduce",
    "rms_norm",
    "sample_sum",
    "scatter",
    "softmax",
]

_ACCUMULATION = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float64,
}
_SCATTERS = ("set", "sum", "prod", "amax", "amin", "mean")
_REDUCTIONS = ("sum", "mean", "prod", "var", "std")


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The accumulation type of elements of ``dtype`` (section 1). TypeError for a dtype the page does not define."""
    if dtype not in _ACCUMULATION:
        raise TypeError(f"the reference is defined for float32, bfloat16, float16 and float64, not {dtype}")
    return _ACCUMULATION[dtype]


def _operand(x: torch.Tensor, accumulation: torch.dtype) -> torch.Tensor:
    """Elements in their logical order, converted to the accumulation type. TypeError where that would round."""
    if accumulation_dtype(x.dtype) != accumulation:
        raise TypeError(f"an operand of dtype {x.dtype} cannot be accumulated in {accumulation}")
    return x.detach().to(accumulation).contiguous()


def _optional_operand(x: torch.Tensor | None, accumulation: torch.dtype) -> torch.Tensor | None:
    return None if x is None else _operand(x, accumulation)


def exp(x: torch.Tensor) -> torch.Tensor:
    """The exponential of section 5 of each element, same shape and dtype."""
    accumulation = accumulation_dtype(x.dtype)
    operand = _operand(x, accumulation)
    out = torch.empty_like(operand)
    call("exp", accumulation, (operand, out, operand.numel()))
    return out.to(x.dtype)


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> torch.Tensor:
    """Section 3: ``alpha * a @ b + beta * bias`` for a [M, K], b [K, N] or a [B, M, K], b [B, K, N].

    ``bias`` broadcasts to the result, whose dtype is that of ``a``. ValueError for shapes that do not fit.
    """
    return _matmul("matmul", a, b, bias, alpha, beta)


def native_matmul(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> torch.Tensor:
    """Section 3, native bfloat16: as ``matmul``, for operands of bfloat16. TypeError for others."""
    if a.dtype != torch.bfloat16:
        raise TypeError(f"the native product is defined for bfloat16, not {a.dtype}")
    return _matmul("native_matmul", a, b, bias, alpha, beta)


def _matmul(name: str, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
    if a.dim() != b.dim() or a.dim() not in (2, 3) or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"expected [M, K] @ [K, N] or [B, M, K] @ [B, K, N], got {list(a.shape)} @ {list(b.shape)}")
    accumulation = accumulation_dtype(a.dtype)
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    shape = (*a.shape[:-1], columns)
    batch = a.shape[0] if a.dim() == 3 else 1
    expanded_bias = None if bias is None else _operand(bias.expand(shape), accumulation)
    out = torch.empty(shape, dtype=accumulation)
    operands = (_operand(a, accumulation), _operand(b, accumulation), expanded_bias, out)
    call(name, accumulation, (*operands, batch, rows, columns, depth, float(alpha), float(beta)))
    return out.to(a.dtype)


def reduce(
    op: str,
    x: torch.Tensor,
    dims: int | Sequence[int] | None = None,
    keepdim: bool = False,
    correction: float = 1.0,
) -> torch.Tensor:
    """Section 4: ``op`` (sum, mean, prod, var or std) over ``dims`` (None or empty: all).

    ``correction`` is for var and std. The reduced elements are taken in row-major order over the reduced dims,
    ascending, whatever the order in ``dims``.
    """
    if op not in _REDUCTIONS:
        raise ValueError(f"op is one of {', '.join(_REDUCTIONS)}, not {op!r}")
    if op in ("var", "std") and x.dtype == torch.float32:
        # float32 would lose a bit of what stock's float64 keeps.
        return reduce(op, x.double(), dims, keepdim, correction).float()
    accumulation = accumulation_dtype(x.dtype)
    requested = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
    reduced = sorted({_wrap(dim, x.dim()) for dim in requested}) if x.dim() else []
    kept = [dim for dim in range(x.dim()) if dim not in reduced]

    rows = math.prod(x.shape[dim] for dim in kept)
    n = math.prod(x.shape[dim] for dim in reduced)
    operand = _operand(x.permute(kept + reduced), accumulation)
    out = torch.empty([x.shape[dim] for dim in kept], dtype=accumulation)
    corrections = (float(correction),) if op in ("var", "std") else ()
    call(op, accumulation, (operand, out, rows, n, *corrections))
    if keepdim:
        out = out.reshape([1 if dim in reduced else x.shape[dim] for dim in range(x.dim())])
    return out.to(x.dtype)


def cumsum(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Section 4: the running sum along ``dim``, same shape and dtype."""
    return _chain("cumsum", x, dim)


def cumprod(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Section 4: the running product along ``dim``, same shape and dtype."""
    return _chain("cumprod", x, dim)


def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Section 4: the logarithm of the running sum of exponentials along ``dim``, same shape and dtype."""
    return _chain("logcumsumexp", x, dim)


def _chain(name: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    if x.dtype == torch.float32:
        # Its chain is float64: over a chain as long as a row, float32 would lose what stock's float64 keeps.
        return _along_dim(name, x.double(), dim).float()
    return _along_dim(name, x, dim)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Section 6: softmax along ``dim``, same shape and dtype."""
    return _along_dim("softmax", x, dim)


def log_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Section 6: log_softmax along ``dim``, same shape and dtype."""
    return _along_dim("log_softmax", x, dim)


def layer_norm(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Section 7: layer_norm over the trailing ``normalized_shape``.

    Returns y in the shape and dtype of ``x``, and the statistics mean and rstd in the accumulation type, their shape
    that of ``x`` with every normalised dim 1.
    """
    accumulation = accumulation_dtype(x.dtype)
    rows, n, statistics_shape = _trailing(x, normalized_shape)
    operand = _operand(x, accumulation)
    y = torch.empty_like(operand)
    mean = torch.empty(statistics_shape, dtype=accumulation)
    rstd = torch.empty(statistics_shape, dtype=accumulation)
    parameters = (_optional_operand(weight, accumulation), _optional_operand(bias, accumulation))
    call("layer_norm", accumulation, (operand, *parameters, y, mean, rstd, rows, n, float(eps)))
    return y.to(x.dtype), mean, rstd


def rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 7: rms_norm over the trailing ``normalized_shape``.

    Returns y and rstd, shapes and dtypes as in :func:`layer_norm`.
    """
    accumulation = accumulation_dtype(x.dtype)
    rows, n, statistics_shape = _trailing(x, normalized_shape)
    operand = _operand(x, accumulation)
    y = torch.empty_like(operand)
    rstd = torch.empty(statistics_shape, dtype=accumulation)
    arguments = (operand, _optional_operand(weight, accumulation), y, rstd, rows, n, float(eps))
    call("rms_norm", accumulation, arguments)
    return y.to(x.dtype), rstd


def mean_square_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """Section 7: ``x * rsqrt(mean(x*x) + eps) * weight`` over the trailing ``normalized_shape``, every square rounded."""
    accumulation = accumulation_dtype(x.dtype)
    rows, n, _ = _trailing(x, normalized_shape)
    operand = _operand(x, accumulation)
    y = torch.empty_like(operand)
    call("mean_square_norm", accumulation, (operand, _optional_operand(weight, accumulation), y, rows, n, float(eps)))
    return y.to(x.dtype)


def group_norm(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Section 7: group_norm of x [N, C, *spatial], weight and bias [C].

    Returns y in the shape and dtype of ``x``, mean and rstd [N, num_groups] in the accumulation type.
    """
    if x.dim() < 2 or num_groups < 1 or x.shape[1] % num_groups != 0:
        raise ValueError(f"x of shape {list(x.shape)} has no [N, C, ...] with C divisible by {num_groups} groups")
    accumulation = accumulation_dtype(x.dtype)
    samples, channels, spatial = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    operand = _operand(x, accumulation)
    y = torch.empty_like(operand)
    mean = torch.empty((samples, num_groups), dtype=accumulation)
    rstd = torch.empty((samples, num_groups), dtype=accumulation)
    parameters = (_optional_operand(weight, accumulation), _optional_operand(bias, accumulation))
    sizes = (samples, channels, spatial, num_groups, float(eps))
    call("group_norm", accumulation, (operand, *parameters, y, mean, rstd, *sizes))
    return y.to(x.dtype), mean, rstd


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 8, for query [B, H, Q, E], key [B, Hk, K, E], value [B, Hk, K, Ev].

    Hk divides H, and head h reads the keys and values of head h // (H / Hk).
    ``mask`` broadcasts to [B, H, Q, K]: bool (True: the key takes part) or float (added to the scores).
    Returns out [B, H, Q, Ev] in the dtype of ``query`` and lse [B, H, Q] in the accumulation type.
    """
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError("query, key and value are [batch, heads, length, size]")
    accumulation = accumulation_dtype(query.dtype)
    batch, heads, queries, head_dim = query.shape
    kv_heads, keys, value_dim = key.shape[1], key.shape[2], value.shape[3]
    if key.shape != (batch, kv_heads, keys, head_dim) or value.shape[:3] != key.shape[:3] or heads % kv_heads != 0:
        raise ValueError(f"shapes do not fit: {list(query.shape)}, {list(key.shape)}, {list(value.shape)}")

    float_mask = bool_mask = None
    if mask is not None:
        expanded = mask.expand(batch, heads, queries, keys)
        if mask.dtype == torch.bool:
            bool_mask = expanded.contiguous()
        else:
            float_mask = _operand(expanded, accumulation)
    if scale is None:
        scale = 1.0 / math.sqrt(head_dim) if head_dim else math.inf

    out = torch.empty((batch, heads, queries, value_dim), dtype=accumulation)
    lse = torch.empty((batch, heads, queries), dtype=accumulation)
    operands = (_operand(query, accumulation), _operand(key, accumulation), _operand(value, accumulation))
    sizes = (batch, heads, kv_heads, queries, keys, head_dim, value_dim)
    call("attention", accumulation, (*operands, float_mask, bool_mask, out, lse, *sizes, int(is_causal), float(scale)))
    return out.to(query.dtype), lse


def embedding_backward(grad: torch.Tensor, index: torch.Tensor, rows: int, padding_idx: int = -1) -> torch.Tensor:
    """Section 9: the gradient [rows, D] of an embedding's weight from grad [*index.shape, D].

    IndexError for an index outside 0..rows-1.
    """
    if grad.shape[:-1] != index.shape:
        raise ValueError(f"grad {list(grad.shape)} is not one row for each of index {list(index.shape)}")
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise IndexError(f"index holds values outside 0..{rows - 1}")
    accumulation = accumulation_dtype(grad.dtype)
    out = torch.empty((rows, grad.shape[-1]), dtype=accumulation)
    operands = (_operand(grad, accumulation), index.to(torch.int64).contiguous(), out)
    call("embedding_backward", accumulation, (*operands, index.numel(), grad.shape[-1], rows, padding_idx))
    return out.to(grad.dtype)


def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, include_self: bool = True) -> torch.Tensor:
    """Section 9: ``x`` with ``src`` reduced into the places along ``dim`` that ``index``, of the shape of ``src``, names."""
    accumulation = accumulation_dtype(x.dtype)
    dim = _wrap(dim, x.dim())
    out = torch.empty(x.shape, dtype=accumulation)
    operands = (_operand(x, accumulation), index.to(torch.int64).contiguous(), _operand(src, accumulation), out)
    sizes = (math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :]), src.shape[dim])
    call("scatter", accumulation, (*operands, *sizes, _SCATTERS.index(reduce), int(include_self)))
    return out.to(x.dtype)


def sample_sum(x: torch.Tensor) -> torch.Tensor:
    """Section 13: the sum [...] of ``x`` [samples, ...], at least one sample. Tensors are added as torch adds two of them: one rounding."""
    if len(x) == 1:
        return x[0]
    whole = 1 << (len(x) - 1).bit_length() - 1
    return sample_sum(x[:whole]) + sample_sum(x[whole:])


def _wrap(dim: int, rank: int) -> int:
    if not -max(rank, 1) <= dim < max(rank, 1):
        raise IndexError(f"dim {dim} is out of range for {rank} dims")
    return dim % max(rank, 1)


def _along_dim(name: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """An op on rows [rows, n] of ``x`` along ``dim``, each row giving a row."""
    accumulation = accumulation_dtype(x.dtype)
    rows_last = x.unsqueeze(0) if x.dim() == 0 else x.movedim(_wrap(dim, x.dim()), -1)
    operand = _operand(rows_last, accumulation)
    n = operand.shape[-1]
    out = torch.empty_like(operand)
    call(name, accumulation, (operand, out, operand.numel() // n if n else 0, n))
    result = out.to(x.dtype)
    return result.squeeze(0) if x.dim() == 0 else result.movedim(-1, _wrap(dim, x.dim()))


def _trailing(x: torch.Tensor, normalized_shape: Sequence[int]) -> tuple[int, int, tuple[int, ...]]:
    """Rows, elements a row, and the shape of the statistics, of a norm over the trailing ``normalized_shape``."""
    split = x.dim() - len(normalized_shape)
    if split < 0 or tuple(x.shape[split:]) != tuple(normalized_shape):
        raise ValueError(f"{list(x.shape)} does not end in {list(normalized_shape)}")
    statistics_shape = (*x.shape[:split], *[1] * len(normalized_shape))
    return math.prod(x.shape[:split]), math.prod(normalized_shape), statistics_shape
