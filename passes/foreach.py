"""Ops on lists of tensors (``_foreach_*``, as optimizers call them) as one op for each tensor.

Inductor has code for some of them and calls ATen's kernels for the others, overload by overload; ATen's round differently in vector body
and tail, and a norm's sum follows the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

# The op for one tensor, where its name is another than that behind "_foreach_".
NAMED_OTHERWISE = {"zero": aten.zeros_like, "norm": aten.linalg_vector_norm}

# Of a tensor and a number they have another name.
WITH_NUMBERS = {"maximum": aten.clamp_min, "minimum": aten.clamp_max}

# These take the last operand by keyword.
VALUES = ("addcdiv", "addcmul")

# Without an op for one tensor.
LEFT = ("mm", "powsum")


def _for_each(name: str) -> Callable[..., list[torch.Tensor]]:
    op = NAMED_OTHERWISE.get(name) or getattr(aten, name)

    def decomposition(*operands: Any, **named: Any) -> list[torch.Tensor]:
        count = next(len(operand) for operand in operands if isinstance(operand, (list, tuple)))
        columns = [operand if isinstance(operand, (list, tuple)) else [operand] * count for operand in operands]
        rows = zip(*columns, strict=True)
        if name in WITH_NUMBERS and not isinstance(columns[1][0], torch.Tensor):
            return [WITH_NUMBERS[name](*row) for row in rows]
        if name in VALUES and len(columns) > 3:
            return [op(x, a, b, value=value) for x, a, b, value in rows]
        return [op(*row, **named) for row in rows]

    return decomposition


def _names() -> list[str]:
    """The names of these ops behind "_foreach_"."""
    registered = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_foreach_")}
    return sorted({name.removeprefix("aten::_foreach_") for name in registered if not name.endswith("_")} - set(LEFT))


def _decompositions() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name in _names():
        packet = getattr(aten, f"_foreach_{name}")
        for overload in (getattr(packet, each) for each in packet.overloads()):
            writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in overload._schema.arguments)
            # A tensor of scalars has to be read while tracing.
            of_scalars = any(argument.name == "scalars" and str(argument.type) == "Tensor" for argument in overload._schema.arguments)
            if not writes and not of_scalars:
                found[overload] = _for_each(name)
    return found


DECOMPOSITIONS = _decompositions()
