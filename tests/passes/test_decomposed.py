"""Ops made of others: the graph they become, torch's values and gradients, and bits that do not follow the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bi_inductor  # noqa: F401  # defines torch.ops.bi_inductor
from tests.passes.eager import ours, stock
from tests.passes.test_rewrite import f32, rewritten
from tests.templates.rows import assert_same_bits, randn, relative_error

SUM, MEAN, MAX = "sum", "mean", "max"


def test_transposed_convolution() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, w: functional.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1), f32(2, 4, 5), f32(4, 3, 3)),
        """\
inference
  arg0_1: float32[2, 4, 5]
  arg1_1: float32[4, 3, 3]
  full = aten.full.default([2, 4, 9], 0, dtype=torch.float32, layout=torch.strided, device=cpu, pin_memory=False) -> float32[2, 4, 9]
  slice_scatter = aten.slice_scatter.default(full, arg0_1, 2, 0, 9, 2) -> float32[2, 4, 9]
  view = aten.view.default(arg1_1, [1, 4, 3, 3]) -> float32[1, 4, 3, 3]
  permute = aten.permute.default(view, [0, 2, 1, 3]) -> float32[1, 3, 4, 3]
  view_1 = aten.view.default(permute, [3, 4, 3]) -> float32[3, 4, 3]
  rev = prims.rev.default(view_1, [2]) -> float32[3, 4, 3]
  constant_pad_nd = aten.constant_pad_nd.default(slice_scatter, [1, 2], 0.0) -> float32[2, 4, 12]
  convolution = bi_inductor.convolution.default(constant_pad_nd, rev, None, [1], [0, 0], [1], 1) -> float32[2, 3, 10]
  return (convolution,)""",
    )


def test_distances_and_products_over_a_batch() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda x, y, bias: (torch.cdist(x, y), torch.addbmm(bias, x, y.mT, beta=0.5)), f32(2, 3, 4), f32(2, 5, 4), f32(3, 5)),
        """\
inference
  arg0_1: float32[2, 3, 4]
  arg1_1: float32[2, 5, 4]
  arg2_1: float32[3, 5]
  expand = aten.expand.default(arg0_1, [2, 3, 4]) -> float32[2, 3, 4]
  expand_1 = aten.expand.default(arg1_1, [2, 5, 4]) -> float32[2, 5, 4]
  unsqueeze = aten.unsqueeze.default(expand, -2) -> float32[2, 3, 1, 4]
  unsqueeze_1 = aten.unsqueeze.default(expand_1, -3) -> float32[2, 1, 5, 4]
  sub = aten.sub.Tensor(unsqueeze, unsqueeze_1) -> float32[2, 3, 5, 4]
  abs_1 = aten.abs.default(sub) -> float32[2, 3, 5, 4]
  mul = aten.mul.Tensor(abs_1, abs_1) -> float32[2, 3, 5, 4]
- sum_1 = aten.sum.dim_IntList(mul, [-1]) -> float32[2, 3, 5]
+ sum_default = bi_inductor.sum.default(mul, [-1], False) -> float32[2, 3, 5]
- sqrt = aten.sqrt.default(sum_1) -> float32[2, 3, 5]
+ sqrt = aten.sqrt.default(sum_default) -> float32[2, 3, 5]
  permute = aten.permute.default(arg1_1, [0, 2, 1]) -> float32[2, 4, 5]
  permute_1 = aten.permute.default(arg0_1, [1, 0, 2]) -> float32[3, 2, 4]
  clone = aten.clone.default(permute_1, memory_format=torch.contiguous_format) -> float32[3, 2, 4]
  view = aten.view.default(clone, [3, 8]) -> float32[3, 8]
  clone_1 = aten.clone.default(permute, memory_format=torch.contiguous_format) -> float32[2, 4, 5]
  view_1 = aten.view.default(clone_1, [8, 5]) -> float32[8, 5]
- addmm = aten.addmm.default(arg2_1, view, view_1, beta=0.5) -> float32[3, 5]
- return (sqrt, addmm)
+ matmul_default = bi_inductor.matmul.default(view, view_1, arg2_1, 1.0, 0.5) -> float32[3, 5]
+ return (sqrt, matmul_default)""",
    )


def test_bilinear() -> None:
    expecttest.assert_expected_inline(
        rewritten(functional.bilinear, f32(2, 4), f32(2, 5), f32(3, 4, 5), f32(3)),
        """\
