"""Option ``native_bfloat16``: whether this CPU and Inductor's settings have the instruction that it takes."""

from __future__ import annotations

import torch

from bi_inductor.errors import OptionError

ALLOWED = (
    "allowed are CPUs with AVX512-BF16 (AMD since Zen 4, Intel since Cooper Lake), graphs in C++, and no setting that takes the "
    "instruction away (ATEN_CPU_CAPABILITY, cpp.simdlen). Without the option bfloat16 is multiplied in float32, with the same bits on "
    "every CPU"
)


def missing() -> str:
    """Why products of bfloat16 cannot take the CPU's own instruction here; "" where they can."""
    from torch._inductor.cpu_vec_isa import VecAVX512, pick_vec_isa

    if not torch.cpu._is_avx512_bf16_supported():
        return "this CPU has no AVX512-BF16"
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX512"):
        return f"torch runs as on a CPU with {capability}"
    isa = pick_vec_isa()
    if not isinstance(isa, VecAVX512):
        return f"Inductor writes code for {str(isa) or 'no vector instructions'}"
    return ""


def require_native_bfloat16(cpu_backend: str = "cpp", device: str = "cpu") -> None:
    """Raises OptionError where the option cannot be kept: another device or CPU, a simulated instruction set, code in Triton."""
    if device != "cpu":
        why = f"a product of bfloat16 is on {device}"
    elif cpu_backend != "cpp":
        why = f"the graph is written for cpu_backend {cpu_backend!r}"
    else:
        why = missing()
    if why:
        raise OptionError(f"option 'native_bfloat16' needs the CPU's instruction VDPBF16PS, but {why}; {ALLOWED}.")
