"""The Triton source of the templates in a Llama's and a BERT's layer, epilogues and all, as it is written for an H100.

As in test_triton_goldens.py, a change is either meant (EXPECTTEST_ACCEPT=1 rewrites the text here), or found here. The rewritten graphs of
these layers are in tests/passes/test_rewritten_blocks.py.
"""

from __future__ import annotations

import functools

import expecttest
import pytest

from bi_inductor.targets.compile import compile_programs
from tests.templates.test_triton_goldens import shortened

pytest.importorskip("triton")

pytestmark = pytest.mark.xdist_group("targets")


@functools.cache
def sources() -> dict[str, dict[str, str]]:
    """For each layer the source of its templates by their number in the graph."""
    blocks = ("llama_block", "bert_block")
    result: dict[str, dict[str, str]] = {}
    for name, report in zip(
        blocks, compile_programs([f"tests.bi_inductor.targets.programs:{name}" for name in blocks], "sm_90"), strict=True
    ):
        if isinstance(report, Exception):
            raise report
        result[name] = {
            kernel.name.rpartition("_")[2]: shortened(kernel.source.replace(kernel.name, "kernel"), kernel.configuration)
            for kernel in report.kernels
            if "_tem_" in kernel.name
        }
    return result


class TestLlama(expecttest.TestCase):
    def test_rms_norm(self) -> None:
        self.assertExpectedInline(
            sources()["llama_block"]["0"],
            """\
# 1 warp, 1 stage
def kernel(arg_X, arg_WEIGHT, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.bfloat16
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

    row = tl.program_id(0).to(INDEX_DTYPE)
    n = (512)
    x_row = X + ((row) * (512))
    lane = tl.arange(0, 32)
    count = tl.full([1], n, ACCUMULATOR)
    mean = tl.zeros([1], ACCUMULATOR)
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
        result = result * weight
        result = result.to(ELEMENT).to(RESULT)[None, :]
        out_i = out_row[:, None]
        out_j = out_column[None, :]
        out_valid = valid[None, :]
        xindex = out_j + 512*out_i
        tl.store(out_ptr0 + (tl.broadcast_to(xindex, [1, BLOCK])), result, out_valid)""",
        )

    def test_attention(self) -> None:
        self.assertExpectedInline(
            sources()["llama_block"]["5"],
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
    queries = 128
    keys = 128
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
        Q + batch * (65536) + head * (8192) + query[:, None] * (64) + dim[None, :] * (1),
        mask=valid_query[:, None] & (dim[None, :] < HEAD_DIM),
        other=0.0,
    )
    k_head = K + batch * (16384) + kv_head * (8192)
    value_dim = tl.arange(0, BLOCK_V).to(INDEX_DTYPE)
    v_head = V + batch * (16384) + kv_head * (64)
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
            v_head + key[:, None] * (128) + value_dim[None, :] * (1),
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
    xindex = out_dim + 64*out_query + 8192*head + 65536*batch
    tl.store(out_ptr0 + (tl.broadcast_to(out_dim + 64*head + 512*out_query + 65536*batch, [BLOCK_M, BLOCK_V])), result, valid)""",
        )

    def test_product_with_silu(self) -> None:
        self.assertExpectedInline(
            sources()["llama_block"]["8"],
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, in_ptr2, out_ptr1):
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

    m = 256
    n = 1536
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
        a_block = tl.load(a + first * (1), mask=valid_row, other=0.0)
        b_block = tl.load(b + first * (1), mask=valid_column, other=0.0)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 1536*out_row
    tmp0 = result.to(tl.bfloat16)
    tmp1 = tmp0.to(tl.float32)
    tmp2 = tl.load(in_ptr2 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), valid, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tmp2.to(tl.float32)
    tmp4 = -tmp3
    tmp5 = libdevice.exp(tmp4)
    tmp6 = tl.full([1], 1.0, tl.float32)
    tmp7 = tmp5 + tmp6
    tmp8 = triton.language.div_rn(tmp3, tmp7)
    tmp9 = tmp8.to(tl.bfloat16)
    tmp10 = tmp9.to(tl.float32)
    tmp11 = tmp10.to(tl.bfloat16)
    tmp12 = tmp11.to(tl.float32)
    tmp13 = tmp12.to(tl.bfloat16)
    tmp14 = tmp13.to(tl.float32)
    tmp15 = tmp1.to(tl.bfloat16)
    tmp16 = tmp15.to(tl.float32)
    tmp17 = tmp14 * tmp16
    tmp18 = tmp17.to(tl.bfloat16)
    tmp19 = tmp18.to(tl.float32)
    tl.store(out_ptr1 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp19, valid)""",
        )

    def test_product_with_residual(self) -> None:
        self.assertExpectedInline(
            sources()["llama_block"]["9"],
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, in_ptr2, out_ptr1):
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

    m = 256
    n = 512
    k = 1536
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
    a = A + row[:, None] * (1536) + in_block[None, :] * (1)
    b = B + in_block[:, None] * (1) + column[None, :] * (1536)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first in range(0, k, BLOCK_K):
        a_block = tl.load(a + first * (1), mask=valid_row, other=0.0)
        b_block = tl.load(b + first * (1), mask=valid_column, other=0.0)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 512*out_row
    tmp0 = result.to(tl.bfloat16)
    tmp1 = tmp0.to(tl.float32)
    tmp2 = tl.load(in_ptr2 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), valid, eviction_policy='evict_last').to(tl.float32)
    tmp3 = tmp2.to(tl.bfloat16)
    tmp4 = tmp3.to(tl.float32)
    tmp5 = tmp1.to(tl.bfloat16)
    tmp6 = tmp5.to(tl.float32)
    tmp7 = tmp4 + tmp6
    tmp8 = tmp7.to(tl.bfloat16)
    tmp9 = tmp8.to(tl.float32)
    tl.store(out_ptr1 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp9, valid)""",
        )


class TestBert(expecttest.TestCase):
    def test_product_with_bias_and_gelu(self) -> None:
        self.assertExpectedInline(
            sources()["bert_block"]["5"],
            """\
