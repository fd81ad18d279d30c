"""The matmul family in Triton."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.lowering import to_dtype
from torch._inductor.select_algorithm import SymbolicGridFn
from torch._inductor.utils import is_triton_fp8_dtype_supported, triton_type
from torch._inductor.virtualized import V

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates import gpu
from bi_inductor.templates.cpp_template import realized
from bi_inductor.templates.gpu import target_of
from bi_inductor.templates.library import DTYPES, FLOAT8, accumulation_dtype
from bi_inductor.templates.matmul import descriptors
from bi_inductor.templates.matmul.configurations import CHAINED, CONVERTING, Configuration, configuration
from bi_inductor.templates.triton_template import broadcast, constant, lower, strided, template


@SymbolicGridFn
def grid(batch: Any, m: Any, n: Any, meta: dict[str, Any], *, cdiv: Any) -> tuple[Any, Any, Any]:
    """A program for each tile of each matrix of the batch, along x: the other axes take 65535 programs at most."""
    return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]) * batch, 1, 1


def chosen_for(device: torch.device | None, dtype: torch.dtype, n: Any) -> Configuration:
    """The table's configuration for results of ``n`` columns, which may be an expression."""
    n = V.graph.sizevars.simplify(sympy.sympify(n))
    return configuration(target_of(device), dtype, int(n) if n.is_Integer else None)


def matmul(a: ir.TensorBox, b: ir.TensorBox, bias: ir.TensorBox | None, alpha: float, beta: float, columns: Any = None) -> ir.TensorBox:
    """``alpha * a @ b + beta * bias``: ``a`` [batch?, m, k], ``b`` [batch?, k, n] of any strides, ``bias`` broadcast to the result.

    Args:
        columns: what the tile is chosen by in the place of ``n``: the columns of one sample, where ``n`` holds the batch too.
    """
    dtype = a.get_dtype()
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    size = [*batch, m, n]
    inputs = {"A": realized(a), "B": realized(b)}
    if bias is not None:
        inputs["BIAS"] = broadcast(realized(bias), size)
    chosen = chosen_for(a.get_device(), dtype, n if columns is None else columns)
    chain = dtype in CHAINED
    variant = [*(["batched"] if batch else []), *(["bias"] if bias is not None else []), *([] if chain else ["runs"])]
    settings: dict[str, Any] = {"NAMES": tuple(inputs), "BATCHED": bool(batch), "CHAIN": chain}
    constants: dict[str, Any] = {
        **chosen.constants,
        "EVEN_K": V.graph.sizevars.statically_known_multiple_of(k, chosen.block_k),
        "ALPHA": 1 if alpha == 1 else constant(alpha),
        "BETA": 1 if beta == 1 else constant(beta),
    }
    transposed = descriptors.transposed(inputs["A"], inputs["B"]) if descriptors.asked_for(a.get_device()) else None
    if transposed is not None:
        settings |= {"A_TRANSPOSED": transposed[0], "B_TRANSPOSED": transposed[1]}
        constants["PROGRAMS"] = gpu.multiprocessors(a.get_device())
        layouts = [letter for letter, last in zip("ab", transposed, strict=True) if last]
        kernel = template("matmul", "_".join(["matmul_tma", *layouts, *variant]), descriptors.grid, "descriptors", **settings)
    else:
        kernel = template("matmul", "_".join(["matmul", *variant]), grid, **settings)
    call_sizes = (batch[0] if batch else 1, m, n)
    return lower(kernel, inputs, size, constants, call_sizes, warps=chosen.warps, stages=chosen.stages, dtype=dtype)


