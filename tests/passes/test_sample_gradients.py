"""Gradients as sums over samples, op by op: the graphs after the passes, run with our operators and without compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional as F

import bi_inductor
from bi_inductor.backend import caches_bypassed, compile_graph
from bi_inductor.options import Options
from bi_inductor.passes.post_grad import PostGradPass
from tests.models.test_parameter_gradients import OPS, WIDTH, parameters
from tests.templates.rows import differences, randn

SAMPLES = 7
OPTION = {"sample_gradients": True}


def ops_in_eager(gm: GraphModule, inputs: Sequence[Any], *, options: dict[str, Any]) -> Callable[..., Any]:
    """Our backend up to its last pass."""

    def inner_compile(inner: GraphModule, _: Sequence[Any], **kwargs: Any) -> Any:
        PostGradPass(Options(), "test")(inner.graph)
        inner.recompile()
        return make_boxed_func(inner.forward)

    with caches_bypassed(True, {}):
        return compile_graph(gm, inputs, options=options, inner_compile=inner_compile)


class Op(nn.Module):
    """An op of x [samples, ...] and token ids, with parameters; the loss is a sum over samples."""

    def __init__(self, fn: Callable[..., Tensor], given: Sequence[Tensor]) -> None:
        super().__init__()
        self.fn = fn
        self.given = nn.ParameterList(given)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        out = self.fn(x, ids, *self.given)
        return (out * out.flatten(1).detach().cos().view(out.shape)).sum()


def gradients(model: nn.Module, inputs: Sequence[Tensor], samples: int, options: dict[str, Any] = OPTION) -> list[Tensor]:
    """The gradients of the parameters from micro-batches of so many samples; calls for one model share their graphs."""
    model.zero_grad()
    fn = torch.compile(model, backend=ops_in_eager, dynamic=True, options=options)
    accumulator = bi_inductor.GradientAccumulator(model.parameters(), 1 << (samples - 1).bit_length())
    for parts in zip(*(x.split(samples) for x in inputs), strict=True):
        fn(*parts).backward()
        accumulator.collect()
    accumulator.write()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def inputs() -> list[Tensor]:
    ids = torch.randint(0, 50, (SAMPLES, 33), generator=torch.Generator().manual_seed(5))
    return [randn(SAMPLES, 33, WIDTH, seed=3), ids]


def model_of(name: str) -> Op:
    shapes, op = OPS[name]
    given = parameters()
    # Those that look tokens up take the ids that are split with the batch.
    by_ids: dict[str, Callable[..., Tensor]] = {
        "embedding": lambda x, ids, w: x * F.embedding(ids, w, padding_idx=3),
        "embedding_bag": lambda x, ids, w: F.embedding_bag(ids, w, mode="mean"),
        "indexing": lambda x, ids, w: x * w[ids],
    }
    fn = by_ids.get(name, lambda x, ids, *rest: op(x, *rest))
    return Op(fn, [given[f"{name} {i}"].detach() for i in range(len(shapes))])


# Which token goes to which bag or expert is not to be read from the graph.
REFUSED = {"embedding_bag", "experts"}


@pytest.mark.parametrize("name", sorted(set(OPS) - REFUSED))
def test_micro_batches_change_no_bit(name: str) -> None:
    model = model_of(name)
    whole = gradients(model, inputs(), SAMPLES)
    assert len(whole) == len(list(model.parameters()))
    for samples in (1, 2):
        parts = gradients(model, inputs(), samples)
        assert [differences(a, b) for a, b in zip(parts, whole, strict=True)] == [0] * len(whole), f"micro-batches of {samples}"


def test_without_the_option_bits_change() -> None:
    model = model_of("linear")
    off: dict[str, Any] = {"sample_gradients": False}
    whole, parts = (gradients(model, inputs(), samples, off) for samples in (SAMPLES, 2))
    assert any(differences(a, b) for a, b in zip(parts, whole, strict=True))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_covered_is_refused(name: str) -> None:
    with pytest.raises(Exception, match="option 'sample_gradients' cannot make the gradient"):
        gradients(model_of(name), inputs(), SAMPLES)


def uses_a_parameter_twice(x: Tensor, ids: Tensor, table: Tensor, scale: Tensor, direction: Tensor) -> Tensor:
    """Tied weights, a weight that is made of two, bfloat16, a batch that is not the first dim of a matmul, slices of a parameter."""
    weight = scale * direction / direction.norm(dim=1, keepdim=True)
    hidden = F.linear(F.embedding(ids, table) + x, weight).transpose(0, 1).bfloat16()
    return F.linear(hidden + table[1].bfloat16(), table[:20].bfloat16()).transpose(0, 1).float()


def batch_is_the_second_dim(x: Tensor, ids: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.transpose(0, 1).contiguous(), weight, bias).transpose(0, 1)


@pytest.mark.parametrize("fn", [uses_a_parameter_twice, batch_is_the_second_dim], ids=lambda fn: fn.__name__)
def test_what_follows_the_sum(fn: Callable[..., Tensor]) -> None:
    shapes = {uses_a_parameter_twice: [(50, WIDTH), (WIDTH, 1), (WIDTH, WIDTH)], batch_is_the_second_dim: [(64, WIDTH), (64,)]}[fn]
    model = Op(fn, [randn(*shape, seed=i) for i, shape in enumerate(shapes)])
    whole = gradients(model, inputs(), SAMPLES)
    model.zero_grad()
    model(*inputs()).backward()
    for found, parameter in zip(whole, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, found, rtol=2e-2, atol=2e-1)
    for samples in (1, 4):
        parts = gradients(model, inputs(), samples)
        assert [differences(a, b) for a, b in zip(parts, whole, strict=True)] == [0] * len(whole), f"micro-batches of {samples}"


def penalty(x: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight) + weight.square().sum()


def sorted_samples(x: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x[torch.argsort(x[:, 0, 0])], weight)


def normalised_over_the_batch(x: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
    hidden = F.linear(x, weight)
    return hidden - hidden.mean(0)


@pytest.mark.parametrize("fn", [sorted_samples, normalised_over_the_batch], ids=lambda fn: fn.__name__)
def test_samples_that_meet_are_refused(fn: Callable[..., Tensor]) -> None:
    model = Op(fn, [randn(64, WIDTH)])
    with pytest.raises(Exception, match="option 'sample_gradients' cannot make the gradient"):
        gradients(model, inputs(), SAMPLES)


def test_a_penalty_is_part_of_each_sample_or_refused() -> None:
    """Here it is added to the loss of each sample and so comes as often as there are samples; beside the sum it would be no part of any."""
    model = Op(penalty, [randn(64, WIDTH)])
    whole, parts = (gradients(model, inputs(), samples) for samples in (SAMPLES, 1))
    assert [differences(a, b) for a, b in zip(parts, whole, strict=True)] == [0]

    class Beside(Op):
        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            (weight,) = self.given
            return F.linear(x, weight).sum() + weight.square().sum()

    with pytest.raises(Exception, match="option 'sample_gradients' cannot make the gradient"):
        gradients(Beside(penalty, [randn(64, WIDTH)]), inputs(), SAMPLES)


def test_the_batch_has_to_be_known() -> None:
    model = model_of("linear")
    for dynamic in (False, None):
        torch._dynamo.reset()
        fn = torch.compile(model, backend=ops_in_eager, dynamic=dynamic, options=OPTION)
        with pytest.raises(Exception, match=r"dim 0 of the inputs must be dynamic.*\[7, 33, 48\]"):
            fn(*inputs())
        with torch.no_grad():
            fn(*inputs())
    marked = inputs()
    for x in marked:
        torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.reset()
    torch.compile(model, backend=ops_in_eager, options=OPTION)(*marked)


def test_options_that_take_its_place_are_refused() -> None:
    for options in ({"joint_custom_pre_pass": lambda graph: None}, {"use_joint_graph_passes": False}):
        fn = torch.compile(model_of("linear"), backend="batch_invariant", dynamic=True, options={**OPTION, **options})
        with pytest.raises(bi_inductor.OptionError, match=next(iter(options))):
            fn(*inputs())
