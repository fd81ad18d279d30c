"""The Inductor settings that the backend holds fixed: what each is pinned to, and which variance that stops.

One table for C++ and for what both read, one for Triton; all are in force in every compile.

A user's option that would undo a pin is refused; every other Inductor option passes through. Settings were checked in torch 2.13.0 to
2.15.0; one that a version of torch does not have is skipped.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Collection
from typing import Any

from bi_inductor.errors import OptionError
from bi_inductor.options import OPTION_NAMES
from bi_inductor.pointwise import POINTWISE_PINS


@dataclasses.dataclass(frozen=True)
class Pin:
    """One pinned setting."""

    value: Any
    reason: str


CPU_PINS: dict[str, Pin] = {
    **{name: Pin(value, reason) for name, (value, reason) in POINTWISE_PINS.items()},
    "joint_graph_constant_folding": Pin(
        False, "x + 0 and x * 1 are dropped when they are in one graph and kept across a graph break: the sign of zero moves"
    ),
    "pattern_matcher": Pin(
        False, "patterns replace softmax, attention, mm + add and int8 chains by other arithmetic where sizes and strides match"
    ),
    "shape_padding": Pin(False, "pads matmuls where a benchmark says it pays: other sizes, another kernel"),
    "freezing": Pin(False, "packs weights for oneDNN, folds batch norm and constants into convolutions and linears"),
    "max_autotune": Pin(False, "times kernels and picks one: numerics would follow the clock"),
    "max_autotune_gemm": Pin(False, "times matmul kernels and picks one"),
    "max_autotune_pointwise": Pin(False, "times pointwise and reduction configurations and picks one"),
    "coordinate_descent_tuning": Pin(False, "times block sizes and picks one"),
    "decompose_mem_bound_mm": Pin(False, "turns thin matmuls into multiply and sum"),
    "b2b_gemm_pass": Pin(False, "fuses two matmuls into a kernel with another order of sums"),
    "group_fusion": Pin(False, "moves ops into grouped kernels"),
    "batch_fusion": Pin(False, "moves ops into batched kernels"),
    "pre_grad_fusion_options": Pin({}, "merges matmuls, norms and pointwise ops of several places into one op of another size"),
    "post_grad_fusion_options": Pin({}, "merges matmuls of several places into one, or turns them into multiply and sum"),
    "auto_chunker.enable": Pin(False, "cuts a batch into chunks by its size and sums their results"),
    "split_reductions": Pin(False, "splits a sum by its size and the number of rows"),
    "online_softmax": Pin(False, "computes softmax in one pass with running rescaling"),
    "use_post_grad_passes": Pin(True, "the pass that classifies and rewrites the graph is one of them"),
    "disabled_passes": Pin("", "can name the pass that classifies and rewrites the graph"),
    "fallback_by_default": Pin(False, "hands ops to ATen's kernels, whose vector body and tail differ and which split sums by size"),
    "selective_decompose": Pin(False, "leaves ops whole that the decomposition table takes apart"),
    "cpu_backend": Pin("cpp", "the templates are C++"),
    "cpp.weight_prepack": Pin(False, "hands linears to oneDNN, which picks a kernel by the number of rows"),
    "cpp.gemm_max_k_slices": Pin(1, "slices K by the number of threads"),
    "cpp.enable_grouped_gemm_template": Pin(False, "Inductor's own matmul template"),
    "cpp.enable_concat_linear": Pin(False, "merges linears into one of another size"),
    "cpp.simdlen": Pin(None, "the scalar and the vector functions are made equal for the instruction set that Inductor picks"),
    "cpp_wrapper": Pin(False, "kernels are loaded by the Python wrapper"),
}

# What only Triton's code reads. Every sum, product, norm, softmax, matmul and attention is an operator of ours by then, with a template of
# its own; these stop Inductor from choosing for what is let through. Not pinned is whether a reduction is persistent or looped
# (triton.persistent_reductions): those left to Inductor (amax, any, argmax) have one value in every order. Templates ask tl.dot for "ieee"
# and accumulate in float32, whatever torch.backends.cuda.matmul allows.
GPU_PINS: dict[str, Pin] = {
    "cuda_backend": Pin("triton", "the templates are Triton"),
    "batch_invariant": Pin(True, "block sizes of persistent reductions, and with them the order inside, follow the number of rows"),
    "deterministic": Pin(True, "reduction kernels are timed with several block sizes, and the fastest adds in its own order"),
    "dynamic_scale_rblock": Pin(False, "blocks of a reduction are halved where the grid would not fill the device: by the number of rows"),
    "triton.cooperative_reductions": Pin(False, "splits rows over blocks of threads where there are few of them"),
    "triton.force_cooperative_reductions": Pin(False, "splits every reduction over as many blocks of threads as the device has"),
    "triton.multi_kernel": Pin(0, "times a persistent and a looped kernel at run time and keeps the faster"),
    "triton.mix_order_reduction": Pin(False, "fuses sums over rows and over columns, the latter split by the number of rows"),
    "triton.nested_reduction": Pin(False, "fuses a reduction with one of a part of its rows, in two passes by size"),
    "triton.num_decompose_k_splits": Pin(0, "splits K of a matmul by the ratio of K to M and N"),
    "triton.native_matmul": Pin(False, "writes matmuls as reductions with blocks that follow sizes"),
    "triton.codegen_upcast_to_fp32": Pin(True, "bfloat16 and float16 would be computed in themselves, rounded at other places than eager"),
    "triton.inject_relu_bug_TESTING_ONLY": Pin(None, "makes relu something else in Triton's code"),
    "combo_kernels": Pin(False, "joins kernels of several places into one, with block sizes chosen for all of them"),
    "use_fast_math": Pin(False, "functions become approximations in some kernels: softmax in one pass, exp"),
    "eager_numerics.division_rounding": Pin(True, "a / b is an approximation where the divisor is no constant, and exact where it is"),
    "eager_numerics.disable_ftz": Pin(True, "functions of libdevice would flush subnormal numbers to zero, arithmetic around them not"),
}

PINS: dict[str, Pin] = {**CPU_PINS, **GPU_PINS}


# Settings that the backend fills itself.
TAKEN = {"post_grad_custom_pre_pass": "the pass that classifies and rewrites the graph is there"}


def check_pins_in_force(but: Collection[str] = ()) -> None:
    """Raises OptionError when a pin is not in force although it was set: some of torch's environment variables win over every setting.

    ``but`` names pins that this compile does without.
    """
    from torch._inductor import config

    known = config.get_config_copy()
    for name, pin in PINS.items():
        if name in known and name not in but and known[name] != pin.value:
            raise OptionError(
                f"Inductor's setting {name!r} is {known[name]!r} whatever a program sets, and backend 'batch_invariant' needs "
                f"{pin.value!r}: {pin.reason}. Unset the environment variable of torch that holds it "
                f"(TORCHINDUCTOR_{name.split('.')[-1].upper()})."
            )


def config_patches(user: dict[str, Any]) -> dict[str, Any]:
    """The pins and the user's Inductor options together, as ``config_patches`` of compile_fx.

    Raises:
        OptionError: an option that Inductor does not have, one of another type, or one that would undo a pin.
    """
    from torch._inductor import config

    known = config.get_config_copy()
    # torch.compile accepts dashes for underscores in Inductor's option names, so this does too.
    user = {name.replace("-", "_"): value for name, value in user.items()}
    for name, value in user.items():
        if name not in known:
            close = difflib.get_close_matches(name, [*OPTION_NAMES, *known], n=3, cutoff=0.8)
            meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise OptionError(
                f"unknown option {name!r}: neither an option of batch_invariant ({', '.join(OPTION_NAMES)}) nor of Inductor{meant}"
            )
        if name in TAKEN:
            raise OptionError(f"option {name!r} is in use by backend 'batch_invariant': {TAKEN[name]}. Leave it out.")
        if name in PINS and value != PINS[name].value:
            pin = PINS[name]
            raise OptionError(
                f"option {name!r}={value!r} would undo a pin of backend 'batch_invariant' (it is {pin.value!r}): {pin.reason}. "
                "Leave it out."
            )
        expected = config.get_type(name)  # type: ignore[attr-defined]  # added to the module when it is installed as a configuration
        # As torch.compile does for backend "inductor": a subscripted type has no isinstance.
        if typing.get_origin(expected) is None and not isinstance(value, expected):
            raise OptionError(f"option {name!r} must be of type {expected.__name__}; given {value!r}")
    return {**user, **{name: pin.value for name, pin in PINS.items() if name in known}}
