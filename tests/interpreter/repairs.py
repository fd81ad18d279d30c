"""Puts the repaired parts into triton's interpreter and gives Inductor a driver to ask. For the interpreting process only."""

import warnings

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from tests.interpreter import libdevice, source
from tests.interpreter.builder import RepairedBuilder
from tests.interpreter.reductions import FoldByHalves, ScanInOrder


class NoDevice(DriverBase):
    """The driver of a machine without a GPU: it names a target and can do nothing."""

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        raise RuntimeError("there is no device")

    def get_benchmarker(self):
        raise RuntimeError("nothing is timed without a device")


def repair() -> None:
    """Replaces the interpreter's arithmetic. Call it once, before the first kernel runs."""
    triton.runtime.driver.set_active(NoDevice())
    interpreter.interpreter_builder = RepairedBuilder()
    interpreter.interpreter_semantic = TritonSemantic(interpreter.interpreter_builder)
    interpreter.ReduceOps, interpreter.ScanOps = FoldByHalves, ScanInOrder
    libdevice.install()
    source.install()
    _patch_language_once()
    # Masked-off lanes compute whatever their operands give.
    np.seterr(all="ignore")
    warnings.filterwarnings("ignore", message="Could not find an active CPU backend")


def _patch_language_once() -> None:
    """triton patches its language anew in each call of a device function, most of the time of a run, and restores it sometimes."""
    scope = interpreter._LangPatchScope()
    for language in (tl.core, tl):
        interpreter._patch_builtin(language, interpreter.interpreter_builder, scope)
        interpreter._patch_builtin(language.tensor, interpreter.interpreter_builder, scope)
        interpreter._patch_lang_tensor(language.tensor, scope)
        interpreter._patch_lang_core(language, scope)
    interpreter._patch_builtin(tl.math, interpreter.interpreter_builder, scope)
    interpreter._patch_builtin(tl.core.tensor_descriptor_base, interpreter.interpreter_builder, scope)
    interpreter._patch_lang = _nothing_more_to_patch
    _name_types_of_amd()


def _name_types_of_amd() -> None:
    """The interpreter knows them everywhere but in its list of names."""
    types = {tl.float8e4b8.name: tl.float8e4b8, tl.float8e5b16.name: tl.float8e5b16}
    others = tl.core.dtype.to_ir
    tl.core.dtype.to_ir = lambda self, builder: types[self.name] if self.name in types else others(self, builder)


def _nothing_more_to_patch(function):
    return interpreter._LangPatchScope()
