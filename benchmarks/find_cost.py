"""`python -m benchmarks.find_cost`: what `bi_inductor.find` takes after its capture, against one eager run of the whole batch.

Of time: the two take turns (benchmarks/timing.py says why); a find that finds nothing runs the model four times and digests each value.
Of memory: the peak beyond what is there before, of each in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import nn

import bi_inductor
from benchmarks.memory import reset_peak, status_megabytes
from benchmarks.timing import headline


class Perceptron(nn.Module):
    """Six blocks 512-2048-512: the first linear gives a batch of one other bits than a batch of 4096."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(512, 2048) for _ in range(6))
        self.down = nn.ModuleList(nn.Linear(2048, 512) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.nn.functional.gelu(up(x)))
        return x


class Pointwise(nn.Module):
    """Twenty blocks of five pointwise ops: the digest of a value costs as much as the op that made it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = ((x * 1.01 + 0.1).relu() - 0.05).abs()
        return x


def llama() -> nn.Module:
    """Four layers of hidden size 512; the call returns the logits of every token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8, use_cache=False)
    model: nn.Module = LlamaForCausalLM(shape)
    return model


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "Llama, 32 x 64 tokens": lambda: (llama(), torch.randint(0, 32000, (32, 64))),
    "perceptron, 4096 rows": lambda: (Perceptron(), torch.randn(4096, 512)),
    "pointwise, 64 x 65536": lambda: (Pointwise(), torch.randn(64, 65536)),
}


def seconds_of_find(model: nn.Module, inputs: torch.Tensor) -> tuple[float, bool]:
    """Seconds after the capture, and whether anything was found."""
    began = 0.0

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal began
        if what != "capture" and not began:
            began = time.perf_counter()

    result = bi_inductor.find(model, inputs, progress=progress)
    return time.perf_counter() - began, not result


def seconds_of_eager(model: nn.Module, inputs: torch.Tensor) -> float:
    """Seconds of one run; the second of two, since the first finds what `find` left in the caches."""
    with torch.no_grad():
        model(inputs)
        began = time.perf_counter()
        model(inputs)
        return time.perf_counter() - began


def peak(model: nn.Module, inputs: torch.Tensor, *, finding: bool) -> int:
    """Bytes beyond the resident ones. Linux alone resets the mark."""
    with torch.no_grad():
        # What the first run of anything leaves: buffers of libraries, modules.
        model(inputs[:2])
    before = 0.0

    def progress(what: str, done: int, total: int | None) -> None:
        nonlocal before
        if what != "capture" and not before:
            before = reset_peak()

    if finding:
        bi_inductor.find(model, inputs, progress=progress)
    else:
        before = reset_peak()
        with torch.no_grad():
            model(inputs)
    return round(2**20 * (status_megabytes("VmHWM") - before))


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in eval mode and its inputs."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


def peaks(name: str) -> dict[str, int]:
    """The peak of find and of eager."""
    found = {}
    for way in ("find", "eager"):
        command = [sys.executable, "-m", "benchmarks.find_cost", "--peak", name, way]
        found[way] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "WAY"), help="print the peak of find or eager in this process only")
    given = parser.parse_args()
    if given.peak:
        name, way = given.peak
        print(peak(*made(name), finding=way == "find"))
        return
    print(headline())
    for name in MODELS:
        model, inputs = made(name)
        seconds_of_find(model, inputs)
        ratios = []
        for _ in range(given.rounds):
            before = seconds_of_eager(model, inputs)
            took, found = seconds_of_find(model, inputs)
            ratios.append(took / statistics.fmean((before, seconds_of_eager(model, inputs))))
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        memory = peaks(name)
        of_memory = memory["find"] / memory["eager"]
        result = "found" if found else "nothing found"
        print(f"{name:30} time {middle:5.2f}, quartiles {low:.2f} to {high:.2f}; memory {of_memory:.2f}; {result}", flush=True)


if __name__ == "__main__":
    main()
