"""The entries of torch's own table of operators, and sample inputs of each: the same structure with several values."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

# How many samples of an entry are looked at, evenly from how many, and in how many values each is drawn.
SAMPLES, DRAWN, VARIANTS = 24, 400, 3

# Instead of float32, where an entry has none: its first of these.
OTHER_DTYPES = (torch.complex64, torch.int64, torch.int32, torch.float8_e4m3fn)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One operator of op_db in one dtype."""

    name: str
    dtype: torch.dtype
    info: Any

    @property
    def key(self) -> str:
        return f"{self.name} {str(self.dtype).removeprefix('torch.')}"

    @property
    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.info.op
        return function


@dataclasses.dataclass(frozen=True)
class Sample:
    """A call's arguments with several values: ``variants[j]`` are the leaves of (args, kwargs) in the order of ``spec``."""

    number: int
    spec: pytree.TreeSpec
    variants: tuple[tuple[Any, ...], ...]


def entries() -> list[Entry]:
    """Every entry in float32, or in another dtype where it has no float32, and in bfloat16 where it has that; sorted by name.

    Entries without a dtype on the CPU (other machines' kernels) are left out.
    """
    found = []
    for info in op_db:
        supported = info.supported_dtypes("cpu")
        first = next((dtype for dtype in (torch.float32, *OTHER_DTYPES) if dtype in supported), None)
        if first is not None:
            found.append(Entry(info.full_name, first, info))
            if torch.bfloat16 in supported:
                found.append(Entry(info.full_name, torch.bfloat16, info))
    return sorted(found, key=lambda entry: entry.key)


def in_tenth(entry: Entry) -> bool:
    """Whether the entry belongs to the fixed tenth that every run of the suite checks."""
    return hashlib.sha256(entry.key.encode()).digest()[0] % 10 == 0


def samples(entry: Entry) -> Iterator[Sample]:
    """Samples of an entry, each in several values; in one, where the structure is drawn at random too."""
    drawn = [_drawn(entry, seed) for seed in range(VARIANTS)]
    for number, calls in enumerate(zip(*drawn, strict=False)):
        flat = [pytree.tree_flatten(call) for call in calls]
        leaves, specs = [tuple(leaves) for leaves, _ in flat], [spec for _, spec in flat]
        if all(spec == specs[0] for spec in specs) and all(_same_structure(leaves[0], other) for other in leaves[1:]):
            yield Sample(number, specs[0], tuple(leaves))
        else:
            yield Sample(number, specs[0], (leaves[0],))


@contextlib.contextmanager
def without_seeds() -> Iterator[None]:
    """Entries of random ops call them as they are: torch's table seeds and restores the generator around each, which no graph can hold."""
    found = common_methods_invocations.wrapper_set_seed
    common_methods_invocations.wrapper_set_seed = _called
    try:
        yield
    finally:
        common_methods_invocations.wrapper_set_seed = found


def _called(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _drawn(entry: Entry, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(itertools.islice(entry.info.sample_inputs("cpu", entry.dtype, set_seed=False), DRAWN))
        chosen = found if len(found) <= SAMPLES else [found[i * len(found) // SAMPLES] for i in range(SAMPLES)]
        return [((sample.input, *sample.args), dict(sample.kwargs)) for sample in chosen]


def _same_structure(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    def described(leaf: Any) -> Any:
        return (leaf.shape, leaf.dtype, leaf.layout) if isinstance(leaf, torch.Tensor) else type(leaf)

    return [described(leaf) for leaf in a] == [described(leaf) for leaf in b]
