"""Every fused multiply-add that generated code has on purpose, and where one comes from that an assembly holds.

Inductor 2.13 writes ``ops.fma`` in the lowerings of add with alpha (NVIDIA only), addcmul and lerp, as CUDA's eager kernels round; the
polynomial of atan in inline assembly (NVIDIA only); softmax's backward too, which is an operator of ours by then. The functions of the
device's library are made of fma, and on AMD so is a division. Nothing else may hold one: contraction is off (``emulate_precision_casts``).
"""

import re

from bi_inductor.targets import CompiledKernel, Target

# sm_80 multiplies bfloat16 by an fma of that type that adds -0, which rounds once as a product does.
FMA = r"(fma|mad)\.\w+\.(ftz\.)?(sat\.)?f\d|v_(pk_)?(fma|mac|mad)\w*_f\d"

# In a kernel's source: what compiles to fma, by the reason that is given for it.
WRITTEN, LIBRARY, DIVISION = "written by Inductor", "a function of the device's library", "a division"
REASONS = {
    WRITTEN: r"\btl\.fma\(|fma\.rn\.f32 \$0",
    LIBRARY: r"\b(libdevice|tl_math)\.(atan|erf|exp|log|sin|tanh)\(",
    DIVISION: r"\bdiv_rn\(| / |\btl\.sigmoid\(",
}

# Of programs.ELEMENTWISE: why there are fused multiply-adds; None where there are none.
ELEMENTWISE_FMA: dict[str, dict[str, str | None]] = {
    "a + 3 * b": {"cuda": WRITTEN, "hip": None},
    "addcmul": dict.fromkeys(("cuda", "hip"), WRITTEN),
    "addcmul, scaled": dict.fromkeys(("cuda", "hip"), WRITTEN),
    "addcdiv, scaled": {"cuda": None, "hip": DIVISION},
    "a - 3 * b": dict.fromkeys(("cuda", "hip")),
    "addcdiv": {"cuda": None, "hip": DIVISION},
    "lerp": dict.fromkeys(("cuda", "hip"), WRITTEN),
    "atan": {"cuda": WRITTEN, "hip": LIBRARY},
    **{name: dict.fromkeys(("cuda", "hip"), LIBRARY) for name in ("exp", "erf", "tanh", "log")},
    "sigmoid": {"cuda": None, "hip": DIVISION},
    "rsqrt": dict.fromkeys(("cuda", "hip")),
    "x * y + z": dict.fromkeys(("cuda", "hip")),
}


def why(kernel: CompiledKernel, target: Target) -> str | None:
    """Where the fused multiply-adds of a generated kernel come from, the first reason of the table; None if it has none."""
    if not kernel.instructions(FMA):
        return None
    body = _body(kernel)
    possible = [reason for reason in REASONS if reason != DIVISION or target.backend == "hip"]
    return next((reason for reason in possible if re.search(REASONS[reason], body)), "contraction")


def unaccounted(kernel: CompiledKernel, target: Target) -> list[str]:
    """The fused multiply-adds of a generated kernel that nothing in its source accounts for.

    Where all that a source has are calls of ``tl.fma``, on elements of a block that threads share evenly, there are as many as calls.
    """
    found, body = kernel.instructions(FMA), _body(kernel)
    if why(kernel, target) == "contraction":
        return found
    others = REASONS[LIBRARY], r"fma\.rn\.f32 \$0", *((REASONS[DIVISION],) if target.backend == "hip" else ())
    blocks = [int(size) for size in re.findall(r"\b[XY]BLOCK=(\d+)", kernel.configuration)]
    if not found or "R0_BLOCK" in kernel.configuration or not blocks or any(re.search(pattern, body) for pattern in others):
        return []
    elements = 1
    for block in blocks:
        elements *= block
    (warps,) = re.findall(r"(\d+) warps?", kernel.configuration)
    written = len(re.findall(r"\btl\.fma\(", body)) * max(elements // (target.warp_size * int(warps)), 1)
    # A packed instruction is two.
    made = sum(2 if "pk" in name or "x2" in name else 1 for name in found)
    return found if made > written else []


def _body(kernel: CompiledKernel) -> str:
    """The function of its source, without the code that would time it."""
    return kernel.source.rpartition("@triton.jit")[2].partition("def get_args")[0]
