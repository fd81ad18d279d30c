"""Products, attention and scans in Triton's interpreter, by one rule: near float64, and rows with the same bits in every batch.

Other tests of this folder look at one template each, at its definition and at what is particular to it. Here is nothing particular: a table
of calls, held to the same batches. Each graph is compiled for its first batch's size, then for a symbolic one, and for a batch of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bi_inductor.templates import gpu
from bi_inductor.templates.attention.configurations import PART, configuration
from bi_inductor.templates.matmul.descriptors import OPTION
from tests.interpreter import run_batches
from tests.interpreter.process import Interpreter
from tests.templates.rows import assert_same_bits, differences, randn, relative_error

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 3, 16, 17, 33)
ROWS = max(BATCHES)
HEAD_DIMS = {64: DTYPES, 80: (torch.bfloat16,)}
Tensors = tuple[torch.Tensor, ...]
Results = dict[str, torch.Tensor]


# --- what is called: each function's first arguments have a row (a sample) for each of the batch, and so have its results ---------------


def products(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, several: torch.Tensor) -> Results:
    parts = x.unflatten(1, (2, 36))
    return {
        "matmul": x @ weight,
        "bias": torch.addmm(bias, x, weight, beta=3, alpha=0.5),
        "batched": torch.bmm(parts.transpose(0, 1), several).transpose(0, 1),
        "of samples": torch.bmm(parts, parts.mT),
    }


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Results:
    return {"linear": F.linear(x, weight, bias)}


def scaled_products(x: torch.Tensor, scale: torch.Tensor, eights: torch.Tensor, integers: torch.Tensor, columns: torch.Tensor) -> Results:
    """Rows that are float8 numbers by scales of rows, columns and tensors; int8 weights."""
    e4m3, one = x.to(torch.float8_e4m3fn), columns[0]
    return {
        "rows": torch._scaled_mm(e4m3, eights.t(), scale, columns[None], out_dtype=x.dtype),
        "tensor": torch._scaled_mm(e4m3, eights.t(), one, one, out_dtype=x.dtype),
        "int8": torch.ops.aten._weight_int8pack_mm(x, integers, columns.to(x.dtype)),
    }


def scaled_products_by_matmul(
    x: torch.Tensor, scale: torch.Tensor, eights: torch.Tensor, integers: torch.Tensor, columns: torch.Tensor
) -> Results:
    product = x @ eights.to(x.dtype).t()
    return {
        "rows": (product * scale * columns).to(x.dtype),
        "tensor": (product * columns[0] * columns[0]).to(x.dtype),
        "int8": x @ integers.to(x.dtype).t() * columns.to(x.dtype),
    }


def grouped_products(x: torch.Tensor, weight: torch.Tensor, terms: torch.Tensor) -> Results:
    """The rows of ``x`` as the second of two groups of rows and of columns, and as rows of products whose terms are in two groups."""
    ends = torch.arange(2, device=x.device) * x.shape[0]
    halves = torch.arange(1, 3, device=x.device) * (x.shape[1] // 2)
    return {
        "rows": ops.grouped_matmul(x, weight, ends),
        "columns": ops.grouped_matmul(weight.mT, x.t(), ends).t(),
        "terms": ops.grouped_matmul(x, terms, halves).transpose(0, 1),
    }


def grouped_products_one_by_one(x: torch.Tensor, weight: torch.Tensor, terms: torch.Tensor) -> Results:
    product = x @ weight[1]
    by_terms = torch.bmm(x.unflatten(1, (2, -1)).transpose(0, 1), terms.unflatten(0, (2, -1)))
    return {"rows": product, "columns": product, "terms": by_terms.transpose(0, 1)}


def attention(q: torch.Tensor, mask: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Results:
    """Queries [rows, heads, dim] of one sample under a mask [rows, keys]; two heads share one of keys and values."""

    def attend(given: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, given, enable_gqa=True)[0].transpose(0, 1)

    return {"all keys": attend(None), "mask": attend(mask), "additive mask": attend(torch.where(mask, 0.25, float("-inf")).to(q.dtype))}


def scans(x: torch.Tensor) -> Results:
    return {"sum": x.cumsum(1), "product": (1 + x / 8).cumprod(1), "logarithm": x.logcumsumexp(1)}


# --- the table --------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """Calls of templates.

    Attributes:
        function: what is compiled.
        rows: of a dtype, the arguments that have a row for each of the batch.
        rest: of a dtype, the other arguments.
        by_torch: the same by torch's own operators, which take float64 too; ``function`` if None.
        options: of the compile.
        dtypes: of the rows.
    """

    function: Callable[..., Results]
    rows: Callable[[torch.dtype], Tensors]
    rest: Callable[[torch.dtype], Tensors] = lambda dtype: ()
    by_torch: Callable[..., Results] | None = None
    options: dict[str, Any] | None = None
    dtypes: tuple[torch.dtype, ...] = DTYPES


def tensors(*sizes: tuple[int, ...]) -> Callable[[torch.dtype], Tensors]:
    """Normal numbers of these sizes."""
    return lambda dtype: tuple(randn(*size, dtype=dtype, seed=len(sizes) + i) for i, size in enumerate(sizes))


def integers(*shape: int, below: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(below, shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def of_float8(dtype: torch.dtype) -> Tensors:
    """Numbers that float8 holds, and a scale for each row of them."""
    return randn(ROWS, 96).to(torch.float8_e4m3fn).to(dtype), torch.linspace(0.5, 2, ROWS)[:, None]


def quantised(dtype: torch.dtype) -> Tensors:
    # The scales are multiples of 1/8: every dtype holds them.
    return randn(32, 96, seed=1).to(torch.float8_e4m3fn), integers(32, 96, below=100, dtype=torch.int8), (torch.arange(32) + 4.0) / 8


def keys_of(dtype: torch.dtype, head_dim: int) -> int:
    """More keys than one program's part, where programs share them: so does a batch of one row, whose size is known."""
    return PART * configuration(gpu.DEFAULT, dtype, head_dim).chunk + 9


