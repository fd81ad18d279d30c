"""What explain says of kernels on a GPU."""

from __future__ import annotations

import pytest

from bi_inductor.reports.triton_kernels import GPU_SECTION, TritonKernel, triton_kernel
from bi_inductor.templates import gpu
from tests.bi_inductor.reports.test_numerics import SECTIONS, plain


def matmul(dtype: str, columns: str, target: str = "sm_90") -> TritonKernel | None:
    return triton_kernel("matmul", [f"{dtype}[s0, 512]", f"{dtype}[512, {columns}]"], f"{dtype}[s0, {columns}]", target)


@pytest.mark.parametrize("target", gpu.TARGETS)
def test_quotes_stand_in_the_section_on_gpus(target: str) -> None:
    attended = triton_kernel("attention", ["float32[2, 4, s0, 80]"] * 3, "float32[2, 4, s0, 80]", target)
    tensors = ["bfloat16[s0, 8, 80]", "bfloat16[512, 16, 2, 160]", "int32[s1, 64]", "int32[s1 + 1]", "int32[s1]"]
    paged = triton_kernel("paged_attention", tensors, tensors[0], target)
    scanned = triton_kernel("logcumsumexp", ["float32[2, s0]"], "float32[2, s0]", target)
    eights = triton_kernel("scaled_matmul", ["float8_e4m3fn[s0, 512]", "float8_e4m3fn[512, 64]"], "bfloat16[s0, 64]", target)
    for kernel in (attended, paged, scanned, eights, matmul("float32", "64", target), matmul("float16", "64", target)):
        assert kernel is not None and kernel.quote and plain(kernel.quote) in plain(SECTIONS[GPU_SECTION])


def test_the_tile_follows_columns_that_are_known() -> None:
    narrow, wide, unknown = (matmul("bfloat16", columns) for columns in ("2048", "2049", "2*s1"))
    assert narrow != wide and wide == unknown


def test_a_grouped_matmul_has_the_tile_of_a_matmul() -> None:
    grouped = triton_kernel("grouped_matmul", ["bfloat16[s0, 512]", "bfloat16[8, 512, 64]", "int32[8]"], "bfloat16[s0, 64]", "sm_90")
    assert grouped == matmul("bfloat16", "64")


def test_the_tile_of_a_scaled_matmul_follows_what_is_stored() -> None:
    def scaled(dtype: str, result: str) -> TritonKernel | None:
        return triton_kernel("scaled_matmul", [f"{dtype}[s0, 512]", "int8[512, 64]", "float32[64]"], f"{result}[s0, 64]", "sm_90")

    eights, integers = scaled("float8_e5m2", "float32"), scaled("int8", "int32")
    floats, half = scaled("float32", "float32"), scaled("bfloat16", "bfloat16")
    alone = matmul("float32", "64"), matmul("bfloat16", "64")
    assert eights is not None and eights == integers and eights.configuration not in [kernel and kernel.configuration for kernel in alone]
    assert [floats and floats.configuration, half and half.configuration] == [kernel and kernel.configuration for kernel in alone]


def test_paged_attention_has_the_configuration_of_attention() -> None:
    paged = triton_kernel("paged_attention", ["float16[s0, 8, 80]", "float16[512, 16, 2, 160]"], "float16[s0, 8, 80]", "sm_80")
    attended = triton_kernel("attention", ["float16[2, 8, s0, 80]"] * 3, "float16[2, 8, s0, 80]", "sm_80")
    assert paged is not None and attended is not None and paged.configuration == attended.configuration


def test_a_sum_over_samples_has_one_configuration() -> None:
    kernels = [triton_kernel("sample_sum", [f"{dtype}[s0, 3]"], f"{dtype}[3]", "sm_90") for dtype in ("float32", "bfloat16")]
    assert kernels[0] is not None and kernels[0] == kernels[1] and not kernels[0].quote


def test_groups_of_columns_have_fewer_stages() -> None:
    rows, columns, ends = "float32[64, 64]", "float32[8, 64, 64]", "int32[8]"
    by_rows = triton_kernel("grouped_matmul", [rows, columns, ends], "float32[64, 64]", "sm_100")
    by_columns = triton_kernel("grouped_matmul", [columns, rows, ends], "float32[64, 64]", "sm_100")
    assert by_rows is not None and by_columns is not None and by_columns.configuration.endswith("1 stage")
    assert by_columns.configuration.split(", ")[:-1] == by_rows.configuration.split(", ")[:-1]


def test_what_has_no_triton_template() -> None:
    eights = ["float8_e4m3fn[8, 64]", "float8_e4m3fn[64, 32]"]
    assert triton_kernel("scaled_matmul", eights, "float8_e4m3fn[8, 32]", "sm_80") is None
    assert triton_kernel("scaled_matmul", eights, "float8_e4m3fn[8, 32]", "sm_90") is not None
    assert triton_kernel("scaled_matmul", eights, "float8_e5m2fnuz[8, 32]", "sm_90") is None
    assert triton_kernel("scaled_matmul", eights, "float8_e5m2fnuz[8, 32]", "gfx942") is not None
    assert triton_kernel("attention", ["float32[2, 4, 8, 288]"] * 3, "float32[2, 4, 8, 288]", "sm_90") is None
    assert triton_kernel("paged_attention", ["float32[8, 4, 288]", "float32[9, 16, 2, 576]"], "float32[8, 4, 288]", "sm_90") is None
