"""One rule for every Triton template in the interpreter: near float64, and rows with the same bits in every batch.

A test file has a table of :class:`Case` and holds each to ``assert_rows_of``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from bi_inductor.templates.library import accumulation_dtype
from tests.interpreter import run_batches
from tests.interpreter.process import Interpreter
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 3, 16, 17, 33)
ROWS = max(BATCHES)
Tensors = tuple[torch.Tensor, ...]
Results = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """Calls of templates.

    Attributes:
        function: what is compiled. Its first arguments have a row (a sample, a request) for each of the batch, and so have its results.
        rows: of a dtype, the arguments that have a row for each of the batch.
        rest: of a dtype, the other arguments.
        by_torch: the same by torch's own operators, which take float64 too; ``function`` if None.
        options: of the compile.
        error: how many times that of torch's operators in the same dtype an error against float64 may be.
        dtypes: of the rows.
        reordered: of all arguments, those whose sums have the same terms in another order; None where none is looked at.
        undone: a result of reordered arguments in the places of the others.
        order_shows_in: dtypes in which that order shows. Sums in float32 of 16-bit numbers are rounded so far that it hardly ever does.
        of_no_order: results whose bits no order changes.
    """

    function: Callable[..., Results]
    rows: Callable[[torch.dtype], Tensors]
    rest: Callable[[torch.dtype], Tensors] = lambda dtype: ()
    by_torch: Callable[..., Results] | None = None
    options: dict[str, Any] | None = None
    error: float = 1.5
    dtypes: tuple[torch.dtype, ...] = DTYPES
    reordered: Callable[..., Tensors] | None = None
    undone: Callable[[torch.Tensor], torch.Tensor] = lambda found: found
    order_shows_in: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    of_no_order: tuple[str, ...] = ()


def tensors(*sizes: tuple[int, ...]) -> Callable[[torch.dtype], Tensors]:
    """Normal numbers of these sizes."""
    return lambda dtype: tuple(randn(*size, dtype=dtype, seed=len(sizes) + i) for i, size in enumerate(sizes))


def integers(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers from 0, always the same."""
    return torch.randint(below, shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def parameters(cases: dict[str, Case]) -> list[tuple[str, torch.dtype]]:
    """Each case with each of its dtypes."""
    return [(name, dtype) for name, case in cases.items() for dtype in case.dtypes]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def assert_rows_of(interpreter: Interpreter, case: Case, dtype: torch.dtype) -> None:
    """Rows keep their bits in every batch of BATCHES, elsewhere in one, and beside NaN; they are as near to float64 as torch's.

    Each graph is compiled for the whole batch's size, then for a symbolic one, and for a batch of one.
    """
    rows, rest = case.rows(dtype), case.rest(dtype)
    rolled = tuple(t.roll(5, 0)[:17] for t in rows)
    hostile = torch.full_like(rows[0][:17], float("nan"))
    hostile[7] = rows[0][7]
    batches = [rows, *(tuple(t[:m] for t in rows) for m in BATCHES[:-1]), rolled, (hostile, *(t[:17] for t in rows[1:]))]
    calls = [(*batch, *rest) for batch in batches]
    shows = case.reordered is not None and dtype in case.order_shows_in
    if case.reordered is not None and shows:
        calls.append(case.reordered(*(t[:17] for t in rows), *rest))
    whole, *parts = interpreter.run(run_batches, case.function, calls, None, case.options)
    other_order = parts.pop() if shows else None
    *parts, moved, beside = parts
    by_torch = case.by_torch or case.function
    stock, exact = by_torch(*rows, *rest), by_torch(*map(_widened, rows), *map(_widened, rest))
    # Torch's own error in float64 is none; elsewhere its sums may be lucky.
    floor = 2.1 * torch.finfo(accumulation_dtype(dtype)).eps
    for op, found in whole.items():
        for m, part in zip(BATCHES[:-1], parts, strict=True):
            assert_same_bits(part[op], found[:m], f"{op}, {m} rows")
        assert_same_bits(moved[op], found.roll(5, 0)[:17], f"{op}, other places")
        assert_same_bits(beside[op][7], found[7], f"{op}, beside NaN")
        # Controls: rows differ, and the same terms in another order are other sums.
        assert differences(found[:1], found[1:2]) > 0, op
        if other_order is not None and op not in case.of_no_order:
            assert differences(found[:17], case.undone(other_order[op])) > 0, f"{op}, another order"
        error = relative_error(found, exact[op])
        assert error <= case.error * max(relative_error(stock[op], exact[op]), floor), (op, error)
