"""The sum over samples in Triton."""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor import lowering as inductor
from torch._inductor.select_algorithm import SymbolicGridFn

from bi_inductor.templates.cpp_template import contiguous, realized
from bi_inductor.templates.operand import product
from bi_inductor.templates.sample_sum.configurations import CONSTANTS, STAGES, WARPS
from bi_inductor.templates.triton_template import lower, template

# Where the number of samples is symbolic: it is less than 2^31.
MOST_SAMPLES = 2**31 - 1


@SymbolicGridFn
def grid(n: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each block of elements."""
    return cdiv(n, meta["BLOCK"]), 1, 1


def sample_sum(x: ir.TensorBox) -> ir.TensorBox:
    """The sum [...] of ``x`` [samples, ...]."""
    samples, *size = x.get_size()
    n = product(size)
    # A sum is kept for each bit of the number of groups.
    most = MOST_SAMPLES if samples.free_symbols else int(samples)
    groups = most // CONSTANTS["GROUP"]
    out = lower(
        template("sample_sum", "sample_sum", grid),
        {"X": realized(inductor.view(contiguous(x), [samples, n]))},
        [n],
        {**CONSTANTS, "DEPTH": CONSTANTS["GROUP"].bit_length() - 1, "LEVELS": groups.bit_length()},
        (n,),
        warps=WARPS,
        stages=STAGES,
        dtype=x.get_dtype(),
    )
    return inductor.view(out, size)
