"""Rules of ops that compute: element by element, along dims, contractions, norms, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from bi_inductor.operators.one_sample import RANKS
from bi_inductor.passes.mixing.call import Call, join, padded
from bi_inductor.passes.mixing.registry import RULES, Rule, rule
from bi_inductor.passes.mixing.states import Affine, Dim, Factor, Samples, State, States, Target, canonical, covers, plain, size_of


def names_of(dims: Sequence[int]) -> str:
    return f"dim {dims[0]}" if len(dims) == 1 else f"dims {', '.join(map(str, dims))}"


def pointwise(call: Call) -> States:
    """Each element follows from the elements of the operands at its place."""
    outputs: list[State] = []
    _require_no_places(call)
    for i in range(len(call.results)):
        rank = len(call.out_shape(i))
        entries = [(state, padded(state.dims, rank)) for x in call.tensors() if (state := call.samples(x)) is not None]
        outputs.append(join(call, entries) if i == 0 else outputs[0])
    return outputs[0] if not isinstance(call.node.meta.get("val"), (tuple, list)) else list(outputs)


def _require_no_places(call: Call) -> None:
    """Reports numbers of samples, arange(batch), that take part in arithmetic with samples; integers may still become an index."""
    value = call.results[0]
    if not isinstance(value, torch.Tensor) or not (value.dtype.is_floating_point or value.dtype == torch.bool):
        return
    rank = len(call.out_shape())
    states = [call.state(x) for x in call.tensors()]
    for state in states:
        for numbers in states:
            if not isinstance(state, Samples) or not isinstance(numbers, Affine):
                continue
            for own, steps in zip(padded(state.dims, rank), padded(numbers.dims, rank), strict=True):
                if _overlap(own, steps):
                    call.mixes("makes a value follow the place of its sample in the batch", state)
                    return


def _overlap(one: Dim, other: Dim) -> bool:
    """Whether a step to another sample along a dim also is a step to another number."""

    def spans(dim: Dim) -> list[tuple[int, int]]:
        found, inner = [], 1
        for factor in reversed(dim):
            if factor.stride:
                found.append((inner, inner * factor.size))
            inner *= factor.size
        return found

    return any(a < d and c < b for a, b in spans(one) for c, d in spans(other))


@rule("add sub mul rsub")
def _arithmetic(call: Call) -> States:
    """Elementwise, and what it makes of positions."""
    x, y = call.positional[0], call.positional[1] if len(call.positional) > 1 else call.get("other")
    if call.get("alpha", 1) != 1:
        return pointwise(call)
    name = call.op.overloadpacket.__name__
    a, b = _affine(call, x), _affine(call, y)
    if a is not None and b is not None and isinstance(call.results[0], torch.Tensor) and not call.results[0].dtype.is_floating_point:
        return _affine_result(name, a, b, len(call.out_shape()))
    if name == "add" and (index := _flat_index(call, call.state(x), call.state(y))) is not None:
        return index
    return pointwise(call)


def _flat_index(call: Call, one: State, other: State) -> Samples | None:
    """Positions of a sample's elements in a dim [batch * n], written as ``arange(batch) * n + index``; the index is taken to be below n."""
    state, start = (one, other) if isinstance(one, Samples) else (other, one)
    if not isinstance(state, Samples) or not isinstance(start, Affine) or call.results[0].dtype.is_floating_point:
        return None
    rank = len(call.out_shape())
    dims, steps = padded(state.dims, rank), padded(start.dims, rank)
    if start.offset or not covers(dims, state.order, state.offset) or sum(f.stride != 0 for dim in steps for f in dim) != 1:
        return None
    for own, step in zip(dims, steps, strict=True):
        if len(own) == len(step) == 1 and own[0].stride == 1 and own[0].size == step[0].size and step[0].stride > 1:
            target = Target(canonical([own[0], Factor(step[0].stride)]), state.order, 0, False)
            return call.made(state, dims, target=target)
    return None


def _affine(call: Call, value: Any) -> Affine | None:
    state = call.state(value)
    if isinstance(state, Affine):
        return state
    if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor):
        return None
    constant = call.constant(value)
    return None if constant is None else Affine((), constant)


