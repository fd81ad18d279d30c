"""The Inductor settings that the backend holds fixed: what each is pinned to, and which variance that stops.

A user's option that would undo a pin is refused; every other Inductor option passes through. Settings were checked in torch 2.13.0; one that a version
of torch does not have is skipped.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bi_inductor.errors import OptionError
from bi_inductor.pointwise import POINTWISE_PINS


@dataclasses.dataclass(frozen=True)
class Pin:
    """One pinned setting."""

    value: Any
    reason: str


PINS: dict[str, Pin] = {
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
    "split_reductions": Pin(False, "splits a sum by its size and the number of rows"),
    "online_softmax": Pin(False, "computes softmax in one pass with running rescaling"),
    "cpu_backend": Pin("cpp", "the templates are C++"),
    "cpp.weight_prepack": Pin(False, "hands linears to oneDNN, which picks a kernel by the number of rows"),
    "cpp.gemm_max_k_slices": Pin(1, "slices K by the number of threads"),
    "cpp.enable_grouped_gemm_template": Pin(False, "Inductor's own matmul template"),
    "cpp.enable_concat_linear": Pin(False, "merges linears into one of another size"),
    "cpp.simdlen": Pin(None, "the scalar and the vector functions are made equal for the instruction set that Inductor picks"),
    "emulate_precision_casts": Pin(True, "a bf16 or fp16 op rounds its own result, fused or not"),
    "cpp_wrapper": Pin(False, "kernels are loaded by the Python wrapper"),
}


def config_patches(user: dict[str, Any]) -> dict[str, Any]:
    """The pins and the user's Inductor options together, as ``config_patches`` of compile_fx.

    Raises:
        OptionError: an option that Inductor does not have, or one that would undo a pin.
    """
    from torch._inductor import config

    known = config.get_config_copy()
    # torch.compile accepts dashes for underscores in Inductor's option names, so this does too.
    user = {name.replace("-", "_"): value for name, value in user.items()}
    for name, value in user.items():
        if name not in known:
            raise OptionError(f"unknown option {name!r}: neither an option of batch_invariant nor of Inductor")
        if name in PINS and value != PINS[name].value:
            pin = PINS[name]
            raise OptionError(
                f"option {name!r}={value!r} would undo a pin of backend 'batch_invariant' (it is {pin.value!r}): {pin.reason}. "
                "Leave it out."
            )
    return {**user, **{name: pin.value for name, pin in PINS.items() if name in known}}
