"""Padding with the nearest element: torch's gradients, accuracy, and bits that do not follow the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from bi_inductor.errors import UnsupportedOpError
from tests.passes.eager import ours, stock
from tests.templates.rows import assert_same_bits, randn, relative_error

PADDINGS = [(2, 3), (0, 4), (-1, 2), (2, 1, 3, 0), (-2, 1, 3, -1), (1, 2, 0, 3, 2, 1)]


def padded(x: Tensor, padding: tuple[int, ...]) -> Tensor:
    return functional.pad(x, padding, mode="replicate")


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_torchs_gradients(padding: tuple[int, ...], batch: bool) -> None:
    x = randn(*([2] if batch else []), 3, *(4, 5, 6)[: len(padding) // 2]).requires_grad_()
    found, expected = (run(lambda x: padded(x, padding), x) for run in (ours, stock))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padding", [(40, 50), (9, 8, 7, 30)], ids=str)
def test_a_sample_has_its_bits_in_every_batch(padding: tuple[int, ...], dtype: torch.dtype) -> None:
    x = randn(8, 3, *(4, 5)[: len(padding) // 2]).to(dtype)
    _, whole = ours(lambda x: padded(x, padding), x.requires_grad_())
    for rows in (slice(0, 1), slice(5, 6), slice(2, 5), slice(0, 8)):
        assert_same_bits(ours(lambda x: padded(x, padding), x[rows].detach().requires_grad_())[1], whole[rows])
    exact = stock(lambda x: padded(x, padding), x.detach().double().requires_grad_())[1]
    assert relative_error(whole, exact) < {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]


def test_compiled() -> None:
    x = randn(3, 2, 4, 5).requires_grad_()
    model = torch.compile(lambda x: padded(x, (2, 1, 3, 0)).square().sum((1, 2, 3)), backend="batch_invariant")
    (whole,) = torch.autograd.grad(model(x).sum(), x)
    row = x[1:2].detach().requires_grad_()
    (alone,) = torch.autograd.grad(model(row).sum(), row)
    assert_same_bits(alone, whole[1:2])
    torch.testing.assert_close(whole, torch.autograd.grad(padded(x, (2, 1, 3, 0)).square().sum(), x)[0])


def test_complex_numbers_are_refused() -> None:
    x = torch.complex(randn(2, 3, 4), randn(2, 3, 4)).requires_grad_()
    with pytest.raises(UnsupportedOpError, match="replication_pad1d_backward"):
        torch.compile(lambda x: padded(x, (1, 2)).abs(), backend="batch_invariant")(x).sum().backward()