inference
  arg0_1: float32[2, 4]
  arg1_1: float32[2, 5]
  arg2_1: float32[3, 4, 5]
  arg3_1: float32[3]
  view = aten.view.default(arg0_1, [-1, 4]) -> float32[2, 4]
  view_1 = aten.view.default(arg1_1, [-1, 5, 1]) -> float32[2, 5, 1]
  permute = aten.permute.default(arg2_1, [1, 0, 2]) -> float32[4, 3, 5]
  clone = aten.clone.default(permute, memory_format=torch.contiguous_format) -> float32[4, 3, 5]
  view_2 = aten.view.default(clone, [4, 15]) -> float32[4, 15]
  matmul = bi_inductor.matmul.default(view, view_2) -> float32[2, 15]
  view_3 = aten.view.default(matmul, [-1, 3, 5]) -> float32[2, 3, 5]
  unsqueeze = aten.unsqueeze.default(arg3_1, -1) -> float32[3, 1]
  matmul_1 = bi_inductor.matmul.default(view_3, view_1, unsqueeze) -> float32[2, 3, 1]
  view_4 = aten.view.default(matmul_1, [2, 3]) -> float32[2, 3]
  return (view_4,)""",
    )


def test_bags_of_embeddings() -> None:
    expecttest.assert_expected_inline(
        rewritten(lambda weight, index: functional.embedding_bag(index, weight), f32(5, 3), torch.tensor([[0, 2], [2, 1]])),
        """\
