"""The Triton kernels of one compile: gathered while Inductor writes them, built by Triton for a target, and measured.

torch internals, checked in 2.13.0: AsyncCompile.triton(name, source, device), GraphLowering.save_output_code, and CachingAutotuner with its
``configs``, ``_create_compile_meta`` and ``_create_compile_options``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from bi_inductor.targets.description import Target, configuration_text


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
    """A kernel as a target would run it.

    Attributes:
        name: Inductor's.
        configuration: its block sizes, warps and pipeline stages.
        alternatives: configurations beside it among which Inductor would choose by timing; 0 for a pinned one.
        calls: how often the compiled graphs launch it.
        registers: 32-bit registers a thread.
        shared_memory: bytes a block.
        spilled: bytes a thread that do not fit into registers.
        occupancy: share of the resident warps that registers, shared memory and threads allow.
        bytes_moved: bytes that one launch reads and writes at the sizes of the example inputs, each buffer once; None if unknown.
        operations: floating-point operations of its matrix products at those sizes; None if it has none.
        source: Inductor's Triton code.
        assembly: PTX, or AMD's assembly.
    """

    name: str
    configuration: str
    alternatives: int
    calls: int
    registers: int
    shared_memory: int
    spilled: int
    occupancy: float
    bytes_moved: int | None
    operations: int | None
    source: str
    assembly: str

    def instructions(self, pattern: str) -> list[str]:
        """The instructions of its assembly whose name matches a regular expression from its start, in order."""
        found = re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)", self.assembly, re.MULTILINE)
        return [name for name in found if re.match(pattern, name)]


@dataclasses.dataclass
class Gathered:
    """What Inductor wrote: sources of kernels by name, and the code that calls them, one text a graph."""

    kernels: dict[str, str] = dataclasses.field(default_factory=dict)
    wrappers: list[str] = dataclasses.field(default_factory=list)

    def calls(self, name: str) -> int:
        """How often the graphs launch a kernel. (Each text holds the kernel's source too, with a launch that would time it.)"""
        launch = re.compile(rf"\b{re.escape(name)}\.run\(")
        own = len(launch.findall(self.kernels[name]))
        found = [len(launch.findall(code)) for code in self.wrappers]
        return sum(count - own for count in found if count)

    def other_calls(self) -> list[str]:
        """Calls of kernels that are not Triton's: of libraries and of torch, in order."""
        found = [re.findall(r"(?<![\w.])(extern_kernels\.\w+|torch\.ops\.[\w.]+|fallback_\w+)\(", code) for code in self.wrappers]
        return [name for names in found for name in names]


@dataclasses.dataclass(frozen=True)
class _Kept:
    """In the place of a kernel that is not built."""

    name: str


@contextlib.contextmanager
def gathered() -> Iterator[Gathered]:
    """While active, Triton kernels that Inductor writes in this process are kept and not built."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    result = Gathered()

    def keep(self: AsyncCompile, kernel_name: str, source_code: str, device_str: str = "cuda") -> object:
        result.kernels[kernel_name] = source_code
        return _Kept(kernel_name)

    with (
        mock.patch.object(AsyncCompile, "triton", keep),
        mock.patch.object(GraphLowering, "save_output_code", staticmethod(result.wrappers.append)),
    ):
        yield result


def build(name: str, source: str, calls: int, target: Target) -> CompiledKernel:
    """Builds a kernel by Triton and measures it. Runs inside ``described_device(target)``.

    Raises:
        triton.compiler.errors.CompilationError, triton.runtime.errors.OutOfResources: as Triton does.
    """
    import triton
    from torch._inductor.codecache import PyCodeCache
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    autotuner: Any = getattr(PyCodeCache.load(source), name)
    configuration = autotuner.configs[0]
    meta = autotuner._create_compile_meta(configuration)
    options = autotuner._create_compile_options(configuration, meta)
    ast = ASTSource(autotuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    kernel = triton.compile(ast, target=GPUTarget(target.backend, target.architecture, target.warp_size), options=options)
    registers, spilled = _resources(kernel, target)
    inductor = autotuner.inductor_meta
    moved = inductor.get("kernel_num_gb")
    return CompiledKernel(
        name=name,
        configuration=_configuration(configuration, inductor.get("config_args", {})),
        alternatives=len(autotuner.configs) - 1,
        calls=calls,
        registers=registers,
        shared_memory=kernel.metadata.shared,
        spilled=spilled,
        occupancy=target.occupancy(registers, kernel.metadata.shared, kernel.metadata.num_warps),
        bytes_moved=None if moved is None else round(moved * 1e9),
        operations=inductor.get("kernel_flop"),
        source=source,
        assembly=kernel.asm["ptx" if target.backend == "cuda" else "amdgcn"],
    )


def _configuration(config: Any, constants: Mapping[str, Any]) -> str:
    """Block sizes, which Inductor's own kernels have from ``config`` and templates among their constants, then warps and stages."""
    chosen = re.compile("BLOCK|GROUP|PROGRAMS|CHUNK|UNROLL|ROWS|CHAINS|AHEAD")
    sizes = {**config.kwargs, **{name: value for name, value in constants.items() if chosen.match(name)}}
    return configuration_text(sizes, config.num_warps, config.num_stages)


def _resources(kernel: Any, target: Target) -> tuple[int, int]:
    """Registers a thread, and bytes a thread that are spilled to memory."""
    if target.backend == "hip":
        metadata = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)\s*$", kernel.asm["amdgcn"], re.MULTILINE)}
        # Vector registers and accumulators share one file.
        return metadata["vgpr_count"], 4 * metadata.get("vgpr_spill_count", 0)
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        listing = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", listing)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]
