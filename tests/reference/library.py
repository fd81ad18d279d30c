"""Builds the C++ of the reference once and calls it through ctypes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

# No optimisation that could regroup, fuse or drop an operation: the reference is to be believed, not to be fast.
COMPILER = "g++"
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fsigned-zeros", "-fPIC", "-shared")

# A null pointer stands for an operand that is absent.
Argument = torch.Tensor | int | float | None


def call(name: str, accumulation_dtype: torch.dtype, arguments: Iterable[Argument]) -> None:
    """Call ``NAME_float`` or ``NAME_double``: tensors go as data pointers, ints as int64_t, floats as double."""
    suffix = {torch.float32: "float", torch.float64: "double"}[accumulation_dtype]
    function = getattr(_library(), f"{name}_{suffix}")
    function.restype = None
    function(*[_to_c(argument) for argument in arguments])


def _to_c(argument: Argument) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.c_double:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, torch.Tensor):
        assert argument.is_contiguous(), "the reference indexes operands as contiguous arrays"
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return ctypes.c_double(argument)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_build()))


def _build() -> Path:
    """Compile into a file named after what it is built from; processes that race each rename a file of their own."""
    folder = Path(__file__).parent
    sources = sorted(folder.glob("*.cpp"))
    compiler_version = subprocess.run([COMPILER, "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(compiler_version + " ".join(FLAGS).encode())
    for path in (folder / "arithmetic.h", *sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")

    cache = Path(tempfile.gettempdir()) / f"bi_inductor_reference_{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    library = cache / f"reference_{digest.hexdigest()[:32]}.so"
    if not library.exists():
        unfinished = cache / f"{library.stem}.{os.getpid()}.tmp"
        command = [COMPILER, *FLAGS, *map(str, sources), "-o", str(unfinished)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode != 0:
            raise RuntimeError(f"the reference does not compile:\n{' '.join(command)}\n{built.stderr}")
        os.replace(unfinished, library)
    return library
