"""Why a node has its class, in one sentence a user can act on. The class itself is decided in classify.py."""

from __future__ import annotations

import torch
from torch.fx import Node

from bi_inductor.options import Options
from bi_inductor.passes.classify import called_op
from bi_inductor.passes.complex_numbers import touches_complex
from bi_inductor.passes.op_classes import STRUCTURE, OpClass, op_name, why_unsupported
from bi_inductor.passes.op_tables.exact import EXACT, SUMS

GENERAL: dict[OpClass, str] = {
    OpClass.ELEMENTWISE: "its value follows from that element's operands alone; Inductor's code is pinned to one value",
    OpClass.MOVEMENT: "moves or creates data, no arithmetic",
    OpClass.EXACT: "exact in whatever order the elements are visited",
    OpClass.REWRITTEN: "a sum whose order would follow the batch; a kernel with one fixed order takes its place",
    OpClass.ONE_SAMPLE: "has no template; torch's kernel runs on one sample at a time, on one thread",
    OpClass.RANDOM: "draws random numbers, which follow the seed and the place in the batch",
    OpClass.MIXING: "combines samples by its meaning: no kernel can make it independent of the batch",
    OpClass.OPAQUE: "a custom op whose numerics are unknown; it is called as it is",
    OpClass.UNSUPPORTED: "may give a sample other bits in another batch, and has no template",
}


def reason(node: Node, op_class: OpClass, options: Options) -> str:
    """Why ``node`` has class ``op_class``, and whether ``options`` let it through."""
    text = _reason(node, op_class)
    if op_class in (OpClass.OPAQUE, OpClass.UNSUPPORTED) and op_name(called_op(node)) in options.allow:
        text += "; let through by option 'allow', its bits may vary"
    return text


def _reason(node: Node, op_class: OpClass) -> str:
    op = called_op(node)
    name = op_name(op)
    if op_class is OpClass.MOVEMENT and name in STRUCTURE:
        return "calls a graph of its own, whose nodes are classified there"
    if op_class is OpClass.MOVEMENT and not isinstance(op, torch._ops.OperatorBase):
        return "picks one of several results, or computes a size"
    if op_class is OpClass.EXACT and name in SUMS:
        return "a sum of integers: exact in any order"
    if op_class is OpClass.REWRITTEN and name in EXACT:
        return "exact in any order; +0 is added where the order would choose between -0 and +0"
    if op_class is OpClass.REWRITTEN and name.startswith("bi_inductor."):
        return "one of bi_inductor's operators: one fixed order of arithmetic"
    if op_class is OpClass.UNSUPPORTED:
        if isinstance(op, torch._ops.HigherOrderOperator):
            return "a higher-order op that bi_inductor does not look into"
        if touches_complex(node):
            return "arithmetic on complex numbers has no template"
        return f"{GENERAL[op_class]}: {why_unsupported(name)}"
    return GENERAL[op_class]
