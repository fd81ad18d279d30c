"""The convolution template: bits of one matmul over gathered patches, bits of a sample in any batch, accuracy, edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bi_inductor.operators.convolution import over_patches
from bi_inductor.settings import thread_count
from bi_inductor.testing import accumulation_tree, expected_tree
from tests import reference
from tests.templates.rows import (
    DTYPES,
    THREADS,
    assert_rows_invariant,
    assert_same_bits,
    differences,
    randn,
    relative_error,
    varying_batches,
)

convolution = torch.ops.bi_inductor.convolution


class Geometry(NamedTuple):
    """The arguments of a convolution after its tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


# Sizes of x (without the batch), of the weight, and the geometry.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Geometry]] = {
    "3 x 3": ((5, 14, 14), (20, 5, 3, 3), Geometry([1, 1], [1, 1, 1, 1], [1, 1], 1)),
    "3 x 3, many channels": ((40, 7, 7), (48, 40, 3, 3), Geometry([1, 1], [1, 1, 1, 1], [1, 1], 1)),
    "7 x 7 with stride 2": ((3, 37, 30), (13, 3, 7, 7), Geometry([2, 2], [3, 3, 3, 3], [1, 1], 1)),
    "1 x 1 with stride 2": ((16, 9, 9), (10, 16, 1, 1), Geometry([2, 2], [0, 0, 0, 0], [1, 1], 1)),
    "patches": ((3, 32, 32), (24, 3, 8, 8), Geometry([8, 8], [0, 0, 0, 0], [1, 1], 1)),
    "dilated": ((4, 20, 17), (7, 4, 3, 2), Geometry([1, 2], [2, 2, 0, 1], [2, 3], 1)),
    "groups": ((12, 11, 8), (9, 4, 3, 3), Geometry([1, 1], [1, 1, 1, 1], [1, 1], 3)),
    "depthwise": ((10, 13, 13), (20, 1, 3, 3), Geometry([1, 1], [1, 1, 1, 1], [1, 1], 10)),
    "1d": ((6, 400), (14, 6, 10), Geometry([5], [0, 0], [1], 1)),
    "1d, causal": ((8, 33), (8, 8, 4), Geometry([1], [6, 0], [2], 1)),
    "3d": ((3, 5, 8, 6), (6, 3, 2, 3, 3), Geometry([2, 1, 1], [0, 1, 1, 1, 1, 1], [1, 1, 1], 1)),
    "one position": ((9, 4, 4), (5, 9, 4, 4), Geometry([1, 1], [0, 0, 0, 0], [1, 1], 1)),
}


def operands(name: str, batch: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Geometry]:
    """x, weight, bias and geometry of a row of SHAPES."""
    size, weight, geometry = SHAPES[name]
    return randn(batch, *size, dtype=dtype), randn(*weight, dtype=dtype, seed=1), randn(weight[0], dtype=dtype, seed=2), geometry


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_bits_of_a_matmul_over_patches(name: str, dtype: torch.dtype) -> None:
    x, weight, bias, geometry = operands(name, 5, dtype)
    assert_same_bits(convolution(x, weight, bias, *geometry), over_patches(x, weight, bias, *geometry), "with bias")
    assert_same_bits(convolution(x, weight, None, *geometry), over_patches(x, weight, None, *geometry), "without bias")


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor | None, Geometry]:
    """Operands of any sizes that fit."""
    dims, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = dims) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, stride, dilation, padding = each(1, 4), each(1, 4), each(1, 3), each(0, 3, 2 * dims)
    largest = (300, 24, 9)[dims - 1]
    sizes = [
        max(draw(st.integers(1, largest)), d * (k - 1) + 1 - before - after, 1)
        for d, k, before, after in zip(dilation, kernel, padding[::2], padding[1::2], strict=True)
    ]
    channels, out_channels, batch = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 9))
    x = randn(batch, channels * groups, *sizes, dtype=dtype, seed=seed)
    weight = randn(out_channels * groups, channels, *kernel, dtype=dtype, seed=seed + 1)
    bias = randn(out_channels * groups, dtype=dtype, seed=seed + 2) if draw(st.booleans()) else None
    if draw(st.booleans()):
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x, weight, bias, Geometry(stride, padding, dilation, groups)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(convolutions())
def test_bits_of_a_matmul_over_patches_for_any_sizes(case: tuple[Tensor, Tensor, Tensor | None, Geometry]) -> None:
    x, weight, bias, geometry = case
    assert_same_bits(convolution(x, weight, bias, *geometry), over_patches(x, weight, bias, *geometry), (x.shape, weight.shape, geometry))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_the_reference(dtype: torch.dtype) -> None:
    x, weight = randn(2, 3, 6, 7, dtype=dtype), randn(4, 3, 3, 2, dtype=dtype, seed=1)
    patches = functional.unfold(x, (3, 2), padding=(1, 0))
    expected = torch.stack([reference.matmul(weight.flatten(1), patch) for patch in patches])
    assert_same_bits(convolution(x, weight, None, [1, 1], [1, 1, 0, 0], [1, 1], 1).flatten(2), expected)


def test_another_order_is_caught() -> None:
    x, weight, _, geometry = operands("3 x 3, many channels", 4, torch.float32)
    assert differences(convolution(x, weight, None, *geometry), functional.conv2d(x, weight, padding=1)) > 0


