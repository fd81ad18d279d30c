"""Public cases of results that follow the batch, each at some depth of a ten-layer model: `find` names the layer, the op and the line.

What eager does follows the CPU's libraries, so a case counts when the op differs here by itself; a number of them has to.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from bi_inductor import Variant, find
from bi_inductor.find.result import FindResult
from tests.bi_inductor.find.test_find import Exact, Layers
from tests.templates.rows import differences, randn
from tests.test_public_cases import CASES


@dataclasses.dataclass
class Case:
    """``fn`` on all samples of its inputs against ``fn`` on some of them.

    Attributes:
        name: of the public case.
        fn: the suspect.
        inputs: of the suspect, the first from the layers before it.
        samples: those of the second variant, or "padded" for 37 positions on the left.
        ops: the op that may be named first.
        dims: the batch dim of each input.
    """

    name: str
    fn: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    samples: list[int] | str
    ops: tuple[str, ...]
    dims: tuple[int, ...] = (0,)


KEYS, VALUES = randn(8, 4, 128, 64, seed=1), randn(8, 4, 128, 64, seed=2)
CAUSAL = torch.ones(128, 128, dtype=torch.bool).tril()[None, None]


def decode(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q [batch, heads, queries, 64], mask [1, 1, queries, keys]; the queries are the samples."""
    return functional.scaled_dot_product_attention(q, KEYS, VALUES, attn_mask=mask)


def gru() -> Callable[[torch.Tensor], torch.Tensor]:
    model = nn.GRU(64, 128, batch_first=True)
    return lambda x: model(x)[0]


OPS = {"linear": "linear", "MLP": "linear", "conv": "conv2d", "sum": "sum", "SDPA": "scaled_dot_product_attention", "bmm": "matmul"}


def cases() -> list[Case]:
    by_name = {case.name: case for case in CASES}
    found = []
    for name, case in by_name.items():
        whole, part = case.whole, case.part
        # Cases of another rank or layout, and those that bite only when compiled, are tested elsewhere.
        if whole.dim() == part.dim() and whole.shape[1:] == part.shape[1:] and len(whole) > len(part) and "compiled" not in name:
            op = next((op for text, op in OPS.items() if text in name), "matmul")
            found.append(Case(name, case.fn, (whole,), list(range(len(part))), (f"aten.{op}.default", f"aten.{op}.dim_IntList")))
    matmul = ("aten.matmul.default",)
    attention = ("aten.scaled_dot_product_attention.default",)
    first, last = by_name["(1,4,1024)@(1024,2048), row 0"], by_name["(2,5,256)@(256,256), last"]
    padded, bmm = by_name["SDPA, 37 left pads"], by_name["bmm against mm"]
    return [
        *found,
        Case(first.name, first.fn, (first.whole,), [0], matmul, (1,)),
        Case(last.name, last.fn, (last.whole,), [4], matmul, (1,)),
        Case(padded.name, padded.fn, (padded.part,), "padded", attention),
        Case("SDPA, decode", decode, (randn(8, 4, 128, 64, seed=5), CAUSAL), [127], attention, (2, 2)),
        Case("bmm against a loop", torch.bmm, (bmm.whole, randn(32, 64, 128, seed=3)), [7], ("aten.bmm.default",), (0, 0)),
        Case("GRU", gru(), (randn(4, 9, 64),), [0], ("aten.gru.input",)),
    ]


class Suspect(nn.Module):
    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.fn(*inputs)


def hunt(case: Case, depth: int) -> FindResult:
    if case.samples == "padded":
        variants, sequence_dim = [Variant(), Variant(pad_left=37)], 2
    else:
        variants, sequence_dim = [Variant(), Variant(samples=case.samples)], None
    model = Layers(Suspect(case.fn), depth)
    return find(model, case.inputs, variants=variants, batch_dim=case.dims, sequence_dim=sequence_dim)


def bites(case: Case, depth: int) -> bool:
    """Whether the suspect alone differs on what the layers before it make of its input."""
    with torch.no_grad():
        x, *rest = case.inputs
        if case.samples == "padded":
            parts = [functional.pad(x, (0, 0, 37, 0)), x]
        else:
            chosen = torch.tensor(case.samples)
            parts = [x, x.index_select(case.dims[0], chosen)]
        results = []
        for index, value in enumerate(parts):
            for _ in range(depth):
                value = Exact()(value)
            others = [y.index_select(dim, chosen) if index else y for y, dim in zip(rest, case.dims[1:], strict=True)]
            results.append(case.fn(value, *others))
        if case.samples == "padded":
            return bool(differences(results[0][:, :, 37:], results[1]))
        return bool(differences(results[0].index_select(case.dims[0], chosen), results[1]))


@pytest.fixture(scope="module")
def biting() -> list[str]:
    return []


EAGER_CASES = cases()


@pytest.mark.xdist_group("find in public cases")
@pytest.mark.parametrize("index", range(len(EAGER_CASES)), ids=[case.name for case in EAGER_CASES])
def test_the_suspect_is_named_at_any_depth(index: int, biting: list[str]) -> None:
    case = EAGER_CASES[index]
    depth = random.Random(index).randrange(10)
    result = hunt(case, depth)
    if not bites(case, depth):
        assert result, result.text()
        return
    biting.append(case.name)
    assert result.node is not None
    assert result.node.op in case.ops, result.text()
    assert f"layers.{depth} " in result.node.module or f"layers.{depth}." in result.node.module
    assert "test_public_cases.py" in result.node.line or __name__.rpartition(".")[2] in result.node.line or "nn/modules" in result.node.line
    assert result.table[0].effect == "differs by itself"
    assert result.node.cause.startswith("the op itself")


@pytest.mark.xdist_group("find in public cases")
def test_a_number_of_cases_bites(biting: list[str]) -> None:
    """After the cases, on their worker."""
    assert len(biting) >= 10, biting


class Mixed(nn.Module):
    """Ten layers; some whose bits follow the batch with stock kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Exact() for _ in range(10))
        self.layers[3] = nn.Linear(64, 64)
        self.layers[6] = nn.LayerNorm(64)
        self.layers[8] = nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.xdist_group("find in public cases")
def test_nothing_is_found_with_ours() -> None:
    torch.manual_seed(0)
    model, x = Mixed().eval(), randn(8, 64)
    variants = [Variant(), Variant(samples=[0]), Variant(samples=list(range(7, -1, -1)))]
    ours = find(model, x, backend="batch_invariant", variants=variants)
    assert ours, ours.text()
