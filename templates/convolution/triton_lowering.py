"""The convolution on Triton: a matmul over a tensor of all patches, made of Inductor's own lowerings.

Inductor internals, checked in torch 2.13.0: the lowerings cat, constant_pad_nd, expand, permute, slice_, unsqueeze, view.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
from torch._inductor.ir import TensorBox
from torch._inductor.lowering import cat, constant_pad_nd, expand, permute, slice_, unsqueeze, view

from bi_inductor.errors import UnsupportedOpError
from bi_inductor.templates.convolution.kernel import output_sizes
from bi_inductor.templates.matmul import triton_lowering
from bi_inductor.templates.operand import product


def convolution(
    x: TensorBox,
    weight: TensorBox,
    bias: TensorBox | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> TensorBox:
    """``x`` [batch, channels, *size] with ``weight`` [out channels, channels / groups, *kernel]; the patches are copied.

    Raises:
        UnsupportedOpError: a size of the kernel is symbolic. Each of its positions is a tensor of the graph.
    """
    batch, _, *size = x.get_size()
    out_channels, channels, *kernel = weight.get_size()
    if any(sympy.sympify(k).free_symbols for k in kernel):
        raise UnsupportedOpError(
            f"a convolution on a GPU takes a kernel of known sizes; given {tuple(map(str, kernel))}. Allowed are parameters, and other "
            "weights without dynamic=True"
        )
    sizes = output_sizes(size, kernel, stride, padding, dilation)
    # The last dim first, as constant_pad_nd takes it.
    pads = [side for i in reversed(range(len(size))) for side in padding[2 * i : 2 * i + 2]]
    x = constant_pad_nd(x, pads, 0.0)
    patches = []
    for offset in itertools.product(*(range(int(k)) for k in kernel)):
        patch: Any = x
        for i, (o, n, s, d) in enumerate(zip(offset, sizes, stride, dilation, strict=True)):
            patch = slice_(patch, 2 + i, o * d, o * d + s * (n - 1) + 1, s)
        patches.append(unsqueeze(patch, 2))
    columns: Any = cat(patches, 2)
    reduced, positions, rows = channels * product(kernel), product(sizes), out_channels // groups
    result: Any
    if groups == 1:
        weight = expand(view(weight, [1, out_channels, reduced]), [batch, out_channels, reduced])
        bias = None if bias is None else unsqueeze(bias, 1)
        result = triton_lowering.matmul(weight, view(columns, [batch, reduced, positions]), bias, 1.0, 1.0)
    else:
        columns = permute(view(columns, [batch, groups, reduced, positions]), [1, 2, 0, 3])
        bias = None if bias is None else view(bias, [groups, rows, 1])
        columns = view(columns, [groups, reduced, batch * positions])
        result = triton_lowering.matmul(view(weight, [groups, rows, reduced]), columns, bias, 1.0, 1.0, positions)
        result = permute(view(result, [out_channels, batch, positions]), [1, 0, 2])
    return view(result, [batch, out_channels, *sizes])
