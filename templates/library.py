"""Builds and loads the C++ kernels, one shared library for each (kernel, dtype).

A template's C++ is a plain header. It is instantiated once for each dtype under a C symbol whose name carries the hash of its
source and is loaded with its symbols global, so that eager ops (through ctypes) and every compiled graph (through the dynamic
linker) call the same machine code. A graph compiles only its own small call and epilogue, not the kernel again, and a cached
graph can never meet an older kernel: the symbol would have another name.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import enum
import functools
import hashlib
import re
import threading
from pathlib import Path

import torch

from bi_inductor.errors import CompilerError, no_compiler

TEMPLATES = Path(__file__).parent

# Restores what Inductor's default flags give up; later flags win.
STRICT_FLOATING_POINT = ("-ffp-contract=off", "-fsigned-zeros")


class Parameter(enum.Enum):
    """C type of a kernel parameter; ELEMENT and ACCUMULATOR depend on the dtype a kernel is built for."""

    SIZE = "int64_t"
    NUMBER = "double"
    SIZES = "const int64_t*"
    INPUT = "const {element}*"
    OUTPUT = "{element}*"
    STATISTICS = "{accumulator}*"
    BYTES = "const void*"
    PROLOGUE = "void (*)(void*, int64_t, int64_t, int64_t, void*)"
    ROW_EPILOGUE = "void (*)(void*, int64_t, int64_t, int64_t, int64_t, const void*)"
    EPILOGUE = "void (*)(void*, int64_t, int64_t, int64_t, int64_t, int64_t)"
    CONTEXT = "void*"

    @property
    def ctype(self) -> type[ctypes.c_int64] | type[ctypes.c_double] | type[ctypes.c_void_p]:
        if self is Parameter.SIZE:
            return ctypes.c_int64
        if self is Parameter.NUMBER:
            return ctypes.c_double
        return ctypes.c_void_p


@dataclasses.dataclass(frozen=True)
class DType:
    """How a torch dtype is called in kernel headers and in Inductor's generated code."""

    name: str
    element: str
    accumulator: str


DTYPES: dict[torch.dtype, DType] = {
    torch.float32: DType("float32", "float", "float"),
    torch.float64: DType("float64", "double", "double"),
    torch.bfloat16: DType("bfloat16", "bi::BFloat16", "float"),
    torch.float16: DType("float16", "bi::Half", "float"),
}

# Stored and multiplied in these formats; sums and results are of the dtypes above.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for float32, bfloat16 and float16 (docs/numerics.md section 1)."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel template: the function ``bi::<function><T>`` in ``<folder>/kernel.h`` and its parameters in order.

    ``flags`` are those of the compiler beside Inductor's, for instructions that Inductor's do not switch on everywhere.
    """

    folder: str
    function: str
    parameters: tuple[tuple[str, Parameter], ...]
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function

    @functools.cache  # noqa: B019  # kernels live as long as the process
    def symbol(self, dtype: torch.dtype) -> str:
        """The C symbol of the instantiation for ``dtype``; it names the content of the source."""
        digest = hashlib.sha256(self._source(dtype, "SYMBOL").encode()).hexdigest()[:12]
        return f"bi_{self.function}_{DTYPES[dtype].name}_{digest}"

    def declaration(self, dtype: torch.dtype) -> str:
        """The ``extern "C"`` declaration for code that calls the instantiation; 16-bit elements are opaque there."""
        types = ", ".join(
            "const void*" if kind is Parameter.INPUT else "void*" if "{" in kind.value else kind.value for _, kind in self.parameters
        )
        return f'extern "C" void {self.symbol(dtype)}({types});'

    def source(self, dtype: torch.dtype) -> str:
        """The C++ source of the instantiation, self-contained: our own headers are inlined."""
        return self._source(dtype, self.symbol(dtype))

    def embedded(self, dtype: torch.dtype) -> str:
        """The source of the instantiation as part of a bigger one: in a namespace of its own, and only once however often it is pasted."""
        symbol = self.symbol(dtype)
        lines = self.source(dtype).splitlines()
        includes = [line for line in lines if line.startswith("#include")]
        rest = [line for line in lines if not line.startswith("#include")]
        return "\n".join(
            [f"#ifndef {symbol}_DEFINED", f"#define {symbol}_DEFINED", *includes, f"namespace {symbol}_source {{", *rest, "}", "#endif", ""]
        )

    def _source(self, dtype: torch.dtype, symbol: str) -> str:
        names = DTYPES[dtype]
        parameters, arguments = [], []
        for name, kind in self.parameters:
            ctype = kind.value.format(element=names.element, accumulator=names.accumulator)
            if kind in (Parameter.PROLOGUE, Parameter.ROW_EPILOGUE, Parameter.EPILOGUE):
                parameters.append(ctype.replace("(*)", f"(*{name})"))
            elif kind in (Parameter.INPUT, Parameter.OUTPUT, Parameter.STATISTICS):
                parameters.append(("const void* " if kind is Parameter.INPUT else "void* ") + name)
                arguments.append(f"static_cast<{ctype}>({name})")
                continue
            else:
                parameters.append(f"{ctype} {name}")
            arguments.append(name)
        return "\n".join(
            [
                inline_header(TEMPLATES / self.folder / "kernel.h"),
                f'extern "C" void {symbol}({", ".join(parameters)}) {{',
                f"  bi::{self.function}<{names.element}>({', '.join(arguments)});",
                "}",
                "",
            ]
        )


# Parameters of a kernel whose rows a prologue may compute (common/prologue.h); an eager call has none.
PROLOGUE_PARAMETERS = {"prologue": Parameter.PROLOGUE, "prologue_context": Parameter.CONTEXT}
NO_PROLOGUE: dict[str, None] = dict.fromkeys(PROLOGUE_PARAMETERS)

# Parameters of a kernel whose rows may also be consumed by an epilogue (common/epilogue.h).
ROW_PARAMETERS = {**PROLOGUE_PARAMETERS, "epilogue": Parameter.ROW_EPILOGUE, "epilogue_context": Parameter.CONTEXT}
NEITHER: dict[str, None] = dict.fromkeys(ROW_PARAMETERS)


# Filled by the modules in templates/<op>/lowering.py.
KERNELS: dict[str, Kernel] = {}


def register_kernel(folder: str, function: str, parameters: dict[str, Parameter], flags: tuple[str, ...] = ()) -> Kernel:
    """Declares a kernel template so that graphs loaded from a cache find it by name."""
    kernel = Kernel(folder, function, tuple(parameters.items()), flags)
    KERNELS[function] = kernel
    return kernel


@functools.cache
def read_source(path: Path) -> str:
    """A source file as it was when this process first read it: the hash in a cache key and the code compiled under it
    must be of one text.
    """
    return path.read_text()


def inline_header(path: Path, seen: set[Path] | None = None) -> str:
    """The text of ``path`` with every ``#include "..."`` replaced by that file's text, each file once."""
    seen = set() if seen is None else seen
    if path.resolve() in seen:
        return ""
    seen.add(path.resolve())
    lines = []
    for line in read_source(path.resolve()).splitlines():
        include = re.match(r'\s*#include "(.+)"', line)
        if include:
            lines.append(inline_header(path.parent / include[1], seen))
        elif line.strip() != "#pragma once":
            lines.append(line)
    return "\n".join(lines)


