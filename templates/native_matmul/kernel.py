"""The native kernels of the matmul family in bfloat16; their parameters are matmul's (docs/numerics.md section 3, native bfloat16)."""

from __future__ import annotations

from bi_inductor.templates.grouped_matmul.kernel import PARAMETERS as GROUPED_PARAMETERS
from bi_inductor.templates.library import register_kernel
from bi_inductor.templates.matmul.kernel import PARAMETERS

# Inductor's own flags name it on some CPUs only.
FLAGS = ("-mavx512bf16",)

KERNEL = register_kernel("native_matmul", "native_matmul", PARAMETERS, FLAGS)
GROUPED_KERNEL = register_kernel("native_matmul", "native_grouped_matmul", GROUPED_PARAMETERS, FLAGS)
