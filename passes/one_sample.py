"""Rewritings of linear algebra and Fourier transforms: torch's kernels, one sample at a time (bi_inductor.operators.one_sample)."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS, one_sample_op
from bi_inductor.passes.op_classes import on_cpu
from bi_inductor.passes.rewriter import Rewriter, rule, values_of


@rule(*ONE_SAMPLE_OPS)
def one_sample(rewriter: Rewriter, *args: Any, **kwargs: Any) -> Node | tuple[Node, ...] | None:
    """The operator of ours of the same name, and each of its results; None elsewhere than on the CPU."""
    if not on_cpu(values_of(rewriter.node)):
        return None
    op = rewriter.node.target
    results = rewriter.emit(one_sample_op(op), *args, **kwargs)
    count = len(op._schema.returns)  # type: ignore[union-attr]  # the rule is registered for ops alone
    return results if count == 1 else tuple(rewriter.emit(operator.getitem, results, i) for i in range(count))
