"""How an operator of ``torch.ops.bi_inductor`` is defined: schema, CPU implementation, fake implementation, autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bi_inductor.templates.library import DTYPES, Kernel, call

LIBRARY = torch.library.Library("bi_inductor", "DEF")


def define(
    schema: str,
    cpu: Callable[..., torch.Tensor],
    fake: Callable[..., torch.Tensor],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> None:
    """Defines one operator.

    Args:
        schema: name, arguments and results, as ``torch.library`` takes it.
        cpu: eager implementation; gives the bits of the compiled graph.
        fake: shape, dtype and strides of the result.
        backward, setup_context: as ``torch.library.register_autograd``; without a ``backward`` going back through the operator raises
            NotImplementedError.
    """
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = f"bi_inductor::{schema.split('(')[0]}"
    LIBRARY.impl(name, cpu, "CPU")
    torch.library.register_fake(name, fake, lib=LIBRARY)
    torch.library.register_autograd(name, backward or _no_gradient(name), setup_context=setup_context, lib=LIBRARY)


def _no_gradient(name: str) -> Callable[..., Any]:
    """A backward that refuses. Without one torch would warn and take the result for a constant."""

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise NotImplementedError(
            f"{name} has no gradient: it is part of the backward of another operator, which cannot be differentiated a second time"
        )

    return backward


def check_dtypes(name: str, tensors: dict[str, torch.Tensor | None]) -> torch.dtype:
    """The common dtype of the tensors.

    Raises:
        TypeError: dtypes differ, or are not float32, float64, bfloat16 or float16.
    """
    present = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    dtypes = {tensor.dtype for tensor in present.values()}
    if len(dtypes) != 1 or next(iter(dtypes)) not in DTYPES:
        given = ", ".join(f"{key}: {tensor.dtype}" for key, tensor in present.items())
        allowed = ", ".join(str(dtype) for dtype in DTYPES)
        raise TypeError(f"bi_inductor::{name} takes tensors of one dtype out of {allowed}; given {given}")
    return next(iter(dtypes))


def normalized_dims(name: str, dims: list[int], ndim: int) -> list[int]:
    """``dims`` as ascending numbers from 0; all dims when the list is empty.

    Raises:
        IndexError: a dim is out of range or is named twice.
    """
    if ndim == 0 and all(dim in (0, -1) for dim in dims):
        return []
    if any(not -ndim <= dim < ndim for dim in dims):
        raise IndexError(f"bi_inductor::{name}: dims {dims} out of range for a tensor of {ndim} dims")
    result = sorted(dim % ndim for dim in dims) if dims else list(range(ndim))
    if len(set(result)) != len(result):
        raise IndexError(f"bi_inductor::{name}: dims {dims} name a dim twice")
    return result


def run(kernel: Kernel, out: torch.Tensor, dtype: torch.dtype, arguments: dict[str, object]) -> torch.Tensor:
    """Calls the kernel on the calling thread's settings and returns ``out``; an empty result needs no call."""
    if out.numel():
        call(kernel, dtype, {**arguments, "threads": torch.get_num_threads()})
    return out
