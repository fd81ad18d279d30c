"""``bi_inductor::linalg_*``, ``_fft_*``: torch's kernel on one matrix (or signal) at a time, each in the same layout, on one thread.

Each has the name and the schema of the op of torch that it stands for. Leading dims of these ops are batch dims by their definition, and
the kernels behind them (LAPACK, FFT libraries) choose by the number of matrices, their strides and the number of threads.

torch.set_num_threads sets the calling thread's OpenMP and MKL threads, so calls in several Python threads neither see nor undo each
other's single thread. It also sets what a Python thread starts with: one whose first op of torch falls into such a call keeps one thread
(slower, the same bits) until it calls torch.set_num_threads itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bi_inductor.operators.definition import LIBRARY
from bi_inductor.settings import thread_count

aten = torch.ops.aten

MATRIX, VECTOR, NUMBER = 2, 1, 0


class Ranks(NamedTuple):
    """How many trailing dims of each tensor belong to one sample; the dims before them are the batch."""

    operands: tuple[int, ...]
    results: tuple[int, ...]


RANKS: dict[Any, Ranks] = {
    aten.linalg_inv_ex.default: Ranks((MATRIX,), (MATRIX, NUMBER)),
    aten._linalg_solve_ex.default: Ranks((MATRIX, MATRIX), (MATRIX, MATRIX, VECTOR, NUMBER)),
    aten.linalg_cholesky_ex.default: Ranks((MATRIX,), (MATRIX, NUMBER)),
    aten.linalg_qr.default: Ranks((MATRIX,), (MATRIX, MATRIX)),
    aten._linalg_svd.default: Ranks((MATRIX,), (MATRIX, VECTOR, MATRIX)),
    aten._linalg_eigh.default: Ranks((MATRIX,), (VECTOR, MATRIX)),
    aten.linalg_eig.default: Ranks((MATRIX,), (VECTOR, MATRIX)),
    aten._linalg_eigvals.default: Ranks((MATRIX,), (VECTOR,)),
    aten._linalg_det.default: Ranks((MATRIX,), (NUMBER, MATRIX, VECTOR)),
    aten._linalg_slogdet.default: Ranks((MATRIX,), (NUMBER, NUMBER, MATRIX, VECTOR)),
    aten.linalg_matrix_exp.default: Ranks((MATRIX,), (MATRIX,)),
    aten.linalg_lu_factor_ex.default: Ranks((MATRIX,), (MATRIX, VECTOR, NUMBER)),
    aten.linalg_lu.default: Ranks((MATRIX,), (MATRIX, MATRIX, MATRIX)),
    aten.linalg_lu_solve.default: Ranks((MATRIX, VECTOR, MATRIX), (MATRIX,)),
    aten.linalg_ldl_factor_ex.default: Ranks((MATRIX,), (MATRIX, VECTOR, NUMBER)),
    aten.linalg_ldl_solve.default: Ranks((MATRIX, VECTOR, MATRIX), (MATRIX,)),
    aten.linalg_solve_triangular.default: Ranks((MATRIX, MATRIX), (MATRIX,)),
    aten.triangular_solve.default: Ranks((MATRIX, MATRIX), (MATRIX, MATRIX)),
    aten.linalg_pinv.atol_rtol_tensor: Ranks((MATRIX, NUMBER, NUMBER), (MATRIX,)),
    aten.linalg_householder_product.default: Ranks((MATRIX, VECTOR), (MATRIX,)),
    aten.ormqr.default: Ranks((MATRIX, VECTOR, MATRIX), (MATRIX,)),
    aten.cholesky_solve.default: Ranks((MATRIX, MATRIX), (MATRIX,)),
    aten.cholesky_inverse.default: Ranks((MATRIX,), (MATRIX,)),
}
# torch 2.14 has it no more.
if hasattr(aten, "cholesky"):
    RANKS[aten.cholesky.default] = Ranks((MATRIX,), (MATRIX,))

# Their dims are named by the second argument.
TRANSFORMS = (aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default)

ONE_SAMPLE_OPS = (*RANKS, *TRANSFORMS)


class _Layout(NamedTuple):
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _empty_results(op: Any, arguments: Sequence[Any], named: dict[str, Any]) -> list[torch.Tensor]:
    """The results of ``op`` without values, laid out as torch's own."""
    layouts = _result_layouts(op, tuple(map(_hashable, arguments)), tuple((key, _hashable(named[key])) for key in sorted(named)))
    return [torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype) for layout in layouts]


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Layout(value.shape, value.stride(), value.dtype)
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=512)
def _result_layouts(op: Any, arguments: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> list[_Layout]:
    with FakeTensorMode():
        results = op(*map(_without_values, arguments), **{key: _without_values(value) for key, value in named})
        return [_Layout(result.shape, result.stride(), result.dtype) for result in _as_list(results)]


def _without_values(value: Any) -> Any:
    if isinstance(value, _Layout):
        return torch.empty_strided(value.shape, value.stride, dtype=value.dtype)
    return list(value) if isinstance(value, tuple) else value


def _as_list(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _ranks(op: Any, operands: Sequence[torch.Tensor | None]) -> Ranks:
    """``RANKS``; a right-hand side of solve with one dim less than the matrices is a batch of vectors."""
    ranks = RANKS[op]
    if op is aten._linalg_solve_ex.default:
        a, b = operands
        assert a is not None and b is not None
        if b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]):
            return Ranks((MATRIX, VECTOR), (VECTOR, *ranks.results[1:]))
    return ranks


