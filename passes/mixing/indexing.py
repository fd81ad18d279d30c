"""Rules of ops that read and write at indices, and of those that make indices: sort, counts, nonzero.

An index into a dim of samples is understood when it is made of ``arange``, or consists of positions that each belong to the sample of the
index itself (``Target``): what a sort returns, and what integer division makes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from bi_inductor.passes.mixing.call import Call, join, padded
from bi_inductor.passes.mixing.registry import rule
from bi_inductor.passes.mixing.states import Affine, Dim, Factor, Order, Samples, States, Target, Whole, canonical, plain, size_of


def _composed(dim: Dim, index: Affine) -> tuple[tuple[Dim, ...], int] | None:
    """The factors that an index made of ``arange`` gives to its dims when it is applied to ``dim``, and the offset."""
    if len(dim) == 1:
        stride = dim[0].stride
        return (
            tuple(canonical([Factor(f.size, f.stride * stride) for f in own]) for own in index.dims),
            index.offset * stride,
        )
    # Each factor of the index has to run along one factor of the dim.
    steps: list[tuple[int, Factor]] = []
    inner = 1
    for factor in reversed(dim):
        steps.append((inner, factor))
        inner *= factor.size
    offset, rest = 0, index.offset
    for step, factor in reversed(steps):
        offset += rest // step * factor.stride
        rest %= step
    found: list[Dim] = []
    for own in index.dims:
        factors: list[Factor] = []
        for f in own:
            pending, stride = f.size, f.stride
            parts: list[Factor] = []
            for step, factor in steps:
                if not pending or pending == 1:
                    break
                if stride % step or stride // step >= factor.size:
                    continue
                unit = stride // step
                count = min(pending, factor.size // unit)
                if pending % count or (count * unit != factor.size and count != pending):
                    return None
                parts.append(Factor(count, unit * factor.stride))
                pending //= count
                stride *= count
            if pending != 1:
                return None
            factors += parts[::-1]
        found.append(canonical(factors))
    return tuple(found), offset


class _Read:
    """What reading at indices gives: the layout of the operand's samples in the result, or a report."""

    def __init__(self, call: Call, x: Any, indices: dict[int, Any], rank: int) -> None:
        self.call, self.x, self.indices, self.rank = call, x, indices, rank
        self.state = call.samples(x)

    def index_dims(self, state: Samples | Affine) -> tuple[Dim, ...]:
        return padded(state.dims, self.rank)

    def placed(self) -> tuple[Samples, tuple[Dim, ...], dict[int, Dim]] | None:
        """The samples of ``x`` in the dims of the indices, and in its dims that are not indexed; None after a report."""
        state, call = self.state, self.call
        assert state is not None
        where: tuple[Dim, ...] = ((),) * self.rank
        order, offset = state.order, state.offset
        for dim, index in self.indices.items():
            own = state.dims[dim]
            if not any(f.stride for f in own):
                continue
            found = call.state(index)
            if isinstance(found, Affine) and (composed := _composed(own, found)) is not None:
                dims, moved = composed
                where = tuple(a or b for a, b in zip(where, padded(dims, self.rank), strict=True))
                offset += moved
            elif isinstance(found, Samples) and found.target is not None and _same_target(found.target, own, state):
                where = tuple(a or tuple(b) for a, b in zip(where, self.index_dims(found), strict=True))
                order, offset = found.order, found.offset
            else:
                call.mixes(f"takes samples of dim {dim} from places that an index gives", state)
                return None
        placed = call.made(state, where, order=order, offset=offset)
        return placed, where, {dim: own for dim, own in enumerate(state.dims) if dim not in self.indices}


def _same_target(target: Target, dim: Dim, state: Samples) -> bool:
    return target.order is state.order and target.offset == state.offset and canonical(target.dim) == canonical(dim)