# 4 warps, 4 stages
def kernel(arg_A, arg_B, arg_BIAS, out_ptr1):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float16
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
    BIAS = arg_BIAS

    m = 256
    n = 1536
    k = 384
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
    a = A + row[:, None] * (384) + in_block[None, :] * (1)
    b = B + in_block[:, None] * (1) + column[None, :] * (384)
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first in range(0, k, BLOCK_K):
        a_block = tl.load(a + first * (1), mask=valid_row, other=0.0)
        b_block = tl.load(b + first * (1), mask=valid_column, other=0.0)
        total = tl.dot(a_block, b_block, total, out_dtype=ACCUMULATOR)
    bias = tl.load(BIAS + row[:, None] * (0) + column[None, :] * (1), mask=valid_row & valid_column, other=0.0).to(ACCUMULATOR)
    total = total + bias
    result = total.to(ELEMENT).to(RESULT)
    out_row = row[:, None]
    out_column = column[None, :]
    valid = valid_row & valid_column
    xindex = out_column + 1536*out_row
    tmp0 = result.to(tl.float16)
    tmp1 = tmp0.to(tl.float32)
    tmp2 = tmp1.to(tl.float32)
    tmp3 = tl.full([1], 0.5, tl.float32)
    tmp4 = tmp2 * tmp3
    tmp5 = tl.full([1], 0.7071067811865476, tl.float32)
    tmp6 = tmp2 * tmp5
    tmp7 = libdevice.erf(tmp6)
    tmp8 = tl.full([1], 1.0, tl.float32)
    tmp9 = tmp7 + tmp8
    tmp10 = tmp4 * tmp9
    tmp11 = tmp10.to(tl.float16)
    tmp12 = tmp11.to(tl.float32)
    tmp13 = tmp12.to(tl.float16)
    tmp14 = tmp13.to(tl.float32)
    tl.store(out_ptr1 + (tl.broadcast_to(xindex, [BLOCK_M, BLOCK_N])), tmp14, valid)""",
        )

    def test_masked_attention(self) -> None:
        self.assertExpectedInline(
            sources()["bert_block"]["2"],
            """\
