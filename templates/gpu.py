"""Which GPU a graph is lowered for, as the tables of configurations call it."""

from __future__ import annotations

import functools
import warnings

import torch

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
DEFAULT = "default"


def target_of(device: torch.device | None) -> str:
    """The name of the device's architecture in the tables, or "default" where they have none for it.

    Warns:
        UserWarning: the tables have no entry for the device; once for each architecture.
    """
    assert device is not None
    if device.type == "cpu":
        return DEFAULT
    # torch._inductor.runtime.hints.DeviceProperties.create, checked in torch 2.13.0: `cc` is 90 on sm_90, "gfx942" on that.
    from torch._inductor.runtime.hints import DeviceProperties

    architecture = DeviceProperties.create(device).cc
    name = f"sm_{architecture}" if isinstance(architecture, int) else str(architecture).partition(":")[0]
    if name not in TARGETS:
        _say_once(name)
        return DEFAULT
    return name


def multiprocessors(device: torch.device | None) -> int:
    """How many programs run at the same time; 2 on the CPU, where the interpreter runs them one after the other."""
    assert device is not None
    if device.type == "cpu":
        return 2
    from torch._inductor.runtime.hints import DeviceProperties

    count = DeviceProperties.create(device).multi_processor_count
    assert count is not None
    return count


@functools.cache
def _say_once(name: str) -> None:
    warnings.warn(
        f"bi_inductor has no tuned configurations for the GPU architecture {name!r} ({', '.join(TARGETS)} have); "
        "the default ones are used. Bits do not depend on the batch with these either.",
        stacklevel=2,
    )
