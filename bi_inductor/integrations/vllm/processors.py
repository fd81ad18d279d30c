"""Logits processors that users register with vLLM: a look at what they do with the rows of a batch, each a request of its own.

What they compute stays as it is written. A processor is captured whenever its code takes another way, and each captured graph is searched
for ops that let a request depend on others (docs/mixing.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, Unsupported, UserError
from torch.fx import GraphModule

from bi_inductor.backend import compile_graph, split_options
from bi_inductor.errors import OpaqueOpWarning
from bi_inductor.passes.mixing import describe_inputs, find_mixing, require_unmixed


def watch(processors: list[Any], trusted: Iterable[type] = ()) -> None:
    """Puts a ``WatchedProcessor`` in the place of each of ``processors`` whose ``apply`` is not that of a class in ``trusted``."""
    known = {kind.apply for kind in trusted}  # type: ignore[attr-defined]  # classes of logits processors
    processors[:] = [given if type(given).apply in known else WatchedProcessor(given) for given in processors]


class WatchedProcessor:
    """A logits processor of the user, with its results and its bits.

    Warns:
        SampleMixingWarning: an op lets a request depend on others (SampleMixingError under ``BI_INDUCTOR_STRICT=1``).
        OpaqueOpWarning: the processor cannot be captured as one graph, or takes another way too often; it is not looked at from then on.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._watched: Callable[[torch.Tensor], torch.Tensor] | None = torch.compile(
            processor.apply, backend=_search, fullgraph=True, dynamic=True
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """What the processor makes of ``logits`` [requests, vocabulary]."""
        if self._watched is not None:
            try:
                return self._watched(logits)
            except (Unsupported, UserError, FailOnRecompileLimitHit) as reason:
                self._watched = None
                too_many = isinstance(reason, FailOnRecompileLimitHit)
                why = "its code takes another way in every batch" if too_many else str(reason).splitlines()[0]
                name = type(self._processor).__qualname__
                warnings.warn(
                    f"logits processor {name} runs unseen from here on: {why}. What it computes has to depend on its own request only.",
                    OpaqueOpWarning,
                    stacklevel=2,
                )
        result: torch.Tensor = self._processor.apply(logits)
        return result


def _search(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that looks for mixing and leaves the work to eager."""
    options, _ = split_options(None, None)
    inputs = describe_inputs(gm, example_inputs, options.batch_dim)

    def search(graph_module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        require_unmixed(find_mixing(graph_module.graph, inputs), options)
        return graph_module.forward

    compile_graph(gm, example_inputs, inner_compile=search)
    forward: Callable[..., Any] = gm.forward
    return forward
