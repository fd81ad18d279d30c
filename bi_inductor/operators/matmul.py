"""``bi_inductor::matmul``: the one expression behind mm, addmm, bmm, baddbmm, mv, dot, linear and matmul (docs/numerics.md section 3)."""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.library import Kernel
from bi_inductor.templates.matmul.kernel import KERNEL, arguments
from bi_inductor.templates.operand import Operand


def check_shapes(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> list[Any]:
    """The shape of the result. Raises ValueError when the operands do not fit."""
    if a.dim() not in (2, 3) or b.dim() != a.dim():
        raise ValueError(f"bi_inductor::matmul takes two 2-D or two 3-D tensors; given {tuple(a.shape)} and {tuple(b.shape)}")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"bi_inductor::matmul: {tuple(a.shape)} @ {tuple(b.shape)} do not fit")
    if a.dim() == 3:
        torch._check(a.shape[0] == b.shape[0], lambda: f"bi_inductor::matmul: batches of {tuple(a.shape)}, {tuple(b.shape)} differ")
    shape = [*a.shape[:-1], b.shape[-1]]
    if bias is not None and bias.dim() > len(shape):
        raise ValueError(f"bi_inductor::matmul: bias {tuple(bias.shape)} does not broadcast to {tuple(shape)}")
    return shape


def run_matmul(kernel: Kernel, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
    """``alpha * a @ b + beta * bias`` by a kernel of matmul's parameters. Raises TypeError and ValueError for operands that do not fit."""
    bias = None if beta == 0 else bias
    dtype = check_dtypes("matmul", {"a": a, "b": b, "bias": bias})
    out = a.new_empty(check_shapes(a, b, bias))
    if bias is not None:
        bias = bias.expand(out.shape)
    operands = [None if t is None else Operand.of(t) for t in (a, b, bias)]
    assert operands[0] is not None and operands[1] is not None
    return run(kernel, out, dtype, arguments(operands[0], operands[1], operands[2], Operand.of(out), alpha, beta))


def matmul_cpu(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> torch.Tensor:
    return run_matmul(KERNEL, a, b, bias, alpha, beta)


def matmul_fake(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> torch.Tensor:
    check_dtypes("matmul", {"a": a, "b": b, "bias": bias})
    return a.new_empty(check_shapes(a, b, bias))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, bias, ctx.alpha, ctx.beta = inputs
    ctx.bias_shape = None if bias is None else bias.shape
    ctx.save_for_backward(a, b)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    matmul = torch.ops.bi_inductor.matmul
    grad_a = grad_b = None
    # A gradient is laid out as its operand, as torch does: that of a linear's weight, which comes here transposed, needs no copy.
    # Either way the sums are the same.
    if ctx.needs_input_grad[0]:
        grad_a = matmul(b, grad.mT, None, ctx.alpha).mT if _is_column_major(a) else matmul(grad, b.mT, None, ctx.alpha)
    if ctx.needs_input_grad[1]:
        grad_b = matmul(grad.mT, a, None, ctx.alpha).mT if _is_column_major(b) else matmul(a.mT, grad, None, ctx.alpha)
    grad_bias = None
    if ctx.bias_shape is not None and ctx.needs_input_grad[2]:
        grad_bias = sum_to_shape(grad, ctx.bias_shape)
        if ctx.beta != 1:
            grad_bias = grad_bias * ctx.beta
    return grad_a, grad_b, grad_bias, None, None


def _is_column_major(matrix: torch.Tensor) -> bool:
    return matrix.dim() == 2 and matrix.stride(0) == 1 and matrix.stride(1) == matrix.shape[0]


def sum_to_shape(grad: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The gradient of a broadcast from ``shape``. Sums over a dim of one element too, so that a batch of one takes the same path."""
    leading = grad.dim() - len(shape)
    dims = list(range(leading)) + [leading + i for i, n in enumerate(shape) if isinstance(n, int) and n == 1]
    if not dims:
        return grad
    summed: torch.Tensor = torch.ops.bi_inductor.sum(grad, dims, True)
    return summed.reshape(shape)


define(
    "matmul(Tensor a, Tensor b, Tensor? bias=None, float alpha=1.0, float beta=1.0) -> Tensor",
    matmul_cpu,
    matmul_fake,
    _backward,
    _setup_context,
)
