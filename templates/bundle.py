"""Compiles the kernels of a graph several to a C++ source: pointwise kernels and epilogues, and calls of the library by themselves.

Inductor gives each kernel a source of its own and g++ spends most of its time on such a source reading Inductor's header; templates add
epilogues, so their graphs have more kernels than stock. Together they share that cost. Flags and kernels stay as Inductor wrote them. Calls
of the library's kernels need no header of Inductor's, not even the precompiled one, which takes longer to read than all of them to compile.

Inductor internals, checked in torch 2.13.0 to 2.15.0: AsyncCompile (cpp_pybinding, submit, wait), CppPythonBindingsCodeCache (load_async,
entry_function, the environment variable that hands it the address of the function which reads a tensor's pointer), get_compile_threads.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch._inductor.async_compile import AsyncCompile, get_compile_threads, kernel_code_log
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import clear_on_fresh_cache

from bi_inductor.templates import library

Item = TypeVar("Item")

# At most so many share one source: a few cores still compile in parallel, and the number follows neither the machine nor the batch.
KERNELS_PER_SOURCE = 6

HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>"

# What a call of a library kernel needs of it: such code only passes pointers on.
OPAQUE_ELEMENTS = """\
#include <cstdint>
#include <limits>
namespace at {
struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };
}  // namespace at
"""

# The definition that Inductor gives every kernel for Python.
DEFINITION = re.compile(r'(extern "C"\s+void\s+)kernel(\s*\()')

BINDING_PRELUDE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdlib>
#include <exception>
#include <type_traits>

namespace {

void* (*tensor_pointer)(PyObject*);

// Thrown where Python's error is set already.
struct PythonError {};

[[noreturn]] void fail(const char* message) {
  PyErr_SetString(PyExc_RuntimeError, message);
  throw PythonError();
}

template <typename T>
T argument(PyObject* arguments, Py_ssize_t i) {
  PyObject* given = PyTuple_GET_ITEM(arguments, i);
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(tensor_pointer(given));
  } else if constexpr (std::is_floating_point_v<T>) {
    const double value = PyFloat_AsDouble(given);
    if (value == -1.0 && PyErr_Occurred()) fail("a kernel of a compiled graph expected a float");
    return static_cast<T>(value);
  } else {
    const Py_ssize_t value = PyLong_AsSsize_t(given);
    if (value == -1 && PyErr_Occurred()) fail("a kernel of a compiled graph expected an int");
    return static_cast<T>(value);
  }
}

template <typename Call>
PyObject* guarded(PyObject* arguments, Py_ssize_t count, Call call) {
  try {
    if (!PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != count)
      fail("a kernel of a compiled graph got another number of arguments");
    call();
    Py_RETURN_NONE;
  } catch (PythonError) {
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown error in a kernel of a compiled graph");
  }
  return nullptr;
}
"""

BINDING_MODULE = """
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "bundle", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_bundle() {
  const char* address = std::getenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR");
  if (!address) {
    PyErr_SetString(PyExc_RuntimeError, "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR is not set");
    return nullptr;
  }
  tensor_pointer = reinterpret_cast<void* (*)(PyObject*)>(std::strtoull(address, nullptr, 10));
  PyObject* module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
  if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
"""


class GeneratedKernel(NamedTuple):
    """A kernel as Inductor wrote it: the C types of its arguments, the headers it includes, and its C++. ``header``: Inductor's is one."""

    argument_types: Sequence[str]
    includes: Sequence[str]
    body: str
    header: bool

    @classmethod
    def parse(cls, argument_types: Sequence[str], source: str) -> GeneratedKernel | None:
        """None for a source that defines anything but one kernel with Inductor's header, or as one call of the library: those names
        could meet in one source.
        """
        source = source.strip()
        call = source.startswith(OPAQUE_ELEMENTS)
        lines = source.removeprefix(OPAQUE_ELEMENTS).splitlines()
        includes = [line.strip() for line in lines if line.lstrip().startswith("#include")]
        body = "\n".join(line for line in lines if not line.lstrip().startswith("#include")).strip()
        alone = call == (HEADER in includes) or not body.startswith('extern "C"') or len(DEFINITION.findall(body)) != 1
        return None if alone else cls(argument_types, includes, body, not call)


class Placeholder:
    """Stands in the generated module for a kernel until wait() puts the function there."""


@clear_on_fresh_cache
class BundleCodeCache(CppPythonBindingsCodeCache):
    """Modules with several kernels, under Inductor's cache folder and locks."""

    cache: dict[str, Callable[[], Any]] = {}  # noqa: RUF012  # as the base declares it

    entry_function = "bundle"

    @staticmethod
    def cache_clear() -> None:
        BundleCodeCache.cache.clear()


