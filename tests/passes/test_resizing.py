"""Resizing and sampling of images and volumes: torch's values and gradients, accuracy, and bits that do not follow the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from tests.passes.eager import ours, stock
from tests.templates.rows import assert_same_bits, randn, relative_error


def antialiased(x: Tensor, mode: str, **arguments: Any) -> Tensor:
    return functional.interpolate(x, mode=mode, antialias=True, **arguments)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_resizing_has_torchs_values(mode: str) -> None:
    x = randn(2, 2, 9, 11).requires_grad_()
    given: list[dict[str, Any]] = [{"size": size} for size in ((4, 5), (13, 7), (1, 1))]
    given += [{"size": (4, 15), "align_corners": True}, {"scale_factor": (0.4, 1.7)}]
    for arguments in given:
        found, expected = (run(lambda x: antialiased(x, mode, **arguments), x) for run in (ours, stock))  # noqa: B023  # called at once
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "zeros"), ("nearest", "border"), ("bilinear", "reflection")])
def test_sampling_of_volumes_has_torchs_values(mode: str, padding: str, align_corners: bool) -> None:
    grid = torch.rand(2, 3, 4, 2, 3, generator=torch.Generator().manual_seed(1)) * 3 - 1.5
    operands = randn(2, 3, 4, 5, 6).requires_grad_(), grid.requires_grad_(mode != "nearest")
    found, expected = (
        run(lambda x, grid: functional.grid_sample(x, grid, mode, padding, align_corners=align_corners), *operands) for run in (ours, stock)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def sampled(x: Tensor) -> Tensor:
    """The volume [n, 2, 3, 6, 8] of a batch [n, 6, 6, 8], sampled where it says itself."""
    volume = x.reshape(-1, 2, 3, *x.shape[2:])
    grid = torch.stack([volume[:, 0].tanh(), volume[:, 1].tanh(), volume[:, 0].sin()], -1)
    return functional.grid_sample(volume, grid, align_corners=False)


SAMPLES: dict[str, Callable[[Tensor], Tensor]] = {
    "antialiased bilinear": lambda x: antialiased(x, "bilinear", size=(4, 13)),
    "antialiased bicubic": lambda x: antialiased(x, "bicubic", size=(9, 3)),
    "volumes": sampled,
    "bicubic": lambda x: functional.interpolate(x, size=(4, 13), mode="bicubic"),
    "trilinear": lambda x: functional.interpolate(x.unsqueeze(1), size=(3, 9, 5), mode="trilinear"),
    "nearest-exact": lambda x: functional.interpolate(x, size=(4, 13), mode="nearest-exact"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_has_its_bits_in_every_batch(name: str) -> None:
    x = randn(5, 6, 6, 8).requires_grad_()
    whole = ours(SAMPLES[name], x)
    for out, expected in zip(whole, stock(SAMPLES[name], x), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    for batch in (slice(0, 1), slice(3, 5)):
        for out, expected in zip(ours(SAMPLES[name], x[batch].detach().requires_grad_()), whole, strict=True):
            assert_same_bits(out, expected[batch])


@pytest.mark.parametrize("name", ["antialiased bilinear", "antialiased bicubic", "volumes"])
def test_accuracy_against_float64(name: str) -> None:
    x = randn(5, 6, 6, 8)
    exact = SAMPLES[name](x.double())
    assert relative_error(ours(SAMPLES[name], x)[0], exact) <= 1.5 * relative_error(SAMPLES[name](x), exact)


def test_low_precision_rounds_once() -> None:
    x = randn(2, 3, 12, 12, dtype=torch.bfloat16)
    exact = antialiased(x.double(), "bilinear", size=(5, 5))
    assert relative_error(ours(lambda x: antialiased(x, "bilinear", size=(5, 5)), x)[0], exact) <= 1.5 * relative_error(
        exact.bfloat16(), exact
    )


def test_compiled_in_one_graph() -> None:
    x = randn(5, 6, 6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(SAMPLES["antialiased bilinear"], backend="batch_invariant")
    whole = compiled(x)
    for m in (1, 2, 3):
        assert_same_bits(compiled(x[:m]), whole[:m], m)
    torch.testing.assert_close(ours(SAMPLES["antialiased bilinear"], x)[0], whole, rtol=1e-6, atol=1e-6)


def test_volumes_are_sampled_by_the_op_s_own_name_too() -> None:
    x, grid = randn(2, 3, 4, 5, 6), randn(2, 3, 4, 2, 3, seed=1).tanh()
    (out,) = ours(lambda x, grid: torch.grid_sampler_3d(x, grid, 0, 0, False), x, grid)
    torch.testing.assert_close(out, torch.grid_sampler_3d(x, grid, 0, 0, False))
