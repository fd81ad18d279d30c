"""What the table of classes says about every op, as tables in Markdown: docs/coverage.md is made of it.

Ops are listed by name; classes that depend on the dtype or on an argument say so in their notes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch.ao.quantization.fx._decomposed  # noqa: F401  # defines the ops of quantized_decomposed

from bi_inductor.passes import distances, foreach, padding, pooling, quantized, resizing
from bi_inductor.passes.capture import CAPTURED
from bi_inductor.passes.classify import class_of as class_of  # registers the rules
from bi_inductor.passes.complex_numbers import COMPLEX_RULES
from bi_inductor.passes.op_classes import OpClass, op_name, table_of, why_unsupported
from bi_inductor.passes.op_tables.exact import EXACT, SCATTERS, SUMS
from bi_inductor.passes.op_tables.movement import OVERWRITES
from bi_inductor.passes.rewriter import RULES
from bi_inductor.reports.numerics import NUMERICS

FLOATS = "float32, float64, bfloat16, float16"
ANY = "any"

# The operator of ours that a rewritten op becomes, where it has another name.
OPERATORS = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "vdot"), "matmul"),
    **dict.fromkeys(("scatter_add", "scatter_reduce", "index_reduce", "index_put", "_unsafe_index_put"), "scatter"),
    "_unsafe_masked_index_put_accumulate": "scatter",
    "_grouped_mm": "grouped_matmul",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "embedding_dense_backward": "embedding_backward",
    "native_group_norm": "group_norm",
    "native_layer_norm": "layer_norm",
    "var_mean": "var",
}

# What a captured or decomposed op becomes before it is classified.
BECOMES = {
    "bilinear": "matmul",
    "cdist": "sum, amax or matmul",
    **{f"conv{transposed}{dims}d": "convolution; matmul for gradients" for transposed in ("", "_transpose") for dims in (1, 2, 3)},
    "embedding_bag": "scatter",
    "flex_attention": "attention; pointwise ops and matmul for the scores",
    "grid_sampler": "gathers and pointwise ops",
    "linear": "matmul",
    "rms_norm": "rms_norm",
    **dict.fromkeys(("_int_mm", "_scaled_mm", "_weight_int8pack_mm"), "scaled_matmul"),
    "scaled_dot_product_attention": "attention",
}

# What they take, where it is not what the table says of their group.
DTYPES = {"aten._int_mm": "int8", "aten._scaled_mm": "float8"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line: an op, its class, what computes it, on which dtypes."""

    op: str
    op_class: str
    template: str
    dtypes: str
    notes: str = ""


def rows() -> list[Row]:
    """One row for every op that can be in a graph, sorted by class and name."""
    of_class = {name: op_class for op_class, members in table_of().items() for name in members}
    of_class |= {op_name(op): OpClass.REWRITTEN for op in RULES if not isinstance(op, str) and op_name(op) not in of_class}
    of_class |= {op_name(op): OpClass.REWRITTEN for op in COMPLEX_RULES if op_name(op) not in of_class}
    order = list(OpClass)
    return [_row(name, of_class[name]) for name in sorted(of_class, key=lambda name: (order.index(of_class[name]), name))]


def _row(name: str, op_class: OpClass) -> Row:
    complex_rule = any(op_name(op) == name for op in COMPLEX_RULES)
    notes = ["complex numbers as pairs of real ones"] if complex_rule else []
    if op_class is OpClass.UNSUPPORTED:
        return Row(name, op_class.value, "", "", why_unsupported(name))
    if op_class is OpClass.ONE_SAMPLE:
        return Row(name, op_class.value, "torch's kernel on each sample", ANY)
    if op_class is OpClass.REWRITTEN:
        operator = _operator(name)
        if name in SUMS | SCATTERS and name not in OVERWRITES:
            notes.insert(0, "exact on integers")
        if name in OVERWRITES:
            notes.insert(0, "data movement without accumulate, exact on integers")
        template = f"`{operator}` (section {NUMERICS[operator].section})" if operator in NUMERICS else ""
        if not template and not complex_rule:
            notes.append("unsupported on floating point")
        return Row(name, op_class.value, template, FLOATS if template else "integers" if not complex_rule else "complex", "; ".join(notes))
    if op_class is OpClass.ELEMENTWISE:
        return Row(name, op_class.value, "Inductor, pinned (section 10)", "real", "; ".join(notes))
    if op_class is OpClass.EXACT:
        signed_zero = any(not isinstance(op, str) and op_name(op) == name for op in RULES)
        return Row(name, op_class.value, "", "real", "+0 is added: a zero is positive" if signed_zero and name in EXACT else "")
    return Row(name, op_class.value, "", ANY if op_class is OpClass.MOVEMENT else "real")


def _operator(name: str) -> str:
    short = name.partition(".")[2]
    return OPERATORS.get(short, short)


def taken_apart() -> list[Row]:
    """The ops that are captured whole or decomposed by bi_inductor before graphs are classified."""
    captured = {op_name(op) for op in CAPTURED}
    found = [Row(name, "captured", BECOMES.get(name.rpartition(".")[2], "matmul"), FLOATS) for name in captured]
    sources: Sequence[tuple[Iterable[Any], str, str]] = (
        (pooling.DECOMPOSITIONS, "windows gathered, summed or scattered", FLOATS),
        (distances.DECOMPOSITIONS, "pointwise ops and sums", FLOATS),
        (resizing.DECOMPOSITIONS, "weighted windows gathered and summed, or scattered", FLOATS),
        (padding.DECOMPOSITIONS, "scatter", FLOATS),
        (foreach.DECOMPOSITIONS, "the op of one tensor, for each", ANY),
        ([*quantized.DECOMPOSITIONS, *quantized.decomposed_ops()], "pointwise ops and matmul", FLOATS),
    )
    for ops, becomes, dtypes in sources:
        names = {op_name(op) for op in ops} - captured
        found += [Row(name, "decomposed", BECOMES.get(name.rpartition(".")[2], becomes), DTYPES.get(name, dtypes)) for name in names]
    return sorted(found, key=lambda row: (row.op_class, row.op))


def table(lines: Sequence[Row]) -> str:
    """The rows in Markdown."""
    head = "| op | class | template or kernel | dtypes | notes |\n|---|---|---|---|---|\n"
    return head + "".join(f"| `{row.op}` | {row.op_class} | {row.template} | {row.dtypes} | {row.notes} |\n" for row in lines)
