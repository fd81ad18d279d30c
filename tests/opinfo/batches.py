"""Makes batches of a sample input: which dim holds the samples is found by trying, in eager, what gives every sample its own result.

A batch is a dim 0. Two forms are tried: ``rows``, where dim 0 of the sample's own tensors is the batch, and ``stacked``, where several
values of a sample are stacked on a new dim 0. In either, all tensors of the call take part, or one alone (the others, weights or indices,
are shared by all samples). A form holds when, up to rounding, each row of the result is the result of that row alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from tests.opinfo.entries import Sample

# The order of the values of a sample in a batch of several: each at several places, with several neighbours.
PLACES = (0, 1, 2, 2, 1, 0, 1)


@dataclasses.dataclass(frozen=True)
class Batch:
    """One call with several samples, and the same call with single ones.

    Attributes:
        form: "rows" or "stacked" for all tensors, "rows of tensor 1" or "stacked tensor 1" where the others are shared.
        spec: structure of (args, kwargs).
        whole: the leaves of the batch.
        alone: the leaves of calls with one sample, a batch of one.
        places: for each place in the batch, which of ``alone`` is there.
    """

    form: str
    spec: pytree.TreeSpec
    whole: tuple[Any, ...]
    alone: tuple[tuple[Any, ...], ...]
    places: tuple[int, ...]

    def rows_of(self, result: Any, place: int) -> list[Any]:
        """What the batch's result has at a place, with a batch dim of one."""
        return [leaf[place : place + 1] for leaf in tensors_of(result)]


def call(function: Callable[..., Any], spec: pytree.TreeSpec, leaves: Sequence[Any]) -> Any:
    """``function`` on copies of the leaves, so that it may write into them."""
    args, kwargs = pytree.tree_unflatten([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
    return function(*args, **kwargs)


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The dense tensors in a result, in order."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


# Kernels that read out of bounds when rows of the table are missing: which of their tensors may be a batch.
UNCHECKED = {"nn.functional.embedding_bag": 1}


def batch_of(name: str, function: Callable[..., Any], sample: Sample) -> Batch | None:
    """The first form that holds for the entry of that name; None where dim 0 is no batch."""
    for batch in _candidates(sample):
        checked = name not in UNCHECKED or batch.form == f"rows of tensor {UNCHECKED[name]}"
        if checked and _holds(function, batch):
            return batch
    return None


def _candidates(sample: Sample) -> Iterator[Batch]:
    leaves = sample.variants[0]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]
    if not places:
        return
    first = leaves[places[0]]
    if first.dim() and first.shape[0]:
        same_size = [i for i in places if leaves[i].dim() and leaves[i].shape[0] == first.shape[0]]
        yield _rows(sample, same_size, "rows")
    for i in places:
        if leaves[i].dim() and leaves[i].shape[0]:
            yield _rows(sample, [i], f"rows of tensor {places.index(i)}")
    yield _stacked(sample, places, "stacked")
    for i in places:
        yield _stacked(sample, [i], f"stacked tensor {places.index(i)}")


def _rows(sample: Sample, members: Sequence[int], form: str) -> Batch:
    size = sample.variants[0][members[0]].shape[0]
    whole, alone = list(sample.variants[0]), [list(sample.variants[0]) for _ in range(size * len(sample.variants))]
    for i in members:
        whole[i] = torch.cat([variant[i].detach() for variant in sample.variants])
        for row, leaves in enumerate(alone):
            leaves[i] = whole[i][row : row + 1].clone()
    return Batch(form, sample.spec, tuple(whole), tuple(map(tuple, alone)), tuple(range(len(alone))))


def _stacked(sample: Sample, members: Sequence[int], form: str) -> Batch:
    whole, alone = list(sample.variants[0]), [list(sample.variants[0]) for _ in sample.variants]
    places = tuple(place % len(sample.variants) for place in PLACES)
    for i in members:
        whole[i] = torch.stack([sample.variants[j][i].detach() for j in places])
        for variant, leaves in zip(sample.variants, alone, strict=True):
            leaves[i] = variant[i].detach().unsqueeze(0).clone()
    return Batch(form, sample.spec, tuple(whole), tuple(map(tuple, alone)), places)


def _holds(function: Callable[..., Any], batch: Batch) -> bool:
    try:
        whole = call(function, batch.spec, batch.whole)
        alone = [call(function, batch.spec, leaves) for leaves in batch.alone]
    except Exception:
        # The op takes no such dim.
        return False
    count = len(batch.places)
    results = tensors_of(whole)
    if not results or any(not leaf.dim() or leaf.shape[0] != count for leaf in results):
        return False
    for place, number in enumerate(batch.places):
        single = tensors_of(alone[number])
        if len(single) != len(results) or any(leaf.dim() == 0 or leaf.shape[0] != 1 for leaf in single):
            return False
        rows = batch.rows_of(whole, place)
        if not all(close(row, leaf) for row, leaf in zip(rows, single, strict=True)):
            return False
    return True


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are the same up to rounding, in shape and dtype exactly."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == torch.bool or not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    wide = torch.complex128 if a.is_complex() else torch.float64
    tolerance = 2e-2 if a.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return torch.allclose(a.to(wide), b.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True)


def perturbed(sample: Sample) -> Iterator[tuple[Any, ...]]:
    """The leaves of a call whose first row is the sample's and whose other rows are of other values."""
    leaves = sample.variants[0]
    for members, variant in itertools.product(("all", "first"), sample.variants[1:]):
        changed = list(leaves)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.layout == torch.strided]
        for i in places if members == "all" else places[:1]:
            changed[i] = torch.cat([leaves[i].detach()[:1], variant[i].detach()[1:]])
        yield tuple(changed)


def mixes(function: Callable[..., Any], sample: Sample) -> bool:
    """Whether the sample in row 0 gets another result when the other rows of the call change.

    A result without a row for each sample (a sum over them) is every sample's.
    """
    leaves = sample.variants[0]
    sizes = [tensor.shape[0] for tensor in tensors_of(leaves) if tensor.dim()]
    before = _results(function, sample.spec, leaves) if sizes else None
    # A tensor of one row is shared by the rows of the others.
    rows = next((size for size in sizes if size > 1), 1)
    for changed in perturbed(sample) if before is not None else ():
        after = _results(function, sample.spec, changed)
        if after is None or len(before) != len(after):
            continue
        for a, b in zip(before, after, strict=True):
            if a.dim() and a.shape == b.shape and a.shape[0] == rows:
                a, b = a[:1], b[:1]
            if not close(a, b):
                return True
    return False


def _results(function: Callable[..., Any], spec: pytree.TreeSpec, leaves: Sequence[Any]) -> list[torch.Tensor] | None:
    try:
        return tensors_of(call(function, spec, leaves))
    except Exception:
        return None
