"""Gradients of parameters: the same bits on any number of threads and in every run, for every op that has a parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bi_inductor.settings import thread_count
from tests.templates.rows import THREADS, differences, randn

SAMPLES, LENGTH, WIDTH = 8, 33, 48

Parameters = dict[str, Tensor]


def tokens() -> Tensor:
    return torch.randint(0, 50, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(5))


def experts(x: Tensor, weight: Tensor) -> Tensor:
    """The first rows to the first expert, the rest to the third, in the one dtype that torch has this op for."""
    ends = torch.tensor([100, 100, SAMPLES * LENGTH], dtype=torch.int32)
    return F.grouped_mm(x.flatten(0, 1).bfloat16(), weight.bfloat16(), offs=ends).float()


# Of x [samples, length, width] and the parameters: shapes, and the op.
OPS: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[..., Tensor]]] = {
    "linear": (((64, WIDTH), (64,)), F.linear),
    "matmul": (((WIDTH, 64),), torch.matmul),
    "bilinear": (((4, WIDTH, WIDTH), (4,)), lambda x, w, b: F.bilinear(x, x, w, b)),
    "layer_norm": (((WIDTH,), (WIDTH,)), lambda x, w, b: F.layer_norm(x, [WIDTH], w, b)),
    "rms_norm": (((WIDTH,),), lambda x, w: F.rms_norm(x, [WIDTH], w)),
    "group_norm": (((LENGTH,), (LENGTH,)), lambda x, w, b: F.group_norm(x, 3, w, b)),
    "conv1d": (((12, LENGTH, 3), (12,)), lambda x, w, b: F.conv1d(x, w, b, padding=1)),
    "conv2d of groups": (((6, 11, 3, 3), (6,)), lambda x, w, b: F.conv2d(x.unflatten(2, (6, 8)), w, b, padding=1, groups=3)),
    "conv_transpose1d": (((LENGTH, 5, 3), (5,)), lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2)),
    "embedding": (((50, WIDTH),), lambda x, w: x * F.embedding(tokens(), w, padding_idx=3)),
    "embedding_bag": (((50, WIDTH),), lambda x, w: F.embedding_bag(tokens(), w, mode="mean")),
    "indexing": (((50, WIDTH),), lambda x, w: x * w[tokens()]),
    "attention with a mask": (
        ((1, LENGTH, LENGTH),),
        lambda x, mask: F.scaled_dot_product_attention(x, x, x, mask),
    ),
    "experts": (((3, WIDTH, 24),), experts),
    "broadcast": (((WIDTH,), (LENGTH, 1)), lambda x, a, b: x * a + b),
    "prelu": (((LENGTH,),), F.prelu),
    "cdist": (((20, WIDTH),), torch.cdist),
}


def parameters() -> Parameters:
    return {
        f"{name} {i}": randn(*shape, seed=7 * i + len(name)).mul(0.3).requires_grad_()
        for name, (shapes, _) in OPS.items()
        for i, shape in enumerate(shapes)
    }


def results(x: Tensor, given: Parameters) -> dict[str, Tensor]:
    return {name: op(x, *(given[f"{name} {i}"] for i in range(len(shapes)))) for name, (shapes, op) in OPS.items()}


def gradients(fn: Callable[[Tensor, Parameters], dict[str, Tensor]], threads: int) -> Parameters:
    """The gradient of each parameter, for fixed gradients of the results."""
    given = parameters()
    with thread_count(threads):
        out = fn(randn(SAMPLES, LENGTH, WIDTH, seed=3), given)
        grads = [torch.arange(value.numel()).cos().to(value.dtype).view(value.shape) for value in out.values()]
        found = torch.autograd.grad(list(out.values()), list(given.values()), grads)
    return dict(zip(given, found, strict=True))


def varying(fn: Callable[[Tensor, Parameters], dict[str, Tensor]]) -> set[str]:
    first = gradients(fn, THREADS[0])
    return {name for threads in THREADS for name, found in gradients(fn, threads).items() if differences(found, first[name])}


def test_parameter_gradients_on_any_number_of_threads() -> None:
    compiled = torch.compile(results, backend="batch_invariant", options={"cpp.dynamic_threads": True})
    assert varying(compiled) == set()
    ours, eager = gradients(compiled, 1), gradients(results, 1)
    for name, exact in eager.items():
        tolerance = 2e-2 if name.startswith("experts") else 1e-3
        torch.testing.assert_close(ours[name], exact, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


def test_stock_varies() -> None:
    if not varying(results):
        pytest.skip("on this machine torch's own kernels add in one order on any number of threads")
