"""``bi_inductor::sum``, ``mean``, ``prod``, ``var``, ``std``, ``cumsum``, ``cumprod`` and ``logcumsumexp`` (docs/numerics.md section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import bi_inductor.templates.cumsum.kernel as cumsum_kernel
from bi_inductor.operators.definition import check_dtypes, define, normalized_dims, run
from bi_inductor.templates.operand import Operand
from bi_inductor.templates.reduction.kernel import KERNEL_OF, arguments


def reduced_shape(x: torch.Tensor, dims: list[int], keepdim: bool) -> list[Any]:
    """The shape after reducing the ascending ``dims``."""
    return [1 if i in dims else n for i, n in enumerate(x.shape) if keepdim or i not in dims]


def reduce_cpu(op: str, x: torch.Tensor, dims: list[int], keepdim: bool, correction: float = 1.0) -> torch.Tensor:
    """Eager reduction; an empty ``dims`` reduces all."""
    dtype = check_dtypes(op, {"x": x})
    dims = normalized_dims(op, dims, x.dim())
    out = x.new_empty(reduced_shape(x, dims, keepdim))
    return run(KERNEL_OF[op], out, dtype, arguments(op, Operand.of(x), dims, correction, Operand.of(out)))


def reduce_fake(op: str, x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    """Result of a reduction without its values."""
    check_dtypes(op, {"x": x})
    return x.new_empty(reduced_shape(x, normalized_dims(op, dims, x.dim()), keepdim))


def _expand(grad: torch.Tensor, shape: torch.Size, dims: list[int], keepdim: bool) -> torch.Tensor:
    if not keepdim:
        for dim in dims:
            grad = grad.unsqueeze(dim)
    return grad.expand(shape)


def _count(shape: torch.Size, dims: list[int]) -> Any:
    count: Any = 1
    for dim in dims:
        count = count * shape[dim]
    return count


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, dims, ctx.keepdim, *rest = inputs
    ctx.dims = normalized_dims("reduction", dims, x.dim())
    ctx.correction = rest[0] if rest else None
    ctx.save_for_backward(x, output)


def _sum_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, _ = ctx.saved_tensors
    return _expand(grad, x.shape, ctx.dims, ctx.keepdim), None, None


def _mean_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, _ = ctx.saved_tensors
    return _expand(grad, x.shape, ctx.dims, ctx.keepdim) / _count(x.shape, ctx.dims), None, None


def _prod_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, _ = ctx.saved_tensors
    # The product of the others: with one zero in the row only that element has a gradient, with two none has.
    zero = x == 0
    zeros = zero.sum(ctx.dims, keepdim=True)
    others = torch.ops.bi_inductor.prod(torch.where(zero, 1, x), ctx.dims, True)
    of_nonzero = torch.where(zeros == 0, others / torch.where(zero, 1, x), 0)
    of_zero = torch.where(zeros == 1, others, 0)
    return _expand(grad, x.shape, ctx.dims, ctx.keepdim) * torch.where(zero, of_zero, of_nonzero), None, None


def _var_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, _ = ctx.saved_tensors
    centred = x - torch.ops.bi_inductor.mean(x, ctx.dims, True)
    factor = 2.0 / (_count(x.shape, ctx.dims) - ctx.correction)
    return _expand(grad, x.shape, ctx.dims, ctx.keepdim) * (centred * factor), None, None, None


def _std_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _, std = ctx.saved_tensors
    grad_var = torch.where(std == 0, 0, grad / (std * 2))
    return _var_backward(ctx, grad_var)


def _define(op: str, backward: Callable[..., Any]) -> None:
    def cpu(x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
        return reduce_cpu(op, x, dims, keepdim)

    def fake(x: torch.Tensor, dims: list[int], keepdim: bool = False) -> torch.Tensor:
        return reduce_fake(op, x, dims, keepdim)

    define(f"{op}(Tensor x, int[] dims, bool keepdim=False) -> Tensor", cpu, fake, backward, _save)


def _define_spread(op: str, backward: Callable[..., Any]) -> None:
    def cpu(x: torch.Tensor, dims: list[int], keepdim: bool = False, correction: float = 1.0) -> torch.Tensor:
        return reduce_cpu(op, x, dims, keepdim, correction)

    def fake(x: torch.Tensor, dims: list[int], keepdim: bool = False, correction: float = 1.0) -> torch.Tensor:
        return reduce_fake(op, x, dims, keepdim)

    schema = f"{op}(Tensor x, int[] dims, bool keepdim=False, float correction=1.0) -> Tensor"
    define(schema, cpu, fake, backward, _save)


def cumulate_cpu(op: str, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Eager ``cumsum``, ``cumprod`` or ``logcumsumexp``."""
    dtype = check_dtypes(op, {"x": x})
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.dim() == 0:
        return x.clone()
    (dim,) = normalized_dims(op, [dim], x.dim())
    return run(cumsum_kernel.KERNEL, out, dtype, cumsum_kernel.arguments(op, dim, Operand.of(x), Operand.of(out)))


def _save_dim(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.dim = inputs[1]


def _cumsum_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    if grad.dim() == 0:
        return grad, None
    return torch.ops.bi_inductor.cumsum(grad.flip(ctx.dim), ctx.dim).flip(ctx.dim), None


def _define_cumulation(op: str, backward: Callable[..., Any] | None) -> None:
    def cpu(x: torch.Tensor, dim: int) -> torch.Tensor:
        return cumulate_cpu(op, x, dim)

    def fake(x: torch.Tensor, dim: int) -> torch.Tensor:
        check_dtypes(op, {"x": x})
        return x.new_empty(x.shape)

    define(f"{op}(Tensor x, int dim) -> Tensor", cpu, fake, backward, _save_dim)


_define("sum", _sum_backward)
_define("mean", _mean_backward)
_define("prod", _prod_backward)
_define_spread("var", _var_backward)
_define_spread("std", _std_backward)
for _op in cumsum_kernel.CUMULATIONS:
    _define_cumulation(_op, _cumsum_backward if _op == "cumsum" else None)
