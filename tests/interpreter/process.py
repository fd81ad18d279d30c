"""The process that interprets: set up once, before anything imports triton, and never undone.

``TRITON_INTERPRET`` decides while ``triton.jit`` decorates what a kernel becomes, and the interpreter replaces functions of
``triton.language``, so kernels can be interpreted or compiled in a process, not both. :class:`Interpreter` starts such a process.
"""

import concurrent.futures
import importlib
import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # Kernels are Python here: a pool of compilers would only take time to start.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


class InterpretationError(Exception):
    """A function raised in the interpreting process; the text is its traceback."""


class Interpreter:
    """Runs functions in a process of its own, where Triton kernels are interpreted on the CPU."""

    def __init__(self) -> None:
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 300.0, **kwargs: Any) -> Any:
        """``function(*args, **kwargs)`` there.

        Args:
            function: one that can be imported by its name; it may compile (see ``tests.interpreter.compiled``) or launch kernels.
            args, kwargs: what pickle takes, and kernels of a module (there they are interpreted ones). Tensors are copied: the process
                sees no change of them, and this one none of theirs.

        Returns:
            what the function returned, copied.

        Raises:
            InterpretationError: it raised.
        """
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn, initializer=_start, initargs=(list(sys.path),))
        future = self._pool.submit(_call, _pickled((function, [_named(arg) for arg in args], kwargs)))
        result, error = _unpickled(future.result(timeout))
        if error is not None:
            raise InterpretationError(error)
        return result

    def close(self) -> None:
        """Ends the process."""
        if self._pool is not None:
            # Without the seconds that Python takes to tear torch down.
            self._pool.submit(os._exit, 0)
            self._pool.shutdown()
            self._pool = None


class _Kernel(NamedTuple):
    """Stands for a kernel: the other process has its own under this name."""

    module: str
    name: str


def _named(value: Any) -> Any:
    return _Kernel(value.fn.__module__, value.fn.__name__) if type(value).__module__ == "triton.runtime.jit" else value


def _found(value: Any) -> Any:
    return getattr(importlib.import_module(value.module), value.name) if isinstance(value, _Kernel) else value


def _pickled(value: Any) -> bytes:
    """torch.save takes every dtype, and no shared memory as torch's way of passing tensors between processes does."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpickled(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _start(path: list[str]) -> None:
    """What the process does first."""
    sys.path[:] = path
    os.environ.update(ENVIRONMENT)
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before TRITON_INTERPRET was set")
    from tests.interpreter.repairs import repair

    repair()


def _call(pickled: bytes) -> bytes:
    try:
        function, args, kwargs = _unpickled(pickled)
        torch.manual_seed(0)
        return _pickled((function(*map(_found, args), **kwargs), None))
    except Exception:
        return _pickled((None, traceback.format_exc()))
    finally:
        torch._dynamo.reset()
