"""``bi_inductor::scaled_matmul``: products of float8 and int8 elements, scaled after their sum (docs/numerics.md section 12).

On the CPU it is matmul over the elements as the numbers they stand for. The Triton template reads the elements as they are stored.
"""

from __future__ import annotations

import torch

from bi_inductor.operators.definition import define
from bi_inductor.templates.library import DTYPES, FLOAT8, accumulation_dtype


def accepts(a: torch.dtype, b: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether elements of ``a`` and ``b`` make results of ``dtype``: float8 any float, a float and int8 that float, int8 int32."""
    if a in FLOAT8 and b in FLOAT8:
        return dtype in DTYPES or dtype in FLOAT8
    if b == torch.int8:
        return dtype == (torch.int32 if a == torch.int8 else a) and dtype in (*DTYPES, torch.int32)
    return False


def check(
    a: torch.Tensor,
    b: torch.Tensor,
    dtype: torch.dtype,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    """Raises TypeError for dtypes, ValueError for shapes that do not fit."""
    if not accepts(a.dtype, b.dtype, dtype):
        raise TypeError(
            "bi_inductor::scaled_matmul makes floats of float8, of a float and int8 that float, of int8 int32; "
            f"given a: {a.dtype}, b: {b.dtype}, dtype: {dtype}"
        )
    given = f"given {tuple(a.shape)} @ {tuple(b.shape)}"
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError(f"bi_inductor::scaled_matmul takes a [m, k] and b [k, n]; {given}")
    torch._check(a.shape[1] == b.shape[0], lambda: f"bi_inductor::scaled_matmul: operands do not fit; {given}")
    parts = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    for name, part in parts.items():
        if part is not None and (dtype == torch.int32 or part.dtype not in DTYPES):
            raise TypeError(f"bi_inductor::scaled_matmul: {name} is a float beside a result that is one; given {part.dtype} and {dtype}")
    if scale_a is not None and not is_one_element(scale_a):
        torch._check(
            scale_a.dim() == 2 and scale_a.shape[0] == a.shape[0] and scale_a.shape[1] == 1,
            lambda: f"bi_inductor::scaled_matmul: scale_a is one element or [m, 1]; {given}, scale_a {tuple(scale_a.shape)}",
        )
    for name, part in (("scale_b", scale_b), ("bias", bias)):
        if part is not None and not is_one_element(part):
            one_row = part.dim() == 1 or (part.dim() == 2 and part.shape[0] == 1)
            torch._check(
                one_row and part.shape[-1] == b.shape[1],
                lambda name=name, part=part: (
                    f"bi_inductor::scaled_matmul: {name} is one element, [n] or [1, n]; {given}, {name} {tuple(part.shape)}"
                ),
            )


def is_one_element(x: torch.Tensor) -> bool:
    """Whether it has one element for every size that is not known."""
    return all(isinstance(size, int) and size == 1 for size in x.shape)


def scaled_matmul_cpu(
    a: torch.Tensor,
    b: torch.Tensor,
    dtype: torch.dtype,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    check(a, b, dtype, scale_a, scale_b, bias)
    if dtype == torch.int32:
        return torch._int_mm(a, b)
    wide = accumulation_dtype(a.dtype)
    result: torch.Tensor = torch.ops.bi_inductor.matmul(a.to(wide), b.to(wide))
    for scale in (scale_a, scale_b):
        if scale is not None:
            result = result * scale.to(wide)
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(dtype)


def scaled_matmul_fake(
    a: torch.Tensor,
    b: torch.Tensor,
    dtype: torch.dtype,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    check(a, b, dtype, scale_a, scale_b, bias)
    return a.new_empty([a.shape[0], b.shape[1]], dtype=dtype)


define(
    "scaled_matmul(Tensor a, Tensor b, ScalarType dtype, Tensor? scale_a=None, Tensor? scale_b=None, Tensor? bias=None) -> Tensor",
    scaled_matmul_cpu,
    scaled_matmul_fake,
)