# Kernels are built while Inductor is still lowering and writing the graph: the compiler runs as a process of its own.
_builders = concurrent.futures.ThreadPoolExecutor(max_workers=2, thread_name_prefix="bi_inductor_build")
_libraries: dict[tuple[Kernel, torch.dtype], concurrent.futures.Future[ctypes.CDLL]] = {}
_lock = threading.Lock()


def _build(kernel: Kernel, dtype: torch.dtype) -> ctypes.CDLL:
    # torch._inductor.codecache.CppCodeCache.load(source, extra_flags=...) -> ctypes.CDLL, checked in torch 2.13.0 to 2.15.0. It keeps the
    # library in Inductor's cache folder under a hash of source and flags, guards it with a file lock, and finds the compiler
    # as Inductor does.
    from torch._inductor import config
    from torch._inductor.codecache import CppCodeCache
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        library = CppCodeCache.load(kernel.source(dtype), "cpu", extra_flags=(*STRICT_FLOATING_POINT, *kernel.flags), needs_vec_isa=True)
    except InvalidCxxCompiler as error:
        raise no_compiler(config.cpp.cxx) from error
    except CppCompileError as error:
        raise CompilerError(
            f"the C++ compiler failed on kernel {kernel.name!r} for {dtype}: {error}. It needs C++17 and OpenMP (g++ 11 or newer)."
        ) from error
    # Loading a second time with RTLD_GLOBAL makes the symbols visible to the libraries of compiled graphs.
    return ctypes.CDLL(library._name, mode=ctypes.RTLD_GLOBAL)


def start_loading(kernel: Kernel, dtype: torch.dtype) -> concurrent.futures.Future[ctypes.CDLL]:
    """Begins to build and load the instantiation of ``kernel`` for ``dtype`` in the background, once a process."""
    with _lock:
        future = _libraries.get((kernel, dtype))
        # A failure is not kept: the user may install a compiler and try again.
        if future is None or (future.done() and future.exception() is not None):
            future = _builders.submit(_build, kernel, dtype)
            _libraries[kernel, dtype] = future
        return future


def load(kernel: Kernel, dtype: torch.dtype) -> ctypes.CDLL:
    """The library that holds the instantiation of ``kernel`` for ``dtype``, built if no cache has it.

    Raises:
        CompilerError: no C++ compiler, or it failed.
    """
    return start_loading(kernel, dtype).result()


def start_for_graph(function: str, dtype_name: str, symbol: str) -> concurrent.futures.Future[ctypes.CDLL]:
    """start_loading of a kernel for the generated code of a compiled graph, also when it comes from a cache.

    Raises:
        CompilerError: the graph was compiled for another version of the kernel.
    """
    from bi_inductor.templates import register_kernels

    register_kernels()
    kernel = KERNELS.get(function)
    dtype = next(dtype for dtype, names in DTYPES.items() if names.name == dtype_name)
    if kernel is None or kernel.symbol(dtype) != symbol:
        present = f"no kernel {function!r}" if kernel is None else kernel.symbol(dtype)
        raise CompilerError(
            f"a compiled graph needs {symbol}, but this version of bi_inductor has {present}. "
            "Compile the model again (the saved artifact belongs to another version)."
        )
    return start_loading(kernel, dtype)


def call(kernel: Kernel, dtype: torch.dtype, arguments: dict[str, object]) -> None:
    """Calls the instantiation from Python: tensors pass their data pointer, sequences of sizes an int64 array, None a null pointer."""
    values: list[object] = []
    for name, kind in kernel.parameters:
        value = arguments[name]
        if isinstance(value, torch.Tensor):
            values.append(ctypes.c_void_p(value.data_ptr()))
        elif kind is Parameter.SIZES:
            sizes = [int(size) for size in value]  # type: ignore[attr-defined]  # a sequence, by the kind of the parameter
            values.append((ctypes.c_int64 * max(1, len(sizes)))(*sizes))
        elif value is None:
            values.append(ctypes.c_void_p(None))
        else:
            values.append(kind.ctype(value))  # type: ignore[arg-type]  # a number, by the kind of the parameter
    getattr(load(kernel, dtype), kernel.symbol(dtype))(*values)
