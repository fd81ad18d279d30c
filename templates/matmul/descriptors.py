"""When the matmul reads its operands by descriptors: the tensor memory accelerator (TMA) of sm_90 and sm_100, asked for by an option.

The sums are those of the kernel that reads by pointers, block for block. An operand whose layout the accelerator cannot describe is read by
pointers as always, so the option changes no bit.

Inductor internals, checked in torch 2.13.0: config.triton.enable_persistent_tma_matmul, graph.unaligned_buffers. An input that begins at no
multiple of 16 bytes is in unaligned_buffers if it did so when the graph was compiled, and else is copied before the graph runs.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import config
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.virtualized import V

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.matmul.configurations import CHAINED

# An option of Inductor's for kernels of its own that do the same.
OPTION = "triton.enable_persistent_tma_matmul"
TARGETS = ("sm_90", "sm_100")
# Where a matrix begins in memory, and each of its rows.
ALIGNMENT = 16


@SymbolicGridFn
def grid(batch: Any, m: Any, n: Any, meta: dict[str, Any], *, cdiv: Any, min: Any) -> tuple[Any, Any, Any]:
    """A program for each multiprocessor, or for each tile where these are fewer. There is no batch."""
    return min(meta["PROGRAMS"], cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"])), 1, 1


def asked_for(device: torch.device | None) -> bool:
    """Whether the option is on.

    Raises:
        UnsupportedOpError: it is, and the device has no such accelerator.
    """
    if not config.triton.enable_persistent_tma_matmul:
        return False
    assert device is not None
    # Triton's interpreter, on the CPU, reads by descriptors too.
    if device.type != "cpu" and target_of(device) not in TARGETS:
        raise UnsupportedOpError(
            f"option {OPTION!r} asks for matmuls that read by the tensor memory accelerator, which {' and '.join(TARGETS)} have; "
            f"given {target_of(device)}"
        )
    return True


def transposed(a: Any, b: Any) -> tuple[bool, bool] | None:
    """For each of two realized operands whether its rows, not its columns, lie next to each other; None if one cannot be described."""
    found = _transposed(a), _transposed(b)
    # Places along k are 32-bit numbers there, which the kernel makes of a known k.
    if found[0] is None or found[1] is None or not sympy.sympify(b.get_size()[0]).is_Integer:
        return None
    return found[0], found[1]


def _transposed(node: Any) -> bool | None:
    layout, known = node.get_layout(), V.graph.sizevars
    # Inductor takes no input of the CPU for aligned; torch aligns them, and the interpreter checks it.
    unaligned = layout.device.type != "cpu" and node.get_name() in V.graph.unaligned_buffers
    if len(layout.size) != 2 or layout.dtype not in CHAINED or unaligned:
        return None

    def aligned(elements: Any) -> bool:
        return known.statically_known_multiple_of(elements * layout.dtype.itemsize, ALIGNMENT)

    for inner, outer in ((1, 0), (0, 1)):
        if known.statically_known_equals(layout.stride[inner], 1) and aligned(layout.stride[outer]) and aligned(layout.offset):
            return inner == 0
    return None
