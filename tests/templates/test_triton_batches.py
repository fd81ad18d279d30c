"""Products, convolutions, sums over rows, scatter and scans in Triton's interpreter, by the rule of batches.py.

Swept: 1, 3, 16, 17 and 33 rows (samples) in float32, bfloat16 and float16, products and convolutions in float64 too. Other tests of this
folder look at one template each, at its definition and at what is particular to it. Here is nothing particular: a table of calls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from bi_inductor.templates.matmul.descriptors import OPTION
from tests.interpreter.process import Interpreter
from tests.templates.batches import DTYPES, ROWS, Case, Results, Tensors, assert_rows_of, integers, parameters, tensors
from tests.templates.rows import randn

pytestmark = pytest.mark.xdist_group("interpreter")
ops = torch.ops.bi_inductor


# --- what is called -----------------------------------------------------------------------------------------------------------------------


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


def convolutions(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, grouped: torch.Tensor) -> Results:
    """Samples [rows, 8, 5, 5]."""
    return {
        "stride and padding": F.conv2d(x, weight, bias, stride=2, padding=1),
        "groups and dilation": F.conv2d(x, grouped, groups=2, dilation=2),
    }


def over_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Results:
    """Rows [rows, 140], more than there are lanes."""
    return {
        "sum": x.sum(1),
        "variance": x.var(1),
        "softmax": x.softmax(1),
        "logarithm of softmax": x.log_softmax(1),
        "layer norm": F.layer_norm(x, x.shape[1:], weight, bias),
    }


def over_rows_too(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Results:
    """The same templates by other names."""
    return {
        "mean": x.mean(1),
        "product": (1 + x / 8).prod(1),
        "deviation": x.std(1),
        "logarithm of softmax": x.log_softmax(1),
        "rms norm": F.rms_norm(x, x.shape[1:], weight, 1e-6),
        "group norm": F.group_norm(x.unflatten(1, (4, 35)), 2).flatten(1),
    }


def scatters(x: torch.Tensor, src: torch.Tensor, index: torch.Tensor) -> Results:
    """Each reduction of ``src`` [rows, 40] into ``x`` [rows, 5]."""
    found = {reduce: x.scatter_reduce(1, index, src, reduce) for reduce in ("sum", "prod", "mean", "amax", "amin")}
    return {**found, "without self": x.scatter_reduce(1, index, src, "sum", include_self=False), "add": x.scatter_add(1, index, src)}


def scans(x: torch.Tensor) -> Results:
    return {"sum": x.cumsum(1), "product": (1 + x / 8).cumprod(1), "logarithm": x.logcumsumexp(1)}


# --- the table --------------------------------------------------------------------------------------------------------------------------


def of_float8(dtype: torch.dtype) -> Tensors:
    """Numbers that float8 holds, and a scale for each row of them."""
    return randn(ROWS, 96).to(torch.float8_e4m3fn).to(dtype), torch.linspace(0.5, 2, ROWS)[:, None]


def quantised(dtype: torch.dtype) -> Tensors:
    # The scales are multiples of 1/8: every dtype holds them.
    return randn(32, 96, seed=1).to(torch.float8_e4m3fn), integers(32, 96, below=100, dtype=torch.int8), (torch.arange(32) + 4.0) / 8


def halves_backwards(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Each half of a dim by itself: groups of channels, and terms, keep what they are multiplied with."""
    return tensor.unflatten(dim, (2, -1)).flip(dim + 1).flatten(dim, dim + 1)


def along(*dims: int | None) -> Callable[..., Tensors]:
    """Every argument with the halves of its dim backwards."""
    return lambda *given: tuple(t if dim is None else halves_backwards(t, dim) for t, dim in zip(given, dims, strict=True))


CASES = {
    "products": Case(
        products,
        tensors((ROWS, 72)),
        tensors((72, 24), (24,), (2, 36, 20)),
        dtypes=(*DTYPES, torch.float64),
        reordered=along(1, 0, None, 1),
    ),
    "products by descriptors": Case(
        linear, tensors((ROWS, 72)), tensors((24, 72), (24,)), options={OPTION: True}, dtypes=(torch.bfloat16, torch.float16)
    ),
    "scaled products": Case(scaled_products, of_float8, quantised, scaled_products_by_matmul),
    "grouped products": Case(
        grouped_products,
        tensors((ROWS, 72)),
        tensors((2, 72, 24), (72, 24)),
        grouped_products_one_by_one,
        reordered=along(1, 1, 0),
    ),
    "convolutions": Case(
        convolutions,
        tensors((ROWS, 8, 5, 5)),
        tensors((6, 8, 3, 3), (6,), (6, 4, 2, 2)),
        reordered=along(1, 1, None, 1),
    ),
    **{
        f"rows, {name}": Case(
            function,
            tensors((ROWS, 140)),
            tensors((140,), (140,)),
            # Backwards alone, lanes would pair the same terms.
            reordered=along(1, 0, 0),
            undone=lambda found: halves_backwards(found, 1) if found.dim() > 1 else found,
            # Of float32 the first two are sums in float64 that are rounded once. A group is one of the halves, backwards alone.
            of_no_order=("variance", "deviation", "group norm"),
        )
        for name, function in (("sum", over_rows), ("mean", over_rows_too))
    },
    "scatter": Case(
        scatters,
        lambda dtype: (*tensors((ROWS, 5), (ROWS, 40))(dtype), integers(ROWS, 40, below=5)),
        reordered=lambda x, src, index: (x, src.flip(1), index.flip(1)),
        of_no_order=("amax", "amin"),
    ),
    "scans": Case(scans, tensors((ROWS, 20))),
}


# Rows take some 20 seconds for each dtype.
SLOW = {("rows, sum", torch.float16), ("rows, mean", torch.bfloat16)}
MARKED = [pytest.param(*case, marks=pytest.mark.full) if case in SLOW else case for case in parameters(CASES)]


@pytest.mark.parametrize(("name", "dtype"), MARKED, ids=str)
def test_near_float64_and_the_same_rows_in_every_batch(interpreter: Interpreter, name: str, dtype: torch.dtype) -> None:
    assert_rows_of(interpreter, CASES[name], dtype)
