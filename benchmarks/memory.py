"""Memory that one call takes, as Linux counts it."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def status_megabytes(field: str) -> float:
    """A field of /proc/self/status (VmRSS resident now, VmHWM resident at most) in megabytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in {STATUS}")


def reset_peak() -> float:
    """Sets VmHWM to what is resident now, and returns that in megabytes. Raises OSError where the kernel cannot."""
    CLEAR.write_text("5")
    return status_megabytes("VmRSS")


def _settle() -> None:
    """Gives back what Python and the allocator keep for later, which would hide what a call takes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def peak_megabytes(call: Callable[[], Any]) -> float:
    """Megabytes that a call adds at its peak to what is resident before it; its result counts.

    The call is made in a thread of its own: what kernels keep for each thread is then empty before it and counts too.

    Raises:
        OSError: the peak cannot be reset (no /proc/self/clear_refs, or it cannot be written).
    """
    found: list[float] = []

    def run() -> None:
        with torch.no_grad():
            before = status_megabytes("VmRSS")
            result = call()
            found.append(status_megabytes("VmHWM") - before)
            del result

    _settle()
    reset_peak()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return max(0.0, found[0])
