"""Batches for `check`: which samples run together, what the function returns for them, how their rows are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from ..leaves import BatchDim, Leaf, call_with, leaves_with_dims, unknown_output
from ..ulp import bits_differ, ulp_distance
from .chunks import Chunks
from .padding import SIDES, Pad, Padding
from .result import REPEATED_BATCH, CheckRow
from .shrink import SmallestBatch, shrink

PLACES = ("first", "middle", "last")


class Run(NamedTuple):
    """One call: which samples, in which order, which of the places are compared, what the other places hold, how it is padded or cut."""

    kind: str
    samples: tuple[int, ...]
    compared: tuple[int, ...]
    neighbours: float | None = None
    padding: Pad | None = None
    chunk: int | None = None


class Inputs:
    """The inputs of the function, from which batches are gathered."""

    def __init__(self, inputs: Any, batch_dim: BatchDim, padding: Padding | None = None) -> None:
        self.padding = padding
        self.chunks: Chunks | None = None
        if not isinstance(inputs, (torch.Tensor, tuple, list, dict)):
            raise ValueError(f"inputs must be a tensor, tuple, list or dict, got {type(inputs).__name__}")
        leaves, self.structure = pytree.tree_flatten_with_path(inputs)
        for path, value in leaves:
            if not isinstance(value, (torch.Tensor, int, float, complex, str, bytes, torch.dtype, type(None))):
                raise ValueError(
                    f"inputs{pytree.keystr(path)} is a {type(value).__name__}; allowed are tensors, numbers, strings, "
                    "None and containers that torch.utils._pytree knows (register_pytree_node adds one)"
                )
        self.leaves = leaves_with_dims(leaves, batch_dim, "batch_dim", "inputs")
        sizes = {leaf.name: leaf.value.shape[leaf.dim] for leaf in self.leaves if leaf.is_batched}
        if not sizes:
            raise ValueError(f"inputs hold no tensor with a batch dim (batch_dim={batch_dim!r}); name the dim that holds the samples")
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise ValueError(
                f"inputs disagree on the number of samples ({found}); give batch_dim for each input, None for those without samples"
            )
        self.samples: int = next(iter(sizes.values()))
        if self.samples < 2:
            raise ValueError(f"inputs hold {self.samples} sample(s); at least 2 are needed to form different batches")

    def has_floats(self) -> bool:
        return any(leaf.is_batched and _has_gradient(leaf.value) for leaf in self.leaves)

    def gather(self, run: Run, grad: bool) -> tuple[Any, list[Leaf]]:
        """The inputs of one call (always new tensors, so that the function may write to them), and those that have
        a gradient per sample when `grad` is set."""
        values, differentiable = [], []
        for leaf in self.leaves:
            value = leaf.value
            if isinstance(value, torch.Tensor):
                value = value.detach()
                if leaf.dim is None:
                    value = value.clone()
                else:
                    value = value.index_select(leaf.dim, torch.tensor(run.samples, device=value.device))
                    if run.neighbours is not None and _has_gradient(value):
                        for place in set(range(len(run.samples))) - set(run.compared):
                            # Through float64, so that 1e30 becomes infinity in float16 instead of an error.
                            row = value.select(leaf.dim, place)
                            row.copy_(torch.tensor(run.neighbours, dtype=torch.float64).to(value.dtype))
                    if run.padding is not None and self.padding is not None:
                        value = self.padding.pad(leaf, value, run.padding)
                    if grad and _has_gradient(value):
                        value.requires_grad_()
                        differentiable.append(Leaf(f"gradient of {leaf.name}", value, leaf.dim))
            values.append(value)
        return pytree.tree_unflatten(values, self.structure), differentiable


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class OutputRows(NamedTuple):
    """One output of one call, its batch dim moved to the front."""

    name: str
    value: torch.Tensor


@dataclass
class Progress:
    """Counts the calls and tells `tell` (what comes, how many are done, how many there are)."""

    tell: Callable[[str, int, int], None] | None
    total: int
    done: int = 0

    def next(self, what: str) -> None:
        if self.tell is not None:
            self.tell(what, self.done, self.total)
        self.done += 1


@dataclass
class Function:
    """The function under test in one setting, and how its outputs are read."""

    call: Callable[..., Any]
    inputs: Inputs
    out_batch_dim: BatchDim
    grad: bool
    seed: int
    # Gradients start from one fixed random tensor per output, the same for a sample wherever it is.
    cotangents: dict[str, torch.Tensor]
    notes: dict[str, None]
    progress: Progress

    def __call__(self, run: Run) -> list[OutputRows]:
        self.progress.next(run.kind)
        arguments, differentiable = self.inputs.gather(run, self.grad)
        with torch.set_grad_enabled(self.grad):
            if run.chunk is not None and self.inputs.chunks is not None:
                outputs = self.inputs.chunks.run(self.call, arguments, run.chunk)
            else:
                outputs = call_with(self.call, arguments)
            padding = self.inputs.padding
            if run.padding is not None and padding is not None:
                outputs = padding.cut_outputs(outputs, run.padding)
            leaves = self._batched_outputs(outputs, len(run.samples))
            if self.grad:
                leaves += self._gradients(leaves, differentiable, run)
        return [OutputRows(leaf.name, leaf.value.detach().movedim(leaf.dim, 0)) for leaf in leaves]

    def alone(self, sample: int, kind: str = "alone") -> list[torch.Tensor]:
        """The outputs for one sample in a batch of its own, without the batch dim."""
        return [output.value[0] for output in self(Run(kind, (sample,), (0,)))]

    def _batched_outputs(self, outputs: Any, batch_size: int) -> list[Leaf]:
        flat = pytree.tree_flatten_with_path(outputs)[0]
        for path, value in flat:
            if not isinstance(value, (torch.Tensor, type(None))):
                self.notes[f"output{pytree.keystr(path)} ({type(value).__name__}) was not compared"] = None
        leaves = [leaf for leaf in leaves_with_dims(flat, self.out_batch_dim, "out_batch_dim", "output") if leaf.is_batched]
        if not leaves:
            unknown = next((sentence for _, value in flat if (sentence := unknown_output(value)) is not None), None)
            raise ValueError(unknown or f"the function returned no tensor with a batch dim (out_batch_dim={self.out_batch_dim!r})")
        for leaf in leaves:
            if leaf.value.shape[leaf.dim] != batch_size:
                raise ValueError(
                    f"{leaf.name} has shape {tuple(leaf.value.shape)}, so its dim {leaf.dim} is not the batch of "
                    f"{batch_size}; give out_batch_dim, None for an output without samples (or of a shape that depends on values)"
                )
        return leaves

    def _gradients(self, outputs: list[Leaf], differentiable: list[Leaf], run: Run) -> list[Leaf]:
        roots = [leaf for leaf in outputs if leaf.value.requires_grad]
        if not roots:
            raise ValueError("grad=True, but no output depends differentiably on an input that has samples")
        starts = []
        for leaf in roots:
            value = leaf.value
            if leaf.name not in self.cotangents:
                shape = (self.inputs.samples, *value.movedim(leaf.dim, 0).shape[1:])
                generator = torch.Generator().manual_seed(self.seed)
                start = torch.randn(shape, generator=generator, dtype=torch.complex64 if value.is_complex() else None)
                self.cotangents[leaf.name] = start.to(value.device, value.dtype)
            start = self.cotangents[leaf.name][torch.tensor(run.samples, device=value.device)]
            starts.append(start.movedim(0, leaf.dim or 0))
        gradients = torch.autograd.grad(
            [leaf.value for leaf in roots],
            [leaf.value for leaf in differentiable],
            starts,
            allow_unused=True,
            materialize_grads=True,
        )
        leaves = [leaf._replace(value=gradient) for leaf, gradient in zip(differentiable, gradients, strict=True)]
        padding = self.inputs.padding
        if run.padding is None or padding is None:
            return leaves
        # What padding itself receives is no result of a sample.
        dims = {f"gradient of {name}": dim for name, dim in padding.dims.items()}
        return [leaf._replace(value=run.padding.cut(leaf.value, dims[leaf.name])) if leaf.name in dims else leaf for leaf in leaves]


class Tally:
    """Adds up the comparisons of the runs of one kind."""

    def __init__(self) -> None:
        self.rows = self.rows_different = self.elements_different = 0
        self.max_ulp = 0.0

    def compare(self, run: Run, got: list[OutputRows], reference: Mapping[int, list[torch.Tensor]]) -> None:
        """Compares the rows of one call with each sample's reference rows (one tensor per output)."""
        different = torch.zeros(len(run.compared), dtype=torch.bool)
        for output, (name, value) in enumerate(got):
            expected = [reference[run.samples[place]][output] for place in run.compared]
            if expected[0].shape != value.shape[1:] or expected[0].dtype != value.dtype:
                raise ValueError(
                    f"{name} of a sample is {expected[0].dtype} {tuple(expected[0].shape)} in the reference and "
                    f"{value.dtype} {tuple(value.shape[1:])} in a batch of {len(run.samples)}: rows cannot be compared"
                    + ("; give out_sequence_dim for an output that is as long as the padded inputs" if run.padding else "")
                    + ("; in_chunks has to return the outputs of the whole sequence" if run.chunk else "")
                )
            rows = value[list(run.compared)]
            wanted = torch.stack(expected)
            differ = bits_differ(rows, wanted)
            if differ.any():
                different |= differ.flatten(1).any(1).cpu() if differ.dim() > 1 else differ.cpu()
                self.elements_different += int(differ.sum())
                self.max_ulp = max(self.max_ulp, float(ulp_distance(rows, wanted)[differ].max()))
        self.rows += len(run.compared)
        self.rows_different += int(different.sum())


