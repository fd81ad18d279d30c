"""Option ``native_bfloat16``: the matmul family in bfloat16 on a CPU becomes the operators that take the CPU's own products."""

from __future__ import annotations

import torch
from torch.fx import Graph

from bi_inductor.native_bfloat16 import require_native_bfloat16
from bi_inductor.operators.convolution import OF_PATCHES

ops = torch.ops.bi_inductor
NATIVE = {ops.matmul.default: ops.native_matmul.default, ops.grouped_matmul.default: ops.native_grouped_matmul.default}


def take_native_products(graph: Graph) -> None:
    """Replaces, in place, the operators of ours that multiply bfloat16. Their products of wider operands (of the backward of attention, of
    quantised weights) and every other operator stay, as does a convolution that a gradient goes through: for inference it is no product.

    Runs last: to every analysis before it the operators are the same.

    Raises:
        OptionError: a product is on another device than the CPU.
    """
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in NATIVE or OF_PATCHES in node.meta.get("custom", {}):
            continue
        value = node.meta["val"]
        if value.dtype == torch.bfloat16:
            require_native_bfloat16(device=value.device.type)
            node.target = NATIVE[node.target]
