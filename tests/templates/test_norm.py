"""Layer, RMS and group norm: bits of the reference, rows in any batch, accuracy, statistics."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests import reference
from tests.templates.rows import DTYPES, assert_rows_invariant, assert_same_bits, randn, relative_error

ops = torch.ops.bi_inductor
# More rows than are folded together; lengths on both sides of where that stops.
SHAPES = [(3, 1), (19, 7), (4, 64), (19, 24), (19, 100), (2, 5, 129), (19, 768), (10, 1000)]
AFFINE = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", AFFINE, ids=str)
def test_layer_norm_bits_of_the_reference(affine: tuple[bool, bool], dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = randn(*shape, dtype=dtype) + 1
        weight, bias = (randn(shape[-1], dtype=dtype, seed=i) if on else None for i, on in enumerate(affine))
        y, mean, rstd = reference.layer_norm(x, [shape[-1]], weight, bias, 1e-5)
        assert_same_bits(ops.layer_norm(x, 1, weight, bias, 1e-5), y, shape)
        statistics = ops.layer_norm_statistics(x, 1, 1e-5)
        assert_same_bits(statistics[0].flatten(), mean.flatten(), "mean")
        assert_same_bits(statistics[1].flatten(), rstd.flatten(), "rstd")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm_bits_of_the_reference(affine: bool, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = randn(*shape, dtype=dtype)
        weight = randn(shape[-1], dtype=dtype, seed=1) if affine else None
        y, rstd = reference.rms_norm(x, [shape[-1]], weight, 1e-6)
        assert_same_bits(ops.rms_norm(x, 1, weight, 1e-6), y, shape)
        assert_same_bits(ops.rms_norm_statistics(x, 1, 1e-6).flatten(), rstd.flatten(), "rstd")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mean_square_norm_bits_of_the_reference(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = randn(*shape, dtype=dtype)
        for weight in (None, randn(shape[-1], dtype=dtype, seed=1)):
            y = reference.mean_square_norm(x, [shape[-1]], weight, 1e-6)
            assert_same_bits(ops.mean_square_norm(x, 1, weight, 1e-6), y, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", AFFINE, ids=str)
def test_group_norm_bits_of_the_reference(affine: tuple[bool, bool], dtype: torch.dtype) -> None:
    for shape, groups in [((2, 6), 3), ((3, 8, 5), 2), ((2, 4, 7, 9), 4), ((1, 6, 13), 1)]:
        x = randn(*shape, dtype=dtype)
        weight, bias = (randn(shape[1], dtype=dtype, seed=i) if on else None for i, on in enumerate(affine))
        y, mean, rstd = reference.group_norm(x, groups, weight, bias, 1e-5)
        assert_same_bits(ops.group_norm(x, groups, weight, bias, 1e-5), y, shape)
        statistics = ops.group_norm_statistics(x, groups, 1e-5)
        assert_same_bits(statistics[0].flatten(), mean.flatten(), "mean")
        assert_same_bits(statistics[1].flatten(), rstd.flatten(), "rstd")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_invariant(dtype: torch.dtype) -> None:
    for n in (24, 515, 1030):
        weight, bias = randn(n, dtype=dtype, seed=1), randn(n, dtype=dtype, seed=2)
        x = randn(256, n, dtype=dtype)
        assert_rows_invariant(lambda rows, w=weight, b=bias: ops.layer_norm(rows, 1, w, b, 1e-5), x)
        assert_rows_invariant(lambda rows, w=weight: ops.rms_norm(rows, 1, w, 1e-6), x)
        assert_rows_invariant(lambda rows, w=weight: ops.mean_square_norm(rows, 1, w, 1e-6), x)
    channels = randn(6, dtype=dtype, seed=3)
    images = randn(256, 6, 15, dtype=dtype)
    assert_rows_invariant(lambda rows: ops.group_norm(rows, 2, channels, channels, 1e-5), images)


@pytest.mark.parametrize("n", [64, 768, 4096])
def test_accuracy_is_that_of_stock(n: int) -> None:
    x, weight, bias = randn(16, n) + 0.3, randn(n, seed=1), randn(n, seed=2)
    wide = (x.double(), [n], weight.double())
    exact = functional.layer_norm(*wide, bias.double())
    stock = relative_error(functional.layer_norm(x, [n], weight, bias), exact)
    assert relative_error(ops.layer_norm(x, 1, weight, bias, 1e-5), exact) <= 1.5 * stock
    exact = functional.rms_norm(*wide, 1e-6)
    stock = relative_error(functional.rms_norm(x, [n], weight, 1e-6), exact)
    assert relative_error(ops.rms_norm(x, 1, weight, 1e-6), exact) <= 1.5 * stock


def test_bad_arguments_are_refused() -> None:
    x = torch.ones(2, 6)
    with pytest.raises(ValueError, match="weight"):
        ops.layer_norm(x, 1, torch.ones(5), None, 1e-5)
    with pytest.raises(ValueError, match="normalized_dims"):
        ops.rms_norm(x, 3, None, 1e-5)
    with pytest.raises(ValueError, match="mean_square_norm: normalized_dims"):
        ops.mean_square_norm(x, 0, None, 1e-5)
    with pytest.raises(ValueError, match="groups"):
        ops.group_norm(x, 4, None, None, 1e-5)
    with pytest.raises(TypeError, match="one dtype"):
        ops.layer_norm(x, 1, torch.ones(6, dtype=torch.float64), None, 1e-5)
