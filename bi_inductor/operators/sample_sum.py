"""``bi_inductor::sample_sum``: gradients of single samples, summed in a tree over the samples (docs/numerics.md section 13)."""

from __future__ import annotations

from typing import Any

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.operand import Operand
from bi_inductor.templates.sample_sum.kernel import KERNEL, arguments


def sample_sum_cpu(x: torch.Tensor) -> torch.Tensor:
    dtype = check_dtypes("sample_sum", {"x": x})
    out = sample_sum_fake(x)
    if x.shape[0] == 0:
        return out.zero_()
    return run(KERNEL, out, dtype, arguments(Operand.of(x.contiguous()), Operand.of(out)))


def sample_sum_fake(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 0:
        raise ValueError("bi_inductor::sample_sum: x must be [samples, ...]; given a tensor without dims")
    return x.new_empty(x.shape[1:])


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.shape = inputs[0].shape


def _backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad.unsqueeze(0).expand(ctx.shape)


define("sample_sum(Tensor x) -> Tensor", sample_sum_cpu, sample_sum_fake, _backward, _save)
