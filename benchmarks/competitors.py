"""The columns of a table: ways to run one function, ours among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measurement import OURS, STOCK

Function = Callable[..., Any]


@dataclass(frozen=True)
class Competitor:
    """One way to run a function.

    Attributes:
        backend: backend of torch.compile, None for eager.
        options: options of that compile; no global setting of torch is changed.
        one_sample: call the compiled function once for each sample, which is how people get the same bits for a sample today.
    """

    backend: str | None
    options: dict[str, Any] = field(default_factory=dict)
    one_sample: bool = False

    def compiled(self, function: Function) -> Function:
        """``function`` compiled for static shapes, or as it is for eager."""
        if self.backend is None:
            return function
        return torch.compile(function, backend=self.backend, dynamic=False, options=dict(self.options) or None)

    def call(self, function: Function, arguments: Sequence[Any], batch: int) -> Callable[[], Any]:
        """A call of the compiled function without arguments, ready to be timed. Samples are cut out of the batch beforehand."""
        compiled = self.compiled(function)
        if not self.one_sample:
            return partial(compiled, *arguments)
        samples = [[sample_of(argument, index, batch) for argument in arguments] for index in range(batch)]
        return lambda: [compiled(*sample) for sample in samples]


COMPETITORS: dict[str, Competitor] = {
    "eager": Competitor(None),
    STOCK: Competitor("inductor"),
    "stock-bi": Competitor("inductor", {"batch_invariant": True}),
    "stock-det": Competitor("inductor", {"deterministic": True}),
    "one-by-one": Competitor("inductor", one_sample=True),
    OURS: Competitor("batch_invariant"),
}
MEANING = """\
eager: torch without a compiler. stock: torch.compile with Inductor. stock-bi, stock-det: the same with Inductor's option batch_invariant
or deterministic. one-by-one: stock, called once for each sample. ours: torch.compile with backend batch_invariant."""
NATIVE_BFLOAT16 = "ours with option native_bfloat16: matmuls of bfloat16 by the CPU's own products"
# Those of `make bench`.
FEW = ("eager", STOCK, OURS)


def sample_of(value: Any, index: int, batch: int) -> Any:
    """Sample ``index`` of an argument: of a tensor a view with a batch of one, of a list each of its tensors, anything else as it is.

    Raises:
        ValueError: the first dimension of a tensor is not the batch.
    """
    if isinstance(value, Tensor):
        if value.ndim == 0 or value.shape[0] != batch:
            raise ValueError(f"an argument of shape {tuple(value.shape)} has no batch of {batch} in front, so it has no samples")
        return value[index : index + 1]
    if isinstance(value, list):
        return [sample_of(item, index, batch) for item in value]
    return value


def calls(
    names: Sequence[str], function: Function, arguments: Sequence[Any], batch: int, options: Mapping[str, Any] | None = None
) -> dict[str, Callable[[], Any]]:
    """One call for each competitor in ``names``; ``options`` are those of ours. A batch of one has no other samples: there, one-by-one is
    stock and left out.
    """
    competitors = {**COMPETITORS, OURS: replace(COMPETITORS[OURS], options=dict(options or {}))}
    return {name: competitors[name].call(function, arguments, batch) for name in names if batch > 1 or not competitors[name].one_sample}
