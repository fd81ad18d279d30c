"""GPUs as a compiler and a roofline see them: limits of a multiprocessor and peak figures, each with its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

NVIDIA_LIMITS = "CUDA C++ Programming Guide, table of technical specifications per compute capability"
CDNA3_LIMITS = "AMD CDNA 3 white paper and the instruction set manual of MI300 (512 vector registers a lane and SIMD, 64 KiB LDS)"


@dataclasses.dataclass(frozen=True)
class Target:
    """One GPU to compile for. A multiprocessor is an SM of NVIDIA's, a compute unit of AMD's.

    Attributes:
        name: what tables and the command line call it: the architecture.
        backend: "cuda" or "hip", Triton's name.
        architecture: Triton's: 90, or "gfx942".
        device: the product whose figures these are.
        warp_size: lanes of a warp (of a wavefront on AMD).
        multiprocessors: how many the device has.
        shared_memory: bytes that one block of threads may use.
        shared_memory_per_multiprocessor: bytes that all resident blocks share.
        shared_memory_reserved: bytes that the system takes for each block.
        registers_per_multiprocessor: 32-bit registers that the resident threads share.
        registers_per_thread: how many a thread may use before it spills.
        threads_per_multiprocessor, blocks_per_multiprocessor: how many may be resident.
        schedulers: parts of a multiprocessor; each holds the registers of its own warps.
        bandwidth: peak of the memory, bytes a second.
        operations: peak of the matrix units by dtype, operations a second, without sparsity.
        limits_source, peak_source: where the numbers are from.
    """

    name: str
    backend: str
    architecture: int | str
    device: str
    warp_size: int
    multiprocessors: int
    shared_memory: int
    shared_memory_per_multiprocessor: int
    shared_memory_reserved: int
    registers_per_multiprocessor: int
    registers_per_thread: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    schedulers: int
    bandwidth: float
    operations: Mapping[str, float]
    limits_source: str
    peak_source: str

    @property
    def capability(self) -> tuple[int, int]:
        """What ``torch.cuda.get_device_capability`` returns; ROCm answers with the digits of the architecture."""
        return (9, 4) if self.backend == "hip" else divmod(int(self.architecture), 10)

    def occupancy(self, registers: int, shared_memory: int, warps: int) -> float:
        """The share of resident warps that a kernel can reach, from 0 to 1; 0 if one block alone does not fit.

        Args:
            registers: 32-bit registers a thread.
            shared_memory: bytes a block.
            warps: warps a block.
        """
        most = self.threads_per_multiprocessor // self.warp_size
        if shared_memory > self.shared_memory or registers > self.registers_per_thread:
            return 0.0
        # Registers are given to a warp in units: 8 a thread.
        per_warp = max(-(-registers // 8) * 8, 8) * self.warp_size
        by_registers = self.registers_per_multiprocessor // self.schedulers // per_warp * self.schedulers // warps
        by_memory = self.shared_memory_per_multiprocessor // max(shared_memory + self.shared_memory_reserved, 1)
        blocks = min(by_registers, by_memory, most // warps, self.blocks_per_multiprocessor)
        return blocks * warps / most


_KIB = 1024

TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            name="sm_80",
            backend="cuda",
            architecture=80,
            device="NVIDIA A100 SXM 80GB",
            warp_size=32,
            multiprocessors=108,
            shared_memory=163 * _KIB,
            shared_memory_per_multiprocessor=164 * _KIB,
            shared_memory_reserved=_KIB,
            registers_per_multiprocessor=65536,
            registers_per_thread=255,
            threads_per_multiprocessor=2048,
            blocks_per_multiprocessor=32,
            schedulers=4,
            bandwidth=2.039e12,
            operations={"fp32": 19.5e12, "fp16": 312e12, "bf16": 312e12, "int8": 624e12},
            limits_source=NVIDIA_LIMITS,
            peak_source="NVIDIA A100 data sheet (SXM, 80 GB)",
        ),
        Target(
            name="sm_90",
            backend="cuda",
            architecture=90,
            device="NVIDIA H100 SXM",
            warp_size=32,
            multiprocessors=132,
            shared_memory=227 * _KIB,
            shared_memory_per_multiprocessor=228 * _KIB,
            shared_memory_reserved=_KIB,
            registers_per_multiprocessor=65536,
            registers_per_thread=255,
            threads_per_multiprocessor=2048,
            blocks_per_multiprocessor=32,
            schedulers=4,
            bandwidth=3.35e12,
            operations={"fp32": 67e12, "fp16": 989e12, "bf16": 989e12, "fp8": 1979e12, "int8": 1979e12},
            limits_source=NVIDIA_LIMITS,
            peak_source="NVIDIA H100 data sheet (SXM), half of the figures given with sparsity",
        ),
        Target(
            name="sm_100",
            backend="cuda",
            architecture=100,
            device="NVIDIA B200",
            warp_size=32,
            multiprocessors=148,
            shared_memory=227 * _KIB,
            shared_memory_per_multiprocessor=228 * _KIB,
            shared_memory_reserved=_KIB,
            registers_per_multiprocessor=65536,
            registers_per_thread=255,
            threads_per_multiprocessor=2048,
            blocks_per_multiprocessor=32,
            schedulers=4,
            bandwidth=8.0e12,
            operations={"fp32": 75e12, "fp16": 2250e12, "bf16": 2250e12, "fp8": 4500e12, "int8": 4500e12},
            limits_source=NVIDIA_LIMITS,
            peak_source="NVIDIA HGX B200 data sheet, an eighth of the board, half of the figures given with sparsity",
        ),
        Target(
            name="gfx942",
            backend="hip",
            architecture="gfx942",
            device="AMD Instinct MI300X",
            warp_size=64,
            multiprocessors=304,
            shared_memory=64 * _KIB,
            shared_memory_per_multiprocessor=64 * _KIB,
            shared_memory_reserved=0,
            registers_per_multiprocessor=131072,
            registers_per_thread=512,
            threads_per_multiprocessor=2048,
            blocks_per_multiprocessor=32,
            schedulers=4,
            bandwidth=5.3e12,
            operations={"fp32": 163.4e12, "fp16": 1307.4e12, "bf16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12},
            limits_source=CDNA3_LIMITS,
            peak_source="AMD Instinct MI300X data sheet",
        ),
    )
}


def configuration_text(sizes: Mapping[str, object], warps: int, stages: int) -> str:
    """How reports write what a kernel is pinned to: "BLOCK_M=64, CHUNK=32, 4 warps, 1 stage"."""
    parts = [f"{name}={size}" for name, size in sizes.items()]
    return ", ".join([*parts, f"{warps} warp{'s' * (warps != 1)}", f"{stages} stage{'s' * (stages != 1)}"])


def target_named(name: str) -> Target:
    """The target of that name. Raises ValueError for another one."""
    if name not in TARGETS:
        raise ValueError(f"target: got {name!r}; allowed are {', '.join(TARGETS)}")
    return TARGETS[name]
