"""One graph or two: a graph break after any op in turn changes no bit, nor does one that Dynamo makes by itself for ctc_loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from tests.templates.rows import assert_same_bits, differences, randn

WIDTH = 24
Pair = tuple[torch.Tensor, torch.Tensor]


def steps(dtype: torch.dtype) -> list[Callable[[torch.Tensor, torch.Tensor], Pair]]:
    """A chain of single ops of every class; each maps a tensor and another that was kept, both [rows, WIDTH] or [rows, 1]."""
    weight, bias = randn(WIDTH, WIDTH, dtype=dtype, seed=1), randn(WIDTH, dtype=dtype, seed=2)
    return [
        lambda x, kept: (x * 1.25, kept),
        lambda x, kept: (x + 0.0, kept),
        lambda x, kept: (functional.linear(x, weight, bias), kept),
        lambda x, kept: (-x, kept),
        lambda x, kept: (functional.gelu(x), kept),
        lambda x, kept: (functional.layer_norm(x, [WIDTH], weight[0], bias), kept),
        lambda x, kept: (torch.sigmoid(x), x),
        lambda x, kept: (x * kept, kept),
        lambda x, kept: (x.mean(-1, keepdim=True), x),
        lambda x, kept: (kept - x, kept),
        lambda x, kept: (x @ weight, x),
        lambda x, kept: (x * -0.0, kept),
        lambda x, kept: (x, kept / 3),
        lambda x, kept: (x + kept, kept),
        lambda x, kept: (torch.softmax(x, -1), x),
        lambda x, kept: (x, kept * kept),
        lambda x, kept: (x, kept.sum(-1, keepdim=True)),
        lambda x, kept: (x + kept, kept),
    ]


def inputs(dtype: torch.dtype) -> torch.Tensor:
    """Rows with -0.0 and NaN among them."""
    x = randn(6, WIDTH, dtype=dtype)
    x[1, 3], x[2, 4], x[3] = -0.0, float("nan"), -0.0
    return x


DTYPES = (torch.float32, torch.bfloat16)


def test_a_break_after_any_op() -> None:
    chains = [steps(dtype) for dtype in DTYPES]
    length = len(chains[0])

    def run(xs: list[torch.Tensor], breaks: tuple[int, ...]) -> list[torch.Tensor]:
        pairs = [(x, x) for x in xs]
        for i in range(length):
            pairs = [chain[i](*pair) for chain, pair in zip(chains, pairs, strict=True)]
            if i in breaks:
                torch._dynamo.graph_break()
        return [x for x, _ in pairs]

    xs = [inputs(dtype) for dtype in DTYPES]
    with torch._dynamo.config.patch(recompile_limit=64), torch.no_grad():
        fn = torch.compile(run, backend="batch_invariant", dynamic=False)
        fused = fn(xs, ())
        assert all(0 < int(x.isnan().sum()) < x.numel() for x in fused)
        for breaks in [*((i,) for i in range(length - 1)), tuple(range(length))]:
            for dtype, result, expected in zip(DTYPES, fn(xs, breaks), fused, strict=True):
                assert_same_bits(result, expected, f"{dtype}, a break after {breaks}")


def test_stock_differs_in_bfloat16() -> None:
    chain = steps(torch.bfloat16)[3:10]
    x = inputs(torch.bfloat16)

    def fused(x: torch.Tensor) -> torch.Tensor:
        pair = x, x
        for step in chain:
            pair = step(*pair)
        return pair[0]

    whole = torch.compile(fused, backend="inductor")(x)
    pair = x, x
    for step in chain:
        pair = torch.compile(step, backend="inductor")(*pair)
    assert differences(pair[0], whole) > 0


def test_ctc_loss_between_two_graphs() -> None:
    """Dynamo leaves it to eager, as the size of a result follows its lengths. torch's kernel takes one sample after the other."""
    samples, steps_of_input, classes = 8, 30, 12
    weight = randn(classes, WIDTH, seed=1)
    x = randn(steps_of_input, samples, WIDTH)
    targets = torch.randint(1, classes, (samples, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 4, 1, 7, 9, 2, 5, 3])
    input_lengths = torch.tensor([30, 30, 28, 21, 30, 25, 19, 30])

    def loss(x: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        scores = functional.linear(x, weight).log_softmax(-1)
        return functional.ctc_loss(scores, targets, input_lengths, lengths, reduction="none") * 0.5

    fn = torch.compile(loss, backend="batch_invariant", dynamic=True)

    def run(rows: list[int]) -> Pair:
        own = x[:, rows].clone().requires_grad_()
        losses = fn(own, targets[rows], input_lengths[rows], lengths[rows])
        losses.sum().backward()
        assert own.grad is not None
        return losses.detach(), own.grad.transpose(0, 1)

    whole = run(list(range(samples)))
    assert whole[0].isfinite().all() and whole[1].isfinite().all()
    for rows in ([0], [3], [7], [5, 2], [6, 0, 3, 1, 7]):
        for result, expected, what in zip(run(rows), whole, ("loss", "gradient"), strict=True):
            assert_same_bits(result, expected[rows], f"{what} of samples {rows}")
