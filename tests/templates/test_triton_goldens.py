"""The Triton source of each template as it is written for an H100.

Numerics live in these lines. A change of one is either meant, and then the text here changes with it (EXPECTTEST_ACCEPT=1 rewrites it), or
found here.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import expecttest
import pytest
import torch

import bi_inductor  # noqa: F401  # defines the operators
from bi_inductor.targets.compile import compile_programs

pytest.importorskip("triton")

pytestmark = pytest.mark.xdist_group("targets")

ops = torch.ops.bi_inductor
Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def matmul_bfloat16() -> Program:
    x, weight = empty(100, 512, dtype=torch.bfloat16), empty(512, 256, dtype=torch.bfloat16)
    return lambda x, weight: ops.matmul(x, weight), (x, weight)


def matmul_float32() -> Program:
    return lambda x, weight, bias: ops.matmul(x, weight, bias), (empty(100, 300), empty(300, 256), empty(256))


def grouped_matmul() -> Program:
    x, weight, ends = empty(100, 512, dtype=torch.bfloat16), empty(8, 512, 256, dtype=torch.bfloat16), empty(8, dtype=torch.int32)
    return lambda x, weight, ends: ops.grouped_matmul(x, weight, ends), (x, weight, ends)


def scaled_matmul_float8() -> Program:
    x, weight = empty(100, 512, dtype=torch.float8_e4m3fn), empty(256, 512, dtype=torch.float8_e4m3fn)
    scales = empty(100, 1), empty(1, 256)
    return lambda x, weight, *scales: torch._scaled_mm(x, weight.t(), *scales, out_dtype=torch.bfloat16), (x, weight, *scales)


def reduction_sum() -> Program:
    return lambda x: ops.sum(x, [1]), (empty(100, 300),)


def softmax() -> Program:
    return lambda x: ops.softmax(x, 1), (empty(100, 300),)


def layer_norm() -> Program:
    return lambda x, weight, bias: ops.layer_norm(x, 1, weight, bias, 1e-5), (empty(100, 300), empty(300), empty(300))


def attention_causal() -> Program:
    q, k, v = (empty(2, heads, 100, 64, dtype=torch.bfloat16) for heads in (8, 2, 2))
    return lambda q, k, v: ops.attention(q, k, v, None, True, 0.125), (q, k, v)


def paged_attention() -> Program:
    q, cache = empty(100, 8, 64, dtype=torch.bfloat16), empty(512, 16, 2, 128, dtype=torch.bfloat16)
    numbers = (empty(*size, dtype=torch.int32) for size in ((12, 40), (13,), (12,)))
    return lambda *tensors: ops.paged_attention(*tensors, 0.125, 1000), (q, cache, *numbers)


PROGRAMS = (
    matmul_bfloat16,
    matmul_float32,
    grouped_matmul,
    scaled_matmul_float8,
    reduction_sum,
    softmax,
    layer_norm,
    attention_causal,
    paged_attention,
)


@functools.cache
def sources() -> dict[str, str]:
    """The source of each program's one kernel, by the program's name."""
    names = [program.__name__ for program in PROGRAMS]
    found = compile_programs([f"{__name__}:{name}" for name in names], "sm_90")
    result = {}
    for name, report in zip(names, found, strict=True):
        if isinstance(report, Exception):
            raise report
        (kernel,) = report.kernels
        result[name] = shortened(kernel.source.replace(kernel.name, "kernel"), kernel.configuration)
    return result


def source_by_descriptors() -> str:
    """The source of ``matmul_bfloat16`` with the option that reads operands by descriptors."""
    with mock.patch.dict(os.environ, {"ENABLE_PERSISTENT_TMA_MATMUL": "1"}):
        (report,) = compile_programs([f"{__name__}:{matmul_bfloat16.__name__}"], "sm_90")
    if isinstance(report, Exception):
        raise report
    (kernel,) = report.kernels
    return shortened(kernel.source.replace(kernel.name, "kernel"), kernel.configuration)


def shortened(source: str, configuration: str) -> str:
    """Warps, stages and the function alone, and of unrolled loads the first and the last; those between must be like them."""
    launch = ", ".join(configuration.split(", ")[-2:])
    # The function ends before what Inductor writes to time it.
    body = source[source.index("def kernel(") :].partition("\n\n\n")[0]
    lines = body.splitlines()
    kept: list[str] = []
    for line in lines:
        found = re.match(r"\s+(index|valid|term)_(\d+) = ", line)
        if found is None or found[2] in ("0", "15"):
            kept.append(line)
            continue
        place = int(found[2])
        first = re.sub(rf"\b(index|valid|term)_{place}\b", r"\1_0", line).replace(f"first + {32 * place} ", "first + 0 ")
        assert first in lines, line
        if kept[-1] != "        ...":
            kept.append("        ...")
    return "\n".join([f"# {launch}", *kept])


class TestSources(expecttest.TestCase):
    def test_matmul_bfloat16(self) -> None:
        self.assertExpectedInline(
            sources()["matmul_bfloat16"],
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 64
    GROUP_M : tl.constexpr = 8
    EVEN_K : tl.constexpr = True
    ALPHA : tl.constexpr = 1
    BETA : tl.constexpr = 1
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    m = 100
    n = 256
    k = 512
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0).to(INDEX_DTYPE)
    # Neighbouring programs take the tiles of a few rows of tiles, so that they find B in the cache. The order decides no bits.
    group = tile // (GROUP_M * tiles_n)
    group_rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_in_group = tile % (GROUP_M * tiles_n)
    tile_m = group * GROUP_M + tile_in_group % group_rows
    tile_n = tile_in_group // group_rows
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    in_block = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    valid_row = row[:, None] < m
    valid_column = column[None, :] < n
    a = A + row[:, None] * (512) + in_block[None, :] * (1)
    b = B + in_block[:, None] * (256) + column[None, :] * (1)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first in range(0, k, BLOCK_K):
        a_block = tl.load(a + first * (1), mask=valid_row, other=0.0)
        b_block = tl.load(b + first * (256), mask=valid_column, other=0.0)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 256*out_row
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), result, valid)""",
        )

    def test_matmul_by_descriptors(self) -> None:
        self.assertExpectedInline(
            source_by_descriptors(),
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 64
    GROUP_M : tl.constexpr = 8
    EVEN_K : tl.constexpr = True
    ALPHA : tl.constexpr = 1
    BETA : tl.constexpr = 1
    PROGRAMS : tl.constexpr = 132
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B

    m = 100
    n = 256
    k = 512
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    a_blocks = tl.make_tensor_descriptor(A, [m, k], [512, 1], [BLOCK_M, BLOCK_K])
    b_blocks = tl.make_tensor_descriptor(B, [k, n], [256, 1], [BLOCK_K, BLOCK_N])
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        # Neighbouring programs take the tiles of a few rows of tiles, so that they find B in the cache. The order decides no bits.
        group = tile // (GROUP_M * tiles_n)
        group_rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
        tile_in_group = tile % (GROUP_M * tiles_n)
        tile_m = group * GROUP_M + tile_in_group % group_rows
        tile_n = tile_in_group // group_rows
        row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
        column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
        valid_row = row[:, None] < m
        valid_column = column[None, :] < n
        total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
        for first in range(0, k, BLOCK_K):
            a_block = a_blocks.load([tile_m * BLOCK_M, first])
            b_block = b_blocks.load([first, tile_n * BLOCK_N])
            total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
        result = total.to(ELEMENT).to(RESULT)
        out_row = row[:, None]
        out_column = column[None, :]
        valid = valid_row & valid_column
        xindex = out_column + 256*out_row
        tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), result, valid)""",
        )

    def test_matmul_float32(self) -> None:
        self.assertExpectedInline(
            sources()["matmul_float32"],
            """\
