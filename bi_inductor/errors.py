"""Errors and warnings of bi_inductor: all carry what was met, where in the user's source, and the way out."""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any


class BatchInvariantError(RuntimeError):
    """Base of the errors raised by bi_inductor."""


class UnsupportedOpError(BatchInvariantError):
    """The graph holds an op that may vary with the batch and for which there is no template."""


class UnsupportedVersionError(BatchInvariantError):
    """This version of torch was not run with the test suite."""


class CompilerError(BatchInvariantError):
    """The C++ compiler is missing or failed."""


class MissingTritonError(BatchInvariantError):
    """Compiling for a GPU needs triton, which is not installed."""


class CaptureError(BatchInvariantError):
    """The model cannot be captured as one graph that runs for every batch."""


class DeviceError(BatchInvariantError):
    """The model uses a GPU that this machine does not have."""


class OptionError(ValueError):
    """An option is unknown, has a bad value, or would undo a pin."""


class SampleMixingError(BatchInvariantError):
    """An op mixes samples by its meaning, or draws random numbers by place, and ``strict`` is on."""


class OpaqueOpError(BatchInvariantError):
    """A custom op's numerics are unknown, and ``strict`` is on."""


class SampleMixingWarning(UserWarning):
    """An op mixes samples by its meaning: no kernel can make its result independent of the batch."""


class RandomOpWarning(SampleMixingWarning):
    """An op draws random numbers by the place of an element: a sample's numbers move with its place in the batch."""


class OpaqueOpWarning(UserWarning):
    """A custom op's numerics are unknown: bi_inductor calls it as it is."""


class FallbackWarning(UserWarning):
    """An op without a template is invariant at a cost: torch's kernel runs on one sample at a time, or parts of it hold more memory."""


class GraphBreakWarning(UserWarning):
    """Dynamo split the function: what lies between two graphs runs in eager, outside of this backend."""


def no_compiler(tried: object) -> CompilerError:
    """The error for a machine on which Inductor found none of the compilers ``tried``."""
    return CompilerError(
        "backend 'batch_invariant' found no C++ compiler. Install g++ (Debian and Ubuntu: apt-get install g++) or name one in the "
        f"environment variable CXX. Tried: {tried}"
    )


@contextlib.contextmanager
def missing_device_named() -> Iterator[None]:
    """Turns torch's many errors about a GPU that is not there, raised inside, into one `DeviceError` with the user's line."""
    try:
        yield
    except Exception as error:
        if (sentence := missing_device(error)) is not None:
            raise DeviceError(sentence) from error
        raise


def missing_device(error: BaseException) -> str | None:
    """One sentence when ``error`` is about a GPU that this machine does not have, otherwise None."""
    import torch

    text = str(error)
    if torch.cuda.is_available() or not re.search(r"cuda|nvidia", text, re.IGNORECASE):
        return None
    return (
        f"the model uses a CUDA device at {user_line(error)}, and this machine has none; move it to the CPU, or go to a machine with a GPU."
    )


def user_line(error: BaseException) -> str:
    """The innermost line of the traceback that is neither torch's nor ours; the one that Dynamo names where it names one."""
    from bi_inductor.passes.classify import TORCH_FOLDER

    text = str(error)
    named = re.findall(r'File ("[^"]+", line \d+)[^\n]*\n\s*([^\n]+)', text.partition("from user code")[2])
    if named:
        return f"{named[-1][0]}: {named[-1][1]}"
    own = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((TORCH_FOLDER, own, "<"))]
    return f'"{frames[-1].filename}", line {frames[-1].lineno}: {frames[-1].line}' if frames else "an unknown line"


def for_user(error: Exception, caller: FrameType | None) -> Exception | None:
    """The error of ours inside what Inductor and Dynamo made of it, in a class that they let pass; None when it is no error of ours.

    Both wrap whatever a backend raises into ``BackendCompilerFailed``, except subclasses of their ``ShortenTraceback`` (checked in
    torch 2.13.0 to 2.15.0: torch._dynamo.output_graph.call_user_compiler, torch._inductor.compile_fx). What is returned is one
    of those as well as of the class documented here, so ``except bi_inductor.UnsupportedOpError`` works around a compiled call.
    Frames of the traceback above ``caller`` are dropped.
    """
    from torch._dynamo.exc import BackendCompilerFailed, ShortenTraceback
    from torch._inductor import config
    from torch._inductor.exc import InvalidCxxCompiler, LoweringException

    found: BaseException | None = error
    while isinstance(found, (BackendCompilerFailed, LoweringException)):
        found = found.inner_exception if isinstance(found, BackendCompilerFailed) else found.__context__
    if isinstance(found, InvalidCxxCompiler):
        found = no_compiler(config.cpp.cxx)
    if not isinstance(found, (BatchInvariantError, OptionError)):
        return None
    bases = (kind for kind in type(found).__mro__ if issubclass(kind, Exception) and not issubclass(kind, ShortenTraceback))
    kind: Any = next(bases)
    return _passing(kind)(*found.args, first_useful_frame=caller)


@functools.cache
def _passing(kind: Any) -> Callable[..., Exception]:
    """``kind`` as a subclass of Dynamo's ShortenTraceback too; it pickles as ``kind``."""
    from torch._dynamo.exc import ShortenTraceback

    def __init__(self: Any, *args: Any, first_useful_frame: FrameType | None) -> None:
        ShortenTraceback.__init__(self, *args, first_useful_frame=first_useful_frame)

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return kind, self.args

    members = {"__init__": __init__, "__reduce__": __reduce__, "__module__": __name__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, ShortenTraceback), members)
