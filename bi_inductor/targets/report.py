"""What a compile for a target made: its kernels as a table and as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from bi_inductor.targets.description import TARGETS, Target
from bi_inductor.targets.kernels import CompiledKernel

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class TargetReport:
    """The kernels of a program on a target.

    Attributes:
        program: as the user wrote it.
        target: the GPU.
        kernels: in the order in which Inductor wrote them.
        others: calls of kernels that are not Triton's: of libraries and of torch.
    """

    program: str
    target: Target
    kernels: tuple[CompiledKernel, ...]
    others: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Everything, for ``from_json``."""
        kernels = [dataclasses.asdict(kernel) for kernel in self.kernels]
        return {"program": self.program, "target": self.target.name, "kernels": kernels, "others": list(self.others)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TargetReport:
        """What ``json`` wrote."""
        kernels = tuple(CompiledKernel(**kernel) for kernel in data["kernels"])
        return cls(data["program"], TARGETS[data["target"]], kernels, tuple(data["others"]))

    @property
    def faults(self) -> list[str]:
        """What a kernel should not have: spills, and more shared memory than there is."""
        found = []
        for kernel in self.kernels:
            if kernel.spilled:
                found.append(f"{kernel.name} spills {kernel.spilled} bytes a thread")
            if kernel.shared_memory > self.target.shared_memory:
                found.append(f"{kernel.name} needs {kernel.shared_memory} bytes of shared memory; there are {self.target.shared_memory}")
        return found

    def table(self) -> Table:
        """One line a kernel."""
        from rich.table import Table

        table = Table("kernel", "calls", "configuration", "registers", "shared memory", "spilled", "occupancy", "bytes moved")
        for kernel in self.kernels:
            others = f" or {kernel.alternatives} other{'s' if kernel.alternatives > 1 else ''}" if kernel.alternatives else ""
            moved = "?" if kernel.bytes_moved is None else f"{kernel.bytes_moved:,}"
            table.add_row(
                kernel.name,
                str(kernel.calls),
                kernel.configuration + others,
                str(kernel.registers),
                f"{kernel.shared_memory:,}",
                str(kernel.spilled),
                f"{kernel.occupancy:.0%}",
                moved,
            )
        return table

    def summary(self) -> str:
        """The totals, in a sentence or two."""
        launches = sum(kernel.calls for kernel in self.kernels)
        moved = sum(kernel.calls * (kernel.bytes_moved or 0) for kernel in self.kernels)
        bandwidth = self.target.bandwidth
        text = (
            f"kernels: {len(self.kernels)}; launches: {launches}; bytes moved: {moved:,}, which takes {moved / bandwidth * 1e6:.1f} us at "
            f"the peak of {self.target.device}, {bandwidth / 1e12:.2f} TB/s ({self.target.peak_source})."
        )
        return text + (f" Other kernels: {', '.join(self.others)}." if self.others else "")