def _read(call: Call, x: Any, indices: dict[int, Any], first: int | None = None) -> States:
    """``x`` at ``indices`` (by dim), whose broadcast dims stand in the place of the dims they index."""
    shape = call.out_shape()
    index_rank = max(len(call.shape(index)) for index in indices.values())
    kept = [dim for dim in range(len(call.shape(x))) if dim not in indices]
    at = first if first is not None else _place(sorted(indices))
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    state = call.samples(x)
    if state is not None:
        placed = _Read(call, x, indices, index_rank).placed()
        if placed is not None:
            new, where, others = placed
            dims = [others[dim] for dim in kept]
            dims[at:at] = where
            entries.append((new, dims))
    for index in dict.fromkeys(indices.values()):
        found = call.samples(index)
        if found is not None:
            dims = [()] * len(kept)
            dims[at:at] = padded(found.dims, index_rank)
            entries.append((found, dims))
    result = join(call, entries)
    if result is None:
        return None
    # Positions read from a table of positions: arange by the inverse of a sort.
    return call.made(result, result.dims) if len(result.dims) == len(shape) else None


def _place(dims: list[int]) -> int:
    """Where the dims of indices stand in the result: in place when they are neighbours, else in front."""
    return dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0


@rule("index _unsafe_index")
def _index(call: Call) -> States:
    x, given = call.positional[:2]
    indices = {dim: index for dim, index in enumerate(given) if index is not None}
    if any("bool" in str(index.meta["val"].dtype) for index in indices.values()):
        return _masked(call, x, list(indices.values()))
    dims = sorted(indices)
    return _read(call, x, indices, _place(dims))


@rule("_unsafe_masked_index")
def _masked_index(call: Call) -> States:
    x, mask, given = call.positional[:3]
    indices = {dim: index for dim, index in enumerate(given) if index is not None}
    result = _read(call, x, indices, _place(sorted(indices)))
    entries = [(state, state.dims) for state in (result, call.samples(mask)) if isinstance(state, Samples)]
    return join(call, [(state, padded(dims, len(call.out_shape()))) for state, dims in entries])


@rule("index_select")
def _index_select(call: Call) -> States:
    x, dim, index = call.positional[:3]
    rank = len(call.shape(x))
    return _read(call, x, {dim % rank if rank else 0: index}, dim % rank if rank else 0)


@rule("embedding")
def _embedding(call: Call) -> States:
    return _read(call, call.positional[0], {0: call.positional[1]}, 0)


@rule("take")
def _take(call: Call) -> States:
    x, index = call.positional[:2]
    if call.samples(x) is not None:
        call.mixes("takes elements by an index over all samples", call.samples(x))
        return None
    found = call.samples(index)
    return None if found is None else call.made(found, found.dims)


@rule("gather")
def _gather(call: Call) -> States:
    """result[i, j, k] = x[i, index[i, j, k], k] for dim 1."""
    x, dim, index = call.positional[:3]
    state, found = call.state(x), call.state(index)
    rank = len(call.out_shape())
    dim = dim % rank if rank else 0
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    if isinstance(found, Samples):
        entries.append((found, found.dims))
    if isinstance(state, Samples):
        dims = list(state.dims)
        order, offset = state.order, state.offset
        if dims and any(f.stride for f in dims[dim]):
            own = dims[dim]
            dims[dim] = ()
            if isinstance(found, Affine) and (composed := _composed(own, found)) is not None:
                places, moved = composed
                dims = [a if any(f.stride for f in a) else b for a, b in zip(dims, places, strict=True)]
                offset += moved
            elif isinstance(found, Samples) and found.target is not None and _same_target(found.target, own, state):
                dims = [a if any(f.stride for f in a) else b for a, b in zip(dims, found.dims, strict=True)]
                order, offset = found.order, found.offset
            else:
                call.mixes(f"takes samples of dim {dim} from places that an index gives", state)
                return None
        elif dims:
            dims[dim] = ()
            for d, size in enumerate(call.out_shape()):
                if d != dim and any(f.stride for f in dims[d]) and size_of(dims[d]) != size:
                    # Fewer rows of the index than of the operand: the first ones.
                    if len(dims[d]) != 1:
                        call.mixes(f"takes a part of dim {d}, which holds the samples", state)
                        return None
                    dims[d] = canonical([Factor(size, dims[d][0].stride)])
        entries.append((call.made(state, dims, order=order, offset=offset), dims))
    return join(call, entries)