def test_stock_samples_vary() -> None:
    x, weight = randn(16, 4, 8, 6), randn(3, 4, 3, 3, seed=1)
    assert varying_batches(lambda rows: functional.conv2d(rows, weight, padding=1), x) != []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["3 x 3", "7 x 7 with stride 2", "depthwise", "1d"])
def test_samples_are_invariant(name: str, dtype: torch.dtype) -> None:
    x, weight, bias, geometry = operands(name, 17, dtype)
    assert_rows_invariant(lambda rows: convolution(rows, weight, bias, *geometry), x)


@pytest.mark.parametrize("name", ["one position", "patches", "3 x 3, many channels", "groups"])
def test_threads_change_nothing(name: str) -> None:
    x, weight, _, geometry = operands(name, 9, torch.float32)
    wide = weight.repeat(6 if geometry.groups == 1 else 1, *[1] * (weight.dim() - 1))
    for batch in (1, 2, 9):
        whole = over_patches(x[:batch], wide, None, *geometry)
        for threads in THREADS:
            with thread_count(threads):
                assert_same_bits(convolution(x[:batch], wide, None, *geometry), whole, (batch, threads))


def test_what_lies_in_padding_and_neighbours_reaches_nothing() -> None:
    x, weight, _, geometry = operands("3 x 3", 3, torch.float32)
    storage = torch.full((3, 5, 16, 16), float("nan"))
    storage[:, :, 1:-1, 1:-1] = x
    assert_same_bits(convolution(storage[:, :, 1:-1, 1:-1], weight, None, *geometry), convolution(x, weight, None, *geometry))


@pytest.mark.parametrize("out_channels", [1, 4, 6, 50])
@pytest.mark.parametrize("position", [0, 16, 20])
def test_tree(position: int, out_channels: int) -> None:
    def dot(terms: Tensor) -> Tensor:
        weight = terms.reshape(1, -1, 1).expand(out_channels, -1, -1)
        return convolution(torch.ones(1, len(terms), 21, dtype=terms.dtype), weight, None, [1], [0, 0], [1], 1)[0, -1, position]

    assert accumulation_tree(dot, 67) == expected_tree(16, 67)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_accuracy_is_that_of_stock(name: str, dtype: torch.dtype) -> None:
    x, weight, bias, (stride, padding, dilation, groups) = operands(name, 2, dtype)
    stock: Any = (functional.conv1d, functional.conv2d, functional.conv3d)[x.dim() - 3]
    pads = [side for i in reversed(range(x.dim() - 2)) for side in padding[2 * i : 2 * i + 2]]
    padded = functional.pad(x, pads)
    exact = stock(padded.double(), weight.double(), bias.double(), stride, 0, dilation, groups)
    theirs = relative_error(stock(padded, weight, bias, stride, 0, dilation, groups), exact)
    # 1e-7: sums of few terms are exact to the last bit in either.
    assert relative_error(convolution(x, weight, bias, stride, padding, dilation, groups), exact) <= max(1.5 * theirs, 1e-7)


def test_gradients_are_those_of_the_matmul_over_patches() -> None:
    x, weight, bias, geometry = operands("groups", 3, torch.float32)
    gradients = []
    for fn in (convolution, over_patches):
        inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
        gradients.append(torch.autograd.grad(fn(*inputs, *geometry).sin().sum(), inputs))
    for ours, theirs in zip(*gradients, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("fn", [convolution, over_patches], ids=["kernel", "patches"])
def test_bad_operands_are_refused(fn: Any) -> None:
    x, weight, _, geometry = operands("3 x 3", 2, torch.float32)
    with pytest.raises(TypeError, match="one dtype"):
        fn(x, weight.double(), None, *geometry)
    with pytest.raises(ValueError, match="1 to 3 sizes"):
        fn(x[0], weight, None, *geometry)
    with pytest.raises(ValueError, match="two paddings"):
        fn(x, weight, None, [1, 1], [1, 1], [1, 1], 1)
    with pytest.raises(ValueError, match="at least 1"):
        fn(x, weight, None, [0, 1], [1, 1, 1, 1], [1, 1], 1)
    with pytest.raises((ValueError, RuntimeError), match="channels do not fit"):
        fn(x[:, :4], weight, None, *geometry)
    with pytest.raises((ValueError, RuntimeError), match="bias"):
        fn(x, weight, torch.ones(3), *geometry)
    with pytest.raises((ValueError, RuntimeError), match="larger than the padded input"):
        fn(x[..., :1], weight, None, [1, 1], [0, 0, 0, 0], [1, 1], 1)
    with pytest.raises((ValueError, RuntimeError), match="size of the kernel is at least 1"):
        fn(x, weight[:, :, :0], None, *geometry)
    with pytest.raises(ValueError, match="at least 1"):
        fn(x, weight, None, [1, 1], [1, 1, 1, 1], [0, 1], 1)


def test_an_epilogue_of_images_and_of_their_rows() -> None:
    x, weight, bias, _ = operands("3 x 3", 4, torch.float32)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        out = (functional.conv2d(x, weight, bias, padding=1) * bias[:, None, None]).relu()
        return out, out.flatten(2) + 1

    expected = (convolution(x, weight, bias, [1, 1], [1, 1, 1, 1], [1, 1], 1) * bias[:, None, None]).relu()
    compiled = torch.compile(fn, backend="batch_invariant", dynamic=False)
    with torch.no_grad():
        for batch in (4, 1):
            out, rows = compiled(x[:batch])
            assert_same_bits(out, expected[:batch])
            assert_same_bits(rows, expected[:batch].flatten(2) + 1)
