"""Linear algebra and Fourier transforms, one sample at a time: the graph, torch's values and layouts, bits, and the warning."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor, linalg

import bi_inductor
from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS, one_sample_op
from bi_inductor.settings import thread_count
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import f32, rewritten
from tests.templates.rows import assert_same_bits, differences, randn

pytestmark = pytest.mark.filterwarnings("ignore::bi_inductor.FallbackWarning")


def test_linear_algebra() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda a, b: (linalg.solve(a, b), torch.fft.rfft(b)), f32(2, 3, 3) + 3 * torch.eye(3), f32(2, 3)),
        """\
inference
  arg0_1: float32[0]
  arg1_1: float32[2, 3, 3]
  arg2_1: float32[2, 3]
- _linalg_solve_ex = aten._linalg_solve_ex.default(arg1_1, arg2_1) -> 4 results
+ _linalg_solve_ex_default = bi_inductor._linalg_solve_ex.default(arg1_1, arg2_1) -> 4 results
- getitem = getitem(_linalg_solve_ex, 0) -> float32[2, 3]
+ getitem_6 = getitem(_linalg_solve_ex_default, 0) -> float32[2, 3]
- getitem_3 = getitem(_linalg_solve_ex, 3) -> int32[2]
+ getitem_9 = getitem(_linalg_solve_ex_default, 3) -> int32[2]
- with_effects = with_effects(arg0_1, aten._linalg_check_errors.default, getitem_3, torch.linalg.solve, is_matrix=False) -> 2 results
+ with_effects = with_effects(arg0_1, aten._linalg_check_errors.default, getitem_9, torch.linalg.solve, is_matrix=False) -> 2 results
  getitem_4 = getitem(with_effects, 0) -> float32[0]
