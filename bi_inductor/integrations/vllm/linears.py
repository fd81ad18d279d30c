"""Linears inside and outside of the compiled graph (lm_head) call our operator on the weight as it is stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from bi_inductor.passes.capture import linear


def _keep_weight(layer: Any, remove_weight: bool) -> None:
    """In place of vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm, which packs the weight for oneDNN and drops it."""
    if not layer.weight.is_meta and layer.weight.ndim != 2:
        raise NotImplementedError(f"{type(layer).__name__}: weights of {layer.weight.ndim} dims have no batch-invariant template in vLLM")
    layer.cpu_linear = linear


@contextlib.contextmanager
def invariant_linears() -> Iterator[None]:
    """While a model loads, its unquantised linears get ours instead of oneDNN's (checked in vLLM 0.32.0)."""
    from vllm.model_executor.layers import utils

    stock = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = _keep_weight
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = stock
