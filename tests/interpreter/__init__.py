"""Whole graphs through Inductor's Triton code on a machine without a GPU: Triton's interpreter, repaired, in a process of its own.

    def rows(x):                                # a function of the test module, run in the interpreting process
        return compiled(torch.softmax)(x, -1)

    def test_rows(interpreter):                 # the fixture of tests/conftest.py
        out = interpreter.run(rows, torch.randn(3, 100))

arithmetic.py, builder.py, reductions.py and libdevice.py say what each operation computes, process.py how the process is kept apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any], dynamic: bool | None = None, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """``torch.compile(function, backend="batch_invariant")`` with Triton kernels for CPU tensors; runs in the interpreting process only."""
    import torch

    from bi_inductor.backend import compile_graph

    backend = functools.partial(compile_graph, cpu_backend="triton", options=options)
    return torch.compile(function, backend=backend, dynamic=dynamic)


def run_compiled(function: Callable[..., Any], *args: Any, dynamic: bool | None = None, options: dict[str, Any] | None = None) -> Any:
    """One call of the compiled function: ``interpreter.run(run_compiled, torch.add, x, y)``."""
    import torch

    with torch.no_grad():
        return compiled(function, dynamic, options)(*args)


def run_batches(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], dynamic: bool | None = None, options: dict[str, Any] | None = None
) -> list[Any]:
    """The results of one compiled function for each tuple of arguments."""
    import torch

    run = compiled(function, dynamic, options)
    with torch.no_grad():
        return [run(*args) for args in calls]


def code_of(
    function: Callable[..., Any], *args: Any, dynamic: bool | None = None, options: dict[str, Any] | None = None
) -> tuple[Any, list[str]]:
    """The result of one call, and the Python code that Inductor wrote for each graph, Triton kernels included."""
    import torch
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        result, codes = run_and_get_code(compiled(function, dynamic, options), *args)
    return result, codes