def _windows(samples: int, size: int) -> Iterator[tuple[int, ...]]:
    """Consecutive groups of `size` samples that cover all of them; the last one may overlap the one before."""
    for start in range(0, samples, size):
        start = min(start, samples - size)
        yield tuple(range(start, start + size))


def plan(
    samples: int,
    batch_sizes: Sequence[int],
    permutations: Sequence[Sequence[int]],
    positions: Sequence[str | int],
    neighbours: Sequence[float],
    generator: torch.Generator,
    padding: Sequence[int] = (),
    chunks: Sequence[int] = (),
    padding_sides: Sequence[str] = SIDES,
) -> list[Run]:
    """All calls of one setting, those of a kind together."""
    runs = []
    for size in batch_sizes:
        kind = "alone" if size == 1 else f"batch of {size}"
        runs += [Run(kind, window, tuple(range(size))) for window in _windows(samples, size)]
    largest = max(batch_sizes)
    for side in padding_sides:
        for amount in padding:
            for size in sorted({1, largest}):
                kind, pad = f"padded {side} by {amount}", Pad(side, amount)
                runs += [Run(kind, window, tuple(range(size)), None, pad) for window in _windows(samples, size)]
    for length in chunks:
        for size in sorted({1, largest}):
            kind = f"in chunks of {length}"
            runs += [Run(kind, window, tuple(range(size)), None, None, length) for window in _windows(samples, size)]
    if largest == 1:
        return runs
    every = tuple(range(largest))
    runs += [Run(f"permutation {index}", tuple(order), every) for index, order in enumerate(permutations)]
    # A few samples suffice: all rows of these batches are compared.
    placed = sorted({0, samples // 2, samples - 1})
    for fill in (None, *neighbours):
        for position in positions:
            if isinstance(position, str):
                place = {"first": 0, "middle": largest // 2, "last": largest - 1}[position]
                kind = f"sample {position}"
            else:
                place = position % largest
                kind = f"sample at {position}"
            if fill is not None:
                kind += f", neighbours {fill:g}"
            for sample in placed:
                others = [other for other in torch.randperm(samples, generator=generator).tolist() if other != sample]
                order = (*others[:place], sample, *others[place : largest - 1])
                runs.append(Run(kind, order, every if fill is None else (place,), fill))
    return runs


def compare_rows(
    function: Function,
    runs: Sequence[Run],
    reference: Mapping[int, list[torch.Tensor]],
    alone: str,
    setting: tuple[bool | None, int],
    failing: list[Run],
) -> Iterator[CheckRow]:
    """The table rows of one setting; `alone` is the description for batches of one. Runs with rows that differ go into `failing`."""
    tallies: dict[tuple[str, int], Tally] = {}
    largest = max(runs, key=lambda run: (len(run.samples), run.neighbours is None, run.padding is None, run.chunk is None))
    for run in runs:
        got = function(run)
        tally = tallies.setdefault((run.kind, len(run.samples)), Tally())
        different = tally.rows_different
        tally.compare(run, got, reference)
        if tally.rows_different > different:
            failing.append(run)
        if run is largest:
            first = {sample: [output.value[place] for output in got] for place, sample in enumerate(run.samples)}
            again = Tally()
            again.compare(run, function(run), first)
    if len(largest.samples) > 1:
        tallies[REPEATED_BATCH, len(largest.samples)] = again
    for (kind, size), tally in tallies.items():
        label = alone if kind == "alone" else kind
        counts = (tally.rows, tally.rows_different, tally.elements_different)
        yield CheckRow(label, size, *setting, *counts, tally.max_ulp)


def smallest(function: Function, failing: Sequence[Run], reference: Mapping[int, list[torch.Tensor]]) -> SmallestBatch:
    """The shrunk form of the smallest failing run."""
    plainest = min(failing, key=lambda run: (len(run.samples), run.padding is not None, run.chunk is not None, run.neighbours is not None))
    return shrink(function, plainest, reference)
