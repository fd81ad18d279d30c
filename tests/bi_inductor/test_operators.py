"""``torch.ops.bi_inductor.*`` as torch.library sees them: schema, fake, autograd and tracing, in every dtype and layout; and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

import bi_inductor  # noqa: F401  # defines the operators
from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS
from tests.templates.rows import DTYPES, randn

ops = torch.ops.bi_inductor
Arguments = tuple[Any, ...]

# In gradients of their callers only, or for inference; they have no gradient of their own.
WITHOUT_GRADIENT = {
    "attention_lse",
    "cumprod",
    "embedding_backward",
    "group_norm_statistics",
    "grouped_matmul",
    "layer_norm_statistics",
    "logcumsumexp",
    "mean_square_norm",
    "paged_attention",
    "rms_norm_statistics",
    "scaled_matmul",
    "scatter",
}

# They take and give integers.
OF_INTEGERS = {"philox"}

# tests/templates/test_native_matmul.py has those, which run on some CPUs only.
OF_BFLOAT16 = {"native_matmul", "native_grouped_matmul"}


def attention_calls(q: Tensor, k: Tensor, v: Tensor) -> list[Arguments]:
    length, keys = q.shape[2], k.shape[2]
    boolean = torch.ones(length, keys, dtype=torch.bool).tril()
    additive = randn(q.shape[0], 1, length, keys, dtype=q.dtype, seed=7)
    return [(q, k, v), (q, k, v, None, True), (q, k, v, boolean, False, 0.5), (q, k, v, additive)]


def calls(name: str, dtype: torch.dtype) -> list[Arguments]:
    """Arguments of an operator: each of its forms, and an empty tensor."""

    def t(*shape: int, seed: int = 0) -> Tensor:
        return randn(*shape, dtype=dtype, seed=seed)

    if name == "matmul":
        a, b, bias = t(3, 4), t(4, 5, seed=1), t(5, seed=2)
        return [
            (a, b),
            (a, b, bias),
            (a, b, bias, 0.5, 2.0),
            (a, b, t(3, 1, seed=2), 1.0, 0.0),
            (t(2, 3, 4), t(2, 4, 5, seed=1), t(2, 1, 5, seed=2)),
            (t(0, 4), b, bias),
            (t(3, 0), t(0, 5), bias),
            (t(0, 3, 4), t(0, 4, 5)),
        ]
    if name == "convolution":
        return [
            (t(2, 2, 5), t(4, 2, 3, seed=1), t(4, seed=2), [2], [1, 0], [1], 1),
            (t(2, 4, 4, 3), t(4, 2, 2, 2, seed=1), None, [1, 2], [0, 0, 1, 1], [2, 1], 2),
            (t(1, 1, 3, 2, 2), t(2, 1, 2, 1, 2, seed=1), t(2, seed=2), [1, 1, 1], [0, 1, 0, 0, 0, 0], [1, 1, 1], 1),
            (t(0, 2, 5), t(4, 2, 3, seed=1), t(4, seed=2), [1], [0, 0], [1], 1),
        ]
    if name in ("sum", "mean", "prod"):
        return [(t(3, 4, 5), [1]), (t(3, 4), [], True), (t(3, 4, 5), [-1, 0], True), (t(), []), (t(0, 4), [1]), (t(3, 0), [1])]
    if name in ("var", "std"):
        return [(t(3, 4, 5), [1]), (t(3, 4), [], True, 0.0), (t(3, 4, 5), [0, 2], False, 2.0), (t(0, 4), [1])]
    if name == "sample_sum":
        return [(t(5, 3, 4),), (t(1, 4),), (t(4),), (t(0, 4),), (t(3, 0),)]
    if name == "grouped_matmul":
        ends = torch.tensor([1, 1, 4])
        return [(t(4, 5), t(3, 5, 6, seed=1), ends), (t(3, 6, 5), t(5, 4, seed=1), ends.int()), (t(6, 4), t(4, 5, seed=1), ends)]
    if name == "scaled_matmul":
        # opcheck cannot compare float8; tests/passes/test_quantized.py has those.
        weight = torch.tensor([[-128, 3, 127, 0, 1]] * 4, dtype=torch.int8)
        return [
            (t(3, 4), weight, dtype, None, t(5)),
            (t(3, 4), weight, dtype, randn(3, 1), randn(1, 5, seed=1), t(5)),
            (t(3, 4), weight, dtype, torch.tensor(0.5), torch.tensor([2.0])),
            (weight.t(), weight, torch.int32),
            (t(0, 4), weight, dtype, None, t(5)),
            (t(3, 0), weight[:0], dtype, None, t(5)),
        ]
    if name == "scatter":
        index = torch.tensor([[2, 0, 2, 1], [1, 1, 0, 0]])
        return [
            (t(2, 3), 1, index, t(2, 4, seed=1), "sum"),
            (t(2, 3), -1, index, t(2, 4, seed=1), "amax", False),
            (t(3, 4), 0, index[:, 0], t(2, 4, seed=1), "set"),
            (t(0, 3), 1, index[:0], t(0, 4), "mean"),
        ]
    if name in ("cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax"):
        return [(t(3, 4, 5), 1), (t(3, 4), -1), (t(), 0), (t(0, 4), 1), (t(3, 0), 1)]
    if name in ("layer_norm", "rms_norm", "mean_square_norm"):
        affine = 2 if name == "layer_norm" else 1
        weights = [t(4, 5, seed=1), t(4, 5, seed=2)][:affine]
        none = [None] * affine
        return [
            (t(3, 4, 5), 2, *weights, 1e-5),
            (t(3, 5), 1, *none, 1e-5),
            (t(5), 1, *none, 1e-5),
            (t(0, 4, 5), 2, *weights, 1e-5),
        ]
    if name in ("layer_norm_statistics", "rms_norm_statistics"):
        return [(t(3, 4, 5), 2, 1e-5), (t(5), 1, 1e-5), (t(0, 5), 1, 1e-5)]
    if name == "group_norm":
        return [
            (t(2, 6, 5), 3, t(6, seed=1), t(6, seed=2), 1e-5),
            (t(2, 6), 2, None, None, 1e-5),
            (t(0, 6, 5), 3, t(6, seed=1), t(6, seed=2), 1e-5),
        ]
    if name == "group_norm_statistics":
        return [(t(2, 6, 5), 3, 1e-5), (t(0, 6, 5), 3, 1e-5)]
    if name in ("attention", "attention_lse"):
        several = attention_calls(t(2, 2, 2, 3), t(2, 1, 3, 3, seed=1), t(2, 1, 3, 3, seed=2))
        narrow = [(t(1, 2, 3, 4), t(1, 2, 4, 4, seed=1), t(1, 2, 4, 2, seed=2))]
        empty = [(t(0, 4, 3, 8), t(0, 2, 5, 8), t(0, 2, 5, 8)), (t(1, 2, 3, 8), t(1, 2, 0, 8), t(1, 2, 0, 8))]
        found: list[Arguments] = [*several, *narrow, *empty]
        return [(q, k, *rest) for q, k, _, *rest in found] if name == "attention_lse" else found
    if name == "paged_attention":
        # Of three requests the first and the last have no query in this step, so that every layout of `starts` ascends.
        table, starts, lengths = torch.tensor([[0, 3], [5, 1], [2, 4]]), torch.tensor([0, 0, 5, 5]), torch.tensor([7, 7, 7])
        cache = t(6, 4, 2, 16, seed=1)
        return [
            (t(5, 4, 8), cache, table, starts, lengths, 0.3),
            (t(5, 4, 8), cache, table.int(), starts.int(), lengths.int(), 0.3, 2),
            (t(0, 4, 8), cache, table, torch.zeros_like(starts), lengths, 0.3),
        ]
    if name == "philox":
        seeds, positions, elements = torch.tensor([[3], [2**40]]), torch.tensor([[0], [7]]), torch.arange(5)
        return [(seeds, positions, elements, 0, 0), (seeds, positions, elements, 1, 3), (seeds[:0], positions[:0], elements, 0, 1)]
    assert name == "embedding_backward", f"no calls for {name}"
    index = torch.tensor([[1, 0, 3], [1, 2, 2]])
    return [(t(2, 3, 4), index, 5), (t(2, 3, 4), index.int(), 5, 1), (t(0, 4), index[:0, 0], 5), (t(2, 3, 0), index, 5)]


ONE_SAMPLE = {op.overloadpacket.__name__ for op in ONE_SAMPLE_OPS}
ALL_NAMES = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("bi_inductor::")}
NAMES = sorted(ALL_NAMES - ONE_SAMPLE - OF_BFLOAT16)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.clone,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x,
    "strided": lambda x: torch.cat([x, x, x], -1)[..., 1::3] if x.dim() and x.shape[-1] else x,
    "broadcast": lambda x: x[:1].expand(x.shape) if x.dim() > 1 and len(x) else x,
}


def laid_out(arguments: Arguments, layout: str, requires_grad: bool) -> Arguments:
    """The arguments with every tensor in another layout; a strided one has its own values."""

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        x = LAYOUTS[layout](x)
        return x.detach().requires_grad_() if requires_grad and x.is_floating_point() else x

    return tuple(one(x) for x in arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, dtype: torch.dtype) -> None:
    op = getattr(ops, name).default
    found = calls(name, dtype)
    for arguments in found:
        for layout in LAYOUTS if dtype == torch.float32 else ("contiguous", "transposed"):
            opcheck(op, laid_out(arguments, layout, False), test_utils=("test_schema", "test_faketensor"))
    # Tracing forward and backward takes a second: all forms in one dtype, the first in the others.
    for arguments in found if dtype == torch.float32 else found[:1]:
        # opcheck compares results as if NaN differed from itself.
        if not op(*arguments).isnan().any():
            opcheck(op, laid_out(arguments, "transposed", name not in WITHOUT_GRADIENT))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_opcheck_of_operators_that_run_one_sample_at_a_time(dtype: torch.dtype) -> None:
    """One definition serves them all; here are those of one and of several results, of matrices and of signals."""
    assert ALL_NAMES >= ONE_SAMPLE
    x = randn(2, 3, 3, dtype=dtype)
    for op, arguments in (
        (ops.linalg_inv_ex, (x,)),
        (ops.linalg_qr, (x,)),
        (ops.linalg_matrix_exp, (x,)),
        (ops.linalg_solve_triangular, (x.triu(), x)),
        (ops._fft_r2c, (x, [1], 0, True)),
    ):
        keywords = {"upper": True} if op is ops.linalg_solve_triangular else {}
        for layout in ("contiguous", "transposed"):
            tests = ("test_schema", "test_faketensor")
            opcheck(getattr(op, op.overloads()[0]), laid_out(arguments, layout, False), keywords, test_utils=tests)


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_GRADIENT - OF_INTEGERS))
def test_gradients(name: str) -> None:
    op = getattr(ops, name).default
    for arguments in calls(name, torch.float64):
        for layout in ("contiguous", "transposed"):
            given = laid_out(arguments, layout, True)
            if op(*given).isfinite().all():
                assert torch.autograd.gradcheck(op, given)


@pytest.mark.parametrize("name", sorted(WITHOUT_GRADIENT))
def test_a_statistic_is_no_constant(name: str) -> None:
    """torch lets gradients end at an operator that defines none, with a warning: a second derivative would be wrong."""
    out = getattr(ops, name)(*laid_out(calls(name, torch.float32)[0], "contiguous", True))
    with pytest.raises(NotImplementedError, match=f"bi_inductor::{name} has no gradient"):
        out.sum().backward()


def test_second_derivatives_are_right_or_refused() -> None:
    x = randn(3, 4, dtype=torch.float64)
    for fn in (lambda x: ops.softmax(x, 1).square(), lambda x: ops.matmul(x, x.mT).sin(), lambda x: ops.sum(x, [0]).square()):
        assert torch.autograd.gradgradcheck(fn, x.clone().requires_grad_())
    with pytest.raises(NotImplementedError, match="layer_norm_statistics has no gradient"):
        torch.autograd.gradgradcheck(lambda x: ops.layer_norm(x, 1, None, None, 1e-5), x.clone().requires_grad_())