inference
  arg0_1: float32[5, 3]
  arg1_1: int64[2, 2]
  iota = prims.iota.default(2, start=0, step=2, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[2]
  view = aten.view.default(arg1_1, [-1]) -> int64[4]
  slice_1 = aten.slice.Tensor(iota, 0, 0, 2) -> int64[2]
  iota_1 = prims.iota.default(4, start=0, step=1, dtype=torch.int64, device=cpu, requires_grad=False) -> int64[4]
  searchsorted = aten.searchsorted.Tensor(slice_1, iota_1, right=True) -> int64[4]
  sub = aten.sub.Tensor(searchsorted, 1) -> int64[4]
  embedding = aten.embedding.default(arg0_1, view) -> float32[4, 3]
  full = aten.full.default([3], 0, dtype=torch.int64, layout=torch.strided, device=cpu, pin_memory=False) -> int64[3]
  full_1 = aten.full.default([4], 1, dtype=torch.int64, layout=torch.strided, device=cpu, pin_memory=False) -> int64[4]
  index_put = aten.index_put.default(full, [sub], full_1, True) -> int64[3]
  slice_2 = aten.slice.Tensor(index_put, 0, 0, 2) -> int64[2]
  full_3 = aten.full.default([3, 3], 0, dtype=torch.float32, layout=torch.strided, device=cpu, pin_memory=False) -> float32[3, 3]
- index_put_1 = aten.index_put.default(full_3, [sub], embedding, True) -> float32[3, 3]
+ lt_scalar = aten.lt.Scalar(sub, 0) -> bool[4]
+ add_tensor = aten.add.Tensor(sub, 3) -> int64[4]
+ where_self = aten.where.self(lt_scalar, add_tensor, sub) -> int64[4]
+ expand_default = aten.expand.default(embedding, [4, 3]) -> float32[4, 3]
+ reshape_default = aten.reshape.default(expand_default, [4, 3]) -> float32[4, 3]
+ reshape_default_1 = aten.reshape.default(full_3, [3, 3]) -> float32[3, 3]
+ reshape_default_2 = aten.reshape.default(where_self, [4]) -> int64[4]
+ scatter_default = bi_inductor.scatter.default(reshape_default_1, 0, reshape_default_2, reshape_default, sum, True) -> float32[3, 3]
+ reshape_default_3 = aten.reshape.default(scatter_default, [3, 3]) -> float32[3, 3]
- slice_3 = aten.slice.Tensor(index_put_1, 0, 0, 2) -> float32[2, 3]
+ slice_3 = aten.slice.Tensor(reshape_default_3, 0, 0, 2) -> float32[2, 3]
  clamp_min = aten.clamp_min.default(slice_2, 1) -> int64[2]
  unsqueeze = aten.unsqueeze.default(clamp_min, 1) -> int64[2, 1]
  convert_element_type = prims.convert_element_type.default(unsqueeze, torch.float32) -> float32[2, 1]
  div = aten.div.Tensor(slice_3, convert_element_type) -> float32[2, 3]
  return (div,)""",
    )


def assert_as_torch(fn: Callable[..., Any], *args: Tensor) -> None:
    for given, expected in zip(ours(fn, *args), stock(fn, *args), strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)


CONVOLUTIONS = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


@pytest.mark.parametrize(
    ("dims", "stride", "padding", "output_padding", "groups", "dilation", "bias"),
    [
        (1, 1, 2, 0, 1, 1, True),
        (1, 3, 0, 2, 2, 2, False),
        (2, 2, 1, 1, 1, 1, True),
        (2, (1, 3), (0, 4), (0, 1), 4, (2, 1), True),
        (3, 2, 1, 1, 2, 1, False),
    ],
)
def test_transposed_convolution_has_torchs_values(
    dims: int, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any, bias: bool
) -> None:
    x, weight = randn(2, 4, *(5, 4, 3)[:dims]).requires_grad_(), randn(4, 8 // groups, *(3, 2, 2)[:dims], seed=1).requires_grad_()
    operands = (randn(8, seed=2).requires_grad_(),) if bias else ()

    def fn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        return CONVOLUTIONS[dims](x, weight, bias, stride, padding, output_padding, groups, dilation)

    assert_as_torch(fn, x, weight, *operands)
    assert_as_torch(lambda x, weight: fn(x[0], weight), x, weight)


FORWARD = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}

# dims, stride, padding, dilation, groups of 8 channels; 8 is depthwise.
CONVOLVED: dict[str, tuple[int, Any, Any, Any, int]] = {
    "1d dilated": (1, 1, "same", 3, 1),
    "1d depthwise": (1, 2, 1, 1, 8),
    "2d": (2, (2, 1), (1, 2), 1, 1),
    "2d grouped and dilated": (2, 1, 2, (2, 1), 4),
    "2d depthwise": (2, 2, 1, 1, 8),
    "3d": (3, 1, "same", 1, 1),
    "3d depthwise": (3, (1, 2, 1), 1, 1, 8),
}


def convolution_of(name: str) -> tuple[Any, tuple[Tensor, ...]]:
    """A convolution, and five samples, weight and bias for it."""
    dims, stride, padding, dilation, groups = CONVOLVED[name]

    def fn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return FORWARD[dims](x, weight, bias, stride, padding, dilation, groups)

    x, weight = randn(5, 8, *(9, 7, 5)[:dims]), randn(16, 8 // groups, *(3, 3, 2)[:dims], seed=1)
    return fn, tuple(operand.requires_grad_() for operand in (x, weight, randn(16, seed=2)))


@pytest.mark.parametrize("name", CONVOLVED)
def test_convolution_has_torchs_values_its_accuracy_and_its_bits_in_every_batch(name: str) -> None:
    fn, (x, weight, bias) = convolution_of(name)
    whole, expected = ours(fn, x, weight, bias), stock(fn, x, weight, bias)
    exact = stock(fn, *(operand.detach().double().requires_grad_() for operand in (x, weight, bias)))
    for given, torchs, reference in zip(whole, expected, exact, strict=True):
        torch.testing.assert_close(given, torchs, rtol=1e-4, atol=1e-3)
        # 1e-7: sums of few terms are exact to the last bit in either.
        assert relative_error(given, reference) <= max(1.5 * relative_error(torchs, reference), 1e-7)
    for batch in (slice(0, 1), slice(1, 3), slice(2, 5)):
        out, grad, *_ = ours(fn, x[batch].detach().requires_grad_(), weight, bias)
        assert_same_bits(out, whole[0][batch], batch)
        assert_same_bits(grad, whole[1][batch], batch)


@pytest.mark.parametrize("name", CONVOLVED)
def test_a_convolution_has_the_same_bits_with_and_without_gradients(name: str) -> None:
    # One operator without them, patches and a matmul with them.
    fn, operands = convolution_of(name)
    (without,) = ours(fn, *(operand.detach() for operand in operands))
    assert_same_bits(without, ours(fn, *operands)[0])


LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": lambda x, t, _: functional.cross_entropy(x, t, reduction="none"),
    "smoothed": lambda x, t, p: functional.cross_entropy(x, t, weight=p[0], label_smoothing=0.1, reduction="none"),
    "probabilities": lambda x, t, p: functional.cross_entropy(x, p, reduction="none"),
    "images": lambda x, t, _: functional.cross_entropy(x.unsqueeze(-1).expand(-1, -1, 3), t.unsqueeze(-1).expand(-1, 3), reduction="none"),
    "nll": lambda x, t, p: functional.nll_loss(x.log_softmax(-1), t, weight=p[0], reduction="none"),
    "kl": lambda x, t, p: functional.kl_div(x.log_softmax(-1), p, reduction="none").sum(-1),
    "kl of logarithms": lambda x, t, p: functional.kl_div(x.log_softmax(-1), p.log(), log_target=True, reduction="none").mean(-1),
    "binary": lambda x, t, p: functional.binary_cross_entropy_with_logits(x, p, pos_weight=p[0], reduction="none").sum(-1),
    "huber": lambda x, t, p: functional.huber_loss(x, p, reduction="none").mean(-1),
    "cosine": lambda x, t, p: functional.cosine_embedding_loss(x, p, torch.ones(len(x)), reduction="none"),
    "triplet": lambda x, t, p: functional.triplet_margin_loss(x, p, p + 1, reduction="none"),
    "margin": lambda x, t, _: functional.multi_margin_loss(x, t.clamp(min=0), reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_torchs_values_and_its_bits_in_every_batch(name: str) -> None:
    # Whole vectors: torch's pointwise kernels, which run here, have another tail.
    x, p = randn(9, 256).requires_grad_(), randn(9, 256, seed=1).softmax(-1)
    t = torch.tensor([0, 3, 6, -100, 2, 250, 5, 255, 0])
    # The first sample's probabilities serve as weights of classes: every batch starts with it.
    whole, expected = ours(LOSSES[name], x, t, p), stock(LOSSES[name], x, t, p)
    for given, torchs in zip(whole, expected, strict=True):
        torch.testing.assert_close(given, torchs, rtol=1e-4, atol=1e-5)
    for count in (1, 2, 5):
        for given, all_samples in zip(ours(LOSSES[name], x[:count].detach().requires_grad_(), t[:count], p[:count]), whole, strict=True):
            assert_same_bits(given, all_samples[:count], count)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_distances_have_torchs_values(p: float) -> None:
    x, y = randn(2, 3, 4), randn(5, 4, seed=1)
    y[0] = x[0, 0]
    assert_as_torch(lambda x, y: torch.cdist(x, y, p=p), x.requires_grad_(p > 0), y.requires_grad_(p > 0))


def test_the_number_of_points_chooses_no_kernel() -> None:
    x, y = randn(40, 8), randn(40, 8, seed=1)
    for mode in ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"):
        (whole,) = ours(lambda x, y: torch.cdist(x, y, compute_mode=mode), x, y)  # noqa: B023  # called at once
        (few,) = ours(lambda x, y: torch.cdist(x, y, compute_mode=mode), x[:2], y[:3])  # noqa: B023
        assert_same_bits(few, whole[:2, :3], mode)
    assert not torch.equal(torch.cdist(x, y)[:2, :3], torch.cdist(x[:2], y[:3])), "torch takes a matmul for many points"


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize(("padding", "last"), [(None, False), (-5, True)])
def test_bags_have_torchs_values(mode: str, padding: int | None, last: bool) -> None:
    index, offsets = torch.tensor([0, 2, 2, 5, 6, 1, 6, 2]), torch.tensor([0, 3, 3, 7, 8] if last else [0, 3, 3, 7])
    weight, factors = randn(7, 3).requires_grad_(), randn(8, seed=1).requires_grad_()

    def fn(weight: Tensor, index: Tensor, offsets: Tensor, factors: Tensor | None = None) -> Any:
        return functional.embedding_bag(
            index, weight, offsets, mode=mode, per_sample_weights=factors, include_last_offset=last, padding_idx=padding
        )

    assert_as_torch(fn, weight, index, offsets, *([factors] if mode == SUM else []))


@pytest.mark.parametrize(("mode", "padding"), [("bilinear", "zeros"), ("nearest", "border"), ("bilinear", "reflection")])
def test_sampling_has_torchs_values(mode: str, padding: str) -> None:
    grid = torch.rand(2, 4, 3, 2, generator=torch.Generator().manual_seed(1)) * 3 - 1.5
    operands = randn(2, 3, 5, 6).requires_grad_(), grid.requires_grad_(mode != "nearest")
    assert_as_torch(lambda x, grid: functional.grid_sample(x, grid, mode, padding, align_corners=False), *operands)


def sampled(x: Tensor) -> Tensor:
    return functional.grid_sample(x, torch.stack([x[:, 0].tanh(), x[:, 1].tanh()], -1), align_corners=True)


# A function of a batch [n, 6, 8, 8] and of parameters that no sample owns, with their shapes.
SAMPLES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "transposed convolution": (lambda x, weight: functional.conv_transpose2d(x, weight, stride=2, padding=1), (6, 5, 3, 3)),
    "bilinear": (lambda x, weight: functional.bilinear(x[:, 0], x[:, 1], weight), (7, 8, 8)),
    "distances": (lambda x, points: torch.cdist(x[:, 0], points), (30, 8)),
    "distances by 3": (lambda x, points: torch.cdist(x[:, 0], points, p=3.0), (30, 8)),
    "bags": (lambda x, w: functional.embedding_bag((x[:, 0].abs() * 4).long().clamp(max=8).flatten(1), w, mode="mean"), (9, 8)),
    "sampling": (lambda x, _: sampled(x), (1,)),
    "reflected padding": (lambda x, _: functional.pad(x, (3, 2, 1, 4), mode="reflect"), (1,)),
}


def test_distances_by_another_power_have_their_bits_in_every_batch() -> None:
    """Compiled: torch's own ``pow`` follows the place of an element on CPUs with AVX512."""

    def distances(x: Tensor, points: Tensor) -> Tensor:
        return torch.cdist(x[:, 0], points, p=3.0)

    run = torch.compile(distances, backend="batch_invariant", dynamic=True)
    x, points = randn(5, 6, 8, 8), randn(30, 8, seed=1)
    results = []
    for batch in (slice(0, 5), slice(0, 1), slice(3, 5)):
        part = x[batch].detach().requires_grad_()
        out = run(part, points)
        (gradient,) = torch.autograd.grad(out.square().sum(), part)
        results.append((batch, out.detach(), gradient))
    (_, whole, gradients), *others = results
    torch.testing.assert_close(whole, distances(x, points), rtol=1e-4, atol=1e-4)
    for batch, out, gradient in others:
        assert_same_bits(out, whole[batch], batch)
        assert_same_bits(gradient, gradients[batch], batch)


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"distances by 3"}))
def test_a_sample_has_its_bits_in_every_batch(name: str) -> None:
    fn, shape = SAMPLES[name]
    x, parameter = randn(5, 6, 8, 8).requires_grad_(name != "bags"), randn(*shape, seed=1)
    whole = ours(fn, x, parameter)
    for out, expected in zip(whole, stock(fn, x, parameter), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    for batch in (slice(0, 1), slice(3, 5)):
        for out, expected in zip(ours(fn, x[batch].detach().requires_grad_(x.requires_grad), parameter), whole, strict=True):
            assert_same_bits(out, expected[batch])


@pytest.mark.parametrize("name", ["transposed convolution", "bilinear", "distances", "distances by 3"])
def test_accuracy_against_float64(name: str) -> None:
    fn, shape = SAMPLES[name]
    operands = randn(5, 6, 8, 8), randn(*shape, seed=1)
    exact = fn(*(operand.double() for operand in operands))
    assert relative_error(ours(fn, *operands)[0], exact) <= 1.5 * relative_error(fn(*operands), exact)


def test_compiled_in_one_graph() -> None:
    """Forward and backward with a dynamic batch: the values that op by op has, and a sample's bits in two batches."""

    def fn(x: Tensor, weight: Tensor, points: Tensor) -> Tensor:
        parts = [
            functional.conv_transpose1d(functional.avg_pool1d(x, 3, 2, 1, ceil_mode=True), weight, stride=2, padding=1),
            functional.adaptive_avg_pool1d(x, 3),
            functional.adaptive_max_pool1d(x, 3),
            torch.cdist(x, points),
            x.cumprod(-1) + x.logcumsumexp(1),
        ]
        return torch.cat([part.flatten(1) for part in parts], 1)

    x, parameters = randn(5, 6, 8), (randn(6, 5, 3, seed=1), randn(9, 8, seed=2))
    compiled = torch.compile(fn, backend="batch_invariant", dynamic=True)
    whole = stock(compiled, x.requires_grad_(), *parameters)
    for out, expected in zip(whole, ours(fn, x, *parameters), strict=True):
        torch.testing.assert_close(out, expected)
    for out, expected in zip(stock(compiled, x[3:].detach().requires_grad_(), *parameters), whole, strict=True):
        assert_same_bits(out, expected[3:])
