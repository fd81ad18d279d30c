"""Does a sample's result change with its batch? Run a function many ways and compare bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import missing_device_named
from ..leaves import BatchDim
from ..settings import backend_name, compiled, thread_count
from .batches import PLACES, Function, Inputs, Progress, Run, compare_rows, plan, smallest
from .chunks import InChunks, chunks_of
from .eager import distance_from_eager
from .padding import SIDES, padding_of
from .result import REPEATED, REPEATED_ALONE, CheckResult, CheckRow
from .shrink import SmallestBatch


def _whole_numbers(argument: str, values: Sequence[int], lowest: int, highest: int | None, why: str) -> tuple[int, ...]:
    """Checks a sequence of whole numbers given for `argument`."""
    if not values:
        raise ValueError(f"{argument} is empty; allowed is at least one number from {lowest} on")
    for value in values:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or value < lowest or (highest is not None and value > highest):
            allowed = f"from {lowest} on" if highest is None else f"from {lowest} to {highest}"
            raise ValueError(f"{argument}: got {value!r}; allowed are whole numbers {allowed}{why}")
    return tuple(dict.fromkeys(values))


def _permutations(given: int | Sequence[Sequence[int]], size: int, generator: torch.Generator) -> list[list[int]]:
    if isinstance(given, int):
        if given < 0:
            raise ValueError(f"permutations: got {given}; allowed is a count from 0 on, or a sequence of permutations")
        return [torch.randperm(size, generator=generator).tolist() for _ in range(given)]
    for order in given:
        if sorted(order) != list(range(size)):
            raise ValueError(
                f"permutations: got {list(order)}; allowed is each number from 0 to {size - 1} once (the largest of batch_sizes is {size})"
            )
    return [list(order) for order in given]


def _positions(given: Sequence[str | int], size: int) -> tuple[str | int, ...]:
    for position in [given] if isinstance(given, str) else given:
        if not (position in PLACES if isinstance(position, str) else -size <= position < size):
            raise ValueError(
                f"positions: got {position!r}; allowed are a sequence of {', '.join(map(repr, PLACES))} and numbers "
                f"from -{size} to {size - 1}"
            )
    return (given,) if isinstance(given, str) else tuple(given)


def check(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    backend: str | Callable[..., Any] = "batch_invariant",
    batch_sizes: Sequence[int] | None = None,
    permutations: int | Sequence[Sequence[int]] = 2,
    positions: Sequence[str | int] = PLACES,
    neighbours: Sequence[float] = (),
    dynamic: bool | Sequence[bool | None] | None = None,
    threads: int | Sequence[int] | None = None,
    batch_dim: BatchDim = 0,
    out_batch_dim: BatchDim = 0,
    grad: bool = False,
    padding: Sequence[int] = (1, 5),
    sequence_dim: BatchDim = None,
    out_sequence_dim: BatchDim = None,
    padding_values: float | Mapping[Any, float] = 0,
    padding_sides: Sequence[str] = SIDES,
    chunks: Sequence[int] = (),
    in_chunks: InChunks | None = None,
    shrink: bool = False,
    eager: bool = False,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> CheckResult:
    """Runs `fn` on the samples of `inputs` in many batches and compares each sample's rows bit for bit.

    The reference is each sample alone, in the first of the settings `dynamic` x `threads`. In every setting the samples
    are run in batches of each size, permuted, and placed among different neighbours.

    Args:
        fn: a module or function whose result for a sample should not depend on the other samples. Put modules into
            eval mode: dropout and batch norm in training are found as differences.
        inputs: a tensor (`fn(inputs)`), a tuple or list (`fn(*inputs)`) or a dict (`fn(**inputs)`), possibly nested,
            with at least two samples. They are never written to.
        backend: a `torch.compile` backend by name or as a callable; "eager" calls `fn` uncompiled.
        batch_sizes: how many samples a batch holds; default 1, 2, 3, 8 as far as there are samples, and all of them.
        permutations: how many random orders, or the orders themselves, of the first samples (as many as the largest of
            `batch_sizes`).
        positions: places in the largest batch ("first", "middle", "last" or an index) at which single samples are put
            among random others.
        neighbours: values, such as NaN, inf or 1e30, that fill all other rows of the batched floating-point inputs, in
            further runs with a sample at each of `positions`. Only that sample is compared then.
        dynamic: one or several values of `torch.compile`'s argument of that name.
        threads: one or several thread counts; default the current one.
        batch_dim: the dim that holds the samples: one number for all tensors, or a sequence or mapping with one entry
            per top-level argument; None for a tensor without samples, such as a table (entries that a mapping lacks
            are 0).
        out_batch_dim: the same for the outputs; an output with None is not compared.
        grad: also run the backward, from fixed random gradients of the outputs, and compare the gradients of the
            floating-point inputs. Without it `fn` runs under `torch.no_grad`.
        sequence_dim: the dim that holds a sequence, in the forms of `batch_dim` (entries that a mapping lacks are None). With one, the
            inputs are also run longer by each number of `padding`, on each of `padding_sides`.
        out_sequence_dim: the same for the outputs; what stands at padding is not compared.
        padding: how many places are added.
        padding_values: what they hold: one number, or one per top-level argument (0 for those a mapping lacks).
        padding_sides: "left", "right" or both. A model that counts positions from the first place, padding or not, has to be padded on
            the right.
        chunks: lengths of chunks: the sequence is also run in chunks of so many positions, one call after the other, and compared with
            the run of the whole. (Chunks of samples are what `batch_sizes` runs.)
        in_chunks: runs them: called with the function under test and the inputs of each chunk, cut along `sequence_dim`, it returns the
            outputs of the whole sequence. It carries what a chunk leaves to the next one, such as a KV cache. Without it the function is
            called on each chunk, and outputs are put together along `out_sequence_dim`: right where no position looks at another.
        shrink: make the first failing batch as small as it stays failing, up to 100 more calls; the result has it as `smallest`.
        eager: also run `fn` uncompiled on each sample alone; the result's `eager_distance` tells how far the compiled values lie from
            those. It decides nothing: rounding differs between the two.
        options: passed to `torch.compile`.
        seed: of the random orders and gradients. The global random state is left as found.
        progress: called before each call of `fn` with what it is, how many calls are done and how many there are.

    Returns:
        A `CheckResult`: true when all bits agree, prints as a table.

    Raises:
        ValueError: an argument does not fit; the message names it, what was given and what is allowed.
        DeviceError: the function uses a GPU that is not there.

    The thread count, the random state and Dynamo's settings are restored; Dynamo's compiled code is dropped
    (`torch._dynamo.reset`) before and after each setting, so other compiled functions compile again when next called.
    """
    if not callable(fn):
        raise TypeError(f"fn: got {type(fn).__name__}; allowed are a module and a function")
    name = backend_name(backend)
    source = Inputs(inputs, batch_dim)
    if sequence_dim is not None:
        source.padding = padding_of(inputs, sequence_dim, out_sequence_dim, padding_values)
    if chunks:
        source.chunks = chunks_of(inputs, sequence_dim, out_sequence_dim, in_chunks)
        chunks = _whole_numbers("chunks", chunks, 1, source.chunks.length - 1, f" (the inputs have {source.chunks.length} positions)")
    elif in_chunks is not None:
        raise ValueError("in_chunks: it needs chunks, the lengths to run it with")
    padding = _whole_numbers("padding", padding, 1, None, "") if source.padding is not None and (padding or not chunks) else ()
    if isinstance(padding_sides, str) or not padding_sides or not set(padding_sides) <= set(SIDES):
        raise ValueError(f"padding_sides: got {padding_sides!r}; allowed is a sequence of {' and '.join(map(repr, SIDES))}")
    if batch_sizes is None:
        batch_sizes = sorted({size for size in (1, 2, 3, 8) if size <= source.samples} | {source.samples})
    batch_sizes = _whole_numbers("batch_sizes", batch_sizes, 1, source.samples, " (the number of samples in inputs)")
    thread_counts = [threads] if isinstance(threads, int) else threads
    thread_counts = [torch.get_num_threads()] if thread_counts is None else thread_counts
    thread_counts = _whole_numbers("threads", thread_counts, 1, None, "")
    dynamics = tuple(dynamic) if isinstance(dynamic, Sequence) else (dynamic,)
    if not dynamics or any(value not in (None, False, True) for value in dynamics):
        raise ValueError(f"dynamic: got {dynamic!r}; allowed are None, False, True or several of them")
    if backend == "eager":
        dynamics = (None,)
    if (neighbours or grad) and not source.has_floats():
        argument = f"neighbours={tuple(neighbours)}" if neighbours else "grad=True"
        raise ValueError(f"{argument} needs a floating-point tensor with a batch dim among the inputs")
    generator = torch.Generator().manual_seed(seed)
    largest = max(batch_sizes)
    orders = _permutations(permutations, largest, generator)
    runs = plan(source.samples, batch_sizes, orders, _positions(positions, largest), neighbours, generator, padding, chunks, padding_sides)

    devices = {leaf.value.device for leaf in source.leaves if isinstance(leaf.value, torch.Tensor)}
    gpus = [device.index for device in devices if device.type == "cuda"]
    rows: list[CheckRow] = []
    notes: dict[str, None] = {}
    failing: list[Run] = []
    shrunk: SmallestBatch | None = None
    distance: float | None = None
    # Each call of a chunk may be of another shape: a KV cache grows.
    calls = sum(2 + source.chunks.length // chunk for chunk in chunks) if source.chunks is not None else 0
    shapes = len(batch_sizes) + 1 + 2 * len(padding_sides) * len(padding) + 2 * calls + (source.samples if shrink else 0)
    cotangents: dict[str, torch.Tensor] = {}
    reference: dict[int, list[torch.Tensor]] = {}
    settings = [(value, count) for value in dynamics for count in thread_counts]
    # Each setting repeats its largest batch.
    report = Progress(progress, source.samples * (1 + eager) + len(settings) * (len(runs) + 1))
    with torch.random.fork_rng(devices=gpus), missing_device_named():
        for setting in settings:
            with thread_count(setting[1]), compiled(fn, backend, setting[0], options, shapes) as call:
                function = Function(call, source, out_batch_dim, grad, seed, cotangents, notes, report)
                if not reference:
                    for sample in range(source.samples):
                        reference[sample] = function.alone(sample)
                    if eager:
                        uncompiled = dataclasses.replace(function, call=fn)
                        distance = distance_from_eager(uncompiled, source.samples, reference)
                    alone = REPEATED_ALONE
                else:
                    alone = "alone"
                rows += compare_rows(function, runs, reference, alone, setting, failing)
                if shrink and shrunk is None and failing and all(row.rows_different == 0 for row in rows if row.run in REPEATED):
                    shrunk = smallest(function, failing, reference)
    return CheckResult(name, source.samples, tuple(rows), tuple(notes), shrunk, distance)
