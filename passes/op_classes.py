"""The one table that gives every op of a post-grad graph its class. What it does not name is unsupported.

The names stand in bi_inductor.passes.op_tables, one class a file; which ops have a rewriting follows from the registries of rules.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS
from bi_inductor.passes.complex_numbers import COMPLEX_RULES
from bi_inductor.passes.op_tables.elementwise import ELEMENTWISE
from bi_inductor.passes.op_tables.exact import COUNTS, EXACT, SCATTERS, SUMS
from bi_inductor.passes.op_tables.movement import CHOICES, MOVEMENT
from bi_inductor.passes.op_tables.random import RANDOM
from bi_inductor.passes.op_tables.unsupported import UNSUPPORTED
from bi_inductor.templates.library import DTYPES


class OpClass(enum.Enum):
    """What an op does to the bits of a sample."""

    ELEMENTWISE = "elementwise"
    MOVEMENT = "data movement"
    EXACT = "exact"
    REWRITTEN = "rewritten"
    ONE_SAMPLE = "one sample at a time"
    RANDOM = "random"
    MIXING = "mixes samples"
    OPAQUE = "opaque"
    UNSUPPORTED = "unsupported"


# Invariant by running one sample after the other, on any dtype.
ONE_SAMPLE = {f"aten.{op.overloadpacket.__name__}" for op in ONE_SAMPLE_OPS}

# Higher-order ops whose bodies are graphs that pass through here themselves, and bookkeeping of torch.
STRUCTURE = {"cond", "invoke_subgraph", "scan", "with_effects", "wrap_with_set_grad_enabled", "while_loop"}


def table_of() -> dict[OpClass, set[str]]:
    """The names of each class that has any; an op with a rewriting alone is in none."""
    return {
        OpClass.ELEMENTWISE: ELEMENTWISE,
        OpClass.MOVEMENT: MOVEMENT | CHOICES - ELEMENTWISE,
        OpClass.EXACT: EXACT | COUNTS,
        OpClass.REWRITTEN: SUMS | SCATTERS,
        OpClass.ONE_SAMPLE: ONE_SAMPLE,
        OpClass.RANDOM: RANDOM,
        OpClass.UNSUPPORTED: set().union(*UNSUPPORTED.values()),
    }


# Of these namespaces the table is meant to name every op; what it does not is unsupported. Others are somebody's custom ops.
TORCHS_OWN = frozenset(
    {"aten", "prims", "inductor", "mkldnn", "quantized", "_quantized", "onednn", "mkl", "rngprims", "c10d", "symm_mem"}
    | {"_c10d_functional", "_c10d_functional_autograd"}
)


def why_unsupported(name: str) -> str:
    """The reason that the table gives for an unsupported op, by its name ("aten.cholesky")."""
    for text, members in UNSUPPORTED.items():
        if name in members:
            return text
    if name in ONE_SAMPLE:
        return "torch's kernel runs on one sample at a time, and on the CPU only"
    return "the table of classes has no name like it"


def op_name(target: Any) -> str:
    """ "namespace.name" of an op, without its overload."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target.overloadpacket.__name__}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target.name())
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def on_cpu(values: list[Any]) -> bool:
    """Whether all tensors among the values are there."""
    return all(value.device.type == "cpu" for value in values if isinstance(value, torch.Tensor))


def classify(target: Any, values: list[Any], rewritten: bool) -> OpClass:
    """The class of a call.

    Args:
        target: the function called.
        values: fake values of the tensors it reads and of its result.
        rewritten: whether a rewriting is registered for ``target``.
    """
    name = op_name(target)
    if not isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        # getitem and arithmetic on sizes.
        return OpClass.MOVEMENT
    if isinstance(target, torch._ops.HigherOrderOperator):
        return OpClass.MOVEMENT if name in STRUCTURE else OpClass.UNSUPPORTED
    namespace = name.split(".")[0]
    if namespace == "bi_inductor":
        return OpClass.REWRITTEN
    if name in ONE_SAMPLE and rewritten:
        return OpClass.ONE_SAMPLE if on_cpu(values) else OpClass.UNSUPPORTED
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if any(dtype.is_complex for dtype in dtypes):
        if name in MOVEMENT | CHOICES:
            return OpClass.MOVEMENT
        return OpClass.REWRITTEN if target in COMPLEX_RULES else OpClass.UNSUPPORTED
    if name in SUMS | SCATTERS and not any(dtype.is_floating_point for dtype in dtypes):
        return OpClass.EXACT
    if rewritten and dtypes & set(DTYPES):
        return OpClass.REWRITTEN
    for members, op_class in (
        (ELEMENTWISE, OpClass.ELEMENTWISE),
        (MOVEMENT, OpClass.MOVEMENT),
        (EXACT, OpClass.EXACT),
        (RANDOM, OpClass.RANDOM),
    ):
        if name in members:
            return op_class
    if namespace in TORCHS_OWN:
        return OpClass.UNSUPPORTED
    return OpClass.OPAQUE
