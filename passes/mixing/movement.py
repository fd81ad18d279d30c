"""Rules of ops that move data without looking at indices: views, permutations, slices, concatenations."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from bi_inductor.passes.mixing.call import Call, join, padded
from bi_inductor.passes.mixing.registry import rule
from bi_inductor.passes.mixing.states import Affine, Dim, Factor, Order, Samples, State, States, canonical, plain, regroup


def relaid(call: Call, state: State, dims: Sequence[Dim]) -> State:
    """A state whose elements are the same in other dims."""
    if isinstance(state, Samples):
        return call.made(state, dims, target=state.target)
    return Affine(tuple(dims), state.offset) if isinstance(state, Affine) else state


@rule("view reshape _unsafe_view _reshape_alias flatten unflatten resize")
def _view(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)):
        return state
    shape = call.out_shape()
    # Sizes of the operand: plain factors know only what rules made of them.
    dims = regroup(state.dims, shape)
    if dims is None:
        if isinstance(state, Samples):
            call.mixes("cuts the samples apart: no dim of the result belongs to whole samples", state)
        return None
    return relaid(call, state, dims)


@rule("permute")
def _permute(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)):
        return state
    return relaid(call, state, [state.dims[dim] for dim in call.get("dims")])


@rule("transpose t numpy_T mT")
def _transpose(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)) or len(state.dims) < 2:
        return state
    dims = list(state.dims)
    a, b = call.get("dim0", 0), call.get("dim1", 1)
    dims[a], dims[b] = dims[b], dims[a]
    return relaid(call, state, dims)


@rule("unsqueeze")
def _unsqueeze(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)):
        return state
    dims = list(state.dims)
    dims.insert(call.get("dim") % (len(dims) + 1), ())
    return relaid(call, state, dims)


@rule("squeeze")
def _squeeze(call: Call) -> States:
    x = call.positional[0]
    state = call.state(x)
    if not isinstance(state, (Samples, Affine)):
        return state
    shape = call.shape(x)
    given = call.get("dim")
    chosen = range(len(shape)) if given is None else [given % len(shape)] if isinstance(given, int) else [d % len(shape) for d in given]
    return relaid(call, state, [own for d, own in enumerate(state.dims) if not (d in chosen and shape[d] == 1)])


@rule("expand expand_copy")
@rule("broadcast_in_dim", "prims")
def _expand(call: Call) -> States:
    x = call.positional[0]
    state = call.state(x)
    if not isinstance(state, (Samples, Affine)):
        return state
    shape = call.out_shape()
    if "broadcast_dimensions" in call.arguments:
        own: list[Dim] = [()] * len(shape)
        for dim, place in zip(state.dims, call.get("broadcast_dimensions"), strict=True):
            own[place] = dim
    else:
        own = list(padded(state.dims, len(shape)))
    before = padded([plain(size) for size in call.shape(x)], len(shape)) if "broadcast_dimensions" not in call.arguments else own
    dims = [dim if dim or had else plain(size) for dim, had, size in zip(own, before, shape, strict=True)]
    return relaid(call, state, dims)


@rule("repeat tile")
def _repeat(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)):
        return state
    repeats = [call.number(count) for count in call.get("repeats", call.get("dims"))]
    dims = padded(state.dims, len(repeats))
    repeats = [1] * (len(dims) - len(repeats)) + repeats
    return relaid(call, state, [canonical([Factor(count), *dim]) for count, dim in zip(repeats, dims, strict=True)])


@rule("repeat_interleave")
def _repeat_interleave(call: Call) -> States:
    if "repeats" in call.arguments and isinstance(call.get("repeats"), int) and call.get("dim") is not None:
        state = call.state(call.positional[0])
        if isinstance(state, (Samples, Affine)):
            dims = list(state.dims)
            dim = call.get("dim") % len(dims)
            dims[dim] = canonical([*dims[dim], Factor(call.get("repeats"))])
            return relaid(call, state, dims)
        return state
    state = next((call.samples(x) for x in call.tensors() if call.samples(x) is not None), None)
    if state is None:
        return None
    return call.whole("repeats by numbers of the whole batch", state)


@rule("select")
def _select(call: Call) -> States:
    state = call.state(call.positional[0])
    dim, index = call.get("dim"), call.constant(call.get("index"))
    return _selected(call, state, dim, index)


def _selected(call: Call, state: State, dim: int, index: int | None) -> State:
    if not isinstance(state, (Samples, Affine)):
        return state
    dim %= len(state.dims)
    rest = [own for d, own in enumerate(state.dims) if d != dim]
    if not any(f.stride for f in state.dims[dim]):
        return relaid(call, state, rest)
    if index is None:
        if isinstance(state, Samples):
            call.mixes(f"takes one place of dim {dim}, which holds the samples", state)
        return None
    offset = state.offset + _offset_of(state.dims[dim], index)
    if isinstance(state, Affine):
        return Affine(tuple(rest), offset)
    return call.made(state, rest, offset=offset, target=state.target)


def _offset_of(dim: Dim, index: int) -> int:
    """How many samples a place along a dim is away from its first."""
    size = 1
    for factor in dim:
        size *= factor.size
    index %= size
    offset = 0
    for factor in reversed(dim):
        offset += index % factor.size * factor.stride
        index //= factor.size
    return offset


@rule("slice narrow")
def _slice(call: Call) -> States:
    x = call.positional[0]
    state = call.state(x)
    if not isinstance(state, (Samples, Affine)):
        return state
    dim = call.get("dim", 0) % len(state.dims)
    size = call.shape(x)[dim]
    start = min(max(call.number(call.get("start")), -size), size)
    start = start + size if start < 0 else start
    return _sliced(call, state, dim, start, call.number(call.get("step"), 1), call.out_shape()[dim], size)


def _sliced(call: Call, state: State, dim: int, start: int, step: int, length: int, size: int) -> State:
    """``length`` places of ``dim``, from ``start`` on, ``step`` apart."""
    if not isinstance(state, (Samples, Affine)) or (length == size and step == 1):
        return state
    dims, own = list(state.dims), state.dims[dim]
    offset = state.offset
    if not any(f.stride for f in own):
        dims[dim] = plain(length)
    else:
        cut = _cut(own, start, step, length)
        if cut is None:
            if isinstance(state, Samples):
                call.mixes(f"takes a part of dim {dim}, which holds the samples", state)
            return None
        dims[dim], moved = cut
        offset += moved
    if isinstance(state, Affine):
        return Affine(tuple(dims), offset)
    return call.made(state, dims, offset=offset, target=state.target)


def _cut(dim: Dim, start: int, step: int, length: int) -> tuple[Dim, int] | None:
    """The factors and the offset of a slice of a dim; None when they are irregular."""
    inner = 1
    for factor in dim[1:]:
        inner *= factor.size
    first = dim[0]
    if len(dim) == 1:
        return canonical([Factor(length, first.stride * step)]), first.stride * start
    if step == 1 and start % inner == 0 and length % inner == 0:
        # Whole blocks of the outermost factor.
        return canonical([Factor(length // inner, first.stride), *dim[1:]]), first.stride * (start // inner)
    if inner % step == 0 and start < step and length * step >= inner * first.size - start:
        # The same places of every block.
        rest = _cut(dim[1:], start, step, -(-(inner - start) // step))
        return None if rest is None else (canonical([first, *rest[0]]), rest[1])
    if start // inner == (start + (length - 1) * step) // inner:
        # Inside one block.
        rest = _cut(dim[1:], start % inner, step, length)
        return None if rest is None else (rest[0], rest[1] + first.stride * (start // inner))
    return None


@rule("split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk unsafe_split_with_sizes")
def _split(call: Call) -> States:
    x = call.positional[0]
    state = call.state(x)
    if not isinstance(state, (Samples, Affine)):
        return [state] * len(call.results)
    dim = call.get("dim", 0) % len(state.dims)
    size, start = call.shape(x)[dim], 0
    parts: list[State] = []
    for i in range(len(call.results)):
        length = call.out_shape(i)[dim]
        parts.append(_sliced(call, state, dim, start, 1, length, size))
        start += length
    return parts


@rule("unbind")
def _unbind(call: Call) -> States:
    state = call.state(call.positional[0])
    return [_selected(call, state, call.get("dim", 0), i) for i in range(len(call.results))]


@rule("cat")
def _cat(call: Call) -> States:
    parts = [x for x in call.positional[0] if call.shape(x) != (0,)]
    dim = call.get("dim", 0) % len(call.out_shape())
    return _concatenated(call, [(call.state(x), call.shape(x)) for x in parts], dim)


@rule("stack")
def _stack(call: Call) -> States:
    dim = call.get("dim", 0) % len(call.out_shape())
    parts: list[tuple[State, tuple[int, ...]]] = []
    for x in call.positional[0]:
        state, shape = call.state(x), call.shape(x)
        if isinstance(state, Samples):
            state = dataclasses.replace(state, dims=(*state.dims[:dim], (), *state.dims[dim:]))
        parts.append((None if isinstance(state, Affine) else state, (*shape[:dim], 1, *shape[dim:])))
    return _concatenated(call, parts, dim)


def _concatenated(call: Call, parts: list[tuple[State, tuple[int, ...]]], dim: int) -> State:
    tracked = [(state, shape) for state, shape in parts if isinstance(state, Samples)]
    if not tracked:
        return None
    first = tracked[0][0]
    size = call.out_shape()[dim]
    across = any(state.along(dim) or state.offset != first.offset or state.order is not first.order for state, _ in tracked)
    if not across:
        entries = [(state, tuple(() if d == dim else own for d, own in enumerate(state.dims))) for state, _ in tracked]
        joined = join(call, entries)
        return None if joined is None else call.made(joined, [plain(size) if d == dim else own for d, own in enumerate(joined.dims)])
    if len(tracked) == len(parts):
        follows = _following([state for state, _ in tracked], [shape[dim] for _, shape in tracked], dim)
        if follows is not None:
            dims, offset = follows
            rest = [join(call, [(state, tuple(() if d == dim else own for d, own in enumerate(state.dims))) for state, _ in tracked[:1]])]
            assert rest[0] is not None
            return call.made(first, [dims if d == dim else own for d, own in enumerate(first.dims)], offset=offset)
    # Rows of several kinds one after the other: each still belongs to one sample.
    if all(sum(state.along(d) for d in range(len(state.dims)) if d != dim) == 0 for state, _ in tracked):
        order = Order(size, call.node)
        dims_ = [canonical([Factor(size, 1)]) if d == dim else plain(call.out_shape()[d]) for d in range(len(call.out_shape()))]
        return call.made(first, dims_, order=order, offset=0)
    call.mixes(f"puts samples beside others along dim {dim}", first)
    return None


def _following(states: list[Samples], sizes: list[int], dim: int) -> tuple[Dim, int] | None:
    """The factors and offset of parts that go on where the one before ended, or of one part repeated."""
    first = states[0]
    pattern = [own for d, own in enumerate(first.dims) if d != dim]
    for state in states[1:]:
        if state.order is not first.order:
            return None
        for a, b in zip(pattern, [own for d, own in enumerate(state.dims) if d != dim], strict=True):
            if a != b and any(f.stride for f in (*a, *b)):
                return None
    offsets = [state.offset for state in states]
    own = [state.dims[dim] for state in states]
    if all(dims == own[0] for dims in own):
        stride = offsets[1] - offsets[0]
        if all(b - a == stride for a, b in itertools.pairwise(offsets)):
            return canonical([Factor(len(states), stride), *own[0]]), offsets[0]
    strides = {dims[0].stride for dims in own if dims}
    if len(strides) != 1 or any(len(dims) > 1 and dims[1:] != own[0][1:] for dims in own):
        return None
    (stride,) = strides
    if any(len(dims) == 0 for dims in own) and any(len(dims) > 1 for dims in own):
        return None
    inner = own[0][1:] if own[0] else ()
    block = 1
    for factor in inner:
        block *= factor.size
    expected, count = offsets[0], 0
    for offset, size in zip(offsets, sizes, strict=True):
        if offset != expected or size % block:
            return None
        expected += stride * (size // block)
        count += size // block
    return canonical([Factor(count, stride), *inner]), offsets[0]


@rule("flip")
@rule("rev", "prims")
def _flip(call: Call) -> States:
    state = call.state(call.positional[0])
    if not isinstance(state, (Samples, Affine)):
        return state
    dims, offset = list(state.dims), state.offset
    for dim in call.get("dims"):
        dim %= len(dims)
        offset += sum((f.size - 1) * f.stride for f in dims[dim])
        dims[dim] = canonical([Factor(f.size, -f.stride) for f in dims[dim]])
    if isinstance(state, Affine):
        return Affine(tuple(dims), offset)
    return call.made(state, dims, offset=offset, target=state.target)


@rule("roll")
def _roll(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    given = call.get("dims") or []
    crossed = [dim % len(state.dims) for dim in given if state.along(dim % len(state.dims))]
    if crossed or (not given and state.sample_dims):
        return call.whole(f"moves samples along dim {crossed[0] if crossed else 0} to other places", state)
    return call.made(state, state.dims)


@rule("constant_pad_nd")
def _pad(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    pad, dims, shape = call.get("pad"), list(state.dims), call.out_shape()
    for i in range(len(pad) // 2):
        dim = len(dims) - 1 - i
        if not call.number(pad[2 * i]) and not call.number(pad[2 * i + 1]):
            continue
        if state.along(dim):
            order = Order(shape[dim], call.node)
            if sum(state.along(d) for d in range(len(dims))) > 1:
                call.mixes(f"pads dim {dim}, which holds the samples", state, certain=False)
                return None
            others = [plain(size) for size in shape]
            others[dim] = canonical([Factor(shape[dim], 1)])
            return call.made(state, others, order=order, offset=0)
        dims[dim] = plain(shape[dim])
    return call.made(state, dims)


@rule("unfold")
def _unfold(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    dim = call.get("dimension") % len(state.dims)
    if state.along(dim):
        call.mixes(f"slides windows over dim {dim}, which holds the samples", state)
        return None
    shape = call.out_shape()
    dims = [plain(shape[dim]) if d == dim else own for d, own in enumerate(state.dims)]
    return call.made(state, [*dims, plain(shape[-1])])


@rule("diagonal diagonal_copy")
def _diagonal(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    rank = len(state.dims)
    a, b = call.get("dim1", 0) % rank, call.get("dim2", 1) % rank
    if state.along(a) or state.along(b):
        call.mixes(f"takes the diagonal of dims {a} and {b}, which hold the samples", state)
        return None
    dims = [own for d, own in enumerate(state.dims) if d not in (a, b)]
    return call.made(state, [*dims, plain(call.out_shape()[-1])])


@rule("tril triu")
def _triangle(call: Call) -> States:
    """Zeros by place; the rest stays."""
    state = call.samples(call.positional[0])
    return None if state is None else call.made(state, state.dims)


@rule("slice_scatter select_scatter diagonal_scatter as_strided_scatter")
def _scatter_view(call: Call) -> States:
    """A part of the first operand, as a view would take it, is the second."""
    base, source = call.samples(call.positional[0]), call.samples(call.positional[1])
    if base is None and source is None:
        return None
    name = call.op.overloadpacket.__name__
    rank = len(call.out_shape())
    if name not in ("slice_scatter", "select_scatter"):
        call.mixes("may combine samples: writes a part of a tensor", base or source, certain=False)
        return None
    dim = call.get("dim", 0) % rank
    if source is not None and name == "select_scatter":
        source = dataclasses.replace(source, dims=(*source.dims[:dim], (), *source.dims[dim:]))
    if base is not None and base.along(dim):
        if source is None:
            return base
        start = call.constant(call.get("index")) if name == "select_scatter" else call.number(call.get("start"))
        length = 1 if name == "select_scatter" else call.shape(call.positional[1])[dim]
        cut = _cut(base.dims[dim], (start or 0) % max(call.out_shape()[dim], 1), call.number(call.get("step"), 1), length)
        if cut is not None:
            part = dataclasses.replace(
                base, dims=tuple(cut[0] if d == dim else own for d, own in enumerate(base.dims)), offset=base.offset + cut[1]
            )
            if join(call, [(part, part.dims), (source, source.dims)], "writes values of one sample over another") is None:
                return None
            return base
        call.mixes(f"writes over a part of dim {dim}, which holds the samples", source)
        return base
    if source is not None and source.along(dim):
        length = call.out_shape()[dim]
        if call.shape(call.positional[1])[dim] == length:
            entries = [(s, s.dims) for s in (base, source) if s is not None]
            return join(call, entries)
        call.mixes(f"writes samples over a part of dim {dim}", source, certain=False)
        return None
    entries = [(s, tuple(() if d == dim else own for d, own in enumerate(s.dims))) for s in (base, source) if s is not None]
    joined = join(call, entries)
    if joined is None:
        return None
    return call.made(joined, [own or plain(size) for own, size in zip(joined.dims, call.out_shape(), strict=True)])


@rule("as_strided")
def _as_strided(call: Call) -> States:
    x = call.positional[0]
    state = call.state(x)
    if not isinstance(state, Samples):
        return None
    value, out = x.meta["val"], call.results[0]
    if tuple(value.shape) == tuple(out.shape) and value.stride() == out.stride():
        return state
    dims = _read_by_strides(call, state, call.shape(x)) if value.is_contiguous() else None
    if dims is not None:
        return call.made(state, dims)
    call.mixes("may combine samples: reads memory by strides", state, certain=False)
    return None


def _read_by_strides(call: Call, state: Samples, shape: Sequence[int]) -> list[Dim] | None:
    """The dims of a view by strides of samples that lie one after the other; None where it leaves their memory or mixes them."""
    outermost = [own for own in state.dims if own]
    if not outermost or not outermost[0][0].stride or sum(f.stride != 0 for own in state.dims for f in own) != 1:
        return None
    batch = outermost[0][0]
    memory = math.prod(shape) // batch.size
    sizes, strides = call.out_shape(), [call.sizes(stride) for stride in call.results[0].stride()]
    # Steps of one dim go from sample to sample, or from part to part of a sample when the batch was merged with such a dim.
    dims: list[Dim] = []
    reach = call.number(call.get("storage_offset"))
    found = False
    for size, stride in zip(sizes, strides, strict=True):
        if size > 1 and stride and not found and (size * stride) % memory == 0 and size * stride // memory == batch.size:
            dims.append(canonical([batch, Factor(size // batch.size)]))
            reach += (size // batch.size - 1) * stride
            found = size % batch.size == 0
        else:
            dims.append(plain(size))
            reach += (size - 1) * stride
    return dims if found and reach < memory else None


@rule("arange")
def _arange(call: Call) -> States:
    (size,) = call.out_shape()
    start, step = call.constant(call.get("start", 0)), call.constant(call.get("step", 1))
    if start is None or step is None or call.results[0].dtype.is_floating_point:
        return None
    return Affine((canonical([Factor(size, step)]),), start)


@rule("iota", "prims")
def _iota(call: Call) -> States:
    (size,) = call.out_shape()
    start, step = call.constant(call.get("start", 0)), call.constant(call.get("step", 1))
    return None if start is None or step is None else Affine((canonical([Factor(size, step)]),), start)
