"""Kernel templates, one op a folder: ``kernel.h`` (C++), ``kernel.py`` (its parameters), ``lowering.py`` (its call from Inductor)."""

from __future__ import annotations

import importlib

FOLDERS = (
    "attention",
    "convolution",
    "cumsum",
    "embedding",
    "grouped_matmul",
    "matmul",
    "native_matmul",
    "norm",
    "paged_attention",
    "random",
    "reduction",
    "sample_sum",
    "scatter",
    "softmax",
)


def register_kernels() -> None:
    """Makes every kernel known by name."""
    for folder in FOLDERS:
        importlib.import_module(f"bi_inductor.templates.{folder}.kernel")


def register_lowerings() -> None:
    """Registers the lowerings of ``torch.ops.bi_inductor.*`` with Inductor. Imports Inductor, so it waits for the first compile."""
    for folder in FOLDERS:
        importlib.import_module(f"bi_inductor.templates.{folder}.lowering")
