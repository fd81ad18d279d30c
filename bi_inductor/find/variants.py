"""The ways in which `find` runs a model: which samples together, padded or not, on how many threads, under which backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from bi_inductor.passes.layout import Extent

from ..check.batches import Inputs, Run
from ..leaves import BatchDim, leaves_with_dims, top_level_entries
from ..settings import backend_name


@dataclass(frozen=True)
class Variant:
    """One way to run the model; what is None is as in the call of `find`.

    Attributes:
        samples: the samples of the batch, in order; by default all of them.
        neighbours: a value, such as NaN, that fills the floating-point inputs of all samples but the first of `samples`, the only one that
            is compared then.
        pad_left: how many positions are put before each sample along `sequence_dim`.
        pad_right: how many after it.
        chunk: so many samples at a time, one run after the other, until all of `samples` are compared.
        sequence_chunk: so many positions along `sequence_dim` at a time, from 2 on. Each run sees its own positions only, as right as the
            model treats them by themselves; `in_chunks` of `find` carries a cache from one to the next, and then it is from 1 on.
        threads: number of threads.
        dynamic: whether shapes are symbolic; of a compiled backend only.
        backend: a `torch.compile` backend by name or as a callable; "eager" runs uncompiled.
        name: what reports call it; by default it is said in words.
    """

    samples: Sequence[int] | None = None
    neighbours: float | None = None
    pad_left: int = 0
    pad_right: int = 0
    chunk: int | None = None
    sequence_chunk: int | None = None
    threads: int | None = None
    dynamic: bool | None = None
    backend: str | Callable[..., Any] | None = None
    name: str | None = None


@dataclass(frozen=True)
class Setting:
    """A `Variant` with nothing left open.

    Attributes:
        name: what reports call it.
        run: the samples, and the places that are compared.
        extent: batch size, padded length, and the compared positions.
        pad_left, pad_right: positions before and after each sample.
        positions: the first position of a chunk and how many it has; None for all.
        pieces: of all chunks of a run by `in_chunks`, empty for any other run.
        call: the number of the chunk in such a run; None for what `in_chunks` makes of them all.
        threads, dynamic, backend: as in `Variant`.
    """

    name: str
    run: Run
    extent: Extent
    pad_left: int
    pad_right: int
    threads: int
    dynamic: bool
    backend: str | Callable[..., Any]
    positions: tuple[int, int] | None = None
    pieces: tuple[tuple[int, int], ...] = ()
    call: int | None = None

    @property
    def eager(self) -> bool:
        """Whether it runs uncompiled."""
        return self.backend == "eager"

    def compared_with(self, other: Setting) -> Setting:
        """This setting with only those positions compared that a chunk ``other`` has."""
        if other.positions is None:
            return self
        start, count = other.positions
        return dataclasses.replace(self, extent=self.extent._replace(start=self.extent.start + start, kept=count))


class Samples:
    """The inputs of the model and how a variant's batch is made of them.

    Args:
        inputs: as the user gave them.
        batch_dim: the dim that holds the samples.
        sequence_dim: the dim along which samples are padded; None for none.
        padding_values: what padding holds, one for all inputs or one per top-level argument.

    Raises:
        ValueError: an argument does not fit the inputs.
    """

    def __init__(self, inputs: Any, batch_dim: BatchDim, sequence_dim: BatchDim, padding_values: float | Mapping[Any, float]) -> None:
        self.inputs = Inputs(inputs, batch_dim)
        leaves, _ = pytree.tree_flatten_with_path(inputs)
        tops = top_level_entries(leaves)
        if isinstance(sequence_dim, Mapping):
            sequence_dim = {**dict.fromkeys(tops), **sequence_dim}
        lengths = [leaf.dim for leaf in leaves_with_dims(leaves, sequence_dim, "sequence_dim", "inputs")]
        # Inputs without samples have no padding either.
        self.sequence = [dim if leaf.is_batched else None for dim, leaf in zip(lengths, self.inputs.leaves, strict=True)]
        for dim, leaf in zip(self.sequence, self.inputs.leaves, strict=True):
            if dim is not None and dim == leaf.dim:
                raise ValueError(f"sequence_dim={sequence_dim!r} and batch_dim={batch_dim!r} are the same dim of {leaf.name}")
        found = {leaf.value.shape[dim] for dim, leaf in zip(self.sequence, self.inputs.leaves, strict=True) if dim is not None}
        if len(found) > 1:
            raise ValueError(f"sequence_dim={sequence_dim!r}: the inputs have several lengths along it ({sorted(found)})")
        self.length = next(iter(found), 1)
        if isinstance(padding_values, Mapping):
            unknown = [key for key in padding_values if key not in tops]
            if unknown:
                raise ValueError(f"padding_values names {unknown!r}; allowed are the entries of inputs, {list(dict.fromkeys(tops))}")
            self.padding = [padding_values.get(top, 0) for top in tops]
        else:
            self.padding = [padding_values] * len(tops)

    def leaves(self, setting: Setting) -> list[Any]:
        """The leaves of the inputs for one run: new tensors."""
        arguments, _ = self.inputs.gather(setting.run, grad=False)
        values = pytree.tree_leaves(arguments)
        if setting.positions is not None:
            for index, (value, dim) in enumerate(zip(values, self.sequence, strict=True)):
                if dim is not None:
                    values[index] = value.narrow(dim, *setting.positions).contiguous()
        pad_left = setting.pad_left
        if pad_left or setting.pad_right:
            for index, (value, dim, fill) in enumerate(zip(values, self.sequence, self.padding, strict=True)):
                if dim is not None:
                    amounts = [0] * (2 * (value.dim() - dim - 1)) + [pad_left, setting.pad_right]
                    values[index] = torch.nn.functional.pad(value, amounts, value=fill)
        return values


def default_variants(samples: int) -> list[Variant]:
    """The whole batch, its first and its last sample alone, and its second half in reverse order (of two samples both)."""
    half = range(samples - 1, samples - 1 - max(2, samples // 2), -1)
    return [Variant(), Variant(samples=[0]), Variant(samples=[samples - 1]), Variant(samples=half)]


def resolve(
    variants: Sequence[Variant],
    samples: Samples,
    backend: str | Callable[..., Any],
    dynamic: bool,
    threads: int | None,
    carries: bool = False,
) -> list[Setting]:
    """Fills in what the variants leave open, and checks them; ``carries``: chunks of positions are run by `in_chunks`.

    Raises ValueError naming the variant and what is allowed.
    """
    if len(variants) < 2:
        raise ValueError(f"variants: got {len(variants)}; allowed are two or more, the first is what the others are compared with")
    settings = []
    for index, variant in enumerate(variants):
        where = f"variants[{index}]"
        total = samples.inputs.samples
        chosen = tuple(range(total)) if variant.samples is None else tuple(variant.samples)
        if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= sample < total for sample in chosen):
            raise ValueError(f"{where}.samples: got {list(chosen)}; allowed are numbers from 0 to {total - 1}, each once, at least one")
        pads = (variant.pad_left, variant.pad_right)
        if min(pads) < 0:
            raise ValueError(f"{where}: got pad_left={pads[0]}, pad_right={pads[1]}; allowed are numbers from 0 on")
        if any(pads) and all(dim is None for dim in samples.sequence):
            raise ValueError(f"{where}: padding needs sequence_dim, the dim of the inputs that holds a sample's positions")
        if variant.neighbours is not None and not samples.inputs.has_floats():
            raise ValueError(f"{where}.neighbours={variant.neighbours} needs a floating-point tensor with a batch dim among the inputs")
        count = threads if variant.threads is None else variant.threads
        count = torch.get_num_threads() if count is None else count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{where}.threads: got {count!r}; allowed are whole numbers from 1 on")
        under = backend if variant.backend is None else variant.backend
        backend_name(under)
        _check_chunks(where, index, variant, len(chosen), samples, carries)
        compared = tuple(range(len(chosen))) if variant.neighbours is None else (0,)
        whole = Setting(
            name=variant.name or _in_words(variant, chosen, samples),
            run=Run("find", chosen, compared, variant.neighbours),
            extent=Extent(len(chosen), samples.length + sum(pads), variant.pad_left, samples.length),
            pad_left=variant.pad_left,
            pad_right=variant.pad_right,
            threads=count,
            dynamic=dynamic if variant.dynamic is None else variant.dynamic,
            backend=under,
        )
        if carries and variant.sequence_chunk is not None:
            settings += _carried(whole, variant.sequence_chunk, samples.length)
        else:
            settings += _in_chunks(whole, variant, samples.length)
        if index and not set(_compared(settings[0])) & set(_compared(settings[-1])):
            raise ValueError(f"{where} compares no sample that variants[0] compares too, so there is nothing to compare")
    return settings


def _check_chunks(where: str, index: int, variant: Variant, chosen: int, samples: Samples, carries: bool) -> None:
    if carries and variant.sequence_chunk is not None and variant.chunk is not None:
        raise ValueError(f"{where}.chunk cannot be joined with sequence_chunk under in_chunks; give each a variant of its own")
    for argument, value, lowest, size in (
        ("chunk", variant.chunk, 1, chosen),
        ("sequence_chunk", variant.sequence_chunk, 1 if carries else 2, samples.length),
    ):
        if value is None:
            continue
        if index == 0:
            raise ValueError(f"{where}.{argument}: the first variant is what the others are compared with, and has to be one run")
        if argument == "sequence_chunk" and all(dim is None for dim in samples.sequence):
            raise ValueError(f"{where}.sequence_chunk needs sequence_dim, the dim of the inputs that holds a sample's positions")
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < size:
            raise ValueError(f"{where}.{argument}: got {value!r}; allowed are whole numbers from {lowest} to {size - 1}")
        if variant.pad_left or variant.pad_right or variant.neighbours is not None:
            raise ValueError(f"{where}.{argument} cannot be joined with padding or neighbours; give each a variant of its own")


def _in_chunks(whole: Setting, variant: Variant, length: int) -> list[Setting]:
    """The runs that a variant asks for: one, or one for each chunk of samples and of positions; the last one may overlap the one before."""
    chosen = whole.run.samples
    size, positions = variant.chunk or len(chosen), variant.sequence_chunk or length
    pieces = [(start, first) for start in _starts(len(chosen), size) for first in _starts(length, positions)]
    found = []
    for number, (start, first) in enumerate(pieces, 1):
        found.append(
            dataclasses.replace(
                whole,
                name=f"{whole.name}, chunk {number} of {len(pieces)}" if len(pieces) > 1 else whole.name,
                run=whole.run._replace(samples=chosen[start : start + size], compared=tuple(range(size))) if variant.chunk else whole.run,
                extent=Extent(size, positions, 0, positions) if variant.sequence_chunk else whole.extent._replace(batch=size),
                positions=(first, positions) if variant.sequence_chunk else None,
            )
        )
    return found


def _carried(whole: Setting, size: int, length: int) -> list[Setting]:
    """One run by `in_chunks`: a setting for each chunk, the last may have fewer positions, and one for what is made of them all."""
    pieces = tuple((start, min(size, length - start)) for start in range(0, length, size))
    return [
        *(
            dataclasses.replace(
                whole,
                name=f"{whole.name}, chunk {number + 1} of {len(pieces)}",
                extent=Extent(whole.extent.batch, piece[1], 0, piece[1]),
                positions=piece,
                pieces=pieces,
                call=number,
            )
            for number, piece in enumerate(pieces)
        ),
        dataclasses.replace(whole, name=f"{whole.name}, its {len(pieces)} chunks put together", pieces=pieces),
    ]


def _starts(length: int, size: int) -> list[int]:
    return [min(start, length - size) for start in range(0, length, size)]


def _compared(setting: Setting) -> list[int]:
    return [setting.run.samples[place] for place in setting.run.compared]


def shared_places(reference: Setting, setting: Setting) -> tuple[list[int], list[int]]:
    """The places of the samples that both compare: in the batch of ``reference`` and in that of ``setting``."""
    first = {reference.run.samples[place]: place for place in reference.run.compared}
    pairs = [(first[setting.run.samples[place]], place) for place in setting.run.compared if setting.run.samples[place] in first]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _in_words(variant: Variant, samples: tuple[int, ...], given: Samples) -> str:
    total = given.inputs.samples
    if samples == tuple(range(total)):
        text = f"batch of {total}"
    elif len(samples) == 1:
        text = f"sample {samples[0]} alone"
    elif samples in (tuple(range(samples[0], samples[0] + len(samples))), tuple(range(samples[0], samples[0] - len(samples), -1))):
        text = f"samples {samples[0]} to {samples[-1]}"
    elif sorted(samples) == list(range(total)):
        text = "batch permuted"
    else:
        text = f"samples {', '.join(map(str, samples))}"
    parts = [text]
    if variant.neighbours is not None:
        parts.append(f"neighbours {variant.neighbours:g}")
    if variant.pad_left:
        parts.append(f"{variant.pad_left} pads on the left")
    if variant.pad_right:
        parts.append(f"{variant.pad_right} pads on the right")
    if variant.threads is not None:
        parts.append(f"{variant.threads} thread{'s' if variant.threads > 1 else ''}")
    if variant.dynamic is not None:
        parts.append("dynamic shapes" if variant.dynamic else "static shapes")
    if variant.backend is not None:
        parts.append(backend_name(variant.backend))
    return ", ".join(parts)
