"""Batch-invariant compilation for PyTorch: the same bits for a sample whatever else is in the batch."""

from bi_inductor import operators as operators
from bi_inductor import random as random
from bi_inductor.accumulation import GradientAccumulator
from bi_inductor.aot_inductor import aoti_compile_and_package
from bi_inductor.backend import batch_invariant
from bi_inductor.check import check
from bi_inductor.errors import (
    BatchInvariantError,
    CaptureError,
    CompilerError,
    DeviceError,
    FallbackWarning,
    GraphBreakWarning,
    OpaqueOpError,
    OpaqueOpWarning,
    OptionError,
    RandomOpWarning,
    SampleMixingError,
    SampleMixingWarning,
    UnsupportedOpError,
    UnsupportedVersionError,
)
from bi_inductor.explain import explain
from bi_inductor.find import Variant, find
from bi_inductor.integrations.vllm.configuration import vllm_config
from bi_inductor.options import Options

__all__ = [
    "BatchInvariantError",
    "CaptureError",
    "CompilerError",
    "DeviceError",
    "FallbackWarning",
    "GradientAccumulator",
    "GraphBreakWarning",
    "OpaqueOpError",
    "OpaqueOpWarning",
    "OptionError",
    "Options",
    "RandomOpWarning",
    "SampleMixingError",
    "SampleMixingWarning",
    "UnsupportedOpError",
    "UnsupportedVersionError",
    "Variant",
    "aoti_compile_and_package",
    "batch_invariant",
    "check",
    "explain",
    "find",
    "vllm_config",
]
__version__ = "0.1.0"
