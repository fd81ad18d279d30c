"""The settings a function is run in: a backend, static or dynamic shapes, a number of threads. All are put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def backend_name(backend: str | Callable[..., Any]) -> str:
    """The name of a backend of torch.compile. Raises ValueError when it is neither a known name nor a callable."""
    if not isinstance(backend, str):
        if not callable(backend):
            raise ValueError(f"backend: got {backend!r}; allowed are a name and a callable")
        return getattr(backend, "__name__", type(backend).__name__)
    if backend != "eager":
        import torch._dynamo

        known = sorted({"eager", *torch._dynamo.list_backends(exclude_tags=())})
        if backend not in known:
            raise ValueError(f"backend: got {backend!r}; allowed are a callable and the names {', '.join(known)}")
    return backend


@contextlib.contextmanager
def compiled(
    fn: Callable[..., Any],
    backend: str | Callable[..., Any],
    dynamic: bool | None,
    options: Mapping[str, Any] | None,
    shapes: int,
) -> Iterator[Callable[..., Any]]:
    """`fn` under the backend, freshly compiled, for at most `shapes` shapes; "eager" is `fn` itself."""
    if backend == "eager":
        yield fn
        return
    import torch._dynamo

    # Each shape may be a compile of its own. Past its limit, Dynamo would silently run the function eagerly.
    limit = max(torch._dynamo.config.recompile_limit, 4 * shapes + 4)
    total = max(torch._dynamo.config.accumulated_recompile_limit, 8 * limit)
    settings = {"recompile_limit": limit, "accumulated_recompile_limit": total, "fail_on_recompile_limit_hit": True}
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(settings):
            yield torch.compile(fn, backend=backend, dynamic=dynamic, options=dict(options) if options else None)
    finally:
        torch._dynamo.reset()


@contextlib.contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """`torch.set_num_threads(threads)` for a while."""
    found = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(found)
