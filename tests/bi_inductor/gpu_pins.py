"""Code that stock Inductor writes for a described H100 with all pins in force, and with one of them at another value.

``python -m tests.bi_inductor.gpu_pins RESULT`` runs every case and writes the code as JSON: test_gpu_pins.py reads it. Stock, so that a pin
is seen by itself: the backend rewrites most of these programs before Inductor gets them.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping

import torch

from bi_inductor.pins import PINS
from bi_inductor.targets.description import TARGETS
from bi_inductor.targets.device import described_device, load_device_guard
from bi_inductor.targets.kernels import gathered


@dataclasses.dataclass(frozen=True)
class Case:
    """A program whose code a pin changes.

    Attributes:
        value: what the pin is set to instead.
        program: the function.
        sizes: of its inputs, float32 unless ``dtype``.
        sign: a regular expression that the code matches with the other value and not with the pinned one.
        beside: other pins that have to give way for this one to be read, and settings that are no pins.
    """

    value: object
    program: Callable[..., object]
    sizes: tuple[tuple[int, ...], ...]
    sign: str
    beside: Mapping[str, object] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.float32


# Without patterns none is replaced. A matmul is padded only where timing says that it pays, or where it is forced.
PATTERNS = {"pattern_matcher": True}
PADDED = {**PATTERNS, "force_shape_pad": True}
# A matmul by Triton whose only choice, where K may be split, is one number of parts: nothing has to be timed.
BY_TRITON = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "deterministic": False, "batch_invariant": False}


def norms(x, weight, gradient):
    """Sums over rows and over columns of the same elements: a norm's backward."""
    return (x * gradient * weight).sum(-1), (x * gradient).sum(0)


def nested(x):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return y, y.view(x.shape[0], -1, 128).abs().amax(-1)


CASES = {
    # Inductor asks for the other backend's package while it writes the kernel.
    "cuda_backend": Case("halide", lambda x: x + 1, ((64, 64),), r"halide python bindings|async_compile\.halide\("),
    "online_softmax": Case(True, lambda x: x.softmax(-1), ((8, 8192),), "online_softmax_combine", PATTERNS),
    "shape_padding": Case(True, torch.mm, ((511, 509), (509, 515)), r"extern_kernels\.mm\(buf", PADDED),
    "triton.num_decompose_k_splits": Case(1, torch.mm, ((32, 1 << 15), (1 << 15, 32)), r"extern_kernels\.bmm", BY_TRITON),
    "batch_invariant": Case(False, lambda x: x.sum(-1), ((8, 512),), "'batch_invariant': False"),
    "batch_invariant, more rows": Case(False, lambda x: x.sum(-1), ((4096, 512),), "'batch_invariant': False"),
    # Two configurations to choose from by timing.
    "deterministic": Case(False, lambda x: x.sum(-1), ((8, 64),), r"runs as \[\(.*\), \(", {"batch_invariant": False}),
    "dynamic_scale_rblock": Case(True, lambda x: x.sum(-1), ((8, 4096),), "'dynamic_scale_rblock': True"),
    "triton.cooperative_reductions": Case(True, lambda x: x.sum(-1), ((2, 1 << 18),), "CooperativeReductionGrid"),
    "triton.force_cooperative_reductions": Case(True, lambda x: x.sum(-1), ((512, 2048),), "CooperativeReductionGrid"),
    "triton.multi_kernel": Case(1, lambda x: x.sum(-1), ((8, 4096),), "multi_kernel_0"),
    "triton.mix_order_reduction": Case(True, norms, ((65536, 256), (256,), (65536, 256)), "RSPLIT"),
    "triton.nested_reduction": Case(True, nested, ((64, 1024),), "nested"),
    "triton.native_matmul": Case(True, torch.mm, ((64, 64), (64, 64)), r"tl\.dot"),
    "triton.codegen_upcast_to_fp32": Case(False, lambda x: x.abs(), ((64, 64),), r"tl\.load\([^=]*None\)$", dtype=torch.bfloat16),
    "triton.inject_relu_bug_TESTING_ONLY": Case("accuracy", torch.relu, ((64, 64),), r"tmp0 \+ 1"),
    "combo_kernels": Case(True, lambda x, y: (x + 1, y * 2), ((64, 64), (48, 7)), "combo"),
    "use_fast_math": Case(True, lambda x: x.exp(), ((64, 64),), "fast|tl_math.exp"),
    "eager_numerics.division_rounding": Case(False, lambda x, y: x / y, ((64, 64), (64, 64)), r"tmp0 / tmp1"),
    "eager_numerics.disable_ftz": Case(False, lambda x: x.erf(), ((64, 64),), "'disable_ftz': False"),
    "split_reductions": Case(True, lambda x: x.sum(-1), ((2, 1 << 18),), r"triton_\w+_1\.run"),
    "emulate_precision_casts": Case(False, lambda x, y: x * y + x, ((64, 64), (64, 64)), "'enable_fp_fusion': True"),
    "max_autotune_pointwise": Case(True, lambda x: x + 1, ((512, 512),), "'max_autotune_pointwise': True"),
    "coordinate_descent_tuning": Case(True, lambda x: x + 1, ((512, 512),), "'coordinate_descent_tuning': True"),
    # Inductor makes tensors to time kernels with.
    "max_autotune_gemm": Case(
        True, torch.mm, ((512, 512), (512, 512)), "Could not run 'aten::empty", {"deterministic": False, "batch_invariant": False}
    ),
}