def _affine_result(name: str, a: Affine, b: Affine, rank: int) -> Affine | None:
    def scaled(state: Affine, by: int) -> Affine:
        return Affine(tuple(tuple(Factor(f.size, f.stride * by) for f in dim) for dim in state.dims), state.offset * by)

    if name == "mul":
        number, other = (a, b) if not a.dims else (b, a)
        return scaled(other, number.offset) if not any(f.stride for dim in number.dims for f in dim) and not number.dims else None
    if name == "sub":
        b = scaled(b, -1)
    if name == "rsub":
        a = scaled(a, -1)
    dims: list[Dim] = []
    for own, added in zip(padded(a.dims, rank), padded(b.dims, rank), strict=True):
        if own and added and [f.size for f in own] != [f.size for f in added]:
            return None
        both = tuple(Factor(f.size, f.stride + g.stride) for f, g in zip(own, added, strict=False))
        dims.append(both or own or added)
    return Affine(tuple(dims), a.offset + b.offset)


@rule("floor_divide div remainder bitwise_and fmod")
def _division(call: Call) -> States:
    """Elementwise; a position among repeated samples becomes the position of the sample."""
    x, y = call.positional[0], call.positional[1]
    state, number = call.samples(x), call.constant(y)
    result = pointwise(call)
    if state is None or state.target is None or number is None or not isinstance(result, Samples):
        return result
    name = call.op.overloadpacket.__name__
    if name == "div" and call.get("rounding_mode") != "floor":
        return result
    factors, kept = list(state.target.dim), 1
    if name in ("floor_divide", "div"):
        # Drops inner factors of the same sample.
        while factors and kept < number and not factors[-1].stride and number % (kept * factors[-1].size) == 0:
            kept *= factors.pop().size
        if kept != number and factors and not factors[-1].stride and factors[-1].size % (number // kept) == 0:
            factors[-1] = Factor(factors[-1].size // (number // kept))
            kept = number
    else:
        # Drops outer factors of the same sample.
        while factors and size_of(factors) > number and not factors[0].stride and size_of(factors[1:]) >= number:
            factors.pop(0)
        kept = number if size_of(factors) == number and name in ("remainder", "fmod") else 0
    if kept != number:
        return result
    target = Target(tuple(factors), state.target.order, state.target.offset, False)
    return call.made(result, result.dims, target=target)


# Copies values: positions stay positions.
@rule("clone alias detach _to_copy lift_fresh_copy lift_fresh copy copy_ view_as_real view_as_complex resolve_conj resolve_neg real imag")
@rule("convert_element_type device_put view_of inductor_force_stride_order", "prims")
def _same(call: Call) -> States:
    name = call.op.overloadpacket.__name__
    x = call.positional[1] if name in ("copy", "copy_") else call.positional[0]
    state = call.state(x)
    if isinstance(state, Samples):
        rank = len(call.out_shape())
        dims = padded(state.dims, rank)
        if name == "view_as_real":
            dims = (*dims, plain(2))
        elif name == "view_as_complex":
            dims = dims[:-1]
        keeps = not call.results[0].dtype.is_floating_point or call.results[0].dtype == torch.float64
        return call.made(state, dims, target=state.target if keeps else None)
    if isinstance(state, Affine) and name not in ("view_as_real", "view_as_complex"):
        return Affine(padded(state.dims, len(call.out_shape())), state.offset)
    return state


def as_dims(value: Any, rank: int) -> list[int]:
    """Dims as numbers from 0; all of them when none are given."""
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return list(range(rank))
    values = [value] if isinstance(value, int) else list(value)
    return sorted(dim % rank for dim in values) if rank else []


def reduction(*names: str, results: int = 1) -> Rule:
    """One value for each row: the dims are those of the first of the arguments ``names`` that the op has."""

    def apply(call: Call) -> States:
        x = call.positional[0]
        state = call.samples(x)
        if state is None:
            return None
        given = next((call.get(name) for name in names if name in call.arguments), None)
        dims = as_dims(given, len(state.dims))
        crossed = [dim for dim in dims if state.along(dim)]
        if crossed:
            one = call.whole(f"reduces {names_of(crossed)}, which holds the samples", state)
        else:
            keepdim = len(call.out_shape()) == len(state.dims)
            kept: list[Dim] = [() if dim in dims else own for dim, own in enumerate(state.dims) if keepdim or dim not in dims]
            one = call.made(state, kept)
        return one if results == 1 else [one] * results

    return apply


for _names, _arguments, _results in (
    ("sum mean prod any all amax amin argmax argmin nansum count_nonzero logsumexp", ("dim", "dims"), 1),
    ("var std linalg_vector_norm norm", ("dim",), 1),
    ("var_mean std_mean aminmax", ("dim",), 2),
):
    rule(_names)(reduction(*_arguments, results=_results))
rule("sum mean prod var std", "bi_inductor")(reduction("dims"))


@rule("max min median nanmedian kthvalue mode")
def _extremum(call: Call) -> States:
    several = isinstance(call.node.meta.get("val"), (tuple, list))
    if "other" in call.arguments:
        return pointwise(call)
    if several and "dim" not in call.arguments:
        call.arguments["dim"] = -1
    return reduction("dim", results=2 if several else 1)(call)


def along(name: str = "dim", results: int = 1, default: Any = -1) -> Rule:
    """Every value of the result depends on the whole row along one dim, whose size may change."""

    def apply(call: Call) -> States:
        x = call.positional[0]
        state = call.samples(x)
        if state is None:
            return None
        if not state.dims:
            return [state] * results if results > 1 else state
        dim = int(call.get(name, default)) % len(state.dims)
        one: State
        if state.along(dim):
            one = call.whole(f"runs along {names_of([dim])}, which holds the samples", state)
        else:
            shape = call.out_shape()
            one = call.made(state, [plain(shape[d]) if d == dim else own for d, own in enumerate(state.dims)])
        return [one] * results if results > 1 else one

    return apply


rule("_softmax _log_softmax cumsum cumprod logcumsumexp argsort glu")(along())
rule("cummax cummin topk", "aten")(along(results=2))
rule("softmax log_softmax cumsum cumprod logcumsumexp", "bi_inductor")(along())
rule("renorm")(along())


def _matrixsize_of(call: Call, a: Any, b: Any, *others: Any) -> States:
    """[..., n, k] times [..., k, m]; the ``others``, such as a bias, broadcast to the result."""
    rank = len(call.out_shape())
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    for x, contracted, alone in ((a, -1, -1), (b, -2, -2)):
        state = call.samples(x)
        if state is None:
            continue
        if state.along(contracted % len(state.dims)):
            call.mixes(f"contracts {names_of([contracted % len(state.dims)])}, which holds the samples", state)
            continue
        dims = list(state.dims)
        dims[alone] = ()
        if x is a:
            # The rows stay, the columns are the other's.
            entries.append((state, padded(dims, rank)))
        else:
            entries.append((state, padded(dims, rank)))
    for other in others:
        if (state := call.samples(other)) is not None:
            entries.append((state, padded(state.dims, rank)))
    return join(call, entries)


@rule("mm bmm _int_mm")
def _mm(call: Call) -> States:
    return _matrixsize_of(call, *call.positional[:2])


@rule("addmm baddbmm")
def _addmm(call: Call) -> States:
    bias, a, b = call.positional[:3]
    return _matrixsize_of(call, a, b, bias)


@rule("matmul", "bi_inductor")
def _matmul(call: Call) -> States:
    return _matrixsize_of(call, call.get("a"), call.get("b"), call.get("bias"))


@rule("scaled_matmul", "bi_inductor")
def _scaled_matmul(call: Call) -> States:
    """Scales of rows [n, 1] and of columns [m] broadcast to the result, as the bias does."""
    return _matrixsize_of(call, call.get("a"), call.get("b"), call.get("scale_a"), call.get("scale_b"), call.get("bias"))


@rule("mv dot vdot")
def _vectorsize_of(call: Call) -> States:
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    for x in call.positional[:2]:
        state = call.samples(x)
        if state is None:
            continue
        if state.along(len(state.dims) - 1):
            call.mixes(f"contracts {names_of([len(state.dims) - 1])}, which holds the samples", state)
        else:
            entries.append((state, padded(state.dims[:-1], len(call.out_shape()))))
    return join(call, entries)


@rule("_grouped_mm")
@rule("grouped_matmul", "bi_inductor")
@rule("grouped_mm_fallback", "transformers")
def _grouped(call: Call) -> States:
    """Rows [n, k] in groups, each with a matrix of its own [g, k, m], or groups of terms; ends may follow the batch if rows do too."""
    a, b, ends = call.positional[0], call.positional[1], call.positional[2] if len(call.positional) > 2 else None
    rows, matrices = call.samples(a), call.samples(b)
    whole = call.whole_of(ends) if ends is not None else None
    if rows is None or matrices is not None or len(rows.dims) != 2:
        if rows is None and matrices is None:
            return None
        call.mixes("may combine samples: groups of matrices that follow the samples", rows or matrices, certain=False)
        return None
    if whole is not None and rows.order.node is None:
        call.escapes(whole, f"{call.node.name} groups rows by it that no sort has put in order")
    if rows.along(1):
        call.mixes("contracts dim 1, which holds the samples", rows)
        return None
    # Groups of terms give a result for each group, [g, n, m].
    *groups, _, columns = call.out_shape()
    return call.made(rows, (*map(plain, groups), rows.dims[0], plain(columns)))


@rule("attention attention_lse", "bi_inductor")
def _attention(call: Call) -> States:
    """Queries [batch, heads, length, dim], keys and values alike, a mask that broadcasts to [batch, heads, queries, keys]."""
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    shape = call.out_shape()
    for name, contracted in (("q", (3,)), ("k", (2, 3)), ("v", (2,)), ("mask", (3,))):
        state = call.samples(call.get(name))
        if state is None:
            continue
        own = padded(state.dims, 4)
        crossed = [dim for dim in contracted if any(f.stride for f in own[dim])]
        if crossed:
            call.mixes(f"attends over {names_of(crossed)} of {name}, which holds the samples", state)
            continue
        # Fewer heads of keys than of queries: each serves a group.
        heads = own[1] if any(f.stride for f in own[1]) else ()
        entries.append((state, (own[0], heads, own[2] if name in ("q", "mask") else (), ())))
    result = join(call, entries)
    if result is None:
        return None
    return call.made(result, result.dims[: len(shape)])


def trailing(count: Any, results: int = 1, what: str = "normalizes") -> Rule:
    """Samples must be in front of the last ``count(call)`` dims; of other results the dims in front stay."""

    def apply(call: Call) -> States:
        x = call.positional[0]
        state = call.samples(x)
        if state is None:
            return [None] * results if results > 1 else None
        inner = count(call)
        rank = len(state.dims)
        crossed = [dim for dim in range(rank - inner, rank) if state.along(dim)]
        if crossed:
            call.mixes(f"{what} over {names_of(crossed)}, which holds the samples", state)
            return [None] * results if results > 1 else None
        outputs: list[State] = []
        for i in range(len(call.results)):
            shape = call.out_shape(i)
            outputs.append(_leading(call, state, rank - inner, shape))
        return outputs if isinstance(call.node.meta.get("val"), (tuple, list)) else outputs[0]

    return apply


def _leading(call: Call, state: Samples, leading: int, shape: tuple[int, ...], at: int = 0) -> Samples:
    """The first ``leading`` dims of ``state`` from dim ``at`` of the result on, its other dims of the same sample."""
    dims = [plain(size) for size in shape]
    dims[at : at + leading] = state.dims[:leading]
    return call.made(state, dims)


rule("native_layer_norm")(trailing(lambda call: len(call.get("normalized_shape"))))
rule("_fused_rms_norm")(trailing(lambda call: len(call.get("normalized_shape"))))
rule("layer_norm rms_norm", "bi_inductor")(trailing(lambda call: call.get("normalized_dims")))
rule("native_group_norm")(trailing(lambda call: len(call.samples(call.positional[0]).dims) - 1))
rule("group_norm", "bi_inductor")(trailing(lambda call: len(call.samples(call.positional[0]).dims) - 1))


@rule("layer_norm_statistics rms_norm_statistics group_norm_statistics", "bi_inductor")
def _statistics(call: Call) -> States:
    """Mean and rstd, one in front of the other: [2, ...]."""
    state = call.samples(call.positional[0])
    if state is None:
        return None
    group = "group" in call.op.overloadpacket.__name__
    leading = 1 if group else len(state.dims) - call.get("normalized_dims")
    crossed = [dim for dim in range(leading, len(state.dims)) if state.along(dim)]
    if crossed:
        call.mixes(f"normalizes over {names_of(crossed)}, which holds the samples", state)
        return None
    shape = call.out_shape()
    return _leading(call, state, leading, shape, 1)


def _spatial(dims: int) -> Rule:
    return trailing(lambda call: dims, what="slides windows")


rule("max_pool1d avg_pool1d _adaptive_avg_pool1d")(_spatial(1))
rule("max_pool2d max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d fractional_max_pool2d")(_spatial(2))
rule("upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa")(_spatial(2))
rule("max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d upsample_trilinear3d")(_spatial(3))
rule("upsample_nearest1d upsample_linear1d reflection_pad1d replication_pad1d im2col")(_spatial(1))
rule("reflection_pad2d replication_pad2d")(_spatial(2))
rule("reflection_pad3d replication_pad3d")(_spatial(3))
rule("_low_memory_max_pool_with_offsets", "prims")(trailing(lambda call: len(call.get("kernel_size")), what="slides windows"))
rule("_low_memory_max_pool_offsets_to_indices", "prims")(pointwise)
rule("philox", "bi_inductor")(pointwise)


@rule("convolution")
@rule("convolution", "bi_inductor")
def _convolution(call: Call) -> States:
    """[batch, channels, ...]; weights of the samples would be another thing."""
    x, weight, bias = call.positional[:3]
    if call.samples(weight) is not None or call.samples(bias) is not None:
        call.mixes("may combine samples: the weights follow the samples", call.samples(weight) or call.samples(bias), certain=False)
        return None
    state = call.samples(x)
    if state is None:
        return None
    crossed = [dim for dim in range(1, len(state.dims)) if state.along(dim)]
    if crossed:
        call.mixes(f"convolves over {names_of(crossed)}, which holds the samples", state)
        return None
    return _leading(call, state, 1, call.out_shape())


def _one_sample(op: Any) -> Rule:
    def apply(call: Call) -> States:
        ranks = RANKS[op]
        outputs: list[State] = []
        entries = []
        leading = max((len(call.shape(x)) - r for x, r in zip(call.tensors(), ranks.operands, strict=False)), default=0)
        for x, inner in zip(call.tensors(), ranks.operands, strict=False):
            state = call.samples(x)
            if state is None:
                continue
            inner = min(inner, len(state.dims))
            crossed = [dim for dim in range(len(state.dims) - inner, len(state.dims)) if state.along(dim)]
            if crossed:
                call.mixes(f"works on {names_of(crossed)}, which holds the samples", state)
                continue
            entries.append((state, padded(state.dims[: len(state.dims) - inner], leading)))
        joined = join(call, entries)
        for i in range(len(call.results)):
            outputs.append(None if joined is None else _leading(call, joined, leading, call.out_shape(i)))
        return outputs if isinstance(call.node.meta.get("val"), (tuple, list)) else outputs[0]

    return apply


for _op in RANKS:
    for _namespace in ("aten", "bi_inductor"):
        RULES[f"{_namespace}.{_op.overloadpacket.__name__}"] = _one_sample(_op)


@rule("_fft_r2c _fft_c2c _fft_c2r")
@rule("_fft_r2c _fft_c2c _fft_c2r", "bi_inductor")
def _transform(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    dims = as_dims(call.get("dim"), len(state.dims))
    crossed = [dim for dim in dims if state.along(dim)]
    if crossed:
        call.mixes(f"transforms {names_of(crossed)}, which holds the samples", state)
        return None
    shape = call.out_shape()
    return call.made(state, [plain(shape[d]) if d in dims else own for d, own in enumerate(state.dims)])
