"""GPUs that a model can be compiled for on any machine: their description, and what Triton makes of a model for them. Needs triton."""

from bi_inductor.targets.compile import compile_program
from bi_inductor.targets.description import TARGETS, Target, target_named
from bi_inductor.targets.kernels import CompiledKernel
from bi_inductor.targets.report import TargetReport

__all__ = ["TARGETS", "CompiledKernel", "Target", "TargetReport", "compile_program", "target_named"]