@clear_on_fresh_cache
class CallCodeCache(BundleCodeCache):
    """Modules with several calls of the library, compiled without Inductor's precompiled header."""

    cache: dict[str, Callable[[], Any]] = {}  # noqa: RUF012  # as the base declares it

    @staticmethod
    def cache_clear() -> None:
        CallCodeCache.cache.clear()

    @classmethod
    def _get_uncompiled_header(cls, device: str) -> str | None:
        return None


def bundle_source(kernels: Sequence[GeneratedKernel]) -> str:
    """One C++ source with every kernel under the name ``kernel_<i>`` and a Python module of the same names. All have Inductor's header, or
    none has it.
    """
    includes: dict[str, None] = dict.fromkeys([HEADER] if kernels[0].header else OPAQUE_ELEMENTS.splitlines())
    bodies, functions, methods = [], [], []
    for i, (types, needed, body, _) in enumerate(kernels):
        includes.update((line, None) for line in needed)
        bodies.append(DEFINITION.sub(rf"\1kernel_{i}\2", body))
        arguments = ", ".join(f"argument<{ctype.removeprefix('const ')}>(arguments, {n})" for n, ctype in enumerate(types))
        functions.append(
            f"PyObject* python_kernel_{i}(PyObject*, PyObject* arguments) {{\n"
            f"  return guarded(arguments, {len(types)}, [&] {{ kernel_{i}({arguments}); }});\n"
            "}"
        )
        methods.append(f'    {{"kernel_{i}", python_kernel_{i}, METH_VARARGS, nullptr}},')
    table = "\n".join(["PyMethodDef methods[] = {", *methods, "    {nullptr, nullptr, 0, nullptr}};"])
    return "\n".join([*includes, *bodies, BINDING_PRELUDE, *functions, "", table, BINDING_MODULE])


# Libraries that the generated module now being executed on a thread needs.
_required = threading.local()


def require(function: str, dtype_name: str, symbol: str) -> None:
    """Called by a generated module, before it makes its BundledCompile, for each library kernel that it calls: starts to build it.

    Raises:
        CompilerError: the graph was compiled for another version of the kernel.
    """
    vars(_required).setdefault("libraries", []).append(library.start_for_graph(function, dtype_name, symbol))


class BundledCompile(AsyncCompile):
    """AsyncCompile of a generated module that compiles its kernels several at a time, while the libraries that they call are built."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[Placeholder, GeneratedKernel] = {}
        self._libraries: list[concurrent.futures.Future[ctypes.CDLL]] = vars(_required).pop("libraries", [])

    def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:
        """Called by the generated module for each kernel."""
        kernel = GeneratedKernel.parse(argtypes, source_code)
        if kernel is None:
            return super().cpp_pybinding(argtypes, source_code)
        kernel_code_log.info("CPP+Bindings Kernel:\n%s", source_code)
        placeholder = Placeholder()
        self._waiting[placeholder] = kernel
        return placeholder

    def wait(self, scope: dict[str, Any]) -> None:
        """Called by the generated module after its last kernel: puts the functions in place of the placeholders.

        Raises:
            CompilerError: no C++ compiler, or it failed on a library.
        """
        # As torch's: with one compile thread everything happens in this process, one after the other.
        submit = self.submit if get_compile_threads() > 1 else None
        calls = [item for item in self._waiting.items() if not item[1].header]
        others = [item for item in self._waiting.items() if item[1].header]
        groups = [*in_groups(others, KERNELS_PER_SOURCE), *in_groups(calls, len(calls))]
        modules = [
            (BundleCodeCache if group[0][1].header else CallCodeCache).load_async(
                bundle_source([kernel for _, kernel in group]), "cpu", submit_fn=submit
            )
            for group in groups
        ]
        # Before any module that refers to their symbols is loaded.
        for built in self._libraries:
            built.result()
        super().wait(scope)
        functions = {
            placeholder: getattr(module(), f"kernel_{i}")
            for group, module in zip(groups, modules, strict=True)
            for i, (placeholder, _) in enumerate(group)
        }
        for name, value in scope.items():
            if isinstance(value, Placeholder):
                scope[name] = functions[value]
        self._waiting.clear()


def in_groups(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """``items`` in order, in as few groups of at most ``most`` as there can be, about as many in each."""
    count = -(-len(items) // most) if items else 0
    return [items[len(items) * i // count : len(items) * (i + 1) // count] for i in range(count)]