def _masked(call: Call, x: Any, masks: Sequence[Any]) -> States:
    """Rows where a mask is true, one after the other."""
    states = [state for value in (x, *masks) if (state := call.samples(value)) is not None]
    if not states:
        return None
    order = Order(call.out_shape()[0], call.node)
    rank = len(call.shape(masks[0])) if masks else 0
    source = call.samples(x)
    if len(masks) != 1 or (source is not None and any(source.along(d) for d in range(rank, len(source.dims)))):
        call.mixes("takes elements by a mask over all samples", states[0], certain=False)
        return None
    front = [(s, padded(s.dims[:rank], rank)) for s in states]
    if join(call, front) is None:
        return None
    dims = [canonical([Factor(call.out_shape()[0], 1)]), *(source.dims[rank:] if source is not None else ())]
    dims += [plain(size) for size in call.out_shape()[len(dims) :]]
    return call.made(states[0], dims, order=order, offset=0)


@rule("masked_select")
def _masked_select(call: Call) -> States:
    return _masked(call, call.positional[0], [call.positional[1]])


@rule("nonzero")
def _nonzero(call: Call) -> States:
    """[found, dims of the operand]: places of each element that is not zero; a row belongs to the sample of its element."""
    state = call.samples(call.positional[0])
    if state is None:
        return None
    count, rank = call.out_shape()
    return call.made(state, (canonical([Factor(count, 1)]), plain(rank)), order=Order(count, call.node), offset=0)


@rule("sort argsort")
def _sort(call: Call) -> States:
    """Along a dim of samples: an order of its own, from which the same indices lead back."""
    values = isinstance(call.node.meta.get("val"), (tuple, list))
    state = call.samples(call.positional[0])
    if state is None:
        return [None, None] if values else None
    if not state.dims:
        return [state, state] if values else state
    dim = call.get("dim", -1) % len(state.dims)
    if not state.along(dim):
        one = call.made(state, state.dims)
        return [one, one] if values else one
    size = call.out_shape()[dim]
    if any(d != dim and own for d, own in enumerate(state.dims)):
        reported = call.whole(f"runs along dim {dim}, which holds the samples", state)
        if reported is None and values:
            return [None, Whole(call.node, f"runs along dim {dim}, which holds the samples", state.step)]
        return [reported, reported] if values else reported
    given = state.target
    if given is not None and given.complete:
        # Sorting the indices of a sort gives the way back.
        place = tuple(given.dim if d == dim else () for d in range(len(state.dims)))
        back = Target(state.dims[dim], state.order, state.offset, True)
        indices = call.made(state, place, order=given.order, offset=given.offset, target=back)
        return [None, indices] if values else indices
    order = Order(size, call.node)
    row = tuple(canonical([Factor(size, 1)]) if d == dim else () for d in range(len(state.dims)))
    target = Target(state.dims[dim], state.order, state.offset, True)
    sorted_values = call.made(state, row, order=order, offset=0)
    indices = call.made(state, row, order=order, offset=0, target=target)
    return [sorted_values, indices] if values else indices


