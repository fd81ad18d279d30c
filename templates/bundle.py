"""Compiles the pointwise kernels and epilogues of a graph several to a C++ source.

Inductor gives each kernel a source of its own and g++ spends most of its time on such a source reading Inductor's header; templates add
epilogues, so their graphs have more kernels than stock. Together they share that cost. Flags and kernels stay as Inductor wrote them.

Inductor internals, checked in torch 2.13.0 to 2.15.0: AsyncCompile (cpp_pybinding, submit, wait), CppPythonBindingsCodeCache (load_async,
entry_function, the environment variable that hands it the address of the function which reads a tensor's pointer), get_compile_threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch._inductor.async_compile import AsyncCompile, get_compile_threads, kernel_code_log
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import clear_on_fresh_cache

# So many share one source: a few cores still compile in parallel, and the number follows neither the machine nor the batch.
KERNELS_PER_SOURCE = 6

HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>"

# The definition that Inductor gives every kernel for Python.
DEFINITION = re.compile(r'(extern "C"\s+void\s+)kernel(\s*\()')

BINDING_PRELUDE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cstdlib>
#include <stdexcept>

namespace {

void* (*tensor_pointer)(PyObject*);

template <typename T>
T argument(PyObject* arguments, Py_ssize_t i) {
  PyObject* given = PyTuple_GET_ITEM(arguments, i);
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(tensor_pointer(given));
  } else if constexpr (std::is_floating_point_v<T>) {
    const double value = PyFloat_AsDouble(given);
    if (value == -1.0 && PyErr_Occurred()) throw std::runtime_error("a kernel of a compiled graph expected a float");
    return static_cast<T>(value);
  } else {
    const Py_ssize_t value = PyLong_AsSsize_t(given);
    if (value == -1 && PyErr_Occurred()) throw std::runtime_error("a kernel of a compiled graph expected an int");
    return static_cast<T>(value);
  }
}

template <typename Call>
PyObject* guarded(PyObject* arguments, Py_ssize_t count, Call call) {
  try {
    if (!PyTuple_CheckExact(arguments) || PyTuple_GET_SIZE(arguments) != count)
      throw std::runtime_error("a kernel of a compiled graph got another number of arguments");
    call();
    Py_RETURN_NONE;
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
    """A kernel as Inductor wrote it: the C types of its arguments, the headers it includes, and its C++."""

    argument_types: Sequence[str]
    includes: Sequence[str]
    body: str

    @classmethod
    def parse(cls, argument_types: Sequence[str], source: str) -> GeneratedKernel | None:
        """None for a source that defines anything but one kernel with Inductor's header: those names could meet in one source."""
        lines = source.strip().splitlines()
        includes = [line.strip() for line in lines if line.lstrip().startswith("#include")]
        body = "\n".join(line for line in lines if not line.lstrip().startswith("#include")).strip()
        alone = HEADER not in includes or not body.startswith('extern "C"') or len(DEFINITION.findall(body)) != 1
        return None if alone else cls(argument_types, includes, body)


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


def bundle_source(kernels: Sequence[GeneratedKernel]) -> str:
    """One C++ source with every kernel under the name ``kernel_<i>`` and a Python module of the same names."""
    includes: dict[str, None] = {HEADER: None}
    bodies, functions, methods = [], [], []
    for i, (types, needed, body) in enumerate(kernels):
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


class BundledCompile(AsyncCompile):
    """AsyncCompile of a generated module that compiles its kernels several at a time.

    A kernel without Inductor's header compiles alone: it is a call of the library, the same for many graphs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[Placeholder, GeneratedKernel] = {}

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
        """Called by the generated module after its last kernel: puts the functions in place of the placeholders."""
        # As torch's: with one compile thread everything happens in this process, one after the other.
        submit = self.submit if get_compile_threads() > 1 else None
        waiting = list(self._waiting.items())
        groups = [waiting[i : i + KERNELS_PER_SOURCE] for i in range(0, len(waiting), KERNELS_PER_SOURCE)]
        sources = [bundle_source([kernel for _, kernel in group]) for group in groups]
        modules = [BundleCodeCache.load_async(source, "cpu", submit_fn=submit) for source in sources]
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