def _each_sample(op: Any, *arguments: Any, **named: Any) -> Any:
    count = len(RANKS[op].operands)
    operands, rest = arguments[:count], arguments[count:]
    # Tensors that torch takes by keyword (atol, rtol) come first in RANKS as well.
    keywords = [argument.name for argument in op._schema.arguments[len(operands) : count]]
    operands = (*operands, *(named.get(key) for key in keywords))
    others = {key: value for key, value in named.items() if key not in keywords}
    ranks = _ranks(op, operands)
    positional = len(arguments) - len(rest)
    results = _empty_results(op, [*operands[:positional], *rest], {**others, **dict(zip(keywords, operands[positional:], strict=True))})
    batch = torch.broadcast_shapes(*(x.shape[: x.dim() - rank] for x, rank in zip(operands, ranks.operands, strict=True) if x is not None))
    with thread_count(1):
        for place in itertools.product(*map(range, batch)):
            samples = [_sample(x, rank, place) for x, rank in zip(operands, ranks.operands, strict=True)]
            found = op(*samples[:positional], *rest, **others, **dict(zip(keywords, samples[positional:], strict=True)))
            for out, rank, value in zip(results, ranks.results, _as_list(found), strict=True):
                if out.numel():
                    _at(out, rank, place).copy_(value)
    return results[0] if len(results) == 1 else tuple(results)


def _at(x: torch.Tensor, rank: int, place: Sequence[int]) -> torch.Tensor:
    """The sample of ``x`` at a place of the broadcast batch."""
    own = x.shape[: x.dim() - rank]
    index = [0 if size == 1 else i for size, i in zip(own, place[len(place) - len(own) :], strict=True)]
    return x[tuple(index)]


def _sample(x: torch.Tensor | None, rank: int, place: Sequence[int]) -> torch.Tensor | None:
    """A copy in memory of its own: every sample has one layout and alignment."""
    return None if x is None else _at(x, rank, place).clone(memory_format=torch.contiguous_format)


def _each_signal(op: Any, x: torch.Tensor, dim: Sequence[int], *arguments: Any) -> torch.Tensor:
    (out,) = _empty_results(op, [x, list(dim), *arguments], {})
    transformed = [d % x.dim() for d in dim]
    order = [*(d for d in range(x.dim()) if d not in transformed), *transformed]
    signals, results = x.permute(order), out.permute(order)
    with thread_count(1):
        for place in itertools.product(*map(range, signals.shape[: x.dim() - len(transformed)])):
            signal = signals[place].clone(memory_format=torch.contiguous_format)
            results[place].copy_(op(signal, list(range(len(transformed))), *arguments))
    return out


def _define(op: Any, implementation: Callable[..., Any]) -> None:
    schema = str(op._schema).removeprefix("aten::")
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = f"bi_inductor::{schema.split('(')[0]}"
    LIBRARY.impl(name, functools.partial(implementation, op), "CPU")
    torch.library.register_fake(name, functools.partial(_fake, op), lib=LIBRARY)


def _fake(op: Any, *arguments: Any, **named: Any) -> Any:
    return op(*arguments, **named)


for _op in RANKS:
    _define(_op, _each_sample)
for _op in TRANSFORMS:
    _define(_op, _each_signal)


def one_sample_op(op: Any) -> Any:
    """The operator of ours that stands for ``op``, one of ``ONE_SAMPLE_OPS``."""
    return getattr(getattr(torch.ops.bi_inductor, op.overloadpacket.__name__), op._overloadname)
