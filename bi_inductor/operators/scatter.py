"""``bi_inductor::scatter``: behind scatter, scatter_add, scatter_reduce, index_add and index_put (docs/numerics.md section 9)."""

from __future__ import annotations

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.operand import Operand
from bi_inductor.templates.scatter.kernel import KERNEL, REDUCTIONS, arguments


def check_arguments(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str) -> int:
    """The dim counted from 0. Raises ValueError or IndexError when the arguments do not fit together."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"bi_inductor::scatter: reduce must be one of {', '.join(REDUCTIONS)}; given {reduce!r}")
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"bi_inductor::scatter: dim {dim} is out of range for a tensor of {x.dim()} dims")
    dim %= x.dim()
    fits = src.dim() == x.dim() and index.dim() in (1, src.dim())
    for i in range(x.dim()):
        fits = fits and (i == dim or bool(src.shape[i] == x.shape[i]))
    expected = [src.shape[dim]] if index.dim() == 1 and fits else list(src.shape)
    fits = fits and all(bool(given == wanted) for given, wanted in zip(index.shape, expected, strict=True))
    if not fits:
        raise ValueError(
            f"bi_inductor::scatter: src must have the shape of self {tuple(x.shape)} but for dim {dim}, and index the shape of src or its "
            f"size in that dim; given src {tuple(src.shape)}, index {tuple(index.shape)}"
        )
    return dim


def scatter_cpu(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, include_self: bool = True) -> torch.Tensor:
    dtype = check_dtypes("scatter", {"self": x, "src": src})
    dim = check_arguments(x, dim, index, src, reduce)
    index = index.to(torch.int64).contiguous()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= x.shape[dim]):
        raise IndexError(f"bi_inductor::scatter: index must lie in [0, {x.shape[dim]})")
    out = scatter_fake(x, dim, index, src, reduce, include_self)
    operands = Operand.of(x.contiguous()), Operand.of(index), Operand.of(src.contiguous())
    return run(KERNEL, out, dtype, {**arguments(reduce, include_self, dim, *operands), "out": out})


def scatter_fake(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, include_self: bool = True) -> torch.Tensor:
    check_arguments(x, dim, index, src, reduce)
    return x.new_empty(x.shape)


define(
    "scatter(Tensor self, int dim, Tensor index, Tensor src, str reduce, bool include_self=True) -> Tensor",
    scatter_cpu,
    scatter_fake,
)