def queries_and_mask(head_dim: int) -> Callable[[torch.dtype], Tensors]:
    """The last queries of a sample: each sees a window of keys up to its own, none of the first three."""

    def of(dtype: torch.dtype) -> Tensors:
        keys = keys_of(dtype, head_dim)
        key, query = torch.arange(keys), torch.arange(keys - ROWS, keys)[:, None]
        return randn(ROWS, 2, head_dim, dtype=dtype), (key <= query) & (key > query - 40) & (key >= 3)

    return of


def keys_and_values(head_dim: int) -> Callable[[torch.dtype], Tensors]:
    return lambda dtype: tensors(*[(1, 1, keys_of(dtype, head_dim), head_dim)] * 2)(dtype)


CASES = {
    "products": Case(products, tensors((ROWS, 72)), tensors((72, 24), (24,), (2, 36, 20))),
    "products by descriptors": Case(
        linear, tensors((ROWS, 72)), tensors((24, 72), (24,)), options={OPTION: True}, dtypes=(torch.bfloat16, torch.float16)
    ),
    "scaled products": Case(scaled_products, of_float8, quantised, scaled_products_by_matmul),
    "grouped products": Case(grouped_products, tensors((ROWS, 72)), tensors((2, 72, 24), (72, 24)), grouped_products_one_by_one),
    **{
        f"attention, {dim}": Case(attention, queries_and_mask(dim), keys_and_values(dim), dtypes=dtypes)
        for dim, dtypes in HEAD_DIMS.items()
    },
    "scans": Case(scans, tensors((ROWS, 20))),
}


def widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes], ids=lambda value: str(value)
)
def test_near_float64_and_the_same_rows_in_every_batch(interpreter: Interpreter, name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    rows, rest = case.rows(dtype), case.rest(dtype)
    rolled = tuple(t.roll(5, 0) for t in rows)
    hostile = torch.full_like(rows[0][:17], float("nan"))
    hostile[7] = rows[0][7]
    batches = [rows, *(tuple(t[:m] for t in rows) for m in BATCHES[:-1]), rolled, (hostile, *(t[:17] for t in rows[1:]))]
    whole, *parts, moved, beside = interpreter.run(run_batches, case.function, [(*batch, *rest) for batch in batches], None, case.options)
    by_torch = case.by_torch or case.function
    stock, exact = by_torch(*rows, *rest), by_torch(*map(widened, rows), *map(widened, rest))
    for op, found in whole.items():
        for m, part in zip(BATCHES, parts, strict=False):
            assert_same_bits(part[op], found[:m], f"{op}, {m} rows")
        assert_same_bits(moved[op], found.roll(5, 0), f"{op}, other places")
        assert_same_bits(beside[op][7], found[7], f"{op}, beside NaN")
        # Control: rows differ.
        assert differences(found[:1], found[1:2]) > 0, op
        error = relative_error(found, exact[op])
        assert error <= 1.5 * max(relative_error(stock[op], exact[op]), 2.5e-7), (op, error)
