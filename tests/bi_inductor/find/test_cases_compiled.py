"""The public cases compiled, each at some depth of a ten-layer model: `find` names the layer and its op in stock, and nothing in ours.

Which cases bite follows the machine (vector width, number of threads), so a case of stock counts where the compiled model's outputs differ.
Each costs tens of compiles: all of them run with ``make test-full`` (10 to 85 s each, all 28 have passed with both backends on two AVX2
cores), a few in the ordinary suite.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from bi_inductor import Variant, find
from bi_inductor.find.result import FindResult
from tests.bi_inductor.find.test_cases import EAGER_CASES, Case, Suspect
from tests.bi_inductor.find.test_find import Layers
from tests.templates.rows import differences
from tests.test_public_cases import CASES

OPS = {"layer_norm": "layer_norm.default", "softmax": "softmax.int", "rms_norm": "rms_norm.default"}


def compiled_cases() -> list[Case]:
    """Those of eager, and those that bite only when compiled."""
    found = list(EAGER_CASES)
    for case in CASES:
        if case.name.startswith("stock compiled"):
            op = next(op for text, op in OPS.items() if text in case.name)
            found.append(Case(case.name, case.fn, (case.whole,), [0], (f"aten.{op}",)))
    return found


COMPILED_CASES = compiled_cases()
NAMES = [case.name for case in COMPILED_CASES]
# The first by a hash of their names: no choice of ours.
BY_HASH = sorted(range(len(NAMES)), key=lambda index: zlib.crc32(NAMES[index].encode()))


def parameters(in_the_suite: int) -> Iterator[object]:
    """All cases; marked "full" but for the first ``in_the_suite`` by their hash."""
    for index, name in enumerate(NAMES):
        marks = [] if index in BY_HASH[:in_the_suite] else [pytest.mark.full]
        yield pytest.param(index, id=name, marks=marks)


@pytest.fixture(autouse=True)
def recurrent_modules() -> Iterator[None]:
    """Dynamo leaves recurrent modules to eager unless asked not to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def depth_of(index: int) -> int:
    return random.Random(index).randrange(10)


def hunt(index: int, backend: str) -> FindResult:
    case = COMPILED_CASES[index]
    variants, sequence_dim = [Variant(), Variant(samples=case.samples if isinstance(case.samples, list) else None)], None
    if case.samples == "padded":
        variants, sequence_dim = [Variant(), Variant(pad_left=37)], 2
    model = Layers(Suspect(case.fn), depth_of(index))
    # Two threads on any machine: with one, stock does not share a sum out.
    return find(model, case.inputs, backend=backend, variants=variants, batch_dim=case.dims, sequence_dim=sequence_dim, threads=2)


def stock_differs(index: int) -> bool:
    """Whether the model's shared rows differ when torch.compile itself runs both batches."""
    case = COMPILED_CASES[index]
    x = case.inputs[0]
    cut: Callable[[torch.Tensor], torch.Tensor]
    if case.samples == "padded":
        batches = [(x,), (functional.pad(x, (0, 0, 37, 0)),)]
        cut = lambda y: y[:, :, 37:]  # noqa: E731
    else:
        chosen = torch.tensor(case.samples)
        batches = [tuple(case.inputs), tuple(y.index_select(dim, chosen) for y, dim in zip(case.inputs, case.dims, strict=True))]
        cut = lambda y: y  # noqa: E731
    torch._dynamo.reset()
    model = torch.compile(Layers(Suspect(case.fn), depth_of(index)), backend="inductor", dynamic=False)
    with torch.no_grad():
        whole, part = model(*batches[0]), model(*batches[1])
    torch._dynamo.reset()
    return bool(differences(whole, cut(part)) if case.samples == "padded" else differences(whole.index_select(case.dims[0], chosen), part))


@pytest.mark.parametrize("index", list(parameters(2)))
def test_stock(index: int, record_property: Callable[[str, object], None]) -> None:
    case = COMPILED_CASES[index]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    differs = stock_differs(index)
    torch.set_num_threads(threads)
    result = hunt(index, "inductor")
    record_property("found", "the same bits" if result.node is None else f"{result.node.op}, {result.node.module}, {result.node.cause}")
    if not differs:
        assert result, result.text()
        return
    assert result.node is not None, "stock differs and nothing was found"
    assert result.node.op in case.ops, result.text()
    module = f"layers.{depth_of(index)}"
    assert result.node.module.startswith((f"{module} ", f"{module}.")), result.text()


@pytest.mark.parametrize("index", list(parameters(3)))
def test_ours(index: int, record_property: Callable[[str, object], None]) -> None:
    result = hunt(index, "batch_invariant")
    record_property("found", "the same bits" if result.node is None else f"{result.node.op}, {result.node.module}, {result.node.cause}")
    assert result, result.text()
    assert result.compared > 0
