"""Cases from public reports in which a sample's bits follow its batch: ours gives none, and the controls show that stock gives some.

A case runs its function on a whole input and on a part of it, and compares the rows that both have. All cases of one size are
compiled as one graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.templates.rows import assert_same_bits, differences, randn

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass
class Case:
    """``fn(whole)[kept]`` against ``fn(part)``."""

    name: str
    fn: Function
    whole: torch.Tensor
    part: torch.Tensor
    kept: Callable[[torch.Tensor], torch.Tensor]


def rows(name: str, fn: Function, x: torch.Tensor, count: int) -> Case:
    return Case(name, fn, x, x[:count].clone(), lambda y: y[:count])


def linear(inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> Function:
    weight = randn(outputs, inputs, dtype=dtype, seed=1)
    bias = randn(outputs, dtype=dtype, seed=2)
    return lambda x: functional.linear(x, weight, bias)


def right(*shape: int, dtype: torch.dtype = torch.float32) -> Function:
    other = randn(*shape, dtype=dtype, seed=1)
    return lambda x: x @ other


KEYS, VALUES = randn(8, 4, 128, 64, seed=1), randn(8, 4, 128, 64, seed=2)


def attention(q: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, KEYS, VALUES, is_causal=q.shape[2] > 1)


def padded_attention(x: torch.Tensor) -> torch.Tensor:
    """x [batch, 4, length, 64]; keys that are all zero are padding on the left."""
    real = (x != 0).any(-1)[:, :1, None, :]
    causal = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(x, x * 0.5, x * 2, attn_mask=real & causal)


def gate() -> Function:
    """The gate of a mixture of experts: a bmm for several sequences, an mm for one."""
    weight = randn(256, 8, seed=1)
    return lambda x: torch.softmax(torch.matmul(x, weight), -1)


def cases() -> list[Case]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).eval()
    conv, wide_conv = nn.Conv2d(4, 3, 3).eval(), nn.Conv2d(128, 128, 3, padding=1).eval()
    bare = randn(8, 4, 91, 64, seed=6)
    queries = randn(8, 4, 128, 64, seed=5)
    batched = randn(32, 64, 128, seed=3)
    found = [
        Case("(1,4,1024)@(1024,2048), row 0", right(1024, 2048), randn(1, 4, 1024), randn(1, 4, 1024)[:, :1], lambda y: y[:, :1]),
        Case(
            "float64 ones(2,90)@(90,128)",
            right(90, 128, dtype=torch.float64),
            *([torch.ones(m, 90, dtype=torch.float64) for m in (2, 1)]),
            lambda y: y[:1],
        ),
        Case("(2,5,256)@(256,256), last", right(256, 256), randn(2, 5, 256), randn(2, 5, 256)[:, -1:], lambda y: y[:, -1:]),
        Case("SDPA, 37 left pads", padded_attention, functional.pad(bare, (0, 0, 37, 0)), bare, lambda y: y[:, :, 37:]),
        Case("SDPA, decode", attention, queries, queries[:, :, -1:].contiguous(), lambda y: y[:, :, -1:]),
        rows("conv2d 4->3, k3, 8x6", conv, randn(2, 4, 8, 6), 1),
        rows("conv2d 128->128, 3 of them", wide_conv, randn(3, 128, 16, 16), 1),
        rows("MLP 1024-4096-1024, 8 rows", mlp, randn(8, 1024), 3),
        rows("sum of 32769", lambda x: x.sum(-1), randn(64, 32769), 1),
        rows("(50,30,8)@(8,20)", right(8, 20), randn(50, 30, 8), 2),
        rows("(5,4)@(4,4)", right(4, 4), randn(5, 4), 1),
        rows("linear 1024->2816, 129 rows", linear(1024, 2816), randn(129, 1024), 128),
        rows("(61,1280)@(1280,3840)", right(1280, 3840), randn(61, 1280), 60),
        Case(
            "bmm against mm",
            lambda x: x @ (batched if x.dim() == 3 else batched[7]),
            randn(32, 512, 64),
            randn(32, 512, 64)[7],
            lambda y: y[7],
        ),
        rows("MoE gate", gate(), randn(3, 7, 256), 1),
        rows("stock compiled: layer_norm 768", lambda x: functional.layer_norm(x, [768]), randn(64, 768), 1),
        rows("stock compiled: layer_norm 4096", lambda x: functional.layer_norm(x, [4096]), randn(64, 4096), 1),
        rows("stock compiled: softmax 4096", lambda x: x.softmax(-1), randn(64, 4096), 1),
        rows("stock compiled: rms_norm 4096", lambda x: functional.rms_norm(x, [4096]), randn(64, 4096), 1),
    ]
    for u in (16, 64, 256, 1024, 4096):
        found.append(rows(f"linear {u}->{u}", linear(u, u), randn(2, u), 1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found.append(rows(f"linear 1024->512 {dtype}", linear(1024, 512, dtype), randn(33, 1024, dtype=dtype), 1))
    for name in ("sum", "mean", "logsumexp", "norm"):
        reduce = getattr(torch, name) if name != "norm" else torch.linalg.vector_norm
        found.append(
            Case(
                f"{name} on transposed storage",
                lambda x, f=reduce: f(x, dim=-1),
                randn(8, 3000),
                randn(8, 3000).t().contiguous().t(),
                lambda y: y,
            )
        )
    return found


CASES = cases()


@pytest.fixture(scope="module")
def ours() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every case on its whole input and on its part, each set as one graph."""

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [case.fn(x) for case, x in zip(CASES, inputs, strict=True)]

    with torch.no_grad():
        fn = torch.compile(run, backend="batch_invariant", dynamic=False, fullgraph=True)
        return fn([case.whole for case in CASES]), fn([case.part for case in CASES])


# One worker: all cases share two compiles.
@pytest.mark.xdist_group("public cases")
@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
def test_ours_gives_no_difference(index: int, ours: tuple[list[torch.Tensor], list[torch.Tensor]]) -> None:
    whole, part = ours
    case = CASES[index]
    assert_same_bits(case.kept(whole[index]), part[index])
    torch.testing.assert_close(whole[index], case.fn(case.whole), rtol=2e-2, atol=2e-2)


def test_gru() -> None:
    model = nn.GRU(64, 128, batch_first=True)
    x = randn(4, 9, 64)
    # Dynamo leaves recurrent modules to eager unless asked not to.
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        fn = torch.compile(lambda x: model(x)[0], backend="batch_invariant", dynamic=False, fullgraph=True)
        assert_same_bits(fn(x[:1].clone()), fn(x)[:1])


def test_stock_gives_differences() -> None:
    """Which cases bite follows the CPU's BLAS, so a number of them has to."""
    biting = []
    with torch.no_grad():
        for case in CASES:
            if case.name.startswith("stock compiled"):
                continue
            if differences(case.kept(case.fn(case.whole)), case.fn(case.part)):
                biting.append(case.name)
    assert len(biting) >= 10, biting
