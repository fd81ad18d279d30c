"""Gradients of every entry of torch's operator table are eager's up to rounding, in float32 and bfloat16.

Graphs are rewritten and run op by op (tests/passes/eager.py), so that nothing but our kernels is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # decompositions of pooling look it up
import torch.utils._pytree as pytree
from torch import Tensor

from bi_inductor.errors import UnsupportedOpError
from tests.opinfo.batches import tensors_of
from tests.opinfo.entries import Entry, in_tenth, without_seeds
from tests.opinfo.test_opinfo import RECORDED, chunks, recorded_cases
from tests.opinfo.values import widened
from tests.opinfo.verdicts import BY_BITS, Case
from tests.passes.eager import ours, stock

pytestmark = pytest.mark.filterwarnings("ignore")

DIFFERENTIABLE = [entry for entry in RECORDED if entry.dtype in (torch.float32, torch.bfloat16) and entry.info.supports_autograd]
# Of the largest value of a result, and at least.
TOLERANCES = {torch.float32: (1e-3, 1e-4), torch.bfloat16: (5e-2, 1e-2)}
# Sampling by these names has no gradient here (grid_sample has). The others' results have as many elements as values say, which a graph
# that is traced with its backward cannot hold.
REFUSED = {"grid_sampler_2d", "grid_sampler_3d"}
DYNAMIC = {"combinations", "masked_select"}


def compared(case: Case) -> str:
    """What differs between our results and gradients of a call and eager's, in words; empty if nothing does."""
    leaves = case.leaves
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]

    def results(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = list(leaves)
        # Copies, since an op may write into what it is given.
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor.clone()
        args, kwargs = pytree.tree_unflatten(given, case.sample.spec)
        return tuple(x for x in tensors_of(case.entry.function(*args, **kwargs)) if x.is_floating_point())

    operands = [leaves[i].detach().clone().requires_grad_(leaves[i].is_floating_point()) for i in places]
    try:
        expected = stock(results, *operands)
    except (RuntimeError, NotImplementedError, IndexError):
        # No tensor to differentiate, or no floating-point result.
        return ""
    with without_seeds():
        found = ours(results, *operands)
    if not (different := far(case, found, expected)) or case.entry.dtype is torch.float32:
        return different
    # Eager rounds between the steps of many gradients in bfloat16: what is not near its values may be near those of float64.
    wide = [widened(x.detach()).requires_grad_(x.requires_grad) for x in operands]
    exact = stock(results, *wide)
    return far(case, found, [x.to(value.dtype) for x, value in zip(exact, expected, strict=True)])


def far(case: Case, found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """The results that are not near the expected ones, in words."""
    pairs = enumerate(zip(found, expected, strict=True))
    return ", ".join(f"{case.name}: result {i} of {len(found)}" for i, pair in pairs if not _close(*pair, *TOLERANCES[case.entry.dtype]))


def _close(found: Tensor, expected: Tensor, share: float, least: float) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    scale = float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=share, atol=share * scale + least, equal_nan=True)


def differing(some: Sequence[Entry]) -> list[str]:
    cases = [case for entry in some for case, verdict in recorded_cases(entry) if verdict in BY_BITS]
    return [text for case in cases if case.entry.name not in REFUSED | DYNAMIC and (text := compared(case))]


def split(tenth: bool) -> list[Any]:
    return chunks([entry for entry in DIFFERENTIABLE if in_tenth(entry) == tenth], 64)


@pytest.mark.parametrize("some", split(True), ids=lambda some: some[0].key)
def test_the_tenth(some: Sequence[Entry]) -> None:
    assert differing(some) == []


@pytest.mark.full
@pytest.mark.parametrize("some", split(False), ids=lambda some: some[0].key)
def test_the_rest(some: Sequence[Entry]) -> None:
    assert differing(some) == []


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_has_no_gradient_is_refused(name: str) -> None:
    entry = next(entry for entry in DIFFERENTIABLE if entry.name == name)
    case, _ = next(recorded_cases(entry))
    with pytest.raises(UnsupportedOpError, match=f"{name}_backward"):
        compared(case)


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an index that is off by one in the gradient of padding with the nearest element."""
    from bi_inductor.passes import padding

    (entry,) = (entry for entry in DIFFERENTIABLE if entry.key == "nn.functional.pad.replicate float32")
    ((case, _),) = recorded_cases(entry)
    assert compared(case) == ""
    for op, function in padding.DECOMPOSITIONS.items():
        monkeypatch.setitem(padding.DECOMPOSITIONS, op, lambda *args, function=function: function(*args).roll(1, -1))
    assert compared(case)
