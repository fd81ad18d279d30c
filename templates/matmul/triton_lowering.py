"""The matmul family in Triton."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.virtualized import V

from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.matmul.configurations import CHAINED, NARROW, configuration
from bi_inductor.templates.triton_template import broadcast, constant, lower, template


@SymbolicGridFn
def grid(batch: Any, m: Any, n: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile of each matrix of the batch, along x: the other axes take 65535 programs at most."""
    return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]) * batch, 1, 1


def matmul(a: ir.TensorBox, b: ir.TensorBox, bias: ir.TensorBox | None, alpha: float, beta: float) -> ir.TensorBox:
    """``alpha * a @ b + beta * bias``: ``a`` [batch?, m, k], ``b`` [batch?, k, n] of any strides, ``bias`` broadcast to the result."""
    dtype = a.get_dtype()
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    size = [*batch, m, n]
    inputs = {"A": realized(a), "B": realized(b)}
    if bias is not None:
        inputs["BIAS"] = broadcast(realized(bias), size)
    chosen = configuration(target_of(a.get_device()), dtype, V.graph.sizevars.statically_known_leq(n, NARROW))
    chain = dtype in CHAINED
    kernel = template(
        "matmul",
        "_".join(["matmul", *(["batched"] if batch else []), *(["bias"] if bias is not None else []), *([] if chain else ["runs"])]),
        grid,
        NAMES=tuple(inputs),
        BATCHED=bool(batch),
        CHAIN=chain,
    )
    constants: dict[str, Any] = {
        **chosen.constants,
        "EVEN_K": V.graph.sizevars.statically_known_multiple_of(k, chosen.block_k),
        "ALPHA": 1 if alpha == 1 else constant(alpha),
        "BETA": 1 if beta == 1 else constant(beta),
    }
    call_sizes = (batch[0] if batch else 1, m, n)
    return lower(kernel, inputs, size, constants, call_sizes, warps=chosen.warps, stages=chosen.stages, dtype=dtype)
