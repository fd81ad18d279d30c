"""``bi_inductor::embedding_backward``: the gradient of an embedding table (docs/numerics.md section 9)."""

from __future__ import annotations

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.embedding.kernel import KERNEL, arguments
from bi_inductor.templates.operand import Operand


def embedding_backward_cpu(grad: torch.Tensor, index: torch.Tensor, rows: int, padding_idx: int = -1) -> torch.Tensor:
    dtype = check_dtypes("embedding_backward", {"grad": grad})
    out = embedding_backward_fake(grad, index, rows, padding_idx)
    index = index.to(torch.int64).contiguous()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise IndexError(f"bi_inductor::embedding_backward: index must lie in [0, {rows})")
    values = arguments(Operand.of(grad.contiguous()), Operand.of(index), padding_idx, Operand.of(out))
    return run(KERNEL, out, dtype, values)


def embedding_backward_fake(grad: torch.Tensor, index: torch.Tensor, rows: int, padding_idx: int = -1) -> torch.Tensor:
    return grad.new_empty([rows, grad.shape[-1]])


define(
    "embedding_backward(Tensor grad, Tensor index, SymInt rows, int padding_idx=-1) -> Tensor",
    embedding_backward_cpu,
    embedding_backward_fake,
)