# 4 warps, 3 stages
def kernel(arg_A, arg_B, arg_BIAS, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float32
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 32
    BLOCK_K : tl.constexpr = 16
    GROUP_M : tl.constexpr = 8
    EVEN_K : tl.constexpr = False
    ALPHA : tl.constexpr = 1
    BETA : tl.constexpr = 1
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B
    BIAS = arg_BIAS

    m = 100
    n = 256
    k = 300
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0).to(INDEX_DTYPE)
    # Neighbouring programs take the tiles of a few rows of tiles, so that they find B in the cache. The order decides no bits.
    group = tile // (GROUP_M * tiles_n)
    group_rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_in_group = tile % (GROUP_M * tiles_n)
    tile_m = group * GROUP_M + tile_in_group % group_rows
    tile_n = tile_in_group // group_rows
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    in_block = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    valid_row = row[:, None] < m
    valid_column = column[None, :] < n
    a = A + row[:, None] * (300) + in_block[None, :] * (1)
    b = B + in_block[:, None] * (256) + column[None, :] * (1)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for run in range(0, k, 256):
        partial = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
        for first in range(run, tl.minimum(run + 256, k), BLOCK_K):
            a_block = tl.load(a + first * (1), mask=valid_row & (in_block[None, :] < k - first), other=0.0)
            b_block = tl.load(b + first * (256), mask=valid_column & (in_block[:, None] < k - first), other=0.0)
            partial = tl.dot(a_block, b_block, partial, input_precision="ieee", out_dtype=ACCUMULATOR)
        total = total + partial
    bias = tl.load(BIAS + row[:, None] * (0) + column[None, :] * (1), mask=valid_row & valid_column, other=0.0).to(ACCUMULATOR)
    total = total + bias
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 256*out_row
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), result, valid)""",
        )

    def test_grouped_matmul(self) -> None:
        self.assertExpectedInline(
            sources()["grouped_matmul"],
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, arg_ENDS, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 64
    GROUP_M : tl.constexpr = 8
    EVEN_K : tl.constexpr = True
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B
    ENDS = arg_ENDS

    m = 100
    n = 256
    k = 512
    groups = 8
    tiles_m = tl.cdiv(m, BLOCK_M) + groups
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0).to(INDEX_DTYPE)
    # Neighbouring programs take the tiles of a few rows of tiles, so that they find B in the cache. The order decides no bits.
    group = tile // (GROUP_M * tiles_n)
    group_rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_in_group = tile % (GROUP_M * tiles_n)
    tile_m = group * GROUP_M + tile_in_group % group_rows
    tile_n = tile_in_group // group_rows
    first_row = 0
    last_row = m
    first_column = 0
    last_column = n
    a = A
    b = B
    g = tl.full([], 0, INDEX_DTYPE)
    tiles_before = tl.full([], 0, INDEX_DTYPE)
    tiles_seen = tl.full([], 0, INDEX_DTYPE)
    for first_group in range(0, groups, 32):
        member = first_group + tl.arange(0, 32).to(INDEX_DTYPE)
        is_group = member < groups
        begin = tl.minimum(tl.maximum(tl.load(ENDS + (member - 1) * (1), mask=is_group & (member > 0), other=0), 0), m).to(INDEX_DTYPE)
        end = tl.minimum(tl.maximum(tl.load(ENDS + (member) * (1), mask=is_group, other=0), 0), m).to(INDEX_DTYPE)
        tiles_after = tiles_seen + tl.cumsum(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_M), 0)
        passed = is_group & (tiles_after <= tile_m)
        g += tl.sum(passed.to(INDEX_DTYPE), 0)
        tiles_before = tl.maximum(tiles_before, tl.max(tl.where(passed, tiles_after, 0), 0))
        tiles_seen = tl.max(tiles_after, 0)
    tile_m -= tiles_before
    begin = tl.minimum(tl.maximum(tl.load(ENDS + (g - 1) * (1), mask=g > 0, other=0), 0), m).to(INDEX_DTYPE)
    end = tl.minimum(tl.maximum(tl.load(ENDS + (g) * (1), mask=g < groups, other=m), 0), m).to(INDEX_DTYPE)
    k = tl.where(g < groups, k, 0)
    first_row = begin
    last_row = end
    b += g * (131072)
    row = first_row + tile_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    column = first_column + tile_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    in_block = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    valid_row = row[:, None] < last_row
    valid_column = column[None, :] < last_column
    a += row[:, None] * (512) + in_block[None, :] * (1)
    b += in_block[:, None] * (256) + column[None, :] * (1)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first in range(0, k, BLOCK_K):
        a_block = tl.load(a + first * (1), mask=valid_row, other=0.0)
        b_block = tl.load(b + first * (256), mask=valid_column, other=0.0)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 256*out_row
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), result, valid)""",
        )

    def test_scaled_matmul(self) -> None:
        self.assertExpectedInline(
            sources()["scaled_matmul_float8"],
            """\
# 4 warps, 3 stages
def kernel(arg_A, arg_B, arg_SCALE_A, arg_SCALE_B, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 64
    BLOCK_K : tl.constexpr = 128
    GROUP_M : tl.constexpr = 8
    MULTIPLIED : tl.constexpr = tl.float16
    EVEN_K : tl.constexpr = True
    ALPHA : tl.constexpr = 1
    BETA : tl.constexpr = 1
    INDEX_DTYPE : tl.constexpr = tl.int32
    A = arg_A
    B = arg_B
    SCALE_A = arg_SCALE_A
    SCALE_B = arg_SCALE_B

    m = 100
    n = 256
    k = 512
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0).to(INDEX_DTYPE)
    # Neighbouring programs take the tiles of a few rows of tiles, so that they find B in the cache. The order decides no bits.
    group = tile // (GROUP_M * tiles_n)
    group_rows = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_in_group = tile % (GROUP_M * tiles_n)
    tile_m = group * GROUP_M + tile_in_group % group_rows
    tile_n = tile_in_group // group_rows
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N).to(INDEX_DTYPE)
    in_block = tl.arange(0, BLOCK_K).to(INDEX_DTYPE)
    valid_row = row[:, None] < m
    valid_column = column[None, :] < n
    a = A + row[:, None] * (512) + in_block[None, :] * (1)
    b = B + in_block[:, None] * (1) + column[None, :] * (512)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first in range(0, k, BLOCK_K):
        a_block = bi.cast(tl.load(a + first * (1), mask=valid_row, other=0.0), MULTIPLIED)
        b_block = bi.cast(tl.load(b + first * (1), mask=valid_column, other=0.0), MULTIPLIED)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    total = total * tl.load(SCALE_A + row * (1), mask=row < m, other=0.0).to(ACCUMULATOR)[:, None]
    total = total * tl.load(SCALE_B + column * (1), mask=column < n, other=0.0).to(ACCUMULATOR)[None, :]
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 256*out_row
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), result, valid)""",
        )

    def test_reduction_sum(self) -> None:
        self.assertExpectedInline(
            sources()["reduction_sum"],
            """\
# 1 warp, 1 stage
def kernel(arg_X, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float32
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    UNROLL : tl.constexpr = 4
    BLOCK : tl.constexpr = 256
    OUTER_DIMS : tl.constexpr = 1
    REDUCED_DIMS : tl.constexpr = 1
    CORRECTION : tl.constexpr = 1.0
    INDEX_DTYPE : tl.constexpr = tl.int32
    X = arg_X

    row = tl.program_id(0).to(INDEX_DTYPE)
    n = (300)
    x_row = X + ((row) * (300))
    lane = tl.arange(0, 32)
    count = tl.full([1], n, ACCUMULATOR)
    total_0 = tl.full([32], 0.0, ACCUMULATOR)
    total_1 = tl.full([32], 0.0, ACCUMULATOR)
    total_2 = tl.full([32], 0.0, ACCUMULATOR)
    total_3 = tl.full([32], 0.0, ACCUMULATOR)
    for first in range(0, n, 512):
        index_0 = first + 0 + lane.to(INDEX_DTYPE)
        valid_0 = index_0 < n
        term_0 = tl.load(x_row + ((index_0) * (1)), mask=valid_0, other=0.0).to(ACCUMULATOR)
        ...
        index_15 = first + 480 + lane.to(INDEX_DTYPE)
        valid_15 = index_15 < n
        term_15 = tl.load(x_row + ((index_15) * (1)), mask=valid_15, other=0.0).to(ACCUMULATOR)
        total_0 = bi.add(total_0, term_0, valid_0)
        total_1 = bi.add(total_1, term_1, valid_1)
        total_2 = bi.add(total_2, term_2, valid_2)
        total_3 = bi.add(total_3, term_3, valid_3)
        total_0 = bi.add(total_0, term_4, valid_4)
        total_1 = bi.add(total_1, term_5, valid_5)
        total_2 = bi.add(total_2, term_6, valid_6)
        total_3 = bi.add(total_3, term_7, valid_7)
        total_0 = bi.add(total_0, term_8, valid_8)
        total_1 = bi.add(total_1, term_9, valid_9)
        total_2 = bi.add(total_2, term_10, valid_10)
        total_3 = bi.add(total_3, term_11, valid_11)
        total_0 = bi.add(total_0, term_12, valid_12)
        total_1 = bi.add(total_1, term_13, valid_13)
        total_2 = bi.add(total_2, term_14, valid_14)
        total_3 = bi.add(total_3, term_15, valid_15)
    result = bi.fold_sum(total_0, total_1, total_2, total_3)
    result = result.to(ELEMENT).to(RESULT)
    out_row = row + tl.arange(0, 1)
    valid = out_row < (100)
    xindex = out_row
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [1])), result, valid)""",
        )

    def test_softmax(self) -> None:
        self.assertExpectedInline(
            sources()["softmax"],
            """\
# 1 warp, 1 stage
def kernel(arg_X, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float32
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    UNROLL : tl.constexpr = 4
    BLOCK : tl.constexpr = 256
    OUTER_DIMS : tl.constexpr = 1
    REDUCED_DIMS : tl.constexpr = 1
    INDEX_DTYPE : tl.constexpr = tl.int32
    X = arg_X

    row = tl.program_id(0).to(INDEX_DTYPE)
    n = (300)
    x_row = X + ((row) * (300))
    lane = tl.arange(0, 32)
    largest_0 = tl.full([32], float('-inf'), ACCUMULATOR)
    largest_1 = tl.full([32], float('-inf'), ACCUMULATOR)
    largest_2 = tl.full([32], float('-inf'), ACCUMULATOR)
    largest_3 = tl.full([32], float('-inf'), ACCUMULATOR)
    for first in range(0, n, 512):
        index_0 = first + 0 + lane.to(INDEX_DTYPE)
        valid_0 = index_0 < n
        term_0 = tl.load(x_row + ((index_0) * (1)), mask=valid_0, other=0.0).to(ACCUMULATOR)
        ...
        index_15 = first + 480 + lane.to(INDEX_DTYPE)
        valid_15 = index_15 < n
        term_15 = tl.load(x_row + ((index_15) * (1)), mask=valid_15, other=0.0).to(ACCUMULATOR)
        largest_0 = bi.larger(largest_0, term_0, valid_0)
        largest_1 = bi.larger(largest_1, term_1, valid_1)
        largest_2 = bi.larger(largest_2, term_2, valid_2)
        largest_3 = bi.larger(largest_3, term_3, valid_3)
        largest_0 = bi.larger(largest_0, term_4, valid_4)
        largest_1 = bi.larger(largest_1, term_5, valid_5)
        largest_2 = bi.larger(largest_2, term_6, valid_6)
        largest_3 = bi.larger(largest_3, term_7, valid_7)
        largest_0 = bi.larger(largest_0, term_8, valid_8)
        largest_1 = bi.larger(largest_1, term_9, valid_9)
        largest_2 = bi.larger(largest_2, term_10, valid_10)
        largest_3 = bi.larger(largest_3, term_11, valid_11)
        largest_0 = bi.larger(largest_0, term_12, valid_12)
        largest_1 = bi.larger(largest_1, term_13, valid_13)
        largest_2 = bi.larger(largest_2, term_14, valid_14)
        largest_3 = bi.larger(largest_3, term_15, valid_15)
    maximum = bi.fold_maximum(largest_0, largest_1, largest_2, largest_3)
    total_0 = tl.full([32], 0.0, ACCUMULATOR)
    total_1 = tl.full([32], 0.0, ACCUMULATOR)
    total_2 = tl.full([32], 0.0, ACCUMULATOR)
    total_3 = tl.full([32], 0.0, ACCUMULATOR)
    for first in range(0, n, 512):
        index_0 = first + 0 + lane.to(INDEX_DTYPE)
        valid_0 = index_0 < n
        term_0 = tl.load(x_row + ((index_0) * (1)), mask=valid_0, other=0.0).to(ACCUMULATOR)
        ...
        index_15 = first + 480 + lane.to(INDEX_DTYPE)
        valid_15 = index_15 < n
        term_15 = tl.load(x_row + ((index_15) * (1)), mask=valid_15, other=0.0).to(ACCUMULATOR)
        total_0 = bi.add_exponential(total_0, term_0, valid_0, maximum)
        total_1 = bi.add_exponential(total_1, term_1, valid_1, maximum)
        total_2 = bi.add_exponential(total_2, term_2, valid_2, maximum)
        total_3 = bi.add_exponential(total_3, term_3, valid_3, maximum)
        total_0 = bi.add_exponential(total_0, term_4, valid_4, maximum)
        total_1 = bi.add_exponential(total_1, term_5, valid_5, maximum)
        total_2 = bi.add_exponential(total_2, term_6, valid_6, maximum)
        total_3 = bi.add_exponential(total_3, term_7, valid_7, maximum)
        total_0 = bi.add_exponential(total_0, term_8, valid_8, maximum)
        total_1 = bi.add_exponential(total_1, term_9, valid_9, maximum)
        total_2 = bi.add_exponential(total_2, term_10, valid_10, maximum)
        total_3 = bi.add_exponential(total_3, term_11, valid_11, maximum)
        total_0 = bi.add_exponential(total_0, term_12, valid_12, maximum)
        total_1 = bi.add_exponential(total_1, term_13, valid_13, maximum)
        total_2 = bi.add_exponential(total_2, term_14, valid_14, maximum)
        total_3 = bi.add_exponential(total_3, term_15, valid_15, maximum)
    total = bi.fold_sum(total_0, total_1, total_2, total_3)
    out_row = row + tl.arange(0, 1)
    for column in range(0, n, BLOCK):
        out_column = column + tl.arange(0, BLOCK).to(INDEX_DTYPE)
        valid = out_column < n
        x = tl.load(x_row + ((out_column) * (1)), mask=valid, other=0.0).to(ACCUMULATOR)
        result = bi.divide(bi.exp_nonpositive(x - maximum), total + tl.zeros([BLOCK], ACCUMULATOR))
        result = result.to(ELEMENT).to(RESULT)[None, :]
        out_i = out_row[:, None]
        out_j = out_column[None, :]
        out_valid = valid[None, :]
        xindex = out_j + 300*out_i
        tl.store(out_ptr0 + (tl.broadcast_to(xindex, [1, BLOCK])), result, out_valid)""",
        )

    def test_layer_norm(self) -> None:
        self.assertExpectedInline(
            sources()["layer_norm"],
            """\
# 1 warp, 1 stage
def kernel(arg_X, arg_WEIGHT, arg_BIAS, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float32
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    UNROLL : tl.constexpr = 4
    BLOCK : tl.constexpr = 256
    OUTER_DIMS : tl.constexpr = 1
    REDUCED_DIMS : tl.constexpr = 1
    EPSILON : tl.constexpr = 1e-05
    GROUPS : tl.constexpr = 0
    INDEX_DTYPE : tl.constexpr = tl.int32
    X = arg_X
    WEIGHT = arg_WEIGHT
    BIAS = arg_BIAS

    row = tl.program_id(0).to(INDEX_DTYPE)
    n = (300)
    x_row = X + ((row) * (300))
    lane = tl.arange(0, 32)
    count = tl.full([1], n, ACCUMULATOR)
    total_0 = tl.full([32], 0.0, ACCUMULATOR)
    total_1 = tl.full([32], 0.0, ACCUMULATOR)
    total_2 = tl.full([32], 0.0, ACCUMULATOR)
    total_3 = tl.full([32], 0.0, ACCUMULATOR)
    for first in range(0, n, 512):
        index_0 = first + 0 + lane.to(INDEX_DTYPE)
        valid_0 = index_0 < n
        term_0 = tl.load(x_row + ((index_0) * (1)), mask=valid_0, other=0.0).to(ACCUMULATOR)
        ...
        index_15 = first + 480 + lane.to(INDEX_DTYPE)
        valid_15 = index_15 < n
        term_15 = tl.load(x_row + ((index_15) * (1)), mask=valid_15, other=0.0).to(ACCUMULATOR)
        total_0 = bi.add(total_0, term_0, valid_0)
        total_1 = bi.add(total_1, term_1, valid_1)
        total_2 = bi.add(total_2, term_2, valid_2)
        total_3 = bi.add(total_3, term_3, valid_3)
        total_0 = bi.add(total_0, term_4, valid_4)
        total_1 = bi.add(total_1, term_5, valid_5)
        total_2 = bi.add(total_2, term_6, valid_6)
        total_3 = bi.add(total_3, term_7, valid_7)
        total_0 = bi.add(total_0, term_8, valid_8)
        total_1 = bi.add(total_1, term_9, valid_9)
        total_2 = bi.add(total_2, term_10, valid_10)
        total_3 = bi.add(total_3, term_11, valid_11)
        total_0 = bi.add(total_0, term_12, valid_12)
        total_1 = bi.add(total_1, term_13, valid_13)
        total_2 = bi.add(total_2, term_14, valid_14)
        total_3 = bi.add(total_3, term_15, valid_15)
    mean = bi.divide(bi.fold_sum(total_0, total_1, total_2, total_3), count)
    squares_0 = tl.full([32], 0.0, ACCUMULATOR)
    squares_1 = tl.full([32], 0.0, ACCUMULATOR)
    squares_2 = tl.full([32], 0.0, ACCUMULATOR)
    squares_3 = tl.full([32], 0.0, ACCUMULATOR)
    for first in range(0, n, 512):
        index_0 = first + 0 + lane.to(INDEX_DTYPE)
        valid_0 = index_0 < n
        term_0 = tl.load(x_row + ((index_0) * (1)), mask=valid_0, other=0.0).to(ACCUMULATOR)
        ...
        index_15 = first + 480 + lane.to(INDEX_DTYPE)
        valid_15 = index_15 < n
        term_15 = tl.load(x_row + ((index_15) * (1)), mask=valid_15, other=0.0).to(ACCUMULATOR)
        squares_0 = bi.add_square(squares_0, term_0, valid_0, mean)
        squares_1 = bi.add_square(squares_1, term_1, valid_1, mean)
        squares_2 = bi.add_square(squares_2, term_2, valid_2, mean)
        squares_3 = bi.add_square(squares_3, term_3, valid_3, mean)
        squares_0 = bi.add_square(squares_0, term_4, valid_4, mean)
        squares_1 = bi.add_square(squares_1, term_5, valid_5, mean)
        squares_2 = bi.add_square(squares_2, term_6, valid_6, mean)
        squares_3 = bi.add_square(squares_3, term_7, valid_7, mean)
        squares_0 = bi.add_square(squares_0, term_8, valid_8, mean)
        squares_1 = bi.add_square(squares_1, term_9, valid_9, mean)
        squares_2 = bi.add_square(squares_2, term_10, valid_10, mean)
        squares_3 = bi.add_square(squares_3, term_11, valid_11, mean)
        squares_0 = bi.add_square(squares_0, term_12, valid_12, mean)
        squares_1 = bi.add_square(squares_1, term_13, valid_13, mean)
        squares_2 = bi.add_square(squares_2, term_14, valid_14, mean)
        squares_3 = bi.add_square(squares_3, term_15, valid_15, mean)
    variance = bi.divide(bi.fold_sum(squares_0, squares_1, squares_2, squares_3), count)
    rstd = bi.divide(tl.full([1], 1.0, ACCUMULATOR), bi.square_root(variance + tl.full([1], EPSILON, ACCUMULATOR)))
    out_row = row + tl.arange(0, 1)
    for column in range(0, n, BLOCK):
        out_column = column + tl.arange(0, BLOCK).to(INDEX_DTYPE)
        valid = out_column < n
        x = tl.load(x_row + ((out_column) * (1)), mask=valid, other=0.0).to(ACCUMULATOR)
        result = (x - mean) * rstd
        channel = out_column
        weight = tl.load(WEIGHT + channel, mask=valid, other=0.0).to(ACCUMULATOR)
        bias = tl.load(BIAS + channel, mask=valid, other=0.0).to(ACCUMULATOR)
        result = tl.fma(result, weight, bias)
        result = result.to(ELEMENT).to(RESULT)[None, :]
        out_i = out_row[:, None]
        out_j = out_column[None, :]
        out_valid = valid[None, :]
        xindex = out_j + 300*out_i
        tl.store(out_ptr0 + (tl.broadcast_to(xindex, [1, BLOCK])), result, out_valid)""",
        )

    def test_attention_causal(self) -> None:
        self.assertExpectedInline(
            sources()["attention_causal"],
            """\
# 8 warps, 2 stages
def kernel(arg_Q, arg_K, arg_V, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    CHUNK : tl.constexpr = 64
    RUN : tl.constexpr = 64
    BLOCK_D : tl.constexpr = 64
    REST_D : tl.constexpr = 64
    BLOCK_V : tl.constexpr = 64
    REST_V : tl.constexpr = 64
    HEAD_DIM : tl.constexpr = 64
    VALUE_DIM : tl.constexpr = 64
    SCALE : tl.constexpr = 0.125
    WEIGHT : tl.constexpr = tl.bfloat16
    INDEX_DTYPE : tl.constexpr = tl.int32
    Q = arg_Q
    K = arg_K
    V = arg_V

    heads = 8
    queries = 100
    keys = 100
    tiles = tl.cdiv(queries, BLOCK_M)
    program = tl.program_id(0).to(INDEX_DTYPE)
    tile = program % tiles
    batch = program // tiles // heads
    head = program // tiles % heads
    kv_head = head // (heads // 2)
    query = tile * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    in_chunk = tl.arange(0, CHUNK).to(INDEX_DTYPE)
    dim = tl.arange(0, BLOCK_D).to(INDEX_DTYPE)
    valid_query = query < queries
    q = tl.load(
        Q + batch * (51200) + head * (6400) + query[:, None] * (64) + dim[None, :] * (1),
        mask=valid_query[:, None] & (dim[None, :] < HEAD_DIM),
        other=0.0,
    )
    k_head = K + batch * (12800) + kv_head * (6400)
    value_dim = tl.arange(0, BLOCK_V).to(INDEX_DTYPE)
    v_head = V + batch * (12800) + kv_head * (6400)
    first_key = 0
    last_key = tl.minimum(keys, tl.minimum(queries, (tile + 1) * BLOCK_M))
    maximum = tl.full([BLOCK_M], float("-inf"), ACCUMULATOR)
    normalizer = tl.zeros([BLOCK_M], ACCUMULATOR)
    attended = tl.zeros([BLOCK_M], tl.int32)
    total = tl.zeros([BLOCK_M, BLOCK_V], ACCUMULATOR)
    for first in range(first_key, last_key, CHUNK):
        key = first + in_chunk
        k_chunk = tl.load(
            k_head + dim[:, None] * (1) + key[None, :] * (64),
            mask=(dim[:, None] < HEAD_DIM) & (key[None, :] < keys),
            other=0.0,
        )
        score = tl.dot(q, k_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        score = score * tl.full([1, 1], SCALE, ACCUMULATOR)
        allowed = valid_query[:, None] & (key[None, :] < keys)
        allowed = allowed & (key[None, :] <= query[:, None])
        score = tl.where(allowed, score, float("-inf"))
        chunk_maximum, probability, chunk_normalizer = chunk.weights(score, allowed, WEIGHT)
        attended = tl.maximum(attended, tl.max(allowed.to(tl.int32), 1))
        larger, factor, chunk_factor = chunk.factors(maximum, chunk_maximum)
        normalizer = tl.fma(normalizer, factor, chunk_normalizer * chunk_factor)
        v_chunk = tl.load(
            v_head + key[:, None] * (64) + value_dim[None, :] * (1),
            mask=(key[:, None] < last_key) & (value_dim[None, :] < VALUE_DIM),
            other=0.0,
        )
        chunk_total = tl.dot(probability, v_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        total = chunk.merged(total, factor, chunk_total, chunk_factor)
        maximum = larger
    out_query = query[:, None]
    out_dim = value_dim[None, :]
    valid = valid_query[:, None] & (out_dim < 64)
    result = chunk.attended_rows(total, normalizer, attended > 0).to(ELEMENT).to(RESULT)
    xindex = out_dim + 64*out_query + 6400*head + 51200*batch
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_V])), result, valid)""",
        )

    def test_paged_attention(self) -> None:
        self.assertExpectedInline(
            sources()["paged_attention"],
            """\
# 8 warps, 2 stages
def kernel(arg_Q, arg_CACHE, arg_TABLE, arg_ENDS, arg_LENGTHS, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    CHUNK : tl.constexpr = 64
    RUN : tl.constexpr = 64
    BLOCK_D : tl.constexpr = 64
    REST_D : tl.constexpr = 64
    BLOCK_V : tl.constexpr = 64
    REST_V : tl.constexpr = 64
    HEAD_DIM : tl.constexpr = 64
    VALUE_DIM : tl.constexpr = 64
    SCALE : tl.constexpr = 0.125
    WEIGHT : tl.constexpr = tl.bfloat16
    INDEX_DTYPE : tl.constexpr = tl.int32
    Q = arg_Q
    CACHE = arg_CACHE
    TABLE = arg_TABLE
    ENDS = arg_ENDS + 1
    LENGTHS = arg_LENGTHS

    tokens = 100
    sharing = 8 // 2
    blocks = 512
    block_size = 16
    groups = 12
    tiles = tl.cdiv(tokens * sharing, BLOCK_M) + groups
    program = tl.program_id(0).to(INDEX_DTYPE)
    tile = program % tiles
    kv_head = program // tiles
    g = tl.full([], 0, INDEX_DTYPE)
    tiles_before = tl.full([], 0, INDEX_DTYPE)
    tiles_seen = tl.full([], 0, INDEX_DTYPE)
    for first_group in range(0, groups, 32):
        member = first_group + tl.arange(0, 32).to(INDEX_DTYPE)
        is_group = member < groups
        begin = tl.minimum(tl.maximum(tl.load(ENDS + (member - 1) * (1), mask=is_group & (member > 0), other=0), 0), tokens).to(INDEX_DTYPE)
        end = tl.minimum(tl.maximum(tl.load(ENDS + (member) * (1), mask=is_group, other=0), 0), tokens).to(INDEX_DTYPE)
        tiles_after = tiles_seen + tl.cumsum(tl.cdiv(tl.maximum(end - begin, 0) * sharing, BLOCK_M), 0)
        passed = is_group & (tiles_after <= tile)
        g += tl.sum(passed.to(INDEX_DTYPE), 0)
        tiles_before = tl.maximum(tiles_before, tl.max(tl.where(passed, tiles_after, 0), 0))
        tiles_seen = tl.max(tiles_after, 0)
    tile -= tiles_before
    begin = tl.minimum(tl.maximum(tl.load(ENDS + (g - 1) * (1), mask=g > 0, other=0), 0), tokens).to(INDEX_DTYPE)
    end = tl.minimum(tl.maximum(tl.load(ENDS + (g) * (1), mask=g < groups, other=tokens), 0), tokens).to(INDEX_DTYPE)
    queries = tl.maximum(end - begin, 0)
    length = tl.load(LENGTHS + g * (1), mask=g < groups, other=0).to(INDEX_DTYPE)
    length = tl.minimum(length, (40) * block_size)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    query = row // sharing
    valid_row = query < queries
    token = begin + query
    head = kv_head * sharing + row % sharing
    # The number of keys before a query: of each row's, -1 where there is none, of the tile's first and of its last.
    position = tl.where(valid_row, length - queries + query, -1)
    first_position = length - queries + tile * BLOCK_M // sharing
    last_position = length - queries + tl.minimum(queries - 1, (tile * BLOCK_M + BLOCK_M - 1) // sharing)
    first_key = tl.maximum(first_position + 1 - 1000, 0)
    last_key = tl.where(queries > 0, last_position + 1, 0)
    in_chunk = tl.arange(0, CHUNK).to(INDEX_DTYPE)
    dim = tl.arange(0, BLOCK_D).to(INDEX_DTYPE)
    q = tl.load(
        Q + token[:, None] * (512) + head[:, None] * (64) + dim[None, :] * (1),
        mask=valid_row[:, None] & (dim[None, :] < HEAD_DIM),
        other=0.0,
    )
    k_head = CACHE + kv_head * (128)
    v_head = k_head + HEAD_DIM * (1)
    table = TABLE + g * (40)
    out_head = head[:, None]
    out_dim = dim[None, :]
    valid = valid_row[:, None] & (out_dim < 64)
    # A chunk without a key that the tile sees would change nothing.
    first_chunk = first_key // CHUNK
    last_chunk = tl.cdiv(last_key, CHUNK)
    out_token = token[:, None]
    maximum = tl.full([BLOCK_M], float("-inf"), ACCUMULATOR)
    normalizer = tl.zeros([BLOCK_M], ACCUMULATOR)
    total = tl.zeros([BLOCK_M, BLOCK_D], ACCUMULATOR)
    for number in range(first_chunk, last_chunk):
        key = number * CHUNK + in_chunk
        # What no query of the tile sees is not read: unused places of a cache may hold NaN, and 0 times NaN is NaN.
        seen_key = (key >= first_key) & (key < last_key)
        block = tl.load(table + key // block_size * (1), mask=seen_key, other=0).to(INDEX_DTYPE)
        block = tl.minimum(tl.maximum(block, 0), blocks - 1)
        place = block * (4096) + key % block_size * (256)
        k_chunk = tl.load(
            k_head + place[None, :] + dim[:, None] * (1), mask=seen_key[None, :] & (dim[:, None] < HEAD_DIM), other=0.0
        )
        score = tl.dot(q, k_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        score = score * tl.full([1, 1], SCALE, ACCUMULATOR)
        allowed = key[None, :] <= position[:, None]
        allowed = allowed & (key[None, :] > position[:, None] - 1000)
        score = tl.where(allowed, score, float("-inf"))
        chunk_maximum, probability, chunk_normalizer = chunk.weights(score, allowed, WEIGHT)
        larger, factor, chunk_factor = chunk.factors(maximum, chunk_maximum)
        normalizer = tl.fma(normalizer, factor, chunk_normalizer * chunk_factor)
        v_chunk = tl.load(
            v_head + place[:, None] + dim[None, :] * (1), mask=seen_key[:, None] & (dim[None, :] < HEAD_DIM), other=0.0
        )
        chunk_total = tl.dot(probability, v_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        total = chunk.merged(total, factor, chunk_total, chunk_factor)
        maximum = larger
    # A query sees its own key.
    result = chunk.attended_rows(total, normalizer, position >= 0).to(ELEMENT).to(RESULT)
    xindex = out_dim + 64*out_head + 512*out_token
    tl.store(out_ptr0 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_D])), result, valid)""",
        )