# 8 warps, 2 stages
def kernel(arg_V, arg_MASK, arg_FIRST_KEY, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float16
    RESULT : tl.constexpr = tl.float32
    ACCUMULATOR : tl.constexpr = tl.float32
    BLOCK_M : tl.constexpr = 64
    CHUNK : tl.constexpr = 64
    RUN : tl.constexpr = 32
    BLOCK_D : tl.constexpr = 32
    REST_D : tl.constexpr = 32
    BLOCK_V : tl.constexpr = 32
    REST_V : tl.constexpr = 32
    HEAD_DIM : tl.constexpr = 32
    VALUE_DIM : tl.constexpr = 32
    SCALE : tl.constexpr = 0.17677669529663687
    WEIGHT : tl.constexpr = tl.float16
    INDEX_DTYPE : tl.constexpr = tl.int32
    Q = arg_V
    K = arg_V + 384
    V = arg_V + 768
    MASK = arg_MASK
    FIRST_KEY = arg_FIRST_KEY

    heads = 12
    queries = 64
    keys = 64
    tiles = tl.cdiv(queries, BLOCK_M)
    program = tl.program_id(0).to(INDEX_DTYPE)
    tile = program % tiles
    batch = program // tiles // heads
    head = program // tiles % heads
    kv_head = head // (heads // 12)
    query = tile * BLOCK_M + tl.arange(0, BLOCK_M).to(INDEX_DTYPE)
    in_chunk = tl.arange(0, CHUNK).to(INDEX_DTYPE)
    dim = tl.arange(0, BLOCK_D).to(INDEX_DTYPE)
    valid_query = query < queries
    q = tl.load(
        Q + batch * (73728) + head * (32) + query[:, None] * (1152) + dim[None, :] * (1),
        mask=valid_query[:, None] & (dim[None, :] < HEAD_DIM),
        other=0.0,
    )
    k_head = K + batch * (73728) + kv_head * (32)
    value_dim = tl.arange(0, BLOCK_V).to(INDEX_DTYPE)
    v_head = V + batch * (73728) + kv_head * (32)
    mask_row = MASK + batch * (64) + head * (0) + query[:, None] * (0)
    first_key = tl.load(FIRST_KEY + batch * (1)).to(INDEX_DTYPE)
    last_key = keys
    maximum = tl.full([BLOCK_M], float("-inf"), ACCUMULATOR)
    normalizer = tl.zeros([BLOCK_M], ACCUMULATOR)
    attended = tl.zeros([BLOCK_M], tl.int32)
    total = tl.zeros([BLOCK_M, BLOCK_V], ACCUMULATOR)
    for first in range(first_key, last_key, CHUNK):
        key = first + in_chunk
        k_chunk = tl.load(
            k_head + dim[:, None] * (1) + key[None, :] * (1152),
            mask=(dim[:, None] < HEAD_DIM) & (key[None, :] < keys),
            other=0.0,
        )
        score = tl.dot(q, k_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        score = score * tl.full([1, 1], SCALE, ACCUMULATOR)
        allowed = valid_query[:, None] & (key[None, :] < keys)
        mask = tl.load(mask_row + key[None, :] * (1), mask=allowed, other=0)
        allowed = allowed & (mask != 0)
        score = tl.where(allowed, score, float("-inf"))
        chunk_maximum, probability, chunk_normalizer = chunk.weights(score, allowed, WEIGHT)
        attended = tl.maximum(attended, tl.max(allowed.to(tl.int32), 1))
        larger, factor, chunk_factor = chunk.factors(maximum, chunk_maximum)
        normalizer = tl.fma(normalizer, factor, chunk_normalizer * chunk_factor)
        # What no query of the tile sees is not read: unused places of a cache may hold NaN, and 0 times NaN is NaN.
        seen_key = tl.max(allowed.to(tl.int32), 0)
        v_chunk = tl.load(
            v_head + key[:, None] * (1152) + value_dim[None, :] * (1),
            mask=(seen_key[:, None] > 0) & (value_dim[None, :] < VALUE_DIM),
            other=0.0,
        )
        chunk_total = tl.dot(probability, v_chunk, input_precision="ieee", out_dtype=ACCUMULATOR)
        total = chunk.merged(total, factor, chunk_total, chunk_factor)
        maximum = larger
    out_query = query[:, None]
    out_dim = value_dim[None, :]
    valid = valid_query[:, None] & (out_dim < 32)
    result = chunk.attended_rows(total, normalizer, attended > 0).to(ELEMENT).to(RESULT)
    xindex = out_dim + 32*out_query + 2048*head + 24576*batch
    tl.store(out_ptr0 + (tl.broadcast_to(out_dim + 32*head + 384*out_query + 24576*batch, [BLOCK_M, BLOCK_V])), result, valid)""",
        )

    def test_layer_norm_of_a_residual(self) -> None:
        self.assertExpectedInline(
            sources()["bert_block"]["4"],
            """\
# 1 warp, 1 stage
def kernel(arg_X, arg_WEIGHT, arg_BIAS, out_ptr0):
    ACC_TYPE : tl.constexpr = tl.float32
    ELEMENT : tl.constexpr = tl.float16
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
    n = (384)
    x_row = X + ((row) * (384))
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
        xindex = out_j + 384*out_i
        tl.store(out_ptr0 + (tl.broadcast_to(xindex, [1, BLOCK])), result, out_valid)""",
        )
