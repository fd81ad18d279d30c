"""``bi_inductor::softmax`` and ``log_softmax`` (docs/numerics.md section 6)."""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.operators.definition import check_dtypes, define, normalized_dims, run
from bi_inductor.templates.operand import Operand
from bi_inductor.templates.softmax.kernel import KERNEL, arguments


def _cpu(log: bool, x: torch.Tensor, dim: int) -> torch.Tensor:
    dtype = check_dtypes("log_softmax" if log else "softmax", {"x": x})
    rows = x.reshape(1) if x.dim() == 0 else x
    (dim,) = normalized_dims("softmax", [dim], rows.dim())
    rows = rows.movedim(dim, -1).contiguous()
    out = torch.empty_like(rows)
    run(KERNEL, out, dtype, arguments(log, Operand.of(rows), Operand.of(out)))
    return out.movedim(-1, dim).reshape(x.shape).contiguous()


def _fake(x: torch.Tensor, dim: int) -> torch.Tensor:
    check_dtypes("softmax", {"x": x})
    return x.new_empty(x.shape)


def softmax_cpu(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _cpu(False, x, dim)


def log_softmax_cpu(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _cpu(True, x, dim)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.dim = inputs[1]
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    (y,) = ctx.saved_tensors
    weighted = grad * y
    total = torch.ops.bi_inductor.sum(weighted, [ctx.dim], True) if y.dim() else weighted
    return weighted - y * total, None


def _log_softmax_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    (y,) = ctx.saved_tensors
    total = torch.ops.bi_inductor.sum(grad, [ctx.dim], True) if y.dim() else grad
    return grad - y.exp() * total, None


define("softmax(Tensor x, int dim) -> Tensor", softmax_cpu, _fake, _softmax_backward, _save)
define("log_softmax(Tensor x, int dim) -> Tensor", log_softmax_cpu, _fake, _log_softmax_backward, _save)