@rule("histc bincount unique _unique2 unique_dim unique_consecutive")
def _counts(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return [None] * len(call.results) if isinstance(call.node.meta.get("val"), (tuple, list)) else None
    whole = Whole(call.node, "counts values of all samples", state.step)
    return [whole] * len(call.results) if isinstance(call.node.meta.get("val"), (tuple, list)) else whole


@rule("bucketize")
def _bucketize(call: Call) -> States:
    x, boundaries = call.positional[:2]
    if (state := call.samples(boundaries)) is not None and state.sample_dims:
        call.mixes("compares with boundaries of all samples", state)
        return None
    return pointwise_of(call, x, boundaries)


def pointwise_of(call: Call, x: Any, other: Any) -> States:
    state = call.samples(x)
    if state is not None:
        return call.made(state, state.dims)
    found = call.samples(other)
    return None if found is None else call.made(found, [()] * len(call.out_shape()))


@rule("searchsorted")
def _searchsorted(call: Call) -> States:
    table, values = call.samples(call.positional[0]), call.samples(call.positional[1])
    rank = len(call.out_shape())
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    if table is not None:
        if table.along(len(table.dims) - 1):
            call.mixes(f"searches dim {len(table.dims) - 1}, which holds the samples", table)
            return None
        entries.append((table, padded([*table.dims[:-1], ()], rank) if rank else ()))
    if values is not None:
        entries.append((values, padded(values.dims, rank)))
    return join(call, entries)


def _write(call: Call, base: Any, indices: dict[int, Any], values: Any, at: int) -> States:
    """``base`` with ``values`` written or added at ``indices`` (by dim)."""
    shape = call.out_shape()
    index_rank = max(len(call.shape(index)) for index in indices.values())
    kept = [dim for dim in range(len(shape)) if dim not in indices]
    own = call.samples(base)
    # Everything that is written, in dims of the indices and of the rest.
    width = index_rank + len(kept)
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    if isinstance(values, Node) and (state := call.samples(values)) is not None:
        entries.append((state, padded(state.dims, width)))
    for index in dict.fromkeys(indices.values()):
        if (state := call.samples(index)) is not None:
            dims: list[Dim] = [()] * len(kept)
            dims[at:at] = padded(state.dims, index_rank)
            entries.append((state, dims))
    written = join(call, entries)
    if written is None:
        return own
    result: list[Dim] = [()] * len(shape)
    rest = [*written.dims[:at], *written.dims[at + index_rank :]]
    for dim, factors in zip(kept, rest, strict=True):
        result[dim] = factors
    pending = [d for d in range(at, at + index_rank) if any(f.stride for f in written.dims[d])]
    order, offset = written.order, written.offset
    if pending:
        for dim, index in indices.items():
            found = call.state(index)
            if isinstance(found, Samples) and found.target is not None and found.order is order and found.offset == offset:
                result[dim] = found.target.dim
                order, offset = found.target.order, found.target.offset
                pending = []
                break
            if isinstance(found, Affine) and (mapped := _covers(found, written, at, index_rank, shape[dim])) is not None:
                result[dim] = mapped
                pending = []
                break
        if pending:
            call.mixes("writes samples to places that an index gives", written)
            return None
    new = call.made(written, [f if any(g.stride for g in f) else plain(size) for f, size in zip(result, shape, strict=True)], order, offset)
    if own is None:
        return new
    return join(call, [(new, new.dims), (own, own.dims)], "writes values of one sample over another")


def _covers(index: Affine, written: Samples, at: int, rank: int, size: int) -> Dim | None:
    """The factors of a whole dim that is written at 0, 1, 2, ... along with the samples of ``written``."""
    dims = padded(index.dims, rank)
    own = [factor for dim in dims for factor in dim]
    where = [d for d, dim in enumerate(dims) if dim]
    if index.offset or len(own) != 1 or own[0] != Factor(size, 1) or len(where) != 1:
        return None
    return written.dims[at + where[0]]


@rule("index_put _unsafe_index_put _unsafe_masked_index_put_accumulate")
def _index_put(call: Call) -> States:
    if call.op.overloadpacket.__name__ == "_unsafe_masked_index_put_accumulate":
        base, _, given, values = call.positional[:4]
    else:
        base, given, values = call.positional[:3]
    indices = {dim: index for dim, index in enumerate(given) if index is not None}
    if any("bool" in str(index.meta["val"].dtype) for index in indices.values()):
        return _masked_write(call, base, list(indices.values()), values)
    inverse = _inverse(call, indices, values)
    if inverse is not None:
        return inverse
    return _write(call, base, indices, values, _place(sorted(indices)))


def _inverse(call: Call, indices: dict[int, Any], values: Any) -> Samples | None:
    """Writing 0, 1, 2, ... at the indices of a sort gives the way back."""
    index, state = call.state(indices.get(0)), call.state(values)
    if len(indices) != 1 or not isinstance(index, Samples) or index.target is None or not index.target.complete:
        return None
    if not isinstance(state, Affine) or len(state.dims) != 1 or state.offset or state.dims != index.dims or len(index.dims) != 1:
        return None
    target = index.target
    back = Target(index.dims[0], index.order, index.offset, True)
    return call.made(index, (target.dim,), order=target.order, offset=target.offset, target=back)


def _masked_write(call: Call, base: Any, masks: Sequence[Any], values: Any) -> States:
    """Values where a mask is true: one for all places, or one each in the order of the places."""
    own, written = call.samples(base), call.samples(values)
    entries = [(own, own.dims)] if own is not None else []
    rank = len(call.out_shape())
    for mask in masks:
        if (state := call.samples(mask)) is not None:
            dims = list(state.dims) + [()] * (rank - len(state.dims))
            entries.append((state, tuple(dims[:rank])))
    if isinstance(values, Node) and len(call.shape(values)) and any(call.samples(mask) is not None for mask in masks):
        call.mixes("writes values one after the other to where a mask is true in all samples", written or entries[0][0], certain=False)
    return join(call, entries)


@rule("masked_scatter")
def _masked_scatter(call: Call) -> States:
    base, mask, source = call.positional[:3]
    states = [state for value in (base, mask, source) if (state := call.samples(value)) is not None]
    if not states:
        return None
    aligned = [(state, padded(state.dims, len(call.out_shape()))) for value in (base, mask) if (state := call.samples(value)) is not None]
    if any(state.sample_dims for state in states):
        # Features of images in the places of their tokens: right as long as every sample has as many of both.
        call.mixes("fills places of all samples with values one after the other", states[-1], certain=False)
    return join(call, aligned)


@rule("scatter scatter_add scatter_reduce")
@rule("scatter", "bi_inductor")
def _scatter(call: Call) -> States:
    """x with x[i, index[i, j, k], k] = src[i, j, k] for dim 1."""
    base, dim, index = call.positional[:3]
    source = call.positional[3] if len(call.positional) > 3 else call.get("src")
    shape = call.out_shape()
    dim = dim % len(shape) if shape else 0
    own = call.samples(base)
    # An index of one dim, for our own operator, says where whole slices go.
    slices = len(call.shape(index)) == 1 < len(shape)
    entries: list[tuple[Samples, Sequence[Dim]]] = []
    for value in (index, source):
        state = call.samples(value)
        if state is not None:
            if value is index and slices:
                entries.append((state, tuple(state.dims[0] if d == dim else () for d in range(len(shape)))))
                continue
            if value is source and not slices and call.shape(source) != call.shape(index) and state.sample_dims:
                cut = [
                    own_dim if size == other else None
                    for own_dim, size, other in zip(state.dims, call.shape(source), call.shape(index), strict=True)
                ]
                if any(c is None and state.along(d) for d, c in enumerate(cut)):
                    call.mixes("may combine samples: scatters a part of them", state, certain=False)
                    return own
            entries.append((state, state.dims))
    written = join(call, entries)
    if written is None:
        return own
    dims = list(written.dims)
    order, offset = written.order, written.offset
    if dims and any(f.stride for f in dims[dim]):
        found = call.state(index)
        if isinstance(found, Samples) and found.target is not None:
            dims[dim] = found.target.dim
            order, offset = found.target.order, found.target.offset
        elif not (isinstance(found, Affine) and found.dims[0 if slices else dim] == (Factor(shape[dim], 1),) and not found.offset):
            call.mixes(f"writes samples to places of dim {dim} that an index gives", written)
            return None
    elif dims:
        dims[dim] = ()
    for d, size in enumerate(shape):
        if d != dim and any(f.stride for f in dims[d]) and size_of(dims[d]) != size:
            call.mixes("may combine samples: scatters to a part of them", written, certain=False)
            return None
    new = call.made(written, [f if any(g.stride for g in f) else plain(size) for f, size in zip(dims, shape, strict=True)], order, offset)
    if own is None:
        return new
    return join(call, [(new, new.dims), (own, own.dims)], "writes values of one sample over another")


@rule("index_add index_copy index_reduce index_fill")
def _index_add(call: Call) -> States:
    base, dim, index, values = call.positional[:4]
    dim = dim % len(call.out_shape()) if call.out_shape() else 0
    # The dim of the index stands in its place among the dims of the values, as for index_put of neighbours.
    return _write(call, base, {dim: index}, values, dim)


@rule("multinomial")
def _multinomial(call: Call) -> States:
    state = call.samples(call.positional[0])
    if state is None:
        return None
    last = len(state.dims) - 1
    if state.along(last):
        call.mixes(f"draws along dim {last}, which holds the samples", state)
        return None
    return call.made(state, [*state.dims[:-1], plain(call.out_shape()[-1])])