- _fft_r2c = aten._fft_r2c.default(arg2_1, [1], 0, True) -> complex64[2, 2]
+ _fft_r2c_default = bi_inductor._fft_r2c.default(arg2_1, [1], 0, True) -> complex64[2, 2]
- return (getitem_4, getitem, _fft_r2c)
+ return (getitem_4, getitem_6, _fft_r2c_default)""",
    )


# A function of a batch [n, 6, 6]; the result's samples are those of the batch.
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "inv": linalg.inv,
    "solve": lambda a: linalg.solve(a, a.mT),
    "solve of vectors": lambda a: linalg.solve(a, a[..., 0]),
    "cholesky": lambda a: linalg.cholesky(a @ a.mT + torch.eye(6)),
    "qr": lambda a: linalg.qr(a)[0],
    "svd": lambda a: linalg.svd(a[..., :3], full_matrices=False)[1],
    "eigh": lambda a: linalg.eigh(a + a.mT)[0],
    "det": linalg.det,
    "slogdet": lambda a: linalg.slogdet(a)[1],
    "matrix_exp": linalg.matrix_exp,
    "pinv": linalg.pinv,
    "lu": lambda a: linalg.lu_factor(a)[0],
    "ormqr": lambda a: torch.ormqr(a * 0.1, a[..., 0] * 0.1, a),
    "triangular": lambda a: linalg.solve_triangular(a, a.mT, upper=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_has_its_bits_in_every_batch(name: str) -> None:
    fn = FUNCTIONS[name]
    a = (randn(5, 6, 6) + 4 * torch.eye(6)).requires_grad_()
    whole = ours(fn, a)
    for out, expected in zip(whole, stock(fn, a), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)
        assert out.stride() == expected.stride()
    for out, expected in zip(ours(fn, a[3:4].detach().requires_grad_()), whole, strict=True):
        assert_same_bits(out, expected[3:4])


def transforms(x: Tensor) -> list[Tensor]:
    """The operators themselves on ``x`` [n, 40, 24] and on its transposed storage."""
    ops, complex_x = torch.ops.bi_inductor, torch.complex(x, x.flip(-1))
    return [
        ops._fft_r2c(x, [2], 0, True),
        ops._fft_r2c(x, [1, 2], 0, False),
        ops._fft_r2c(x.transpose(1, 2).contiguous().transpose(1, 2), [1], 1, True),
        ops._fft_c2c(complex_x, [2, 1], 2, False),
        ops._fft_c2r(complex_x, [1, 2], 2, 46),
    ]


def test_a_signal_has_its_bits_in_every_batch() -> None:
    x = randn(5, 40, 24)
    whole = transforms(x)
    names = [torch.fft.rfft(x), torch.fft.fft2(x), torch.fft.rfft(x, dim=1, norm="ortho")]
    for out, expected in zip(whole, names, strict=False):
        torch.testing.assert_close(out, expected)
    for batch in (slice(0, 1), slice(2, 5)):
        for out, expected in zip(transforms(x[batch]), whole, strict=True):
            assert_same_bits(torch.view_as_real(out) if out.is_complex() else out, _real(expected)[batch])


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def test_threads_and_layouts_change_no_bit_and_stock_varies() -> None:
    a = randn(70, 96, 96) + 20 * torch.eye(96)
    inverse = torch.ops.bi_inductor.linalg_inv_ex
    expected = inverse(a[:2])[0]
    for threads in (1, 2, 4):
        with thread_count(threads):
            assert_same_bits(inverse(a[:2])[0], expected, f"{threads} threads")
            assert torch.get_num_threads() == threads
    assert_same_bits(inverse(a[:2].mT.contiguous().mT)[0], expected, "transposed storage")
    # torch's own kernel takes a product's order from the number of matrices.
    x = randn(2, 96, 96) * 0.1
    assert any(differences(linalg.matrix_exp(x)[:1], linalg.matrix_exp(x[:1])) for x in (x, x * 8, x * 0.01))


def test_operands_broadcast_and_batches_may_be_empty() -> None:
    a, b = randn(3, 1, 4, 4) + 4 * torch.eye(4), randn(2, 4, 2, seed=1)
    for given, expected in zip(torch.ops.bi_inductor._linalg_solve_ex(a, b), torch.ops.aten._linalg_solve_ex(a, b), strict=True):
        torch.testing.assert_close(given, expected)
    assert torch.ops.bi_inductor.linalg_inv_ex(torch.empty(0, 3, 3))[0].shape == (0, 3, 3)


def test_each_operator_has_the_schema_it_stands_for() -> None:
    for op in ONE_SAMPLE_OPS:
        assert str(one_sample_op(op)._schema).removeprefix("bi_inductor::") == str(op._schema).removeprefix("aten::")


def two_lines(x: Tensor) -> Tensor:
    y = linalg.inv(x) + linalg.inv(x + 1)
    y = linalg.inv(y)
    return torch.fft.irfft(torch.fft.rfft(y), n=4)


def warned(**options: Any) -> list[str]:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = randn(3, 4, 4) + 4 * torch.eye(4)
        compiled = torch.compile(two_lines, backend="batch_invariant", options=options)
        torch.testing.assert_close(compiled(x), two_lines(x), rtol=1e-3, atol=1e-3)
    return [str(warning.message) for warning in caught if warning.category is bi_inductor.FallbackWarning]


def test_one_warning_for_each_op_and_line() -> None:
    first, second, transform, back = warned()
    assert "y = linalg.inv(x) + linalg.inv(x + 1)" in first and "y = linalg.inv(y)" in second
    assert "aten._fft_r2c" in transform and "aten._fft_c2r(complex64[3, 4, 3])" in back
    assert "aten.linalg_inv_ex(float32[3, 4, 4])" in first and "one sample at a time" in first
    assert warned(allow=("aten.linalg_inv_ex", "aten._fft_c2r")) == [transform]


def test_a_tolerance_may_be_a_tensor() -> None:
    a = randn(3, 4, 3)
    (out,) = ours(lambda a: torch.pinverse(a, rcond=1e-3), a)
    torch.testing.assert_close(out, torch.pinverse(a, rcond=1e-3))


def test_a_volume_is_sampled_as_if_alone() -> None:
    x, grid = randn(3, 2, 4, 5, 6), randn(3, 2, 3, 4, 3).tanh()

    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    (whole,) = ours(sampled, x, grid)
    torch.testing.assert_close(whole, sampled(x, grid))
    assert_same_bits(ours(sampled, x[1:2], grid[1:2])[0], whole[1:2])


def test_a_product_with_the_reflectors_of_each_sample() -> None:
    a, other = randn(3, 5, 5), randn(3, 5, 4, seed=1)
    reflectors, tau = torch.geqrf(a)
    (out,) = ours(torch.ormqr, reflectors, tau, other)
    torch.testing.assert_close(out, torch.ormqr(reflectors, tau, other))
    (factor,) = ours(torch.cholesky, a @ a.mT + torch.eye(5))
    torch.testing.assert_close(factor, torch.cholesky(a @ a.mT + torch.eye(5)))


def mkl_threads() -> str:
    """The number of threads of MKL in the calling thread, as torch reports it; "" in a build without MKL."""
    return "".join(re.findall(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info()))


def test_a_call_that_ends_leaves_the_single_thread_of_another_call_alone() -> None:
    entered, other_left, found = threading.Event(), threading.Event(), []

    def other() -> None:
        torch.set_num_threads(2)
        with thread_count(1):
            entered.set()
            other_left.wait(60)
            found.append((torch.get_num_threads(), mkl_threads() or "1"))
        found.append((torch.get_num_threads(), mkl_threads() or "2"))

    with thread_count(2):
        thread = threading.Thread(target=other)
        with thread_count(1):
            thread.start()
            assert entered.wait(60)
        assert torch.get_num_threads() == 2
        other_left.set()
        thread.join()
    assert found == [(1, "1"), (2, "2")]


def test_calls_in_several_threads_have_the_bits_of_one_call() -> None:
    batches = [randn(6, 64, 64, seed=seed) + 20 * torch.eye(64) for seed in range(4)]
    expected = [torch.ops.bi_inductor.linalg_inv_ex(a)[0] for a in batches]
    found: list[Tensor | None] = [None] * len(batches)

    def invert(i: int) -> None:
        torch.set_num_threads(i + 1)
        for _ in range(5):
            found[i] = torch.ops.bi_inductor.linalg_inv_ex(batches[i])[0]
            assert torch.get_num_threads() == i + 1

    threads = [threading.Thread(target=invert, args=(i,)) for i in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for given, alone in zip(found, expected, strict=True):
        assert given is not None
        assert_same_bits(given, alone)