def scaled_matmul(
    a: ir.TensorBox,
    b: ir.TensorBox,
    dtype: torch.dtype,
    scale_a: ir.TensorBox | None,
    scale_b: ir.TensorBox | None,
    bias: ir.TensorBox | None,
) -> ir.TensorBox:
    """``a @ b * scale_a * scale_b + bias`` for ``a`` [m, k] and ``b`` [k, n] of float8 or int8, read as they are stored.

    Args:
        dtype: of the result.
        scale_a: [m, 1] or one element.
        scale_b, bias: [n], [1, n] or one element.

    Raises:
        UnsupportedOpError: results are of a float8 that Triton does not know on the device.
    """
    if not is_triton_fp8_dtype_supported(dtype, a.get_device()):
        raise UnsupportedOpError(
            f"results of {dtype} cannot be written on {target_of(a.get_device())}, where Triton has no such type; allowed are "
            f"{', '.join(map(str, DTYPES))} (out_dtype of torch._scaled_mm)"
        )
    m, k, n = *a.get_size(), b.get_size()[1]
    elements = a.get_dtype(), b.get_dtype()
    # Eight bits of a float: rounded as Inductor rounds them anywhere.
    out_dtype = torch.float32 if dtype in FLOAT8 else dtype
    # float8 as float16, int8 as the type of the other operand.
    multiplied = torch.float16 if elements[0] in FLOAT8 else elements[0]
    target = target_of(a.get_device())
    convert = tuple(_conversion(element, multiplied, target) for element in elements)
    inputs = {"A": _stored(a), "B": _stored(b)}
    for name, scale, dim, length in (("SCALE_A", scale_a, 0, m), ("SCALE_B", scale_b, -1, n)):
        if scale is not None:
            inputs[name] = _vector(scale, dim, length)
    if bias is not None:
        inputs["BIAS"] = broadcast(realized(bias), [m, n])
    chain = out_dtype in (*CHAINED, torch.int32)
    chosen = chosen_for(a.get_device(), elements[0], n)
    variant = [name.lower() for name in [*inputs][2:]] + [name.removeprefix("bi.") or "plain" for name in convert] + ["runs"] * (not chain)
    kernel = template(
        "matmul",
        "_".join(["scaled_matmul", *variant]),
        grid,
        NAMES=tuple(inputs),
        BATCHED=False,
        CHAIN=chain,
        CONVERT=convert,
    )
    accumulator = torch.int32 if dtype == torch.int32 else accumulation_dtype(multiplied)
    constants: dict[str, Any] = {
        **chosen.constants,
        "ACCUMULATOR": triton_type(accumulator),
        "MULTIPLIED": triton_type(multiplied),
        "EVEN_K": V.graph.sizevars.statically_known_multiple_of(k, chosen.block_k),
        "ALPHA": 1,
        "BETA": 1,
    }
    result = lower(
        kernel,
        inputs,
        [m, n],
        constants,
        (1, m, n),
        warps=chosen.warps,
        stages=chosen.stages,
        dtype=multiplied,
        out_dtype=out_dtype,
    )
    rounded: ir.TensorBox = to_dtype(result, dtype)
    return rounded


def _conversion(element: torch.dtype, multiplied: torch.dtype, target: str) -> str:
    """The function of ``triton_functions.py`` that makes ``multiplied`` of an element; "" where it is one."""
    if element == multiplied:
        return ""
    if element in FLOAT8 and element not in CONVERTING.get(target, ()):
        return f"bi.{str(element).removeprefix('torch.float8_')}"
    return "bi.cast"


def _stored(node: ir.TensorBox) -> Any:
    """A realized node; of float8 that Triton does not know on the device, its bytes."""
    if not is_triton_fp8_dtype_supported(node.get_dtype(), node.get_device()):
        node = ir.TensorBox.create(ir.ComplexView.create(torch.ops.aten.view.dtype, node, torch.uint8))
    return realized(node)


def _vector(scale: ir.TensorBox, dim: int, length: Any) -> ir.ReinterpretView:
    """A scale of one element, or of ``length`` along ``dim``, as a vector; the one element for every place."""
    node = realized(scale)
    one = all(V.graph.sizevars.statically_known_equals(size, 1) for size in node.get_size())
    return strided(node, [length], [0 if one else node.get_layout().stride[dim]])
