"""Which ops of torch can be in a graph when our pass sees it, found from torch's registries: the table has to name these.

torch internals, checked in 2.13.0 to 2.15.0: torch._C._dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import torch

NAMESPACES = ("aten", "prims", "inductor", "rngprims")

# Where a dense tensor on a CPU finds the kernel of an op that is no composition of others.
_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Reach(enum.Enum):
    """Whether an op can be in a post-grad graph, and what keeps it out."""

    REACHES = "can be in a graph"
    COMPOSITE = "is traced as the ops that it is composed of"
    DECOMPOSED = "is taken apart by the decomposition table"
    WRITES = "writes to an argument; a graph has the op that gives the result instead"
    NO_TENSORS = "takes and gives no tensors"
    NO_KERNEL = "has no kernel for dense tensors on a CPU"


def reach(op: torch._ops.OpOverload, decompositions: Mapping[Any, Any]) -> Reach:
    """What becomes of a call of ``op`` on the way to our pass, by its schema, its kernels and the decomposition table in force."""
    arguments = op._schema.arguments
    if not any("Tensor" in str(each.type) for each in (*arguments, *op._schema.returns)):
        return Reach.NO_TENSORS
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(op.name(), "CompositeImplicitAutograd") and not has_kernel(op.name(), "CPU"):
        return Reach.COMPOSITE
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments):
        return Reach.WRITES
    if not any(has_kernel(op.name(), key) for key in _KERNELS):
        return Reach.NO_KERNEL
    return Reach.DECOMPOSED if op in decompositions else Reach.REACHES


def all_ops() -> list[torch._ops.OpOverload]:
    """Every overload of torch's own namespaces, sorted by name."""
    ops = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet, None) if namespace in NAMESPACES else None
        op = getattr(found, overload or "default", None)
        # Some are declared for TorchScript alone.
        if op is not None:
            ops.append(op)
    return ops
