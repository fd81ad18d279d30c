"""``bi_inductor::native_matmul`` and ``native_grouped_matmul``: what option ``native_bfloat16`` makes of ``matmul`` and ``grouped_matmul``.

They are written into a graph after autograd, so neither has a gradient of its own (docs/numerics.md section 3, native bfloat16).
"""

from __future__ import annotations

import torch

from bi_inductor.native_bfloat16 import require_native_bfloat16
from bi_inductor.operators.definition import define
from bi_inductor.operators.grouped_matmul import grouped_matmul_fake, run_grouped_matmul
from bi_inductor.operators.matmul import matmul_fake, run_matmul
from bi_inductor.templates.native_matmul.kernel import GROUPED_KERNEL, KERNEL


def _check(name: str, a: torch.Tensor) -> None:
    if a.dtype != torch.bfloat16:
        raise TypeError(f"bi_inductor::{name} takes tensors of torch.bfloat16; given {a.dtype}")


def native_matmul_cpu(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> torch.Tensor:
    _check("native_matmul", a)
    require_native_bfloat16()
    return run_matmul(KERNEL, a, b, bias, alpha, beta)


def native_matmul_fake(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0
) -> torch.Tensor:
    _check("native_matmul", a)
    return matmul_fake(a, b, bias, alpha, beta)


def native_grouped_matmul_cpu(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _check("native_grouped_matmul", a)
    require_native_bfloat16()
    return run_grouped_matmul(GROUPED_KERNEL, a, b, ends)


def native_grouped_matmul_fake(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _check("native_grouped_matmul", a)
    return grouped_matmul_fake(a, b, ends)


define(
    "native_matmul(Tensor a, Tensor b, Tensor? bias=None, float alpha=1.0, float beta=1.0) -> Tensor",
    native_matmul_cpu,
    native_matmul_fake,
)
define("native_grouped_matmul(Tensor a, Tensor b, Tensor ends) -> Tensor", native_grouped_matmul_cpu, native_grouped_matmul_fake)
