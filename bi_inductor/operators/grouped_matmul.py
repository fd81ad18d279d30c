"""``bi_inductor::grouped_matmul``: the experts of a mixture, a matmul for each group of rows (docs/numerics.md section 3)."""

from __future__ import annotations

import torch

from bi_inductor.operators.definition import check_dtypes, define, run
from bi_inductor.templates.grouped_matmul.kernel import GROUPED, KERNEL, arguments
from bi_inductor.templates.library import Kernel
from bi_inductor.templates.operand import Operand


def run_grouped_matmul(kernel: Kernel, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The matmul of each group by a kernel of grouped_matmul's parameters. Raises TypeError and ValueError for what does not fit."""
    dtype = check_dtypes("grouped_matmul", {"a": a, "b": b})
    out = grouped_matmul_fake(a, b, ends)
    ends = ends.to(torch.int64).contiguous()
    size = {0: a.shape[-2], 1: b.shape[-1], 2: a.shape[-1]}[GROUPED[a.dim(), b.dim()]]
    bounds = [0, *ends.tolist(), size]
    if bounds != sorted(bounds):
        raise ValueError(f"bi_inductor::grouped_matmul: ends must be ascending and at most {size}; given {ends.tolist()}")
    return run(kernel, out, dtype, arguments(Operand.of(a), Operand.of(b), Operand.of(ends), Operand.of(out)))


def grouped_matmul_cpu(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return run_grouped_matmul(KERNEL, a, b, ends)


def grouped_matmul_fake(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    check_dtypes("grouped_matmul", {"a": a, "b": b})
    given = f"given {tuple(a.shape)}, {tuple(b.shape)}, ends {tuple(ends.shape)}"
    if (a.dim(), b.dim()) not in GROUPED or ends.dim() != 1:
        raise ValueError(f"bi_inductor::grouped_matmul takes a [rows, k] and b [groups, k, n], or a or both without groups; {given}")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"bi_inductor::grouped_matmul: operands do not fit; {given}")
    for operand in (a, b):
        if operand.dim() == 3:
            torch._check(operand.shape[0] == ends.shape[0], lambda: f"bi_inductor::grouped_matmul: one end for each group; {given}")
    groups = ends.shape if a.dim() == b.dim() else ()
    return a.new_empty([*groups, a.shape[-2], b.shape[-1]])


define("grouped_matmul(Tensor a, Tensor b, Tensor ends) -> Tensor", grouped_matmul_cpu, grouped_matmul_fake)
