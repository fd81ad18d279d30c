"""The one table that gives every op of a post-grad graph its class. What it does not name is unsupported.

Names are those of the op packet without the namespace's overload ("aten.add" covers add.Tensor and add.Scalar). An op is listed
as elementwise only when Inductor has a lowering for it on CPU that writes C++ code: an op that falls back to ATen's kernel
keeps ATen's vector body and tail.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from bi_inductor.operators.one_sample import ONE_SAMPLE_OPS
from bi_inductor.passes.complex_numbers import COMPLEX_RULES
from bi_inductor.templates.library import DTYPES


class OpClass(enum.Enum):
    """What an op does to the bits of a sample."""

    ELEMENTWISE = "elementwise"
    MOVEMENT = "data movement"
    EXACT = "exact"
    REWRITTEN = "rewritten"
    ONE_SAMPLE = "one sample at a time"
    RANDOM = "random"
    MIXING = "mixes samples"
    OPAQUE = "opaque"
    UNSUPPORTED = "unsupported"


def _names(namespace: str, text: str) -> set[str]:
    return {f"{namespace}.{name}" for name in text.split()}


ELEMENTWISE = _names(
    "aten",
    """
        abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor
        bitwise_left_shift bitwise_right_shift ceil clamp clamp_max clamp_min copysign cos cosh deg2rad div elu elu_backward eq
        erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gelu_backward glu gt hardsigmoid
        hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward hypot isfinite isinf isnan le leaky_relu
        leaky_relu_backward lerp lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt masked_fill
        maximum minimum mish mul ne neg nextafter pow rad2deg reciprocal relu remainder round rsqrt rsub sigmoid
        sigmoid_backward sign signbit silu silu_backward sin sinh softplus softplus_backward softshrink sqrt square sub tan tanh
        tanh_backward threshold threshold_backward trunc where xlogy nan_to_num heaviside logaddexp logaddexp2 sgn special_erf
        special_erfcx true_divide digamma polygamma i0 special_i0e special_i1 special_i1e special_ndtri special_bessel_j0
        special_bessel_j1 special_modified_bessel_i0 special_modified_bessel_i1 frexp ldexp
        """,
) | _names("prims", "convert_element_type fma")

MOVEMENT = (
    _names(
        "aten",
        """
        _unsafe_index _unsafe_masked_index _unsafe_view alias arange as_strided as_strided_scatter cat clone constant_pad_nd
        copy copy_ detach diagonal diagonal_copy diagonal_scatter embedding empty empty_like empty_strided expand expand_copy
        eye fill flip full full_like gather index index_select lift_fresh_copy linspace lu_unpack masked_scatter
        masked_scatter_backward masked_select movedim narrow new_empty new_empty_strided new_full new_ones new_zeros ones
        ones_like permute repeat repeat_interleave reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d reshape
        resolve_conj resolve_neg roll scalar_tensor select select_scatter slice slice_scatter split split_with_sizes squeeze
        stack t transpose tril tril_indices triu triu_indices unbind unfold unsqueeze view zeros zeros_like view_as_real real
        _reshape_alias _to_copy set_ sym_size sym_stride sym_numel sym_storage_offset item _local_scalar_dense
        _linalg_check_errors _assert_async _assert_scalar _assert_tensor_metadata nonzero slice_inverse resize
        """,
    )
    | _names("prims", "broadcast_in_dim rev iota device_put empty_strided view_of inductor_force_stride_order scalar_tensor")
    # What orders assertions.
    | _names("prims", "_make_token _sink_tokens")
    | _names("inductor", "resize_storage_bytes_ _alloc_from_pool _reinterpret_tensor")
)

EXACT = _names(
    "aten",
    """
    all any amax amin argmax argmin argsort bucketize count_nonzero equal isin max max_pool1d max_pool2d
    max_pool2d_with_indices min searchsorted sort topk cummax cummin aminmax median
    histc kthvalue mode _int_mm
    """,
) | _names("prims", "_low_memory_max_pool_with_offsets _low_memory_max_pool_offsets_to_indices")

# Storing at indices is data movement; adding to what is there is one of the scatters.
OVERWRITES = _names("aten", "index_put _unsafe_index_put")

# Exact on integers and rewritten on floating point; of several elements for one place, the last one stays.
SCATTERS = _names("aten", "scatter scatter_add scatter_reduce index_reduce") | OVERWRITES

# Sums that are exact on integers and rewritten on floating point.
SUMS = _names("aten", "sum prod cumsum cumprod mm bmm addmm baddbmm mv dot vdot")

RANDOM = (
    _names(
        "aten",
        "bernoulli bernoulli_ exponential geometric log_normal multinomial native_dropout normal normal_ normal_functional "
        "poisson rand rand_like randint randint_like randn randn_like randperm uniform uniform_",
    )
    | _names("prims", "inductor_seed inductor_seeds inductor_lookup_seed inductor_random inductor_randint")
    | _names("rngprims", "philox_rand")
)

# Give the numbers that others draw from.
SEEDS = _names("prims", "inductor_seed inductor_seeds inductor_lookup_seed")

# Moves complex numbers as they are.
CHOICES = _names("aten", "where complex view_as_complex")

# Invariant by running one sample after the other, on any dtype.
ONE_SAMPLE = {f"aten.{op.overloadpacket.__name__}" for op in ONE_SAMPLE_OPS}

# Higher-order ops whose bodies are graphs that pass through here themselves, and bookkeeping of torch.
STRUCTURE = {"cond", "invoke_subgraph", "with_effects", "wrap_with_set_grad_enabled", "while_loop"}


def op_name(target: Any) -> str:
    """ "namespace.name" of an op, without its overload."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target.overloadpacket.__name__}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return str(target.name())
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


def classify(target: Any, values: list[Any], rewritten: bool) -> OpClass:
    """The class of a call.

    Args:
        target: the function called.
        values: fake values of the tensors it reads and of its result.
        rewritten: whether a rewriting is registered for ``target``.
    """
    name = op_name(target)
    if not isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        # getitem and arithmetic on sizes.
        return OpClass.MOVEMENT
    if isinstance(target, torch._ops.HigherOrderOperator):
        return OpClass.MOVEMENT if name in STRUCTURE else OpClass.UNSUPPORTED
    namespace = name.split(".")[0]
    if namespace == "bi_inductor":
        return OpClass.REWRITTEN
    if name in ONE_SAMPLE and rewritten:
        return OpClass.ONE_SAMPLE
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    if any(dtype.is_complex for dtype in dtypes):
        if name in MOVEMENT | CHOICES:
            return OpClass.MOVEMENT
        return OpClass.REWRITTEN if target in COMPLEX_RULES else OpClass.UNSUPPORTED
    if name in SUMS | SCATTERS and not any(dtype.is_floating_point for dtype in dtypes):
        return OpClass.EXACT
    if rewritten and dtypes & set(DTYPES):
        return OpClass.REWRITTEN
    for members, op_class in (
        (ELEMENTWISE, OpClass.ELEMENTWISE),
        (MOVEMENT, OpClass.MOVEMENT),
        (EXACT, OpClass.EXACT),
        (RANDOM, OpClass.RANDOM),
    ):
        if name in members:
            return op_class
    if namespace in ("aten", "prims", "inductor", "mkldnn", "quantized", "_quantized", "onednn", "mkl", "rngprims", "_c10d_functional"):
        return OpClass.UNSUPPORTED
    return OpClass.OPAQUE