def code(case: Case, values: dict[str, object]) -> str:
    """What Inductor writes for the program with these settings."""
    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.utils import get_k_splits, use_decompose_k_choice
    from torch._subclasses import FakeTensorMode

    def written(gm, example_inputs, **settings):
        compile_fx_inner(gm, example_inputs, **settings)

        def uncompiled(inputs):
            return gm.forward(*inputs)

        uncompiled._boxed_call = True
        return uncompiled

    torch._dynamo.reset()
    # Both keep what they have answered for these sizes with other settings.
    use_decompose_k_choice.cache_clear()
    get_k_splits.cache_clear()
    with FakeTensorMode(), torch.no_grad(), gathered() as found, config.patch(force_disable_caches=True):
        inputs = [torch.empty(size, dtype=case.dtype, device="cuda") for size in case.sizes]
        backend = lambda gm, example_inputs: compile_fx(gm, example_inputs, inner_compile=written, config_patches=values)  # noqa: E731
        try:
            torch.compile(case.program, backend=backend, dynamic=False)(*inputs)
        except Exception as error:
            # Some choices are made by timing, for which there is no device.
            found.wrappers.append(f"{type(error).__name__}: {error}")
        configurations = [
            f"{name} runs as {[(config.kwargs, config.num_warps) for config in getattr(PyCodeCache.load(source), name).configs]}"
            for name, source in found.kernels.items()
        ]
    return "\n".join([*found.kernels.values(), *configurations, *found.wrappers])


def main(result: str, names: list[str]) -> None:
    """Writes the code of each case with the pinned value and with the other one."""
    from torch._inductor import config
    from torch._inductor.fx_passes import joint_graph, post_grad

    # Before the described device: its tensors cannot be made here. Patterns traced on the CPU's hold for every device. The guard is for
    # indexing, which cuts the product of padded operands.
    for passes in (joint_graph, post_grad):
        passes.lazy_init(torch.device("cpu"))
    load_device_guard()
    known = config.get_config_copy()
    pinned = {name: pin.value for name, pin in PINS.items() if name in known}
    found = {}
    with described_device(TARGETS["sm_90"]):
        for name in names or CASES:
            case, pin = CASES[name], name.partition(",")[0]
            found[name] = [code(case, {**pinned, **case.beside, pin: value}) for value in (PINS[pin].value, case.value)]
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
