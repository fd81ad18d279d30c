"""A described GPU in the place of one: torch and Inductor compile for it from fake tensors, on a machine that has none.

:func:`described_device` replaces what torch asks a device, and puts it back. Answers that torch keeps (``functools.cache``) stay behind,
and ROCm is chosen where Inductor is imported, so a process that compiles for a described device should do nothing else:
``bi_inductor.targets.compile`` starts one.

torch internals, checked in 2.13.0: torch.cuda's functions and torch._C._cuda_* of a build without CUDA,
torch._dynamo.device_interface.CudaInterface, lazy_init of Inductor's joint and post-grad passes (their patterns, which a pin turns off, are
traced on tensors of the device), torch._inductor.runtime.triton_helpers.set_driver_to_gpu.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from bi_inductor.targets.description import Target

# What torch.version.hip is set to: any text makes Inductor write for ROCm.
ROCM = "7.0"


def properties(target: Target) -> types.SimpleNamespace:
    """What ``torch.cuda.get_device_properties`` returns for it."""
    major, minor = target.capability
    return types.SimpleNamespace(
        name=target.device,
        major=major,
        minor=minor,
        multi_processor_count=target.multiprocessors,
        warp_size=target.warp_size,
        regs_per_multiprocessor=target.registers_per_multiprocessor,
        max_threads_per_multi_processor=target.threads_per_multiprocessor,
        max_threads_per_block=1024,
        shared_memory_per_block=min(target.shared_memory, 48 * 1024),
        shared_memory_per_block_optin=target.shared_memory,
        shared_memory_per_multiprocessor=target.shared_memory_per_multiprocessor,
        gcnArchName=str(target.architecture) if target.backend == "hip" else "",
        total_memory=64 << 30,
        L2_cache_size=32 << 20,
    )


@functools.cache
def load_device_guard() -> None:
    """Gives torch the guard that indexing a tensor on the device asks for, where no GPU is; for the rest of the process.

    A build without CUDA has none. That of a build with CUDA, which the last one registered replaces, asks the driver of a GPU.
    To be called outside of ``described_device``, where a GPU is there.

    Raises:
        torch._inductor.exc.InvalidCxxCompiler: there is no C++ compiler.
    """
    if torch.cuda.is_available():
        return
    from torch._inductor.codecache import CppCodeCache

    # The library registers itself by a function of c10, which Python has loaded for torch alone.
    ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"), mode=ctypes.RTLD_GLOBAL)
    CppCodeCache.load(Path(__file__).with_name("device_guard.cpp").read_text(encoding="utf-8"), device_type="cpu")


@contextlib.contextmanager
def described_device(target: Target) -> Iterator[None]:
    """While active, ``torch.device("cuda", 0)`` is the described device; tensors on it have to be fake.

    Raises:
        RuntimeError: a target of ROCm, and Inductor was imported before ``torch.version.hip`` was set.
    """
    if target.backend == "hip" and torch.version.hip is None:
        raise RuntimeError("Inductor reads torch.version.hip while it is imported: set it first, in a process of its own")
    import torch._dynamo.device_interface as device_interface
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch._inductor.fx_passes.post_grad as post_grad
    import torch._inductor.runtime.triton_helpers as triton_helpers
    import triton

    from bi_inductor.targets.driver import DescribedDriver

    answers = properties(target)

    def always(value: Any) -> Any:
        return lambda *args, **kwargs: value

    cuda = {
        "is_available": always(True),
        "is_initialized": always(True),
        "_lazy_init": always(None),
        "device_count": always(1),
        "current_device": always(0),
        "set_device": always(None),
        "synchronize": always(None),
        "get_device_properties": always(answers),
        "get_device_capability": always(target.capability),
        "get_device_name": always(target.device),
        "is_bf16_supported": always(True),
        "is_current_stream_capturing": always(False),
        "_exchange_device": always(0),
        "_maybe_exchange_device": always(0),
        "get_rng_state": always(torch.zeros(16, dtype=torch.uint8)),
        "set_rng_state": always(None),
    }
    interface = {
        name: staticmethod(cuda[name])
        for name in ("current_device", "set_device", "device_count", "synchronize", "get_device_properties", "is_bf16_supported")
    }
    interface |= {
        "get_raw_stream": staticmethod(always(0)),
        "exchange_device": staticmethod(always(0)),
        "maybe_exchange_device": staticmethod(always(0)),
    }
    native = {"_cuda_getDevice": always(0), "_cuda_getCurrentRawStream": always(0), "_cuda_getDeviceCount": always(1)}
    worker = {name: interface[name] for name in ("get_device_properties", "current_device")}
    driver = triton.runtime.driver
    former = driver._active
    driver.set_active(DescribedDriver(target))
    try:
        with contextlib.ExitStack() as stack:
            for owner, replaced in (
                (torch.cuda, cuda),
                (torch._C, native),
                (device_interface.CudaInterface, interface),
                (device_interface.CudaInterface.Worker, worker),
                (device_interface, {"get_cuda_stream": always(0)}),
                (joint_graph, {"lazy_init": always(None)}),
                (post_grad, {"lazy_init": always(None)}),
                (triton_helpers, {"set_driver_to_gpu": always(None)}),
            ):
                for name, value in replaced.items():
                    # A build without CUDA lacks some of them.
                    stack.enter_context(mock.patch.object(owner, name, value, create=True))
            yield
    finally:
        driver._active = former
